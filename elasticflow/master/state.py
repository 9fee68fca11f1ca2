"""All decisions of the master: events and the time in, actions out. No sockets, processes or clocks.

The master owns who is a member, the plan, the checkpoints' commits, the quarantine and the target
size. It is not on the path of a step: what it says late costs time, never correctness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from elasticflow.checkpoint import Part
from elasticflow.config import Config
from elasticflow.fingerprint import differences
from elasticflow.layout import Layout, spread
from elasticflow.master.plan import Speed, make_plan
from elasticflow.messages import (
    Assignment,
    Excluded,
    Failed,
    Faulty,
    Heartbeat,
    Join,
    Leaving,
    Lost,
    Progress,
    Ready,
    ServerInfo,
    Share,
    Spec,
    Usage,
    Written,
)  # fmt: skip
from elasticflow.schedule import Schedule

USERS_FAULTS = ("ProgramError", "DataError", "ConfigError", "CostError")
"""Errors that no other worker would be spared."""
MOST_EARLY_DEATHS = 10
"""So many processes in a row that die before they are ready, and none that lives, end the run."""


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


class MemberState(str, Enum):
    """Where a worker or server is."""

    STARTING = "starting"
    """Asked for; has not said a word."""
    LOADING = "loading"
    """Has joined, and is catching up."""
    READY = "ready"
    """Takes part."""
    SUSPECT = "suspect"
    """Silent for ``suspect_s``; has no slices, and gets some again when it speaks."""
    DRAINING = "draining"
    """Ends its step and leaves."""
    LOST = "lost"
    """Its connection closed; soon the backend will say why, or it is ended."""


@dataclass
class Member:
    """A worker or server that is there, or has been asked for."""

    name: str
    role: str
    state: MemberState
    since_s: float
    host: str = ""
    pid: int = 0
    endpoint: str = ""
    heard_s: float = 0.0
    tick: int = -1
    slice_s: float = 0.0
    dropped: int = 0
    usage: Usage = field(default_factory=Usage)
    was_ready: bool = False


# --- events that are no messages -----------------------------------------------------------------


@dataclass(frozen=True)
class ExitedEvent:
    """The backend says that a process has ended. failed: by an error of its own; else it was killed,
    taken away, or done."""

    name: str
    failed: bool
    text: str


@dataclass(frozen=True)
class CommittedEvent:
    """A checkpoint is committed, or could not be. last: it is of the version with which the run ends."""

    tick: int
    last: bool
    error: str = ""


@dataclass(frozen=True)
class ScaleEvent:
    """Somebody asks for so many workers."""

    workers: int


@dataclass(frozen=True)
class StopEvent:
    """Somebody asks the run to end with a checkpoint."""

    reason: str


@dataclass(frozen=True)
class TimeEvent:
    """Time has passed."""


Event: TypeAlias = (
    Join | Ready | Heartbeat | Leaving | Failed | Faulty | Progress | Lost | Written
    | ExitedEvent | CommittedEvent | ScaleEvent | StopEvent | TimeEvent
)  # fmt: skip

# --- actions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartAction:
    """Start a process."""

    name: str
    role: str


@dataclass(frozen=True)
class KillAction:
    """End a process at once; it may be hung."""

    name: str


@dataclass(frozen=True)
class AssignAction:
    """Tell a member all it has to know."""

    name: str
    assignment: Assignment


@dataclass(frozen=True)
class PlanAction:
    """Tell the servers who computes what."""

    number: int
    shares: tuple[Share, ...]
    servers: tuple[str, ...]


@dataclass(frozen=True)
class DrainAction:
    """Tell a worker to leave once it has no slices."""

    name: str


@dataclass(frozen=True)
class CutAction:
    """Tell the leading server to have a checkpoint cut. finish: and to let the run end with it."""

    name: str
    finish: bool


@dataclass(frozen=True)
class SettledAction:
    """Tell the leading server that the checkpoint it ordered is committed or given up."""

    name: str
    tick: int


@dataclass(frozen=True)
class CommitAction:
    """All parts of a checkpoint are written: make it visible."""

    tick: int
    last: bool
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class QuarantineAction:
    """Tell the workers which records to leave out."""

    names: tuple[str, ...]
    excluded: tuple[Excluded, ...]


@dataclass(frozen=True)
class AttemptAction:
    """Tell workers to try a slice that raised for another one."""

    names: tuple[str, ...]
    tick: int
    slice: int


@dataclass(frozen=True)
class QuitAction:
    """Tell a member to leave now."""

    name: str
    reason: str


@dataclass(frozen=True)
class NoteAction:
    """Something that people should read. kind: ``info``, ``warning`` or ``fault``."""

    kind: str
    text: str


@dataclass(frozen=True)
class EndAction:
    """The run is over."""

    state: RunState
    text: str
    detail: str = ""


Action: TypeAlias = (
    StartAction | KillAction | AssignAction | PlanAction | DrainAction | CutAction | SettledAction
    | CommitAction | QuarantineAction | AttemptAction | QuitAction | NoteAction | EndAction
)  # fmt: skip


@dataclass
class _Fault:
    """A slice on which the program raises, and what each worker that tried it found."""

    reports: dict[str, Faulty] = field(default_factory=dict)


class MasterState:
    """See the module's docstring.

    restored: (training step, tick, quarantine) of the checkpoint to go on from, or None.
    """

    def __init__(
        self, config: Config, *, restored: tuple[int, int, tuple[Excluded, ...]] | None = None
    ) -> None:
        self.config = config
        self.state = RunState.STARTING
        self.members: dict[str, Member] = {}
        self.target, self.reason = config.worker_range[1], "the most that the settings allow"
        self.restored = restored
        self.version = restored[1] if restored else 0
        self.excluded: tuple[Excluded, ...] = restored[2] if restored else ()
        self.spec: Spec | None = None
        self.schedule: Schedule | None = None
        self.plan: tuple[Share, ...] = ()
        self.committed_tick: int | None = restored[1] if restored else None
        self.stop_reason = ""
        self.fingerprint: dict[str, str] = {}
        self._assignment: Assignment | None = None
        self._plan_number = 0
        self._next_worker = 1
        self._failures = self._early_deaths = 0
        self._parts: dict[int, dict[str, Part]] = {}
        self._broken_cuts: set[int] = set()
        self._faults: dict[tuple[int, int], _Fault] = {}
        self._cut_s: float | None = None
        self._last_made = self._all_made = False  # the last version is whole: on the leader, on all servers
        self._handlers: dict[type, Callable[[Any, float], list[Action]]] = {
            Join: self._on_join,
            Ready: self._on_ready,
            Heartbeat: self._on_heartbeat,
            Leaving: self._on_leaving,
            Failed: self._on_failed,
            Faulty: self._on_faulty,
            Progress: self._on_progress,
            Lost: self._on_lost,
            Written: self._on_written,
            ExitedEvent: self._on_exited,
            CommittedEvent: self._on_committed,
            ScaleEvent: self._on_scale,
            StopEvent: self._on_stop,
            TimeEvent: self._on_time,
        }

    @property
    def ended(self) -> bool:
        return self.state in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)

    @property
    def total_ticks(self) -> int | None:
        return self.schedule.total_ticks if self.schedule else None

    def start(self, now_s: float) -> list[Action]:
        """The first actions of a run."""
        actions: list[Action] = []
        for number in range(self.config.servers):
            actions += self._start(f"server-{number}", "server", now_s)
        return actions + self._size(now_s)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What to do, in this order, now that ``event`` has happened."""
        if self.ended:
            return self._on_leaving(event, now_s) if isinstance(event, Leaving) else []
        return self._handlers[type(event)](event, now_s)

    # --- members ---------------------------------------------------------------------------------

    def of(self, role: str, *states: MemberState) -> list[Member]:
        """Members of a role, in order of their names' numbers; of any state if none is given."""
        chosen = [m for m in self.members.values() if m.role == role and (not states or m.state in states)]
        return sorted(chosen, key=lambda member: int(member.name.rpartition("-")[2]))

    def _start(self, name: str, role: str, now_s: float) -> list[Action]:
        self.members[name] = Member(name, role, MemberState.STARTING, now_s, heard_s=now_s)
        return [StartAction(name, role)]

    def _size(self, now_s: float) -> list[Action]:
        """Starts or drains workers until there are as many as the target says."""
        if self._all_made:
            return []
        actions: list[Action] = []
        staying = [m for m in self.of("worker") if m.state not in (MemberState.DRAINING, MemberState.LOST)]
        for _ in range(self.target - len(staying)):
            actions += self._start(f"worker-{self._next_worker}", "worker", now_s)
            self._next_worker += 1
        surplus = len(staying) - self.target
        if surplus > 0:
            for member in sorted(staying, key=_use)[:surplus]:
                actions += self._drain(member)
            actions += self._replan()
        return actions

    def _drain(self, member: Member) -> list[Action]:
        if member.state is MemberState.STARTING:
            del self.members[member.name]
            return [KillAction(member.name)]
        # One that is loading has no slices to end, and may not listen for Drain yet.
        loading, member.state = member.state is MemberState.LOADING, MemberState.DRAINING
        leave = QuitAction(member.name, self.reason) if loading else DrainAction(member.name)
        return [leave, NoteAction("info", f"{member.name} is drained: {self.reason}")]

    def _on_join(self, event: Join, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member is None:
            return [QuitAction(event.name, "not a member of this run (any more)")]
        member.host, member.pid, member.endpoint = event.host, event.pid, event.endpoint
        member.heard_s = now_s
        if member.state is MemberState.STARTING:
            member.state = MemberState.LOADING
        return self._admit_worker(member, event, now_s) if member.role == "worker" else self._assign_servers()

    def _admit_worker(self, member: Member, event: Join, now_s: float) -> list[Action]:
        if event.spec is None:
            return [QuitAction(member.name, "said nothing of the program")]
        if self.spec is None:
            return self._learn(event) + self._assign_servers()
        if differs := _spec_difference(self.spec, event.spec):
            text = f"{member.name} finds another program than the first worker: {differs}"
            return self._end(RunState.FAILED, text + ". Is model() or data() random beyond the seed?")
        actions: list[Action] = []
        if unlike := differences(self.fingerprint, event.fingerprint):
            text = f"{member.name} would compute other bits than the first worker ({'; '.join(unlike)})"
            if self.config.fingerprint == "strict":
                quit_ = QuitAction(member.name, text)
                return [quit_, *self._fail(member, f"{text}. Allow it with fingerprint: warn.", now_s)]
            actions.append(NoteAction("warning", f"{text}: the same answer is no longer promised"))
        if self._assignment and all(m.state is MemberState.READY for m in self.of("server")):
            actions.append(AssignAction(member.name, self._assigned(self._assignment)))
        return actions

    def _learn(self, event: Join) -> list[Action]:
        """The first worker says what the program is; from that follows all that is to be done."""
        assert event.spec is not None
        self.spec, self.fingerprint = event.spec, event.fingerprint
        self.schedule = Schedule(
            num_records=self.spec.num_records,
            num_test=self.spec.num_test,
            batch_size=self.config.batch_size,
            num_slices=self.config.num_slices,
            epochs=self.config.epochs,
        )
        notes: list[Action] = [NoteAction("warning", text) for text in self.spec.warnings]
        if self.version >= self.schedule.total_ticks:
            return notes + self._end(
                RunState.FINISHED, f"there is nothing left to do: {self.schedule.total_steps} steps are done"
            )
        return notes

    def _assigned(self, assignment: Assignment) -> Assignment:
        return Assignment(**{**_fields(assignment), "excluded": self.excluded})

    def _assign_servers(self) -> list[Action]:
        """Once the program is known and all servers have joined, they can be given their chunks."""
        servers = self.of("server")
        if self._assignment or not self.spec or not self.schedule or self.ended:
            return []
        if any(server.state is MemberState.STARTING for server in servers):
            return []
        layout = Layout(self.spec.entries)
        shares = spread(layout, len(servers))
        every_steps, _ = self.config.checkpoint_interval
        self._assignment = Assignment(
            schedule=self.schedule,
            spec=self.spec,
            seed=self.config.seed,
            servers=tuple(
                ServerInfo(name=server.name, endpoint=server.endpoint, chunks=tuple(chunks))
                for server, chunks in zip(servers, shares, strict=True)
            ),
            excluded=self.excluded,
            start_tick=self.version,
            restore_step=self.restored[0] if self.restored else None,
            cut_every_steps=every_steps or 0,
        )
        actions: list[Action] = [AssignAction(server.name, self._assignment) for server in servers]
        idle = [server.name for server, chunks in zip(servers, shares, strict=True) if not chunks]
        if idle:
            text = f"the model is too small for {len(servers)} servers: {', '.join(idle)} hold nothing"
            actions.append(NoteAction("warning", text))
        return actions

    def _on_ready(self, event: Ready, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member is None or member.state is not MemberState.LOADING:
            return []
        member.state, member.since_s, member.heard_s = MemberState.READY, now_s, now_s
        member.was_ready = True
        if member.role == "server":
            return self._assign_workers()
        self._early_deaths = 0
        if self.state is RunState.STARTING:
            self.state = RunState.RUNNING
            self._cut_s = now_s
        note = NoteAction("info", f"{event.name} has joined, {event.started_s:.2f} s after it was asked for")
        return [note, *self._replan(), *self._attempts(event.name)]

    def _assign_workers(self) -> list[Action]:
        if self._assignment is None or any(m.state is not MemberState.READY for m in self.of("server")):
            return []
        assignment = self._assigned(self._assignment)
        return [AssignAction(m.name, assignment) for m in self.of("worker", MemberState.LOADING)]

    def _replan(self) -> list[Action]:
        """A new plan, if the workers that are ready are not those of the present one."""
        ready = self.of("worker", MemberState.READY)
        shares = make_plan([Speed(m.name, m.slice_s) for m in ready], self.config.num_slices)
        if shares == self.plan or not self._assignment:
            return []
        self._plan_number += 1
        self.plan = shares
        return [PlanAction(self._plan_number, shares, tuple(m.name for m in self.of("server")))]

    def _on_heartbeat(self, event: Heartbeat, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member is None:
            return [QuitAction(event.name, "not a member of this run (any more)")]
        member.heard_s, member.tick, member.dropped = now_s, event.tick, event.dropped
        member.slice_s = event.slice_s
        member.usage = event.usage or member.usage
        if member.state is MemberState.SUSPECT:
            member.state = MemberState.READY
            note = NoteAction("info", f"{event.name} is heard again")
            return [note, *self._replan(), *self._attempts(event.name), *self._judge_all()]
        return []

    # --- those who go ----------------------------------------------------------------------------

    def _on_leaving(self, event: Leaving, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member and event.usage:
            member.usage = event.usage
        if member and member.role == "worker":
            # Who leaves undrained has got the last version from all servers.
            self._all_made |= member.state is not MemberState.DRAINING
            member.state = MemberState.DRAINING
        return []

    def _on_lost(self, event: Lost, now_s: float) -> list[Action]:
        """Its connection to the leading server closed: it is dead, or as good as."""
        member = self.members.get(event.worker)
        here = (MemberState.READY, MemberState.SUSPECT, MemberState.LOADING)
        if member is None or member.role != "worker" or member.state not in here:
            return []
        member.state, member.since_s = MemberState.LOST, now_s
        anew = [] if self._last_made else self._size(now_s)  # at the end it may just have left
        return [*self._replan(), *anew, *self._judge_all()]

    def _on_exited(self, event: ExitedEvent, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member is None:
            return []
        if member.role == "server":
            step = self._resume_point()
            return self._end(RunState.FAILED, f"{event.name} {event.text}; go on with --resume, from {step}")
        if member.state is MemberState.DRAINING:
            del self.members[event.name]
            note = NoteAction("info", f"{event.name} has left")
            return [note, *self._replan(), *self._size(now_s), *self._judge_all()]
        if event.failed:
            return self._fail(member, event.text, now_s)
        if not member.was_ready:
            self._early_deaths += 1
            if self._early_deaths > MOST_EARLY_DEATHS:
                text = f"{self._early_deaths} workers in a row died before they were ready"
                return self._end(RunState.FAILED, f"{text}; the last {event.text}")
        return self._remove(member, event.text, now_s)

    def _resume_point(self) -> str:
        if self.committed_tick is None or self.schedule is None:
            return "the beginning: nothing is committed yet"
        return f"step {self.schedule.steps_before(self.committed_tick)}"

    def _remove(self, member: Member, why: str, now_s: float) -> list[Action]:
        """Goes on without a worker, and starts another in its place."""
        self.members.pop(member.name, None)
        note = NoteAction("fault", f"{member.name} {why}")
        return [note, *self._replan(), *self._size(now_s), *self._judge_all()]

    def _on_failed(self, event: Failed, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member is None:
            return []
        if member.role == "server":
            return self._end(RunState.FAILED, f"{event.name}: {event.text}", event.traceback)
        if event.kind in USERS_FAULTS and self.state is RunState.STARTING:
            return self._end(RunState.FAILED, event.text)
        return self._fail(member, f"failed: {event.text}", now_s, event.traceback)

    def _fail(self, member: Member, why: str, now_s: float, detail: str = "") -> list[Action]:
        """A failure of the worker's own: ends the run once there are too many."""
        self._failures += 1
        if self._failures <= self.config.max_failures:
            return self._remove(member, why, now_s)
        many = f"failure {self._failures}, max_failures is {self.config.max_failures}"
        return self._end(RunState.FAILED, f"{member.name} {why} ({many})", detail)

    # --- records on which the program raises -------------------------------------------------------

    def _on_faulty(self, event: Faulty, now_s: float) -> list[Action]:
        if event.tick < self.version or event.name not in self.members:
            return []
        if event.rows and {each.row for each in self.excluded}.issuperset(event.rows):
            return []  # it has not heard of the quarantine yet
        fault = self._faults.setdefault((event.tick, event.slice), _Fault())
        first = not fault.reports
        fault.reports[event.name] = event
        others = tuple(m.name for m in self.of("worker", MemberState.READY) if m.name != event.name)
        attempt: list[Action] = [AttemptAction(others, event.tick, event.slice)] if first and others else []
        return attempt + self._judge(event.tick, event.slice)

    def _attempts(self, name: str) -> list[Action]:
        """Has a worker that is here (again) try the slices that wait for its word as well."""
        waiting = [key for key, fault in self._faults.items() if name not in fault.reports]
        return [AttemptAction((name,), tick, number) for tick, number in waiting]

    def _judge_all(self) -> list[Action]:
        return [action for tick, number in list(self._faults) for action in self._judge(tick, number)]

    def _judge(self, tick: int, number: int) -> list[Action]:
        """Quarantines what the program raises on for every worker that is there, never for one alone.

        While some worker can still compute the slice whole, it may do so, and the step goes on.
        """
        fault = self._faults[tick, number]
        ready = {m.name for m in self.of("worker", MemberState.READY, MemberState.DRAINING)}
        if not ready or not ready <= set(fault.reports):
            return []
        del self._faults[tick, number]
        report = next(fault.reports[name] for name in sorted(ready))
        known = {each.row for each in self.excluded}
        rows = [row for row in report.rows if row not in known]
        if not rows:
            text = f"the program raises on a slice of tick {tick}, though on none of its records alone"
            return self._end(RunState.FAILED, f"{text}: {report.text}", report.traceback)
        if len(known) + len(rows) > self.config.max_quarantined:
            named = ", ".join(map(str, rows))
            text = f"the program raises on row {named} of the training data: {report.text}"
            most = f"max_quarantined is {self.config.max_quarantined}"
            return self._end(RunState.FAILED, f"{text} ({most})", report.traceback)
        added = tuple(Excluded(row, tick) for row in rows)
        self.excluded += added
        names = tuple(m.name for m in self.of("worker"))
        notes = [NoteAction("fault", f"row {row} is left out from now on: {report.text}") for row in rows]
        return [*notes, QuarantineAction(names, self.excluded)]

    # --- progress and checkpoints ------------------------------------------------------------------

    @property
    def _leader(self) -> str:
        return "server-0"

    def _on_progress(self, event: Progress, now_s: float) -> list[Action]:
        self.version = max(self.version, event.version)
        self._faults = {key: fault for key, fault in self._faults.items() if key[0] >= self.version}
        if event.last:
            self.state, self._last_made = RunState.FINISHING, True
        return []

    def _on_written(self, event: Written, now_s: float) -> list[Action]:
        if event.error or event.part is None:
            return self._cut_failed(
                event.tick, event.last, f"{event.name} could not write its part: {event.error}"
            )
        if event.tick in self._broken_cuts:
            return []
        parts = self._parts.setdefault(event.tick, {})
        parts[event.name] = event.part
        if len(parts) < len(self.of("server")):
            return []
        del self._parts[event.tick]
        return [CommitAction(event.tick, event.last, tuple(parts[name] for name in sorted(parts)))]

    def _cut_failed(self, tick: int, last: bool, text: str) -> list[Action]:
        self._parts.pop(tick, None)
        if tick in self._broken_cuts:
            return []
        self._broken_cuts.add(tick)
        if last:
            return self._end(RunState.FAILED, f"the final checkpoint is missing: {text}")
        return [NoteAction("fault", f"a checkpoint failed: {text}"), SettledAction(self._leader, tick)]

    def _on_committed(self, event: CommittedEvent, now_s: float) -> list[Action]:
        if event.error:
            return self._cut_failed(event.tick, event.last, event.error)
        self.committed_tick = event.tick
        assert self.schedule is not None
        total, done = self.schedule.total_steps, self.schedule.steps_before(event.tick)
        if event.tick == self.total_ticks:
            return self._end(RunState.FINISHED, f"all {total} steps are done")
        if event.last:
            text = f"{self.stop_reason}: {total - done} of {total} steps are missing, go on with --resume"
            return self._end(RunState.STOPPED, text)
        return [SettledAction(self._leader, event.tick)]

    def _on_time(self, event: TimeEvent, now_s: float) -> list[Action]:
        for server in self.of("server", MemberState.LOADING, MemberState.READY):
            if now_s >= server.heard_s + self.config.lost_s:
                text = f"{server.name} was silent for {now_s - server.heard_s:.0f} s, and is given up"
                return self._end(RunState.FAILED, f"{text}; go on with --resume, from {self._resume_point()}")
        actions: list[Action] = []
        for member in self.of("worker"):
            actions += self._check_alive(member, now_s)
        _, every_s = self.config.checkpoint_interval
        if every_s and self._cut_s is not None and now_s >= self._cut_s + every_s and not self.stop_reason:
            self._cut_s = now_s
            actions.append(CutAction(self._leader, finish=False))
        return actions

    def next_time_s(self) -> float | None:
        """When to send a TimeEvent at the latest."""
        times = [at_s for m in self.of("worker") if (at_s := self._patience_ends_s(m)) is not None]
        servers = self.of("server", MemberState.LOADING, MemberState.READY)
        times += [server.heard_s + self.config.lost_s for server in servers]
        _, every_s = self.config.checkpoint_interval
        if every_s and self._cut_s is not None and not self.stop_reason:
            times.append(self._cut_s + every_s)
        return min(times, default=None)

    def _patience_ends_s(self, member: Member) -> float | None:
        """When a worker that stays silent is no longer waited for; None if it may take its time."""
        if member.state is MemberState.STARTING:
            return None
        if member.state is MemberState.LOST:  # it may still send heartbeats, while all else of it hangs
            return member.since_s + self.config.suspect_s
        ready = member.state is MemberState.READY
        return member.heard_s + (self.config.suspect_s if ready else self.config.lost_s)

    def _check_alive(self, member: Member, now_s: float) -> list[Action]:
        ends_s = self._patience_ends_s(member)
        if ends_s is None or now_s < ends_s:
            return []
        if member.state is MemberState.READY:
            member.state = MemberState.SUSPECT
            note = NoteAction("fault", f"{member.name} is silent; the others do its slices")
            return [note, *self._replan(), *self._judge_all()]
        silent = f"was silent for {now_s - member.heard_s:.0f} s, and is given up"
        text = "lost its connection" if member.state is MemberState.LOST else silent
        return [KillAction(member.name), *self._remove(member, text, now_s)]

    # --- requests ----------------------------------------------------------------------------------

    def _on_scale(self, event: ScaleEvent, now_s: float) -> list[Action]:
        if event.workers == self.target:
            return []
        old, self.target, self.reason = self.target, event.workers, "asked for by scale"
        return [NoteAction("info", f"from {old} to {event.workers} workers, as asked"), *self._size(now_s)]

    def _on_stop(self, event: StopEvent, now_s: float) -> list[Action]:
        if self.stop_reason:
            return []
        self.stop_reason = event.reason
        if self.state is RunState.STARTING:
            return self._end(RunState.STOPPED, f"{event.reason}, before the first step")
        if self.state is not RunState.FINISHING:
            self.state = RunState.FINISHING
            return [
                NoteAction("info", f"{event.reason}: one last checkpoint"),
                CutAction(self._leader, finish=True),
            ]
        return []

    def _end(self, state: RunState, text: str, detail: str = "") -> list[Action]:
        self.state = state
        quits: Sequence[Action] = [
            QuitAction(member.name, text) for role in ("worker", "server") for member in self.of(role)
        ]
        return [*quits, EndAction(state, text, detail)]


def _use(member: Member) -> tuple[int, float]:
    """Who is of least use comes first: who is not ready yet, then the newest."""
    order = (MemberState.STARTING, MemberState.LOADING, MemberState.SUSPECT, MemberState.READY)
    return order.index(member.state), -member.since_s


def _fields(assignment: Assignment) -> dict[str, Any]:
    return {name: getattr(assignment, name) for name in assignment.__struct_fields__}


def _spec_difference(first: Spec, other: Spec) -> str:
    """What two workers learnt differently, in words; empty if nothing."""
    for name in first.__struct_fields__:
        if name != "warnings" and getattr(first, name) != getattr(other, name):
            return f"{name} is {_short(getattr(other, name))}, not {_short(getattr(first, name))}"
    return ""


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
