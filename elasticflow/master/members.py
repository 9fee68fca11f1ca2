"""Who takes part in a run, and where each of them, and the run itself, is."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

import msgspec

from elasticflow.process.gpu_state import GpuState
from elasticflow.wire.messages import Usage


class RunState(str, Enum):
    """Where a run is."""

    STARTING = "starting"
    """No worker is ready yet."""
    RUNNING = "running"
    """Steps are made."""
    FINISHING = "finishing"
    """The last version is being made or committed."""
    FINISHED = "finished"
    """Every record is covered and the final checkpoint is committed."""
    STOPPED = "stopped"
    """Ended before its end, as asked; the last checkpoint holds all that was done."""
    FAILED = "failed"
    """Ended by an error."""
    DIVERGED = "diverged"
    """Ended because the step to come would have had NaN or infinite numbers."""
    STALLED = "stalled"
    """Ended because no step was made for too long, whatever was tried."""
    BROKEN = "broken"
    """Ended because two processes were seen to differ about the same bits."""


ENDS = frozenset(RunState) - {RunState.STARTING, RunState.RUNNING, RunState.FINISHING}


class MemberState(str, Enum):
    """Where a worker or server is."""

    STARTING = "starting"
    """Asked for; has not said a word."""
    LOADING = "loading"
    """Has joined, and is catching up."""
    READY = "ready"
    """Takes part."""
    HALTED = "halted"
    """A server that has stopped where it is, until all servers know from where to go on."""
    SUSPECT = "suspect"
    """Silent for ``suspect_s``; has no slices, and gets some again when it speaks."""
    DRAINING = "draining"
    """Ends its step and leaves."""
    LOST = "lost"
    """A worker whose connection closed: soon the backend will say why, or it is ended. Or a server that is
    gone while the last checkpoint is committed, and is not needed any more."""


HERE = (MemberState.STARTING, MemberState.LOADING, MemberState.READY, MemberState.SUSPECT)
"""States of a worker that is meant to stay."""
ASKED = (*HERE, MemberState.HALTED, MemberState.DRAINING)
"""States of a member that can be asked what it does."""


class Member(msgspec.Struct):
    """A worker or server that is there, or has been asked for.

    replace_s, leave_s: when its place ends, as ExpiryEvent tells; None: nobody knows of an end.
    placed_s: when it got its place; None: it may still wait for one.
    expiring: that is soon, and another was asked for in its stead.
    available_bytes: what it may have, as its Join tells; memory_bytes: what its arrays take.
    activity: changes as long as it does anything while it loads. tries: see ``Heartbeat``.
    moved_s: when its tick changed last; asked_s: when it was asked why that is so long ago.
    carrier: of a server that lives and dies with a worker: that one; "": it has none (yet).
    failed: of a worker that stays for the servers that it carries. left: it has said so.
    anew: of a worker: how often it was told of the servers anew since its tick changed, as it could not reach
    one that lives.
    generation: the last one it was told of. doubted_s: when one of its connections closed, unless it
    was heard since; doubted_by: workers that cannot reach this server.
    """

    name: str
    role: str
    state: MemberState
    since_s: float
    host: str = ""
    pid: int = 0
    endpoint: str = ""
    generation: int = 0
    heard_s: float = 0.0
    doubted_s: float | None = None
    doubted_by: set[str] = msgspec.field(default_factory=set)
    tick: int = -1
    slice_s: float = 0.0
    dropped: int = 0
    refused: int = 0
    usage: Usage = msgspec.field(default_factory=Usage)
    was_ready: bool = False
    placed_s: float | None = None
    replace_s: float | None = None
    leave_s: float | None = None
    expiring: bool = False
    available_bytes: dict[str, int] = msgspec.field(default_factory=dict)
    memory_bytes: int = 0
    activity: int = 0
    tries: int = 0
    moved_s: float = 0.0
    asked_s: float | None = None
    carrier: str = ""
    failed: bool = False
    left: bool = False
    anew: int = 0
    gpu: GpuState | None = None

    def come_back(self) -> None:
        """A worker that was lost is there after all."""
        self.state = MemberState.SUSPECT if self.was_ready else MemberState.LOADING


@lru_cache(maxsize=1 << 14)
def number_of(name: str) -> int:
    """The 3 of ``worker-3``. Numbers count up through the whole run, and no name comes twice."""
    return int(name.rpartition("-")[2])
