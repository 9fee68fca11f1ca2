"""Every message that crosses a socket, and what its loss costs.

Control plane (CURVE: encrypted and authenticated; one DEALER a process, one ROUTER at the master)

    worker, server -> master   Join, Ready, Heartbeat, Leaving, Failed, Lost, Stacks, Here
    worker -> master           Faulty, Inspected, Audited, ServerEnded
    server -> master           Progress, Written, Troubled, Offer, Diverged, Paused
    both -> master             Skipped
    master -> server           Assignment, Halt, Plan, Cut, Finish, Pause, Settled, Quit
    master -> worker           Assignment, Drain, Quarantine, Attempt, Inspect, Quit, Carry
    master -> both             Beat, the answer to each Heartbeat; Look
    client -> master           StatusRequest, ScaleRequest, StopRequest; each is answered by Answer
    service -> master          Grant, as a client, again and again; each is answered by Situation

A member that hears nothing from its master for ``lost_s`` leaves by itself. Control messages travel
over TCP with reconnection, so one is lost only with its receiver, or with the connection. A master that
dies takes with it what it had not read: the next one says so by another ``Beat.incarnation``, and every
member then repeats what still stands (Join, Ready, Lost, Faulty, Progress, Written, Offer, Diverged,
Skipped, Paused). So it is when a
member had to connect again; the master, too, then says again what still stands. Until then a stale plan
costs time, not the model: what nobody does is overdue and gets done.

Data plane (``elasticflow.wire``: each header carries a MAC; arrays in frames of their own; what goes to the
same end at the same time travels as one, under one header)

    worker -> server   Hello, Pull, Push, Initial,       server -> worker   Welcome, Version, Compute, Gone,
                       Read, Lend, Mapped, Advise                           Uninitialised, RowsRead,
                                                                            Lend, Mapped, Consult
    server -> server   Hello, Fetch, Keep                and back           Welcome, Kept, State
    server -> leader   Hello, Norms, Safe                and back           Welcome, Clip, AllSafe

A connection belongs to one generation of the servers, which its Hello names; it ends with it, so nothing
that was sent in one can act in another. A push names (tick, parcel, node): a second one is the same bits
and is dropped, a missing one is computed again by somebody else. Asynchronously the second is other bits,
and is dropped as well: of each (tick, parcel, slice) the first that comes is applied. Who asks for a version
waits for it, or is told ``Gone``. A snapshot (Keep) that gets lost is one that cannot be gone back to. Memory
that is lent (Lend) and never mapped is not used: arrays then travel in frames. All who wait for a version
before which ``on_epoch`` has its say are asked (Consult), and the first answer (Advise) counts.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from elasticflow.api import Optimizer
from elasticflow.checkpoint import Part
from elasticflow.embedding import TableSpec
from elasticflow.errors import ProtocolError
from elasticflow.process.decoding import msgpack_decoder
from elasticflow.process.gpu_state import GpuState
from elasticflow.step.layout import Entry, Frozen
from elasticflow.step.schedule import Schedule
from elasticflow.storage.file_ids import FileId
from elasticflow.training.advice import Advice, Question, Tuning
from elasticflow.training.metrics import SummedMetric
from elasticflow.training.standing import WatchRules, WatchStanding


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    pass


class _Compact(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Data plane headers: packed as arrays, since they are on the path of a step."""


# --- what a run is about -------------------------------------------------------------------------


