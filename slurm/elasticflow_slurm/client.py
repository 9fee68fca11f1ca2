"""How SLURM's jobs, partitions and refusals look, whatever client carries them.

    RunError
    └── SlurmError
        ├── SlurmBusy       no answer, or not now: ask again later
        │   └── PlaceClosed    where it was to run takes no jobs now; another place may
        ├── LimitReached    a limit of the cluster: fewer jobs, or smaller ones, may do
        ├── SlurmRefused    asking again for the same is no use
        │   └── PlaceRefused   its partition, account, QOS or reservation is not there, or not this user's
        └── SlurmNotInstalled  no commands, no slurm.conf, or no authentication on this machine

Their texts hold SLURM's own words.
"""

from __future__ import annotations

import re

import msgspec

from elasticflow.errors import RunError

OVER = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT".split()
)
"""States that a job does not leave any more, unless somebody requeues it."""

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
"""States of a job that has no place. All others are over, or in their place."""
HELD_STATES = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
HELD_REASONS = ("JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "requeued held", "requeued in held state")
"""In what SLURM says of a pending job that nothing but a release, or a cancel, ends."""


USABLE = frozenset("idle mixed allocated completing planned".split())
"""States of nodes on which something may start, without the signs that sinfo puts behind them."""
UNUSABLE_SIGNS = "*$!%@^"
"""Behind a node's state: does not answer, in maintenance, is being powered down or rebooted."""
SIGNS = f"{UNUSABLE_SIGNS}~#+-"


class SlurmError(RunError):
    """SLURM did not do what it was asked for."""


class SlurmBusy(SlurmError):
    """No answer, or not now: ask again later."""


class PlaceClosed(SlurmBusy):
    """A partition or a reservation takes no jobs now. It may later, and another may at once."""


class LimitReached(SlurmError):
    """A limit of the cluster, of the account or of the user: fewer jobs, or smaller ones, may do."""


class SlurmRefused(SlurmError):
    """Asking again for the same is no use."""


class PlaceRefused(SlurmRefused):
    """A partition, an account, a QOS or a reservation that is not there, or not this user's."""


class SlurmNotInstalled(SlurmError):
    """This machine cannot talk to a SLURM: no commands, no slurm.conf, or no authentication."""


JobAddress = int | str
"""What names a job where something is done to it: its id; of a task of an array ARRAY_TASK, such as "8_1"."""


class SlurmJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as SLURM knows it now. Times are seconds since 1970; None: not known."""

    id: int
    """A component of a heterogeneous job has one of its own."""
    name: str = ""
    comment: str = ""
    state: str
    """SLURM's word: PENDING, RUNNING, COMPLETING, FAILED, ..."""
    reason: str = ""
    """SLURM's word for why it waits, or how it failed: Resources, BeginTime, ...; "" for None."""
    partition: str = ""
    node: str = ""
    """The first of its nodes; "" while it has none."""
    submit_at: float | None = None
    start_at: float | None = None
    """While it is pending: when SLURM expects to start it, or the earliest time that was asked for."""
    end_at: float | None = None
    """While it is running: when its time limit ends."""
    exit_code: int | None = None
    """Of an ended job's script, as a shell tells it: 128 + signal when one ended it."""
    priority: int | None = None
    """0: held."""
    restarts: int | None = None
    """How often it was requeued."""
    het: int | None = None
    """Which component of a heterogeneous job it is; None: it is an ordinary job."""
    leader_id: int | None = None
    """Of a component: the id of component 0, by which the whole job is known."""
    task: str = ""
    """Of a task of a job array: ARRAY_TASK, such as "8_1"."""

    @property
    def address(self) -> JobAddress:
        """What names this job alone: the last task of an array has the array's id, which names all tasks."""
        return self.task or self.id

    @property
    def held(self) -> bool:
        """Whether it waits for a release and for nothing else."""
        if self.state in HELD_STATES:
            return True
        is_told = any(words in self.reason for words in HELD_REASONS)
        return self.state == "PENDING" and (self.priority == 0 or is_told)

    @property
    def over(self) -> bool:
        """Whether it has ended.

        Not while it is COMPLETING: its processes may still live, and how it ended SLURM tells later.
        """
        return self.state in OVER


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job to submit."""

    script: str
    """The text of the batch script, with its #! line."""
    options: dict[str, str]
    """Long options of sbatch without their dashes, in order; the value of a flag is ""."""
    components: tuple[dict[str, str], ...] = ()
    """Of a heterogeneous job: the options of each component after the first."""


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as SLURM knows it now."""

    name: str
    is_default: bool = False
    is_up: bool = True
    """Whether it takes jobs and starts them."""
    nodes: int = 0
    gpus_total: int = 0
    gpus_idle: int = 0
    """Of the nodes that are up and not drained: those that no job has. As good as SLURM tells."""
    time_limit_s: float | None = None
    """The longest a job may ask for; None: no limit."""


class SlurmNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node as SLURM knows it now, once for each partition that it is in."""

    name: str
    partition: str
    state: str
    """SLURM's word and signs, as sinfo prints them: idle, mixed, drained*, ..."""
    cpus: int = 0
    gpus: tuple[tuple[str, int], ...] = ()
    """That it has, by their type; "" for those of none."""

    @property
    def doubtful(self) -> bool:
        """Whether SLURM waits for it to answer, and has not given it up; so are all after it has started."""
        return self.state.endswith("*") and self._word in USABLE | {"unknown", "reserved"}

    def away(self, *, reserved: bool) -> str:
        """Why nothing may start there; "": it may. reserved: for those who are of the node's reservation."""
        usable = USABLE | {"reserved"} if reserved else USABLE
        may = self._word in usable and not any(sign in self.state for sign in UNUSABLE_SIGNS)
        return "" if may or self.doubtful else self.state

    def num_gpus(self, kind: str = "") -> int:
        """Of one type; "": of any."""
        return sum(count for name, count in self.gpus if kind in ("", name))

    @property
    def _word(self) -> str:
        return self.state.lower().rstrip(SIGNS)


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that SLURM keeps for somebody, or for maintenance. Times are seconds since 1970."""

    name: str
    start_at: float
    end_at: float
    """When it is over; infinite: never."""
    nodes: tuple[str, ...] = ()
    cpus: int | None = None
    """That it takes of all its nodes; None: SLURM does not say."""
    flags: frozenset[str] = frozenset()
    """SLURM's words: MAINT, DAILY, ..."""

    @property
    def is_flexible(self) -> bool:
        """Whether its jobs may have other nodes, too, and begin before it."""
        return "FLEX" in self.flags


def time_s(text: str) -> float | None:
    """Of a time as sbatch takes it and sinfo prints it; None: it is none, or infinite.

    Minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, ...
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", text)
    if found is None:
        return None
    parts = [int(part) for part in found[2].split(":")]
    if found[1] is None and len(parts) < 3:
        parts = [0, *parts]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return float(((int(found[1] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)
