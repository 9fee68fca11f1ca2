"""What happens to a master, besides the messages it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from elasticflow.training.standing import WatchStanding
from elasticflow.wire.messages import (
    Audited,
    Departing,
    Diverged,
    Failed,
    Faulty,
    Heartbeat,
    Here,
    Inspected,
    Join,
    Leaving,
    Lost,
    Offer,
    Paused,
    Progress,
    Ready,
    ServerEnded,
    Skipped,
    Stacks,
    Troubled,
    Written,
)


@dataclass(frozen=True)
class ExitedEvent:
    """The backend says that a process has ended. failed: by an error of its own; else it was killed, or
    done. taken: the cluster took its place away, which says nothing about the process."""

    name: str
    failed: bool
    text: str
    taken: bool = False


@dataclass(frozen=True)
class DisconnectedEvent:
    """A member's connection to this master closed: it has died, or will connect again at once."""

    name: str


@dataclass(frozen=True)
class ReconnectedEvent:
    """A member is heard over another connection than before: what was on the old one may be lost."""

    name: str


@dataclass(frozen=True)
class CommittedEvent:
    """A checkpoint is committed, or could not be. standing: what evaluations had decided by then."""

    tick: int
    error: str = ""
    standing: WatchStanding | None = None


@dataclass(frozen=True)
class FoundEvent:
    """Which checkpoint is the newest, for a master that could not read that when it began. None: there is
    none, or the storage cannot say for as long as it is waited for. standing: see CommittedEvent."""

    tick: int | None
    standing: WatchStanding | None = None


@dataclass(frozen=True)
class ScaleEvent:
    """Somebody asks for so many workers; or, with the number of a grant, a service allows so many."""

    workers: int
    reason: str = "asked for by scale"
    grant: int = 0


@dataclass(frozen=True)
class StopEvent:
    """Somebody asks the run to end with a checkpoint."""

    reason: str


@dataclass(frozen=True)
class OversleptEvent:
    """The master itself did not run for so long: what it did not hear in that time was no silence."""

    seconds: float


@dataclass(frozen=True)
class PlacedEvent:
    """A member has got its place, and should soon say its first word."""

    name: str


@dataclass(frozen=True)
class ExpiryEvent:
    """A worker's place ends at a known time: from ``replace_s`` on another is wanted, and by ``leave_s``
    it must have left. Times are those of the master's clock."""

    name: str
    replace_s: float
    leave_s: float


@dataclass(frozen=True)
class LimitEvent:
    """The master's own place, and the servers', ends: they must have moved by ``leave_s``."""

    leave_s: float


@dataclass(frozen=True)
class ClockEvent:
    """Time has passed."""


Event: TypeAlias = (
    Join | Ready | Heartbeat | Leaving | Departing | Failed | Faulty | Progress | Lost | Written | Troubled
    | Offer | Paused | Stacks | Here | Diverged | Skipped | Inspected | Audited | ServerEnded
    | ExitedEvent | DisconnectedEvent | ReconnectedEvent | CommittedEvent | FoundEvent | ScaleEvent
    | StopEvent | OversleptEvent | PlacedEvent | ExpiryEvent | LimitEvent | ClockEvent
)  # fmt: skip
