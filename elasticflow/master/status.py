"""What people are shown of a run: its status while it runs, its report when it is over; both tell its story.

What is in ``StoryMemory`` outlives a master: it is plain data, bounded, and kept in the master's journal.
Its times are seconds since the run's start.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from elasticflow.master.actions import EndAction, NoteAction
from elasticflow.master.costs import KEPT, Fault, Faults
from elasticflow.master.curve import LossCurve
from elasticflow.master.members import Member, RunState
from elasticflow.master.outlook import Outlook, look
from elasticflow.master.speed import StepSpeed
from elasticflow.master.state import MasterState
from elasticflow.process.clocks import since_boot
from elasticflow.process.texts import EVENT_CHARS, sendable
from elasticflow.run import dates
from elasticflow.run.config import Config
from elasticflow.run.folder import PastAttempt
from elasticflow.run.telling import (
    Event,
    PartStory,
    Past,
    Report,
    Resize,
    Size,
    StartPart,
    Status,
    ToldBest,
    ToldFault,
    ToldMaster,
    ToldServer,
    ToldWorker,
    WorkersSeconds,
)
from elasticflow.step.schedule import Schedule
from elasticflow.training.programs import ProgramUse
from elasticflow.training.standing import WatchStanding
from elasticflow.wire.messages import Progress, Usage, Written
from elasticflow.wire.seal import Guard

LOOK_S = 1.0
"""Seconds between two looks at whether the deadline will be kept."""
SHOWN = 50
"""So many events, evaluations, faults, ... are in a status; ``KEPT`` of each are in the report."""
MOST_USAGES = 200
"""So many workers' seconds are kept apart; those of workers that went before are one sum."""


class StoryMemory(msgspec.Struct, kw_only=True):
    """All of the past that a new master has to know. started_at: since 1970. time_s: when it was remembered.
    boot: when it started, see ``since_boot``.

    evaluations: by tick. usage: workers' seconds by name; gone: of those longest gone, together.
    """

    started_at: float
    start_step: int
    faults: Faults
    boot: tuple[str, float] = ("", 0.0)
    time_s: float = 0.0
    schedule: Schedule | None = None
    version: int = 0
    loss: float | None = None
    first_step_s: float | None = None
    committed_step: int | None = None
    quarantined: tuple[int, ...] = ()
    skipped: int = 0
    """Steps that were left out; asynchronously, updates."""
    audited: int = 0
    """Slices that were computed twice, and gave the same."""
    num_events: int = 0
    events: list[Event] = []
    evaluations: dict[int, dict[str, Any]] = {}
    parts: list[PartStory] = []
    parts_failed: int = 0
    resizes: list[Resize] = []
    sizes: list[Size] = []
    usage: dict[str, Usage] = {}
    gone: Usage = Usage()
    num_ready: int = 0
    blocked_s: float = 0.0
    """Seconds of workers for which checkpoints kept them."""
    outlook: Outlook = Outlook()
    """Whether the deadline will be kept."""
    programs: tuple[ProgramUse, ...] = ()
    """Those that the run went by so far, the present one last."""
    standing: WatchStanding | None = None
    """What evaluations have decided."""
    start: list[StartPart] = []
    """What the time until the first step went into, as far as it is known."""
    curve: LossCurve = msgspec.field(default_factory=LossCurve)

    def __post_init__(self) -> None:
        if not self.curve.points and self.curve.step < self.start_step:
            self.curve.first = self.curve.step = self.start_step


def _sum(usages: list[Usage]) -> Usage:
    return Usage(**{name: sum(getattr(each, name) for each in usages) for name in Usage.__struct_fields__})


def _lived_s(usage: Usage) -> float:
    return usage.computing_s + usage.waiting_s + usage.starting_s + usage.recovering_s


