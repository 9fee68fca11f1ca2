"""Where processes run: behind one small interface. A backend starts and stops; it decides nothing."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Collection
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from elasticflow.cluster.finder import Finder
from elasticflow.cluster.logbook import LogBook, LogFolder
from elasticflow.cluster.presence import Presence
from elasticflow.errors import ConfigError, RunError
from elasticflow.process.named import load_named
from elasticflow.run.config import Config
from elasticflow.run.settings import MemberSettings

BACKENDS = {
    "kubernetes": "elasticflow_kubernetes.backend:KubernetesBackend",
    "local": "elasticflow.local.backend:LocalBackend",
    "slurm": "elasticflow_slurm.backend:SlurmBackend",
    "yarn": "elasticflow_yarn.backend:YarnBackend",
}
CLUSTERS = {
    "kubernetes": "elasticflow_kubernetes",
    "slurm": "elasticflow_slurm",
    "yarn": "elasticflow_yarn",
}
"""Backends to which runs are submitted: packages with modules ``submit``, ``leader``,
``index``, ``share`` and ``checks``."""
MASTER = "master"
"""Name of the master, where a backend tells of members and of it."""


class How(Enum):
    """How a process ended."""

    DONE = "done"
    """By itself, having done what it had to."""
    FAILED = "failed"
    """By an error of its own."""
    KILLED = "killed"
    """By a signal."""
    TAKEN = "taken"
    """The cluster took its place away: it was preempted, its node failed, its time was over."""


class Ended(NamedTuple):
    """A process has ended."""

    name: str
    how: How
    text: str


class Backend(ABC):
    """Starts and stops a run's members, and tells when and why one ended.

    Members outlive the master that started them. The next one gets a backend that knows them all.
    """

    host: str
    """The address at which members reach the master."""
    member_host: str
    """What each member is told of where to listen, see ``own_address``."""
    tells_killed: bool = True
    """Whether ``ended`` tells of workers that ``kill`` has ended, too; nobody waits for that."""

    @abstractmethod
    def __init__(self, config: Config, run_dir: str) -> None:
        """Gets ready to start members of this run."""

    @abstractmethod
    def living(self, known: Collection[str] = ()) -> dict[str, int]:
        """Members that a former master started, and that live: their names and process numbers.

        known: those that it knew of; where nobody can tell just now who lives, these do.
        To be called once, first; it may wait for a moment. Those that ended meanwhile ``ended`` tells of.
        """

    @abstractmethod
    def start(self, settings: MemberSettings) -> None:
        """Asks for a process; that it runs is known when it joins."""

    @abstractmethod
    def kill(self, name: str) -> None:
        """Ends a process at once, whoever started it; if it has ended, or was never there, does nothing."""

    def give_up(self, name: str) -> None:
        """Ends a member whose process never came, for which its place may be to blame."""
        self.kill(name)

    @abstractmethod
    def wait_fds(self) -> list[int]:
        """Descriptors that are readable when ``ended`` may have something new."""

    @abstractmethod
    def ended(self) -> list[Ended]:
        """Processes that have ended since the last call. Does not wait.

        An end is told at least once: the next master hears it again if this one is killed before it
        calls the second time after. Raises RunError if no more processes can be started.
        """

    @property
    @abstractmethod
    def num_running(self) -> int:
        """Members that have been started, by whatever master, and have not ended."""

    @property
    def num_worker_places(self) -> int:
        """Places of workers, asked for or held, that are not known to be free; 0: members tell."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Ends all processes that are left, at once, whoever started them."""

    def limit_workers(self, most: int) -> None:  # noqa: B027  (members are all that there are)
        """Those included that are not known to be free, no more places of workers are to be asked for."""

    # --- where processes have places that somebody else gives and takes ----------------------------

    def next_time_s(self) -> float | None:
        """When to call ``ended`` at the latest, on the monotonic clock; None: when a descriptor says so."""
        return None

    def look(self) -> None:  # noqa: B027  (there may be nothing to look at)
        """Something has happened to a member: to find out what may be urgent."""

    def give_way(self) -> None:  # noqa: B027  (there may be nobody else)
        """The cluster takes a member's place for somebody else: to ask for no other one at once."""

    def notes(self) -> list[tuple[str, str]]:
        """What people should read, since the last call: kind (``info``, ``warning``, ``fault``) and text."""
        return []

    def shortage(self) -> str:
        """Why there are fewer workers than were asked for; "" if there is nothing to say."""
        return ""

    def where(self, name: str) -> str:
        """Where a member is, or what it waits for, for people; "" if that is nothing special."""
        return ""

    def ends_s(self) -> dict[str, tuple[float, float]]:
        """Members whose places end at a known time, and the master's own (``MASTER``): when, on the
        monotonic clock, to look for another place, and when to have left."""
        return {}

    def returns(self) -> dict[str, str]:
        """Members that are to give their places back now, since the last call, and why."""
        return {}

    def placed(self) -> list[str]:
        """Members that have got their places since the last call, or that were found to have them.

        Their processes start, or should.
        """
        return []

    def tell_progress(self, fraction: float) -> None:  # noqa: B027  (there may be nobody to tell)
        """Tells the cluster, for its own lists, what part of the work is done: 0 to 1."""

    def hand_over(self) -> None:
        """Has another master started in another place, and this one ended; members stay where they can.

        Raises RunError if that cannot be.
        """
        raise RunError("there is no other place for this run's master.")

    def comes_again(self) -> bool:
        """Whether this master is being ended, and another will be started elsewhere."""
        return False

    def began_again(self) -> str:
        """Why this master is in another job, or another try of it, than the one before; "": not known."""
        return ""

    def abandon(self) -> None:
        """Ends only what cannot outlive this master: all else is another one's now."""
        self.close()

    @staticmethod
    def finder(settings: MemberSettings) -> Finder:
        """How members find the master."""
        return Finder(settings.run_dir, settings.lost_s)

    @staticmethod
    def presence(run_dir: str) -> Presence:
        """Whether a run has a master, for those who look at it from elsewhere."""
        return Presence(run_dir)

    @staticmethod
    def log_book(run_dir: str) -> LogBook:
        """The logs of a run's processes."""
        return LogFolder(Path(run_dir))

    @staticmethod
    @abstractmethod
    def clear(run_dir: str) -> None:
        """Ends all processes that this run's masters have left behind; for when no master lives."""


def load_backend(name: str) -> type[Backend]:
    """Raises ConfigError if there is no backend of that name."""
    found: type[Backend] = load_named("backend", name, BACKENDS)
    return found


def load_cluster(name: str, module: str) -> Any:
    """A module of a cluster's package. Raises ConfigError if there is no such cluster."""
    if name not in CLUSTERS:
        raise ConfigError(
            f"backend: {name!r} is no cluster to submit to; known: {', '.join(CLUSTERS)}. "
            "Name one by --on, or as 'backend' in the settings; 'elasticflow train' runs here."
        )
    return importlib.import_module(f"{CLUSTERS[name]}.{module}")
