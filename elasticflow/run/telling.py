"""What a run tells of itself, as JSON: its status while it runs, its report when it is over.

``elasticflow status RUN --json`` and ``elasticflow report RUN --json`` print these, and ``report.json`` is
one; the schemas are in ``docs/schema``. Times in seconds are since the run's start, ``..._at`` since 1970.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from elasticflow.process.gpu_state import GpuState
from elasticflow.training.programs import ProgramUse

FORMAT = 1
"""Of these structures. New fields may come with the same number; what is there keeps its name and sense."""


class Event(msgspec.Struct):
    """Something that people should read. kind: info, warning, fault or end."""

    time_s: float
    kind: str
    text: str


class PartStory(msgspec.Struct):
    """A server's part of a checkpoint. copy_s: no step could be made. write_s: in the background."""

    step: int
    server: str
    copy_s: float
    write_s: float
    error: str = ""


class StartPart(msgspec.Struct):
    """What some of the seconds until the first step went into."""

    what: str
    seconds: float


class LossPoint(msgspec.Struct):
    """The mean loss of steps up to this one, from that of the point before on. lr: of the last of them.

    loss: None: it was no number, which JSON does not know. workers: that took part.
    """

    step: int
    time_s: float
    loss: float | None
    lr: float | None
    workers: int


class Resize(msgspec.Struct, rename={"old": "from", "new": "to"}):
    """The number of workers to have has changed."""

    time_s: float
    old: int
    new: int
    reason: str


class Size(msgspec.Struct):
    """So many workers took part from then on; why: there were not as many as wanted."""

    time_s: float
    ready: int
    wanted: int
    why: str


class ToldFault(msgspec.Struct, kw_only=True):
    """Somebody was lost, or the storage refused.

    seconds: that it cost. steps: that were made again. lasted_s: None: it is not over. done: what was done
    about it. told: how often there was news of it.
    """

    number: int
    time_s: float
    role: str
    member: str
    text: str
    seconds: float
    steps: int
    lasted_s: float | None
    done: str
    told: int


class WorkersSeconds(msgspec.Struct, kw_only=True):
    """What the workers' seconds went into; each second into one thing.

    redone: on steps that were lost. duplicated: on slices that somebody else had computed as well.
    checkpointing: waiting while servers copied what is to be written.
    """

    productive: float
    redone: float
    duplicated: float
    starting: float
    waiting: float
    recovering: float
    checkpointing: float

    def by_name(self) -> dict[str, float]:
        return msgspec.structs.asdict(self)


class ToldMember(msgspec.Struct, kw_only=True):
    """place: where it is, or what it waits for, by the cluster. step: that it is at."""

    name: str
    host: str
    place: str
    pid: int
    state: str
    step: int
    dropped_messages: int


class ToldServer(ToldMember, kw_only=True):
    """standby: it holds no chunks. memory_at_most_bytes: None: not known yet, or never, as a table may have
    any number of rows. relay: it stands for a server that holds some, to a group of workers."""

    standby: bool
    refused_connections: int
    memory_bytes: int
    memory_at_most_bytes: int | None
    relay: bool = False

    @property
    def role(self) -> str:
        """What it does that holds no chunks, in words; "": it holds some."""
        return "relays" if self.relay else "stands by" if self.standby else ""


class ToldWorker(ToldMember, kw_only=True):
    """slices: of each step, by the present plan. slice_s: what one takes it; 0 if that is not known.

    gpu: None: it has none, or none that tells.
    """

    slices: int
    slice_s: float
    gpu: GpuState | None = None


class ToldMaster(msgspec.Struct, kw_only=True):
    """incarnation: the number of masters so far, this one included."""

    name: str
    host: str
    pid: int
    state: str
    step: int
    incarnation: int
    dropped_messages: int
    refused_connections: int


AnyMember: TypeAlias = ToldMaster | ToldServer | ToldWorker


class ToldBest(msgspec.Struct):
    """The best evaluation so far, by ``metric``. The checkpoint of that step is kept."""

    metric: str
    value: float
    step: int