class Story:
    """See the module's docstring. ``now_s`` is always a time of ``clock``, as the master's decisions have it.

    remembered: what the master before this one remembered, if there was one. past: attempts before this one.
    """

    def __init__(
        self,
        config: Config,
        run_dir: str,
        start_step: int,
        remembered: StoryMemory | None = None,
        *,
        past: Sequence[PastAttempt] = (),
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        boot: Callable[[], tuple[str, float]] = since_boot,
    ) -> None:
        self._config, self._run_dir, self._clock, self._wall = config, run_dir, clock, wall
        self._past = past
        window_s = config.suspect_s + config.heartbeat_s
        self._memory = remembered or StoryMemory(
            started_at=wall(), start_step=start_step, faults=Faults(window_s=window_s), boot=boot()
        )
        self._origin_s = clock() - max(self._memory.time_s, self._passed_s(*boot()))
        self._speed = StepSpeed()
        self._looked_s = float("-inf")

    def _passed_s(self, boot: str, boot_s: float) -> float:
        """Since the start of the first master. Wall clocks jump; only another machine's is all there is."""
        began, began_s = self._memory.boot
        if boot and boot == began:
            return boot_s - began_s
        return self._wall() - self._memory.started_at

    @property
    def parts_failed(self) -> int:
        """Parts of checkpoints that could not be written."""
        return self._memory.parts_failed

    @property
    def stop_at_s(self) -> float | None:
        """When the time limit, or ``max_time``, is over, from the first master's start on; None: never."""
        limits = (self._config.time_limit_s, self._config.max_time_s)
        return min((self._origin_s + limit_s for limit_s in limits if limit_s is not None), default=None)

    def remembered(self) -> StoryMemory:
        """What the next master has to know. Goes on changing: encode it now."""
        self._memory.time_s = self._time_s()
        return self._memory

    def _time_s(self, now_s: float | None = None) -> float:
        return round((self._clock() if now_s is None else now_s) - self._origin_s, 3)

    # --- what happens -------------------------------------------------------------------------------

    def note(self, note: NoteAction) -> None:
        """An event for people to read."""
        self._memory.num_events += 1
        text = sendable(note.text, EVENT_CHARS)
        self._memory.events.append(Event(self._time_s(), note.kind, text))
        del self._memory.events[:-KEPT]

    def began(self, parts: Sequence[tuple[str, float]]) -> None:
        """What a worker that has just joined did before; only the first one's counts."""
        memory = self._memory
        if memory.start or memory.first_step_s is not None or not parts:
            return
        master_s = max(0.0, self._time_s() - sum(seconds for _, seconds in parts))
        told = (("master", master_s), *((sendable(what, EVENT_CHARS), seconds) for what, seconds in parts))
        memory.start = [StartPart(what, round(seconds, 3)) for what, seconds in told]

    def goes_by(self, programs: tuple[ProgramUse, ...]) -> None:
        """The programs that the run went by so far, the present one last."""
        self._memory.programs = programs

    def fault(self, member: str, role: str, text: str, now_s: float, *, early: bool = False) -> None:
        """A worker, server or master is lost. That it is over is found out, or told by ``regrouped``.

        More of the same member while it lasts adds to it. early: see ``FaultAction``.
        """
        self._memory.faults.add(member, role, sendable(text, EVENT_CHARS), self._time_s(now_s), early=early)

    def regrouped(
        self, lost_version: int, start_version: int, source: str, now_s: float, *, moved: bool = False
    ) -> None:
        """The servers go on from another version than they had; source: memory, storage or beginning.

        moved: since places have; that is no fault by itself.
        """
        steps = self._steps_before(lost_version) - self._steps_before(start_version)
        time_s = self._time_s(now_s)
        self._memory.faults.regrouped(lost_version, start_version, steps, source, time_s, moved=moved)
        self._speed.forget()
        self._memory.curve.begin(self._steps_before(start_version))

    def resized(self, old: int, new: int, reason: str) -> None:
        """The number of workers to have has changed."""
        self._memory.resizes.append(Resize(self._time_s(), old, new, reason))
        del self._memory.resizes[:-KEPT]

    def sized(self, ready: int, wanted: int, why: str) -> None:
        """So many workers take part from now on, or there is another reason why there are not more."""
        self._memory.sizes.append(Size(self._time_s(), ready, wanted, why))
        del self._memory.sizes[:-KEPT]

    def progress(self, state: MasterState, progress: Progress) -> None:
        """News from the leading server; that of a past generation is none."""
        if progress.generation != state.generation:
            return
        assert state.schedule is not None and state.spec is not None
        self._see(state)
        memory, now_s, time_s = self._memory, self._clock(), self._time_s()
        for _, seconds in progress.stalls:
            memory.faults.stalled(seconds, time_s)
        self._taken_over(progress.version, time_s)
        memory.version = progress.version
        memory.faults.version(progress.version, time_s)
        steps = self._steps_before(progress.version)
        if steps > memory.start_step and memory.first_step_s is None:
            memory.first_step_s = time_s
            if memory.start:
                rest_s = max(0.0, time_s - sum(part.seconds for part in memory.start))
                memory.start.append(StartPart("servers and first step", round(rest_s, 3)))
        memory.loss = progress.loss if progress.loss is not None else memory.loss
        self._speed.add(now_s, steps)
        of_step = progress.loss, progress.lr, memory.num_ready
        memory.curve.add(steps, *of_step, time_s, last=progress.last)
        names = ("cost", *state.spec.metrics)
        for tick, values in progress.evaluations:
            work = state.schedule.at(tick)
            measured = dict(zip(names, values, strict=False))
            memory.evaluations[tick] = {"epoch": work.epoch + 1, "step": work.step, **measured}
        memory.evaluations = dict(sorted(memory.evaluations.items())[-KEPT:])

    def _taken_over(self, version: int, time_s: float) -> None:
        """If this master is a new one, it has found out now how far the others have got without it."""
        steps = self._steps_before(version) - self._steps_before(self._memory.version)
        done = "another took over" + (f", and found {steps} more steps done" if steps > 0 else "")
        self._memory.faults.over("master", "master", done, time_s)

    def written(self, step: int, written: Written) -> None:
        """A server's part of a checkpoint is written, or given up; one that is told again is the same."""
        memory = self._memory
        part = PartStory(step, written.name, written.copy_s, written.write_s, written.error)
        parts = [each for each in memory.parts if (each.step, each.server) != (step, written.name)]
        if len(parts) == len(memory.parts):
            before_s = max((each.copy_s for each in parts if each.step == step), default=0.0)
            memory.blocked_s += max(0.0, part.copy_s - before_s) * memory.num_ready
            memory.parts_failed += bool(part.error)
        memory.parts = [*parts, part][-KEPT:]

    def keep_usage(self, state: MasterState) -> None:
        """Remembers the workers' seconds, also of those that go."""
        self._see(state)
        memory, workers = self._memory, state.of("worker")
        for worker in workers:
            before = memory.usage.get(worker.name, Usage())
            if _lived_s(worker.usage) >= _lived_s(before):  # a new master may not have heard of it yet
                memory.usage[worker.name] = worker.usage
        here = {worker.name for worker in workers}
        for name in [name for name in memory.usage if name not in here][: len(memory.usage) - MOST_USAGES]:
            memory.gone = _sum([memory.gone, memory.usage.pop(name)])
        if memory.num_ready >= state.target:
            memory.faults.manned(self._time_s())

    def outlook(self) -> NoteAction | None:
        """What to say of the deadline, if that has changed; to be asked from time to time."""
        now_s, wall_s, due_s = self._clock(), self._wall(), self._config.deadline_at
        if due_s is None or now_s < self._looked_s + LOOK_S:
            return None
        self._looked_s = now_s
        memory, before, eta_s = self._memory, self._memory.outlook, self._eta_s()
        now = memory.outlook = look(before, left_s=due_s - wall_s, eta_s=eta_s, now_s=self._time_s(now_s))
        if now.over and not before.over:
            due = dates.clock(due_s, wall_s, dates.zone_of(self._config.deadline))
            text = f"the deadline {due} is over before the run's end; it goes on"
            return NoteAction("warning", text)
        if now.late == before.late or eta_s is None:
            return None
        text = f"ETA {dates.against(self._config.deadline, wall_s + eta_s, wall_s)}"
        return NoteAction("warning", text) if now.late else NoteAction("info", f"{text} again")

    def _see(self, state: MasterState) -> None:
        """What is to be remembered of the state."""
        memory = self._memory
        memory.schedule = state.schedule or memory.schedule
        memory.quarantined = tuple(each.row for each in state.excluded)
        memory.skipped, memory.audited = len(state.divergence.skipped), state.num_audited
        if state.num_ready != memory.num_ready:
            memory.num_ready = state.num_ready
            self._speed.begin_anew()
        faults, time_s = memory.faults, self._time_s()
        known = {fault.member: fault for fault in faults.open("storage")}
        for name in known.keys() - state.troubles.keys():
            faults.over(name, "storage", "it was tried again until it was over", time_s)
        for name, text in ((name, sendable(text, EVENT_CHARS)) for name, text in state.troubles.items()):
            if name not in known or known[name].text != text:
                faults.add(name, "storage", text, time_s)
        memory.standing = state.standings.newest
        if state.committed_tick is not None and state.schedule is not None:
            memory.committed_step = state.schedule.steps_before(state.committed_tick)

    def _steps_before(self, version: int) -> int:
        return self._memory.schedule.steps_before(version) if self._memory.schedule else 0

    # --- what people are shown ----------------------------------------------------------------------

    @property
    def done(self) -> float:
        """What part of the steps is done: 0 to 1."""
        schedule = self._memory.schedule
        return self._step / schedule.total_steps if schedule else 0.0

    @property
    def _step(self) -> int:
        return max(self._memory.start_step, self._steps_before(self._memory.version))

    def goes_with(self, config: Config) -> None:
        """Something that the settings had left open is decided."""
        self._config = config

    def so_far(self, most: int = KEPT) -> Past:
        """The past; of events, faults and so on the last ones, at most so many each."""
        memory, schedule, time_s = self._memory, self._memory.schedule, self._time_s()
        step = self._step
        evaluations, faults = list(memory.evaluations.values()), memory.faults
        seconds = self._seconds()
        lived_s = sum(seconds.values())
        usage = _sum([memory.gone, *memory.usage.values()])
        return Past(
            run=self._run_dir,
            program=self._config.program,
            program_sha256=self._config.program_sha256,
            programs=memory.programs,
            backend=self._config.backend,
            mode=self._config.mode,
            staleness=self._config.staleness,
            snapshot_s=self._config.snapshot_s,
            strategy=self._config.strategy,
            strategy_why=self._config.strategy_why,
            compression=self._config.compression,
            guarded=Guard.between_hosts(
                encrypt=self._config.encrypt_data, authenticate=self._config.authenticate_data
            ).value,
            started_at=memory.started_at,
            elapsed_s=time_s,
            attempt=1 + len(self._past),
            total_s=time_s + sum(attempt.elapsed_s for attempt in self._past),
            time_limit_s=self._config.time_limit_s,
            deadline=self._config.deadline or None,
            deadline_at=self._config.deadline_at,
            finished_at=None,
            met_deadline=_met(self._config.deadline_at, self._wall(), finished=False),
            first_step_s=memory.first_step_s,
            start=memory.start if memory.first_step_s is not None else [],
            epoch=min(step // schedule.steps_per_epoch + 1, schedule.epochs) if schedule else 1,
            epochs=schedule.epochs if schedule else self._config.epochs,
            start_step=memory.start_step,
            step=step,
            steps_total=schedule.total_steps if schedule else None,
            records_covered=_covered(schedule, step) if schedule else 0,
            records_total=_covered(schedule, schedule.total_steps) if schedule else None,
            records_left_out=schedule.records_left_out if schedule else None,
            quarantined=list(memory.quarantined),
            skipped=memory.skipped,
            audited=memory.audited,
            loss=memory.loss,
            evaluation=evaluations[-1] if evaluations else None,
            num_evaluations=len(evaluations),
            evaluations=evaluations[-most:],
            checkpoint_step=memory.committed_step,
            checkpoints=memory.parts[-most:],
            checkpoints_failed=memory.parts_failed,
            workers_seconds=WorkersSeconds(**{name: round(value, 3) for name, value in seconds.items()}),
            goodput=round(seconds["productive"] / lived_s, 4) if lived_s else None,
            slices_computed=usage.num_slices,
            slices_computed_as_backup=usage.num_backup,
            num_faults=faults.num,
            faults=[_fault(fault) for fault in faults.kept[-most:]],
            standstill_s=round(faults.standing_still_s(time_s), 3),
            stalled_s=round(faults.stalled_s, 3),
            steps_redone=faults.steps_lost,
            storage_trouble="; ".join(f"{f.member}: {f.text}" for f in faults.open("storage")),
            resizes=memory.resizes[-most:],
            sizes=memory.sizes[-most:],
            shortage=memory.sizes[-1].why if memory.sizes else "",
            num_events=memory.num_events,
            events=memory.events[-most:],
            best=_best(memory.standing),
            losses=memory.curve.points[-most:],
            lr_scale=memory.standing.scale * memory.standing.factor if memory.standing else 1.0,
        )

    def _seconds(self) -> dict[str, float]:
        """See ``WorkersSeconds``."""
        memory = self._memory
        usage = _sum([memory.gone, *memory.usage.values()])
        redone_s = min(usage.redone_s, usage.computing_s)
        blocked_s = min(memory.blocked_s, usage.waiting_s)
        duplicated_s = 0.0
        if memory.schedule and usage.num_slices:
            ticks = max(0, memory.version - memory.schedule.tick_of(memory.start_step))
            needed = (ticks + memory.faults.ticks_lost) * memory.schedule.num_slices
            extra = min(max(0, usage.num_slices - needed), usage.num_backup)
            duplicated_s = min(extra * usage.computing_s / usage.num_slices, usage.computing_s - redone_s)
        return {
            "productive": usage.computing_s - redone_s - duplicated_s,
            "redone": redone_s,
            "duplicated": duplicated_s,
            "starting": usage.starting_s,
            "waiting": usage.waiting_s - blocked_s,
            "recovering": usage.recovering_s,
            "checkpointing": blocked_s,
        }

    def _records_per_s(self) -> float | None:
        """Of late, with the workers that there are."""
        schedule, recent = self._memory.schedule, self._speed.recent(self._clock())
        if recent is None or schedule is None:
            return None
        steps, seconds = recent
        return steps * schedule.records_per_epoch / schedule.steps_per_epoch / seconds

    def _eta_s(self) -> float | None:
        """Seconds until the end, at this speed; None as long as nobody can know."""
        schedule, rate = self._memory.schedule, self._records_per_s()
        if not rate or schedule is None:
            return None
        return max(0, _covered(schedule, schedule.total_steps) - _covered(schedule, self._step)) / rate

    def status(
        self,
        state: MasterState,
        *,
        places: Mapping[str, str] | None = None,
        incarnation: int = 1,
        dropped: int = 0,
        refused: int = 0,
    ) -> Status:
        """The run as it is. dropped, refused: messages and connections, by the master.

        places: by member, where it is, or what it waits for.
        """
        return self._status(state, SHOWN, incarnation, dropped, refused, places or {})

    def _status(
        self,
        state: MasterState,
        most: int,
        incarnation: int,
        dropped: int,
        refused: int,
        places: Mapping[str, str],
    ) -> Status:
        self._see(state)
        past = self.so_far(most)
        eta_s = self._eta_s()
        return Status(
            **msgspec.structs.asdict(past),
            state=state.state.value,
            generation=state.generation,
            regrouping=state.regrouping,
            records_per_s=self._records_per_s(),
            eta_s=eta_s,
            eta_at=None if eta_s is None else self._wall() + eta_s,
            target_workers=state.target,
            target_reason=state.reason,
            master=ToldMaster(
                name="master",
                host=socket.gethostname(),
                pid=os.getpid(),
                state="running",
                step=past.step,
                incarnation=incarnation,
                dropped_messages=dropped,
                refused_connections=refused,
            ),
            servers=[_server(server, state, places) for server in state.of("server")],
            workers=_workers(state, places),
        )

    def report(
        self, state: MasterState, end: EndAction, *, incarnation: int = 1, dropped: int = 0, refused: int = 0
    ) -> Report:
        """How the run went, for report.json: its last status, and more."""
        status = self._status(state, KEPT, incarnation, dropped, refused, {})
        now_s, due_s = self._wall(), self._config.deadline_at
        finished = end.state is RunState.FINISHED
        status.master.state = "ended"
        for member in (*status.servers, *status.workers):
            member.state = "ended"
        status.state, status.eta_s, status.eta_at = end.state.value, None, None
        status.finished_at = now_s if finished else None
        status.met_deadline = _met(due_s, now_s, finished=finished)
        return Report(
            **msgspec.structs.asdict(status),
            text=sendable(end.text, EVENT_CHARS),
            traceback=sendable(end.detail),
        )


def _met(due_s: float | None, now_s: float, *, finished: bool) -> bool | None:
    """None: there is no deadline, or nobody knows yet; a run that was stopped may still go on in time."""
    if due_s is None or (now_s <= due_s and not finished):
        return None
    return now_s <= due_s


def _covered(schedule: Schedule, step: int) -> int:
    """Records of all epochs that are in the first ``step`` steps."""
    epochs, steps = divmod(step, schedule.steps_per_epoch)
    return epochs * schedule.records_per_epoch + min(steps * schedule.batch_size, schedule.records_per_epoch)


def _best(standing: WatchStanding | None) -> ToldBest | None:
    if standing is None or standing.rules.best is None or standing.best.best is None:
        return None
    return ToldBest(standing.rules.best.metric, standing.best.best, standing.best.step)


def _fault(fault: Fault) -> ToldFault:
    return ToldFault(**{name: getattr(fault, name) for name in ToldFault.__struct_fields__})


def _server(server: Member, state: MasterState, places: Mapping[str, str]) -> ToldServer:
    need = state.needs.get(server.name)
    # How many rows tables without rows= will have nobody knows.
    bounded = state.spec is not None and all(table.rows is not None for table in state.spec.tables)
    return ToldServer(
        **_member(server, state, places),
        standby=bool(state.row.chunks) and server.name not in state.row.holders,
        refused_connections=server.refused,
        memory_bytes=server.memory_bytes,
        memory_at_most_bytes=need.total if need and bounded else None,
        relay=server.name in state.row.relays,
    )


def _workers(state: MasterState, places: Mapping[str, str]) -> list[ToldWorker]:
    slices: Counter[str] = Counter()
    for share in state.plan:
        slices[share.worker] += share.stop - share.first
    return [
        ToldWorker(
            **_member(worker, state, places),
            slices=slices[worker.name],
            slice_s=worker.slice_s,
            gpu=worker.gpu,
        )
        for worker in state.of("worker")
    ]


def _member(member: Member, state: MasterState, places: Mapping[str, str]) -> dict[str, Any]:
    """What a ToldMember says."""
    return {
        "name": member.name,
        "host": member.host,
        "place": places.get(member.name, ""),
        "pid": member.pid,
        "state": member.state.value,
        "step": state.schedule.steps_before(max(0, member.tick)) if state.schedule else 0,
        "dropped_messages": member.dropped,
    }