class Share(msgspec.Struct, frozen=True):
    """Slices ``first..stop`` are the worker's. group: that whose relays carry its sums; -1: none do."""

    worker: str
    first: int
    stop: int
    group: int = -1


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker learnt from the program. All workers of a run must learn the same."""

    framework: str
    entries: tuple[Entry, ...]
    optimizer: Optimizer
    metrics: tuple[str, ...]
    num_records: int
    num_test: int
    data_signature: str
    warnings: tuple[str, ...] = ()
    tables: tuple[TableSpec, ...] = ()
    """In the order of their entries."""
    files: tuple[FileId, ...] = ()
    """From which the records come, those to test with last."""
    frozen: tuple[Frozen, ...] = ()
    """Parameters that are not trained. They lie in the storage before the master hears of them."""
    others: tuple[Optimizer, ...] = ()
    """Of groups of parameters; ``optimizer`` is that of all others."""
    measures: tuple[SummedMetric, ...] = ()
    """Those of the metrics that are no means, but made of sums."""
    rules: WatchRules = WatchRules()
    """What evaluations decide."""
    updates_before: int = 0
    """Of ``Schedule``: as the run's first checkpoint says."""
    paced: bool = False
    """Its learning rate follows from the number of steps of the run."""
    also: tuple[tuple[str, str], ...] = ()
    """Further names that tensors have in PyTorch's state dicts, each with the one that it has here."""
    passing: tuple[str, ...] = ()
    """Names of buffers that state dicts leave out."""

    def __post_init__(self) -> None:
        if any(entry.part > len(self.others) for entry in self.entries):
            raise ValueError("a parameter is updated by an optimizer that is not there")

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """By the number that entries have of them."""
        return self.optimizer, *self.others


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A server's name, its data endpoint, and the numbers of the chunks it holds; none: it stands by.

    Its place in the row of servers stays the same when another server takes it.
    holder: the server that has its chunks of the version to go on from, where it has not got them itself.
    carrier: the worker that it lives and dies with; "": none. leaves: it has no place any more, and is asked
    for copies alone.
    """

    name: str
    endpoint: str
    chunks: tuple[int, ...]
    holder: str = ""
    carrier: str = ""
    leaves: bool = False


class RelayInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A relay: to the workers of a group it is the server at a place, and to that server a worker.

    See ``elasticflow_ps.relay_state``.
    """

    name: str
    endpoint: str
    group: int
    place: int


class Excluded(msgspec.Struct, frozen=True):
    """A quarantined record: left out of every tick from ``from_tick`` on."""

    row: int
    from_tick: int


# --- members -> master ---------------------------------------------------------------------------


class Join(_Message, frozen=True):
    """First word of a worker or server: who and where it is. Answered by Assignment.

    excluded: the records that it leaves out already, of which a new master may not know.
    available_bytes: the memory that it may have, see ``available_memory``.
    """

    name: str
    role: str
    host: str
    pid: int
    fingerprint: dict[str, str] = {}
    endpoint: str = ""
    spec: Spec | None = None
    excluded: tuple[Excluded, ...] = ()
    available_bytes: dict[str, int] = {}
    rehearsed_s: float = 0.0
    """Seconds for which a worker has computed its first slice, and all that comes with that."""
    num_slices: int = 0
    """Of its schedule: the first worker's are those of the run. 0: as many as it was told."""
    slices_why: str = ""
    """Why so many, if they are others than it was told, or were measured."""
    began: tuple[tuple[str, float], ...] = ()
    """What it did since it was ordered, one after the other, in words, and the seconds of each."""

    def __post_init__(self) -> None:
        if self.num_slices < 0 or self.num_slices & (self.num_slices - 1):
            raise ValueError(f"{self.num_slices} slices are no power of two")


class Ready(_Message, frozen=True):
    """A worker has loaded the program, has caught up, and may be given slices; or a server may serve.

    Once for each generation.
    """

    name: str
    generation: int
    started_s: float = 0.0
    """Seconds from the process's start until now."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker's seconds went since it started."""

    computing_s: float = 0.0
    waiting_s: float = 0.0
    starting_s: float = 0.0
    recovering_s: float = 0.0
    """From the loss of a server until there is a version to go on from."""
    redone_s: float = 0.0
    """Of ``computing_s``: for ticks that had been computed before, and were lost with a server."""
    num_slices: int = 0
    num_backup: int = 0


class Heartbeat(_Message, frozen=True):
    """A worker's or server's sign of life, every ``heartbeat_s``. Answered by Beat.

    generation: of the last Assignment that it has taken up; 0 before the first.
    """

    name: str
    tick: int
    generation: int = 0
    slice_s: float = 0.0
    usage: Usage | None = None
    dropped: int = 0
    """Messages that were malformed, or made no sense, so far."""
    refused: int = 0
    """Connections that ended before they had proved that they belong here, so far."""
    memory_bytes: int = 0
    """Of a server's arrays: its store, and the copies that it keeps for another."""
    activity: int = 0
    """Of a worker that loads: another number than before if it has done anything since."""
    tries: int = 0
    """Of slices in another process, so far: each counts as it begins and as it ends."""
    gpu: GpuState | None = None


