"""A network and clocks made of a seed: what is sent arrives late, and is lost with the connection it is on."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

MOST_TURNS_AT_ONCE = 20
"""A timer that is due so many times in a row at one instant spins."""


class Clock:
    """What happens when, in order."""

    def __init__(self, rng: random.Random, delay_s: float) -> None:
        self.rng, self.delay_s = rng, delay_s
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, at_s: float, do: Callable[[], None]) -> None:
        """Has something happen then."""
        self._number += 1
        heapq.heappush(self._queue, (at_s, self._number, do))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Has something happen later."""
        self.at(self.now_s + seconds, do)

    def step(self) -> None:
        """The next thing happens."""
        self.now_s, _, do = heapq.heappop(self._queue)
        do()

    def delay(self) -> float:
        """How long a message takes; now and then ten times as long."""
        return self.delay_s * self.rng.random() * (10 if self.rng.random() < 0.05 else 1)


class Timer:
    """Calls ``due`` when a state machine says that time matters to it."""

    def __init__(self, clock: Clock, due: Callable[[], None]) -> None:
        self._clock, self._due = clock, due
        self._at_s: float | None = None
        self._last_s, self._turns = -1.0, 0

    def set(self, at_s: float | None) -> None:
        if at_s is not None and at_s != self._at_s:
            self._clock.at(max(at_s, self._clock.now_s), lambda: self._ring(at_s))
        self._at_s = at_s

    def _ring(self, at_s: float) -> None:
        if at_s != self._at_s:
            return
        now_s = self._clock.now_s
        self._turns = self._turns + 1 if now_s == self._last_s else 0
        self._last_s, self._at_s = now_s, None
        assert self._turns < MOST_TURNS_AT_ONCE, "a timer that is due again and again: the process spins"
        self._due()


class Process:
    """What arrives at a process that is frozen waits; at one that is dead, nothing arrives."""

    def __init__(self, clock: Clock, name: str) -> None:
        self.clock, self.name = clock, name
        self.alive, self.frozen = True, False
        self.frozen_s = 0.0
        self._held: deque[Callable[[], None]] = deque()

    def run(self, do: Callable[[], None]) -> None:
        """Does something in this process, now or when it runs again."""
        if self.frozen and self.alive:
            self._held.append(do)
        elif self.alive:
            do()

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """The process's own timers."""
        self.clock.after(seconds, lambda: self.run(do))

    def freeze(self, seconds: float) -> None:
        if not self.frozen:
            self.frozen, self.frozen_s = True, self.clock.now_s
            self.clock.after(seconds, self._thaw)

    def _thaw(self) -> None:
        self.frozen = False
        self.thawed(self.clock.now_s - self.frozen_s)
        while self._held and not self.frozen:
            self.run(self._held.popleft())

    def thawed(self, seconds: float) -> None:
        """The first thing that a process does after it was frozen for so long."""


class Pipe:
    """One direction of a connection: first in, first out."""

    def __init__(self, clock: Clock, to: Process, deliver: Callable[[Any], None]) -> None:
        self._clock, self._to, self._deliver = clock, to, deliver
        self._on_way: deque[Any] = deque()
        self._last_s = 0.0
        self.open = True

    def send(self, message: Any) -> None:
        if self.open:
            self._last_s = max(self._last_s, self._clock.now_s + self._clock.delay())
            self._on_way.append(message)
            self._clock.at(self._last_s, self._arrive)

    def _arrive(self) -> None:
        if self._on_way:
            message = self._on_way.popleft()
            self._to.run(lambda: self._deliver(message))

    def lose_some(self) -> None:
        """The sender was killed: the last messages may not have left its memory yet."""
        for _ in range(self._clock.rng.randint(0, len(self._on_way))):
            self._on_way.pop()

    def lose_all(self) -> None:
        self._on_way.clear()


class Connection:
    """Between a process that connected (near) and one that listens (far), in the data plane.

    Each end is told once, in its process, that it is closed, after all that came before. Nothing arrives
    over a closed one.
    """

    def __init__(
        self,
        clock: Clock,
        near: Process,
        far: Process,
        to_near: Callable[[Connection, Any], None],
        to_far: Callable[[Connection, Any], None],
    ) -> None:
        self.near, self.far = near, far
        self.up = Pipe(clock, far, lambda message: self._give(to_far, message))
        self.down = Pipe(clock, near, lambda message: self._give(to_near, message))
        self.near_ended = self.far_ended = False

    def _give(self, take: Callable[[Connection, Any], None], message: Any) -> None:
        take(self, message)

    def close(self, by: Process | None, *, killed: bool = False) -> None:
        """``by`` has closed it, or died; None: the network has lost it."""
        if killed:
            for pipe in (self.up, self.down):
                pipe.lose_some()
        for pipe, end in ((self.up, self.far), (self.down, self.near)):
            if by is None:
                pipe.lose_all()
            if end is not by:
                pipe.send(CLOSED)
            pipe.open = False


CLOSED = object()
"""The last thing that comes over a connection."""
