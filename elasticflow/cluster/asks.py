"""What a master has asked a cluster for: one ask a member, and where each of them is."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from elasticflow.cluster.cooldown import NEVER_S

WORKER, SERVER = "worker", "server"
"""Roles: the first part of a member's name."""


class AskPhase(Enum):
    """Where an ask is. No cluster has all of them."""

    WANTED = "wanted"
    """Nothing has been asked for yet."""
    ASKED = "asked"
    """The cluster has been asked, and has not answered."""
    UNSURE = "unsure"
    """The answer was lost: the next poll shows whether it was heard."""
    ADOPTED = "adopted"
    """A master before this one has asked; no poll has shown it yet."""
    WAITING = "waiting"
    """It waits for its place."""
    RUNNING = "running"
    """It has its place."""
    WITHDRAWN = "withdrawn"
    """It was taken back before it had a place; once that is over there will be another."""
    SHUNNED = "shunned"
    """It came up where it should not, and is ended."""
    OVER = "over"
    """It has ended; why is being found out."""
    LEAVING = "leaving"
    """The member is not wanted any more."""


class Sight(Protocol):
    """A job, a container, a pod, as a poll shows it."""

    @property
    def id(self) -> Any:
        """The cluster's own, a number or a text."""

    @property
    def state(self) -> str:
        """Its word."""

    @property
    def node(self) -> str:
        """Where it is, or was; "": it never had a place."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""


S = TypeVar("S", bound=Sight)


class Ask(msgspec.Struct, Generic[S]):
    """A member that is wanted, or that may not be over."""

    name: str
    phase: AskPhase
    since_s: float
    """When it began to wait, or the phase began."""
    id: Any = None
    """Its sight's, or that of the answer; None: none is known."""
    adopted: bool = False
    """Whether this master has not asked for it itself: then it cannot ask again under this name."""
    unanswered: bool = False
    """Whether an answer is to come."""
    sight: S | None = None
    """As the last poll that showed it did."""
    seen_s: float = NEVER_S
    """When it was taken, or last shown."""
    missed: int = 0
    """How many polls in a row should have shown it."""
    placed: Any = None
    """The id of what was told to run."""

    @property
    def role(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def number(self) -> int:
        return int(self.name.rpartition("-")[2])

    def enter(self, phase: AskPhase, now_s: float) -> None:
        self.phase, self.since_s = phase, now_s


A = TypeVar("A", bound=Ask[Any])


class Asks(Generic[A]):
    """All of a run, by their members' names. make: what makes one."""

    def __init__(self, make: type[A]) -> None:
        self._make = make
        self._by_name: dict[str, A] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[A]:
        return iter(list(self._by_name.values()))

    def get(self, name: str) -> A | None:
        return self._by_name.get(name)

    def add(self, name: str, phase: AskPhase, now_s: float, id: Any) -> None:
        """Who is not WANTED from the start is adopted."""
        adopted = phase is not AskPhase.WANTED
        self._by_name[name] = self._make(name, phase, now_s, id, adopted)

    def drop(self, ask: A) -> None:
        del self._by_name[ask.name]

    def of(self, role: str, *phases: AskPhase) -> list[A]:
        """Those of a role, and in one of these phases, the lowest number first."""
        chosen = [ask for ask in self if ask.role == role and ask.phase in phases]
        return sorted(chosen, key=lambda ask: ask.number)

    def any(self, *phases: AskPhase) -> bool:
        return any(ask.phase in phases for ask in self)