class Leaving(_Message, frozen=True):
    """A worker's last word: it has pushed all it computed. Or a server's, whose parts are written.

    ended: the generation of which it has got the last version, from all servers; 0: it leaves before.
    failed: it has said so, and stays for the servers that it carries.
    """

    name: str
    usage: Usage | None = None
    ended: int = 0
    failed: bool = False


class Departing(_Message, frozen=True):
    """A worker has been told, not by its master, to end soon: it may have seconds. Answered by Drain."""

    name: str
    reason: str


class ServerEnded(_Message, frozen=True):
    """Of a worker: a server that it carried has ended, or could not be started. Said again to each Carry that
    names it. failed: by an error of its own."""

    name: str
    member: str
    failed: bool
    text: str


class Failed(_Message, frozen=True):
    """A member's last word when it cannot go on. ``kind`` is the error's class name.

    for_all: no other worker would be spared, since the program is the same everywhere.
    """

    name: str
    kind: str
    text: str
    traceback: str = ""
    for_all: bool = False


class Faulty(_Message, frozen=True):
    """``forward`` raises on a slice; ``rows`` are those on which it raises alone (maybe none).

    dies: it does not raise, but ends the process in which it is tried, or never comes back. test_rows: those
    of the test source of which it does so.
    """

    name: str
    tick: int
    slice: int
    rows: tuple[int, ...]
    text: str
    traceback: str
    dies: bool = False
    test_rows: tuple[int, ...] = ()


class Progress(_Message, frozen=True):
    """The leading server's news: the latest version, and reports (cost and metrics) since the last.

    To a new master: with all evaluations that this server knows of.
    last: the run ends with this version. loss: mean cost of the steps since the last Progress. lr: the
    learning rate of the last of them, of the first optimizer.
    evaluations: (tick, cost and metrics) of those since the last. stalls: (tick, seconds) of ticks that
    took long: so many seconds more than twice the median of their kind. standings: what those evaluations
    have decided, where there are rules.
    """

    name: str
    generation: int
    version: int
    last: bool = False
    loss: float | None = None
    evaluations: tuple[tuple[int, tuple[float, ...]], ...] = ()
    stalls: tuple[tuple[int, float], ...] = ()
    standings: tuple[WatchStanding, ...] = ()
    lr: float | None = None


class Lost(_Message, frozen=True):
    """The connection to ``member`` closed: of a worker to the leading server, or of a server to anybody."""

    name: str
    member: str


class Written(_Message, frozen=True):
    """A server's part of the checkpoint of version ``tick`` is written, or could not be.

    last: the run ends with that version. copy_s: seconds for which no step could be made. standing: from the
    leading server, what evaluations had decided by then, where there are rules.
    """

    name: str
    generation: int
    tick: int
    last: bool
    part: Part | None
    error: str = ""
    copy_s: float = 0.0
    write_s: float = 0.0
    standing: WatchStanding | None = None


class Troubled(_Message, frozen=True):
    """A server cannot write its part just now, and tries again; an empty text: now it could."""

    name: str
    text: str


class Offer(_Message, frozen=True):
    """The answer to Halt: the (place, version) of all chunks that this server could give now.

    Those of its own place as they are, if they are whole, and all snapshots it has, its own and others'.
    standings: what evaluations had decided by these versions, as far as it knows, where there are rules.
    """

    name: str
    generation: int
    held: tuple[tuple[int, int], ...]
    standings: tuple[WatchStanding, ...] = ()


class Paused(_Message, frozen=True):
    """From a server: the version is whole after which no server goes on, see ``Pause``."""

    name: str
    generation: int
    version: int


