"""A worker's or server's process, and its line to the master: ``elasticflow.cluster.member.MasterLink``."""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from elasticflow.cluster.member import SEARCH_BEATS
from elasticflow.wire.messages import Beat, FromMaster, Heartbeat, Here, Look, Stacks, ToMaster

from .network import CLOSED, Connection, Do, Process

if TYPE_CHECKING:
    from .world import World

RECONNECT_S = 0.05
MOST_RECONNECT_S = 0.5
LINGER_S = 1.0
LONG_S = 3.0


class Member(Process):
    """partitioned_s: until then nothing passes between it and the master."""

    role: str

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.clock, name)
        self.world, self._config = world, world.config
        self._line: Connection | None = None
        self._port = world.master.port
        self._waiting: list[ToMaster] = []
        """What is sent once there is a connection."""
        self._unheard: list[ToMaster] = []
        self._incarnation: int | None = None
        self._heard_s = self.clock.now_s
        self._beating = self.hangs = False
        self._undone: deque[Do] = deque()
        self.partitioned_s = 0.0
        self.has_spoken = self._has_told = False
        self._connect()

    def obey(self, message: FromMaster) -> None:
        """A word from the master."""
        raise NotImplementedError

    def heartbeat(self) -> Heartbeat:
        """The present sign of life."""
        raise NotImplementedError

    def send(self, message: ToMaster) -> None:
        """To the master."""
        self._has_told = True
        self._unheard.append(message)
        self._say(message)

    def start_heartbeats(self) -> None:
        self._beating = True
        self._beat()

    # --- how it ends -----------------------------------------------------------------------------

    def kill(self) -> None:
        """kill -9: what was pushed to one server may have left, what was pushed to the next not."""
        if self.alive:
            self.die(lossy=True)
            self.world.backend.bury(self, "killed", "was killed by SIGKILL")

    def take(self) -> None:
        """The cluster takes its place away."""
        if self.alive:
            self.die(lossy=True)
            self.world.backend.bury(self, "taken", "was preempted")

    def leave(self) -> None:
        """By itself, after its last word, for which it waits a little."""
        self._beating = False
        self._linger(self.clock.now_s + LINGER_S)

    def _linger(self, until_s: float) -> None:
        if self._waiting and self.clock.now_s < until_s:
            return self.later(RECONNECT_S, partial(self._linger, until_s))
        self.die(lossy=False)
        self.world.backend.bury(self, "done", "ended with exit code 0")

    def _abandon(self) -> None:
        self.die(lossy=True)
        self.world.backend.bury(self, "failed", "ended with exit code 75")

    # --- the line --------------------------------------------------------------------------------

    def freeze(self, seconds: float) -> None:
        """Nobody can tell one that never says a word from one that takes its time to start."""
        super().freeze(seconds if self.has_spoken else min(seconds, LONG_S))

    def _say(self, message: ToMaster) -> None:
        self.has_spoken = True
        if not self._line:
            self._waiting.append(message)
            return
        self._line.up.send(message)
        if self.world.duplicates and self.clock.rng.random() < 0.1:
            self._line.up.send(message)

    def _connect(self, pause_s: float = RECONNECT_S) -> None:
        if self._line:
            return
        master = self.world.master
        if not master.alive or master.port != self._port or self.clock.now_s < self.partitioned_s:
            pause_s *= 1 + self.clock.rng.random()
            return self.later(pause_s, partial(self._connect, min(pause_s, MOST_RECONNECT_S)))
        self._line = Connection(self, master, self._hear, master.hear)
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._say(message)

    def _hear(self, line: Connection, message: Any) -> None:
        if line is not self._line:
            return  # of one that was let go
        if message is CLOSED:
            self._line = None
            return self.later(RECONNECT_S, self._connect)
        self._heard_s = self.clock.now_s
        new = not isinstance(message, Beat) or self._is_new(message)
        self._unheard.clear()
        if isinstance(message, Look):
            self.send(Stacks(name=self.name, number=message.number, where="here"))
            self.in_main(lambda: self.answer_look(message))
        elif new:
            self.in_main(lambda: self.obey(message))

    def answer_look(self, look: Look) -> None:
        """The main thread comes to it, at once or when it waits again."""
        self.send(Here(name=self.name, number=look.number))

    # --- a main thread that hangs, while its line lives ------------------------------------------

    def hang(self, seconds: float) -> None:
        """Its main thread does nothing any more, for good if ``seconds`` are infinite; its heart beats."""
        if self.alive and self.has_spoken and not self.hangs:
            self.hangs = True
            if math.isfinite(seconds):
                self.later(seconds, self._recover)

    def _recover(self) -> None:
        self.hangs = False
        while self._undone and not self.hangs and self.alive:
            self._undone.popleft()()

    def in_main(self, do: Do) -> None:
        """In the main thread, which may hang."""
        if self.hangs:
            self._undone.append(do)
        else:
            do()

    def _is_new(self, beat: Beat) -> bool:
        before, self._incarnation = self._incarnation, beat.incarnation
        return self._has_told if before is None else before != beat.incarnation

    def _beat(self) -> None:
        if not self._beating:
            return
        silence_s = self.clock.now_s - self._heard_s
        if silence_s > self._config.lost_s:
            return self._abandon()
        if silence_s > SEARCH_BEATS * self._config.heartbeat_s and self.world.master.port != self._port:
            self._move()
        self._say(self.heartbeat())
        self.later(self._config.heartbeat_s, self._beat)

    def _move(self) -> None:
        """The master is somewhere else; it is told once more what none may have heard."""
        if self._line:
            self._line.close(self, lossy=True)
        self._line, self._port, self._waiting = None, self.world.master.port, list(self._unheard)
        self._connect()

    def thawed(self, seconds: float) -> None:
        if seconds > self._config.heartbeat_s:
            self._heard_s = self.clock.now_s

    # --- faults ----------------------------------------------------------------------------------

    def partition(self, seconds: float, *, lossy: bool) -> None:
        """Nothing passes between it and the master for a while; lossy: nor what was said then later."""
        self.partitioned_s = max(self.partitioned_s, self.clock.now_s + seconds)
        if line := self._line:
            line.stall(self.partitioned_s)
            if lossy:
                self.clock.at(self.partitioned_s, lambda: line.close(None, lossy=True))

    def cut_off(self) -> None:
        """The connection to the master is reset."""
        if self._line:
            self._line.close(None, lossy=True)
