"""Where processes run: behind one small interface. A backend starts and stops; it decides nothing."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from enum import Enum
from typing import NamedTuple

from elasticflow.config import Config
from elasticflow.errors import ConfigError
from elasticflow.settings import MemberSettings

BACKENDS = {"local": "elasticflow.local.backend:LocalBackend"}


class How(Enum):
    """How a process ended."""

    DONE = "done"
    """By itself, having done what it had to."""
    FAILED = "failed"
    """By an error of its own."""
    KILLED = "killed"
    """By a signal, or it was taken away."""


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
    """The address at which members reach the master, and at which each of them listens."""

    @abstractmethod
    def __init__(self, config: Config, run_dir: str) -> None:
        """Gets ready to start members of this run."""

    @abstractmethod
    def living(self) -> dict[str, int]:
        """Members that a former master started, and that live: their names and process numbers.

        To be called once, first; it may wait for a moment. Those that ended meanwhile ``ended`` tells of.
        """

    @abstractmethod
    def start(self, settings: MemberSettings) -> None:
        """Asks for a process; that it runs is known when it joins."""

    @abstractmethod
    def kill(self, name: str) -> None:
        """Ends a process at once, whoever started it; if it has ended, or was never there, does nothing."""

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

    @abstractmethod
    def close(self) -> None:
        """Ends all processes that are left, at once, whoever started them."""

    @staticmethod
    @abstractmethod
    def clear(run_dir: str) -> None:
        """Ends all processes that this run's masters have left behind; for when no master lives."""


def load_backend(name: str) -> type[Backend]:
    """Raises ConfigError if there is no backend of that name."""
    if name not in BACKENDS:
        raise ConfigError(f"backend: {name!r} is unknown; there are {', '.join(sorted(BACKENDS))}.")
    module, _, attribute = BACKENDS[name].partition(":")
    found: type[Backend] = getattr(importlib.import_module(module), attribute)
    return found