class Stacks(_Message, frozen=True):
    """The first answer to Look, of a thread that runs whatever the main thread does.

    doing: what the member does, or waits for, in words that follow its name. where: the innermost line of the
    main thread, in the user's program if it is there; stack: all of it.
    """

    name: str
    number: int
    doing: str = ""
    where: str = ""
    stack: str = ""


class Here(_Message, frozen=True):
    """The second answer to Look, of the main thread, as soon as it comes to it."""

    name: str
    number: int


class Diverged(_Message, frozen=True):
    """Of a server: the tick is not made, since there are numbers in it that are none: NaN, or infinite.

    parameter: the first that has any; empty: it is the norm of all. made: its gradient was finite, and what
    the update made of it is not. slice: where it began, -1: not known here.
    """

    name: str
    generation: int
    tick: int
    parameter: str = ""
    made: bool = False
    slice: int = -1


class Skipped(_Message, frozen=True):
    """A tick is left out for everybody (``on_nan: skip``); asynchronously, one slice of it.

    Said by the leading server; of a slice by the worker that would have pushed it.
    """

    name: str
    generation: int
    tick: int
    slice: int = -1


class Audited(_Message, frozen=True):
    """What a worker has got of a slice that is computed twice: see ``elasticflow.worker.audit``.

    digest: of what it pushes of that slice, or has got when it computed it once more. left_out: how many
    records were left out by then, of this tick or since earlier ones: with others it is another slice. One
    that is lost is one that is not compared.
    """

    name: str
    tick: int
    slice: int
    digest: str
    left_out: int = 0


class Inspected(_Message, frozen=True):
    """The answer to Inspect: the first of the slices, and in it the first parameter, whose gradient is none.

    slice: -1: there is none among them. cost: of that slice, in words. row: the first of its records with
    which it is so; -1: nobody knows, or it is so with all. searches: another answer follows, with the record.
    """

    name: str
    tick: int
    slice: int = -1
    parameter: str = ""
    cost: str = ""
    row: int = -1
    searches: bool = False


# --- client -> master ----------------------------------------------------------------------------


class StatusRequest(_Message, frozen=True):
    """The state of the run, please; ``newer_than``: hold the answer until there is a newer one."""

    newer_than: int = -1


class ScaleRequest(_Message, frozen=True):
    """Please go on with so many workers."""

    workers: int


class Grant(_Message, frozen=True):
    """The service that shares the cluster among runs: so many workers, and no more.

    number: one that is lower than the newest is not obeyed. until_s: since 1970, when that is looked at again
    at the latest; 0: when something happens. Without news of the service a run keeps to its last grant.
    """

    number: int
    workers: int
    why: str
    until_s: float = 0.0


class StopRequest(_Message, frozen=True):
    """Please end the step, commit a checkpoint, and leave."""

    reason: str = "asked to stop"


class Answer(_Message, frozen=True):
    """To a client. ``error`` is empty where all is well."""

    error: str = ""
    status: dict[str, Any] | None = None


class Situation(_Message, frozen=True):
    """To a service. number: of the newest grant that the run knows.

    workers: that it has, whether they are ready, or are still leaving. steps: of the whole run; 0: not known.
    """

    number: int
    workers: int
    ready: int
    step: int
    steps: int


# --- master -> members ---------------------------------------------------------------------------


class Assignment(_Message, frozen=True):
    """All a member has to know to take part in a generation of servers. Ignored if it is not a newer one.

    The first of ``servers`` leads. They go on from version ``start_tick``: with chunks that they hold in
    memory (``in_memory``), or load from the commit ``restore_step``, or else with those that a worker
    sends, which are the first values of all.
    """

    generation: int
    schedule: Schedule
    spec: Spec
    seed: int
    servers: tuple[ServerInfo, ...]
    excluded: tuple[Excluded, ...] = ()
    start_tick: int = 0
    in_memory: bool = False
    restore_step: int | None = None
    cut_every_steps: int = 0
    """The leading server has a checkpoint cut every so many steps; 0: only when told to."""
    snapshot_s: float = 0.0
    """Seconds between two snapshots in other servers' memory; 0: none."""
    snapshot_every: int = 0
    """Sooner, if there are so many versions between them; 0: never sooner."""
    staleness_rule: str = "none"
    """What becomes of an asynchronous update that is late: see ``elasticflow_ps.updating.slowed``."""
    ends: bool = False
    """The run ends with the version to go on from: to be written, and nothing else."""
    on_nan: str = "stop"
    """What becomes of a step with numbers that are not finite: ``stop`` or ``skip``."""
    passes: dict[str, bytes] = {}
    """By server, the key of whoever this is told to: see ``elasticflow.wire.keys``."""
    standing: WatchStanding | None = None
    """What evaluations have decided by ``start_tick``; None: there are no rules."""
    careful_to: int = -1
    """Workers may have died of slices of ticks up to this one: they are tried in another process first."""
    relays: tuple[RelayInfo, ...] = ()
    """To a server, its own; to a relay, itself. A worker is told of them in the stead of the servers."""


