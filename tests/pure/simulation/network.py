"""A network and clocks made of a seed: what is sent comes late, and is lost with the connection it is on."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any

MOST_TURNS_AT_ONCE = 20
"""A timer that is due so many times in a row at one instant spins."""
CLOSED = object()
"""The last thing that comes over a connection."""

Do = Callable[[], None]


class Clock:
    """What happens when, in order."""

    def __init__(self, rng: random.Random, delay_s: float) -> None:
        self.rng, self.delay_s = rng, delay_s
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Do]] = []
        self._number = 0

    def at(self, at_s: float, do: Do) -> None:
        """Has something happen then."""
        self._number += 1
        heappush(self._queue, (at_s, self._number, do))

    def step(self) -> None:
        """The next thing happens."""
        self.now_s, _, do = heappop(self._queue)
        do()

    def delay(self) -> float:
        """How long a message takes; now and then ten times as long."""
        chance = self.rng.random()
        return self.delay_s * (chance if chance < 0.95 else 200 * (chance - 0.95))


class Process:
    """What arrives at a process that is frozen waits; at one that is dead, nothing arrives."""

    def __init__(self, clock: Clock, name: str) -> None:
        self.clock, self.name = clock, name
        self.alive, self.frozen = True, False
        self.connections: dict[Connection, None] = {}
        self._frozen_s = 0.0
        self._held: dict[object, deque[Do]] = {}

    def __repr__(self) -> str:
        return f"{self.name}{' frozen' if self.frozen else '' if self.alive else ' dead'}"

    def run(self, do: Do, source: object = None) -> None:
        """Does something in this process, now or when it runs again; in order, if of one source."""
        if not self.alive:
            return
        if self.frozen:
            self._held.setdefault(source, deque()).append(do)
        else:
            do()

    def later(self, seconds: float, do: Do) -> None:
        """The process's own timers."""
        self.clock.at(self.clock.now_s + seconds, partial(self.run, do, do))

    def freeze(self, seconds: float) -> None:
        """SIGSTOP; for good, if ``seconds`` are infinite."""
        if self.frozen or not self.alive:
            return
        self.frozen, self._frozen_s = True, self.clock.now_s
        if math.isfinite(seconds):
            self.clock.at(self.clock.now_s + seconds, self._thaw)

    def _thaw(self) -> None:
        if not self.alive:
            return
        self.frozen = False
        self.thawed(self.clock.now_s - self._frozen_s)
        while self._held and self.alive:
            source = self.clock.rng.choice(list(self._held))
            waiting = self._held[source]
            do = waiting.popleft()
            if not waiting:
                del self._held[source]
            do()
        self.caught_up()

    def thawed(self, seconds: float) -> None:
        """The first thing that a process does after it was frozen for so long."""

    def caught_up(self) -> None:
        """It has dealt with all that came meanwhile."""

    def die(self, *, lossy: bool) -> None:
        """lossy: the last of what it said may not have left its memory yet."""
        self.alive = False
        self._held.clear()
        for connection in list(self.connections):
            connection.close(self, lossy=lossy)


class Timer:
    """Has a process do something when a state machine says that time matters to it."""

    def __init__(self, process: Process, due: Do) -> None:
        self._process, self._clock, self._due = process, process.clock, due
        self.at_s: float | None = None
        self._last_s, self._turns = -1.0, 0

    def set(self, at_s: float | None) -> None:
        """None: not at all."""
        if at_s != self.at_s:
            self.at_s = at_s
            if at_s is not None:
                self._clock.at(max(at_s, self._clock.now_s), partial(self._ring, at_s))

    def _ring(self, at_s: float) -> None:
        if at_s == self.at_s:
            self._process.run(self._turn, self)

    def _turn(self) -> None:
        now_s = self._clock.now_s
        self._turns = self._turns + 1 if now_s == self._last_s else 0
        self._last_s, self.at_s = now_s, None
        assert self._turns < MOST_TURNS_AT_ONCE, f"{self._process.name} spins: a timer is due again and again"
        self._due()


class Pipe:
    """One direction of a connection: first in, first out.

    stalled_s: until then nothing arrives.
    """

    def __init__(self, connection: Connection, to: Process, take: Callable[[Connection, Any], None]) -> None:
        self._connection, self._clock, self._to, self._take = connection, to.clock, to, take
        self._on_way: deque[Any] = deque()
        self._last_s = 0.0
        self.stalled_s = 0.0
        self.open = True

    def send(self, message: Any) -> None:
        """To an end that has closed, nothing."""
        if self.open:
            clock = self._clock
            self._last_s = last_s = max(self._last_s, clock.now_s + clock.delay())
            self._on_way.append(message)
            clock.at(last_s, self._arrive)

    def _arrive(self) -> None:
        if not self._on_way:
            return  # it was lost, or has come already
        if self._clock.now_s < self.stalled_s:
            return self._clock.at(self.stalled_s, self._arrive)
        message = self._on_way.popleft()
        if self._to.frozen:
            self._to.run(partial(self._take, self._connection, message), self)
        elif self._to.alive:
            self._take(self._connection, message)

    def flush(self) -> None:
        """All that is on its way arrives now."""
        while self._on_way and self._clock.now_s >= self.stalled_s:
            self._arrive()

    def lose_some(self) -> None:
        """The last messages have not left the sender's memory."""
        for _ in range(self._clock.rng.randint(0, len(self._on_way))):
            self._on_way.pop()

    def lose_all(self) -> None:
        """Nobody takes what is on its way."""
        self._on_way.clear()


class Connection:
    """Between a process that connected (near) and one that listens (far).

    Each end is told once, after all that came before, that the other one has closed it. generation: of
    the servers, in the data plane.
    """

    def __init__(
        self,
        near: Process,
        far: Process,
        to_near: Callable[[Connection, Any], None],
        to_far: Callable[[Connection, Any], None],
        generation: int = 0,
    ) -> None:
        self.near, self.far, self.generation = near, far, generation
        self.up, self.down = Pipe(self, far, to_far), Pipe(self, near, to_near)
        self.greeted = False
        """Near knows that far has heard it."""
        self.waiting: list[Any] = []
        """What near says once it knows that."""
        near.connections[self] = far.connections[self] = None

    def greet(self) -> None:
        """Far has answered near's Hello."""
        self.greeted = True
        for message in self.waiting:
            self.up.send(message)

    def say(self, message: Any) -> None:
        """From near, as soon as it may."""
        if self.greeted:
            self.up.send(message)
        else:
            self.waiting.append(message)

    def close(self, by: Process | None, *, lossy: bool) -> None:
        """``by`` has closed it, or died, and reads no more; None: the network has lost it."""
        for pipe, sender in ((self.up, self.near), (self.down, self.far)):
            if not pipe.open:
                continue
            if by is sender:
                if lossy:
                    pipe.lose_some()
                pipe.send(CLOSED)
            else:
                pipe.lose_all()
                if by is None:
                    pipe.send(CLOSED)
            pipe.open = False
        self.near.connections.pop(self, None)
        self.far.connections.pop(self, None)

    def stall(self, until_s: float) -> None:
        """Nothing comes through for a while."""
        self.up.stalled_s, self.down.stalled_s = (max(until_s, p.stalled_s) for p in (self.up, self.down))
