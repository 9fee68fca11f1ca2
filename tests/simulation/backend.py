"""A cluster that starts and ends simulated processes: what a master has of it, and what it is."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from elasticflow.cluster.contract import MASTER, Backend, Ended, How
from elasticflow.cluster.member import EXIT_ABANDONED
from elasticflow.run.config import Config
from elasticflow.run.settings import MemberSettings

from .system import EventFd

if TYPE_CHECKING:
    from .threads import Process
    from .world import World


class Cluster:
    """Tells of each end at least once, to one master or the next."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.members: dict[str, Process] = {}
        self.carried: set[str] = set()
        """Members that live with workers, and are no affair of the cluster's."""
        self.taken: set[str] = set()
        """Members whose places were taken away."""
        self.placed: list[str] = []
        """Members that have got their places since the master asked last."""
        self._untold: list[Ended] = []
        self._told: list[Ended] = []
        self._ends: dict[str, tuple[float, float]] = {}
        """When to replace, and when to leave, the places that end at a known time."""
        self._new_ends: dict[str, tuple[float, float]] = {}
        self.fd = 0
        """Of the master, readable when there is news."""

    @property
    def own(self) -> dict[str, Process]:
        """Members that it has started."""
        return {name: member for name, member in self.members.items() if name not in self.carried}

    def bury(self, process: Process) -> None:
        """A member has ended."""
        hows = {"exit 0": How.DONE, "killed": How.KILLED, f"exit {EXIT_ABANDONED}": How.KILLED}
        self._world.laws.ended(process)
        how = How.TAKEN if process.name in self.taken else hows.get(process.how, How.FAILED)
        self._untold.append(Ended(process.name, how, process.how))
        self._world.hub.later(self._world.network.delay(), self.tell)

    def place(self, name: str) -> None:
        """A member has got its place."""
        self.placed.append(name)
        self.tell()

    def tell(self) -> None:
        file = self._world.system.files.get(self.fd)
        if file is not None and (self._untold or self.placed or self._new_ends):
            file.pending += 1
            file.wake(self._world.hub)

    def ended(self) -> list[Ended]:
        self._told, self._untold = self._untold, []
        return self._told

    def hand_over(self) -> None:
        """The master is dead: what it was told last is told again."""
        self._untold = self._told + self._untold
        self._told = []
        self.placed = [name for name, member in self.own.items() if member.alive]
        self._new_ends = dict(self._ends)

    def expire(self, name: str, replace_s: float, leave_s: float) -> None:
        """A place ends at a known time, or at another one than was known."""
        self._ends[name] = self._new_ends[name] = replace_s, leave_s
        self.tell()

    def leave_s(self, name: str) -> float | None:
        """When a place ends."""
        return self._ends[name][1] if name in self._ends else None

    def move(self) -> None:
        """The master has another place, of which no end is known."""
        self._ends.pop(MASTER, None)
        self._new_ends.pop(MASTER, None)

    def ends_s(self) -> dict[str, tuple[float, float]]:
        """News, on the clock of whoever asks."""
        news, self._new_ends = self._new_ends, {}
        skew_s = self._world.hub.process.skew_s
        return {name: (first + skew_s, last + skew_s) for name, (first, last) in news.items()}


class SimBackend(Backend):
    """See Backend."""

    world: World

    def __init__(self, config: Config, run_dir: str) -> None:
        self.host = self.member_host = self.world.hub.process.host
        self._cluster = self.world.cluster
        self._fd = self._cluster.fd = self.world.system.new_file(EventFd())
        self._cluster.tell()

    def living(self, known: Collection[str] = ()) -> dict[str, int]:
        return {name: each.pid for name, each in self._cluster.own.items() if each.alive}

    def start(self, settings: MemberSettings) -> None:
        self.world.hub.point()
        self.world.start_member(settings)

    def kill(self, name: str) -> None:
        self.world.hub.point()
        self.world.kill_slowly(name)

    def wait_fds(self) -> list[int]:
        return [self._fd]

    def ended(self) -> list[Ended]:
        self.world.hub.point()
        file = self.world.system.file(self._fd)
        file.pending = 0
        return self._cluster.ended()

    @property
    def num_running(self) -> int:
        return len(self.living())

    def close(self) -> None:
        for name in self.living():
            self.kill(name)

    def placed(self) -> list[str]:
        placed, self._cluster.placed = self._cluster.placed, []
        return placed

    def ends_s(self) -> dict[str, tuple[float, float]]:
        return self._cluster.ends_s()

    def hand_over(self) -> None:
        self.world.hand_over()

    def abandon(self) -> None:
        """Its members are another master's now."""

    @staticmethod
    def clear(run_dir: str) -> None:
        pass