class Halt(_Message, frozen=True):
    """To a server: stop where you are, and offer what you have. ``generation`` is the one to come."""

    generation: int


class Plan(_Message, frozen=True):
    """Who computes which slices. The leading server hands it on with the next version it serves."""

    number: int
    shares: tuple[Share, ...]


class Cut(_Message, frozen=True):
    """To the leading server: have a checkpoint cut after the next tick."""


class Finish(_Message, frozen=True):
    """To the leading server: after the next tick, cut, and let everybody leave."""


class Pause(_Message, frozen=True):
    """To the leading server: after the next step no server goes on, so that all have the same version.

    They serve it, and are halted once all have it. What gets lost is said again, or a loss halts them anyway.
    """


class Settled(_Message, frozen=True):
    """To servers with chunks: the checkpoint of version ``tick`` is committed, or given up."""

    tick: int


class Drain(_Message, frozen=True):
    """To a worker: leave once the plan in force has no slices for you."""


class Carry(_Message, frozen=True):
    """To a worker: carry these servers, and no others: start who is new, end who is not among them.

    Said again over each new connection.
    """

    servers: tuple[str, ...]


class Quarantine(_Message, frozen=True):
    """To workers: leave these records out."""

    excluded: tuple[Excluded, ...]


class Attempt(_Message, frozen=True):
    """To workers: compute this slice as well, to tell whether it raises for you too.

    careful: it may end the process in which it is computed: try it in another one first.
    """

    tick: int
    slice: int
    careful: bool = False


class Inspect(_Message, frozen=True):
    """To a worker: in which of these slices of a tick that diverged did it begin? Answered by Inspected."""

    tick: int
    slices: tuple[int, ...]


class Beat(_Message, frozen=True):
    """The master lives. incarnation: another number than before says that what the member has told may be
    lost, with the master that had read it or with the connection it was on."""

    incarnation: int


class Look(_Message, frozen=True):
    """Nothing moves: what do you do, and what do you wait for? All stacks go to the log. Loss: no answer."""

    number: int


class Quit(_Message, frozen=True):
    """Leave now. ``reason`` is for the log."""

    reason: str


ToMaster: TypeAlias = (
    Join | Ready | Heartbeat | Leaving | Departing | Failed | Faulty | Progress | Lost | Written
    | Troubled | Offer | Diverged | Skipped | Inspected | Audited | StatusRequest | ScaleRequest
    | StopRequest | Stacks | Here | Grant | ServerEnded | Paused
)  # fmt: skip
_SAID_BY_MEMBERS = (Join, Ready, Heartbeat, Leaving, Failed, Lost, Skipped, Stacks, Here)
SAID_BY: dict[str, tuple[type[ToMaster], ...]] = {
    "worker": (*_SAID_BY_MEMBERS, Departing, Faulty, Inspected, Audited, ServerEnded),
    "server": (*_SAID_BY_MEMBERS, Progress, Written, Troubled, Offer, Diverged, Paused),
    "client": (StatusRequest, ScaleRequest, StopRequest, Grant),
}
"""What each role may say to the master."""
FromMaster: TypeAlias = (
    Assignment | Halt | Plan | Cut | Finish | Pause | Settled | Drain | Quarantine | Attempt | Inspect | Beat
    | Quit | Answer | Look | Situation | Carry
)  # fmt: skip