class Past(msgspec.Struct, kw_only=True):
    """A run's past; of lists of what happened the last ones.

    programs: those that it went by so far, the present one last. met_deadline: None: there is none, or nobody
    knows yet. steps_total, records_total: None: the program is not known yet. skipped: steps that were left
    out, asynchronously updates. attempt: 1, and one more for each ``--resume``; total_s: of all of them,
    elapsed_s: of this one. evaluation: the last one. goodput: the part of the workers' seconds that is
    productive. guarded: of messages between servers and workers of different hosts: ``headers``,
    ``arrays`` (nothing can be altered on the way) or ``all`` (nor read). standstill_s: in which no step
    was made because of faults. stalled_s: that workers stood idle until they were given the slices of
    others. shortage: why there are fewer workers than wanted. best: None: nobody asks for it, or there is
    none yet. lr_scale: what evaluations have the learning rate multiplied by. start: what ``first_step_s``
    is made of, one after the other, as the first worker has measured it; empty where nobody knows. strategy:
    ``auto`` as long as nothing is chosen; strategy_why: why it was, empty where the settings say it. losses:
    of this attempt, without those of steps that were undone. audited: slices that were computed twice and
    gave the same.
    """

    format: int = FORMAT
    run: str
    program: str
    program_sha256: str
    programs: tuple[ProgramUse, ...]
    backend: str
    mode: str
    staleness: int
    snapshot_s: float
    compression: str
    guarded: str = "headers"
    started_at: float
    elapsed_s: float
    attempt: int = 1
    total_s: float = 0.0
    time_limit_s: float | None
    deadline: str | None
    deadline_at: float | None
    finished_at: float | None
    met_deadline: bool | None
    first_step_s: float | None
    epoch: int
    epochs: int
    start_step: int
    step: int
    steps_total: int | None
    records_covered: int
    records_total: int | None
    records_left_out: int | None
    quarantined: list[int]
    skipped: int
    loss: float | None
    evaluation: dict[str, Any] | None
    num_evaluations: int
    evaluations: list[dict[str, Any]]
    checkpoint_step: int | None
    checkpoints: list[PartStory]
    checkpoints_failed: int
    workers_seconds: WorkersSeconds
    goodput: float | None
    slices_computed: int
    slices_computed_as_backup: int
    num_faults: int
    faults: list[ToldFault]
    standstill_s: float
    stalled_s: float
    steps_redone: int
    storage_trouble: str
    resizes: list[Resize]
    sizes: list[Size]
    shortage: str
    num_events: int
    events: list[Event]
    best: ToldBest | None = None
    lr_scale: float = 1.0
    start: list[StartPart] = []
    strategy: str = "parameter_server"
    strategy_why: str = ""
    losses: list[LossPoint] = []
    audited: int = 0


class Status(Past, kw_only=True):
    """A run as it is. state: see ``RunState``. regrouping: a server was lost, and the others wait to go on.

    eta_s, eta_at: at the present speed; None: nobody can know. target_workers: so many are wanted,
    target_reason: why so many.
    """

    state: str
    generation: int
    regrouping: bool
    records_per_s: float | None
    eta_s: float | None
    eta_at: float | None
    target_workers: int
    target_reason: str
    master: ToldMaster
    servers: list[ToldServer]
    workers: list[ToldWorker]

    @property
    def members(self) -> tuple[AnyMember, ...]:
        """All processes, the master first."""
        return (self.master, *self.servers, *self.workers)


class LiveStatus(Status, kw_only=True):
    """A status as it is told. news: how much the master had to tell so far; text: as that of a report."""

    news: int | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET


class Untold(msgspec.Struct, kw_only=True):
    """Of a run of which there is no status. state: ``waiting``, ``killed``, ``unknown``, ``absent`` or
    ``elsewhere``."""

    state: str
    text: str


class Killed(Untold, kw_only=True):
    """It is over, and left no report. cluster_end: how its cluster says that its job ended."""

    cluster_end: dict[str, Any] | None


TAKEN_OVER = "goes on with these checkpoints by now"
"""How the text of a report ends if another run does, so that this one is not to be resumed."""


class Remembered(Past, kw_only=True):
    """What the master of a run that was killed wrote down last, beside what ``Killed`` says."""

    state: str
    text: str
    cluster_end: dict[str, Any] | None


class Report(Status, kw_only=True):
    """How a run went: its last status, and more. text: why it ended. traceback: of what ended it."""

    text: str
    traceback: str


class LastStatus(Report, kw_only=True):
    """A report as it is told to who watches a run. news: see ``LiveStatus``."""

    news: int