# --- data plane ----------------------------------------------------------------------------------


class Hello(_Compact, frozen=True):
    """First word on a connection. nonce: 32 random bytes. guard: a ``Guard``; see ``elasticflow.wire.seal``.

    One of a generation to come is answered when that begins; one of a past generation, never.
    """

    name: str
    generation: int
    nonce: bytes
    guard: str = "headers"


class Welcome(_Compact, frozen=True):
    """The server's answer to Hello."""

    nonce: bytes


class Pull(_Compact, frozen=True):
    """Version ``version``, please, or the latest there is (-1); ``have``: the one the worker has.

    A worker that asks for the version after the tick in work is idle: it may be sent Compute; unless it is a
    relay that has still to push (``idle``). Asynchronously, one that asks for the version of the tick in work
    gets each parcel as it is by now.
    """

    version: int
    have: int = -1
    idle: bool = True


class Push(_Compact, frozen=True):
    """The sum of node (level, index) over one parcel; its arrays follow, one a span.

    empty: the node's slices hold no records, no arrays follow. lr: the program's learning rate for
    this step, if it has one. cut, snapshot, finish, pause: what the leading server ordered for this tick.
    slice_s: seconds a slice took. pull: this is the worker's last node, and it wants the next version.
    lent: the number of the vector of the worker's in which the arrays lie, if they do not follow.
    more: other parcels of this node follow: the worker is not idle yet. base: asynchronously, what
    ``Version.updates`` said of the parcel from which this was computed. checks: of each array a checksum, see
    ``elasticflow_ps.watch``; empty: this parcel is not watched now.
    """

    tick: int
    parcel: int
    level: int
    index: int
    empty: bool = False
    lr: float | None = None
    cut: bool = False
    snapshot: bool = False
    finish: bool = False
    slice_s: float = 0.0
    pull: bool = False
    lent: int = -1
    more: bool = False
    base: int = 0
    checks: tuple[int, ...] = ()
    pause: bool = False


class Initial(_Compact, frozen=True):
    """Values of one parcel for the very first version; arrays follow, one a span."""

    parcel: int


class Version(_Compact, frozen=True):
    """One parcel of a version; its arrays follow, unless they are those the worker has (``same``).

    From the leading server also what governs the tick that starts from this version: the plan, and
    whether a checkpoint is cut, a snapshot taken, or the run finishes or pauses, after it.
    lent: for each array the number of the server's block in which it lies and its first byte there, or
    (-1, 0) if it follows; empty if all follow. updates: asynchronously, so many of the tick that starts from
    this version are in the parcel already. given: asynchronously, with the leading server's first parcel, the
    slices of the tick that others were asked for. checks: as in Push. heard: so many of the worker's messages
    over this connection the server is done with. tuning: with the leading server's first parcel, what becomes
    of the learning rate. ends: likewise, there is no such tick: the run ends with this version.
    """

    version: int
    parcel: int
    same: bool = False
    shares: tuple[Share, ...] = ()
    cut: bool = False
    snapshot: bool = False
    finish: bool = False
    lent: tuple[tuple[int, int], ...] = ()
    updates: int = 0
    given: tuple[int, ...] = ()
    checks: tuple[int, ...] = ()
    heard: int = 0
    tuning: Tuning = Tuning()
    ends: bool = False
    pause: bool = False


class Lend(_Compact, frozen=True):
    """Memory of the sender's, for whoever is on its host: see ``elasticflow_ps.loans``.

    fd: its descriptor in process ``pid``. num_bytes: all of it, of which ``secret`` comes first.
    """

    number: int
    host: str
    pid: int
    fd: int
    num_bytes: int
    secret: bytes


class Mapped(_Compact, frozen=True):
    """The sender has mapped the memory that it was lent under this number: arrays may lie there."""

    number: int


class Read(_Compact, frozen=True):
    """The rows of a table's parcel at version ``version``, please; the keys follow, one array, ascending.

    Those of the next version are sent once it is made; ``rows.EARLY_MOST`` questions may wait for that.
    number: counts this worker's questions; the answer bears it.
    """

    number: int
    version: int
    parcel: int


class RowsRead(_Compact, frozen=True):
    """The answer to Read ``number``: the rows follow, one array; or they are ``gone``, with that version."""

    number: int
    gone: bool = False


class Gone(_Compact, frozen=True):
    """What was asked for is past; ``latest`` is the newest version there is."""

    latest: int


class Uninitialised(_Compact, frozen=True):
    """There is no version yet: please send Initial for all parcels."""


class Compute(_Compact, frozen=True):
    """Nobody has pushed these slices of ``tick`` in time: please compute them.

    careful: those of them that workers may have died of: try them in another process first.
    """

    tick: int
    slices: tuple[int, ...]
    careful: tuple[int, ...] = ()


class Consult(_Compact, frozen=True):
    """From the leading server: what does the program's ``on_epoch`` say? Answered by Advise."""

    question: Question


class Advise(_Compact, frozen=True):
    """Of the evaluation that is tick ``tick``, to the leading server."""

    tick: int
    advice: Advice


class Norms(_Compact, frozen=True):
    """From a server to server 0: (chunk, squared norm) of its gradients, if they are clipped.

    finite: there are no other numbers in what it is about to apply. round: from 0; in a second one servers
    tell of tensors where gradients are clipped by what they told in the first. tensors: in the last one, of
    those whose learning rate follows from norms, (tensor, chunk, squared norm of its values, of its change)
    of what of it lies in a chunk.
    """

    tick: int
    norms: tuple[tuple[int, float], ...]
    finite: bool = True
    round: int = 0
    tensors: tuple[tuple[int, int, float, float], ...] = ()


class Clip(_Compact, frozen=True):
    """From server 0: the norm of all gradients of ``tick`` together. skip: leave the step out.

    round: as in Norms. trust: by tensor, what its learning rate is multiplied with.
    """

    tick: int
    norm: float
    skip: bool = False
    round: int = 0
    trust: tuple[tuple[int, float], ...] = ()


class Fetch(_Compact, frozen=True):
    """From the server that is new at ``place``: all parcels of that place at ``version``, please."""

    place: int
    version: int


class State(_Compact, frozen=True):
    """The answer to Fetch, one a parcel; arrays follow: of each span the value, then its slots by name.

    checks: as in Push.
    """

    place: int
    version: int
    parcel: int
    checks: tuple[int, ...] = ()


class Keep(_Compact, frozen=True):
    """To the next server in the row: keep this parcel of a snapshot. Arrays follow, and checks: see State.

    standing: from the leading server, what evaluations had decided by then, where there are rules.
    """

    place: int
    version: int
    parcel: int
    checks: tuple[int, ...] = ()
    standing: WatchStanding | None = None


class Kept(_Compact, frozen=True):
    """All parcels of the place's snapshot are kept."""

    place: int
    version: int


class Safe(_Compact, frozen=True):
    """To the leading server: the snapshot of this place is kept by another server as well."""

    place: int
    version: int


class AllSafe(_Compact, frozen=True):
    """From the leading server: the snapshots of all places are kept; older ones need not be."""

    version: int


ToServer: TypeAlias = (
    Pull | Push | Initial | Read | Lend | Mapped | Norms | Fetch | Keep | Safe | Advise
)  # fmt: skip
FromServer: TypeAlias = (
    Version | Compute | Gone | Uninitialised | RowsRead | Lend | Mapped | Clip | State | Kept | AllSafe
    | Consult
)  # fmt: skip

encoder = msgspec.msgpack.Encoder()
encode = encoder.encode
_decoders = {
    "to_master": msgpack_decoder(ToMaster),
    "from_master": msgpack_decoder(FromMaster),
}


def decode_to_master(data: bytes) -> ToMaster:
    """Raises ProtocolError if the bytes are no message to a master."""
    try:
        return _decoders["to_master"].decode(data)  # type: ignore[no-any-return]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"not a message to a master: {error}") from error


def decode_from_master(data: bytes) -> FromMaster:
    """Raises ProtocolError if the bytes are no message from a master."""
    try:
        return _decoders["from_master"].decode(data)  # type: ignore[no-any-return]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"not a message from a master: {error}") from error
