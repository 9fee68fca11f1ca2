"""All decisions of the master: events and the time in, actions out. No sockets, processes or clocks.

The master owns who is a member, the plan, the row of servers, the checkpoints' commits, the quarantine
and the target size. It is not on the path of a step: what it says late costs time, never correctness.
Should it die, the next one begins with ``Memory``, and with what the members say of themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec

from elasticflow.errors import BrokenError
from elasticflow.master.actions import (
    Action,
    AssignAction,
    AttemptAction,
    CommitAction,
    CutAction,
    DrainAction,
    EndAction,
    FaultAction,
    HaltAction,
    HandOverAction,
    InspectAction,
    KillAction,
    LookAction,
    NoteAction,
    PlanAction,
    PruneAction,
    QuarantineAction,
    QuitAction,
    RegroupedAction,
    ResizedAction,
    SettledAction,
    StartAction,
)
from elasticflow.master.admission import miscomputed, objection, unlikeness
from elasticflow.master.balance import Balance
from elasticflow.master.commits import Commits
from elasticflow.master.cuts import Cuts
from elasticflow.master.divergence import Divergence, step_of
from elasticflow.master.events import (
    ClockEvent,
    CommittedEvent,
    DisconnectedEvent,
    Event,
    ExitedEvent,
    ExpiryEvent,
    LimitEvent,
    OversleptEvent,
    PlacedEvent,
    ReconnectedEvent,
    ScaleEvent,
    StopEvent,
)
from elasticflow.master.failures import Failures
from elasticflow.master.fit import misfit
from elasticflow.master.members import ENDS, Member, MemberState, RunState, number_of
from elasticflow.master.patience import is_there, leave_s, patience_ends_s, replace_s
from elasticflow.master.plan import Speed, make_plan
from elasticflow.master.quarantine import QuarantineRules, limit_of
from elasticflow.master.row import Phase, Row, Start
from elasticflow.master.stall import Stall, Verdict
from elasticflow.process.fingerprint import OURS
from elasticflow.run.config import Config
from elasticflow.step.layout import Layout, spread
from elasticflow.step.schedule import Schedule
from elasticflow.wire.messages import (
    Assignment,
    Departing,
    Diverged,
    Excluded,
    Failed,
    Faulty,
    Heartbeat,
    Here,
    Inspected,
    Join,
    Leaving,
    Lost,
    Offer,
    Progress,
    Ready,
    ServerInfo,
    Share,
    Skipped,
    Spec,
    Stacks,
    Troubled,
    Written,
)
from elasticflow_ps.memory import MemoryNeed, needs

USERS_FAULTS = ("ProgramError", "DataError", "ConfigError", "CostError")
"""Errors that no other worker would be spared."""
PLANS = 1_000_000
"""More plans than a master makes that it has no time to write down."""
_ALONE = {False: "on none of its records alone", True: "from each of its records alone"}
_HERE = (MemberState.STARTING, MemberState.LOADING, MemberState.READY, MemberState.SUSPECT)
"""States of a worker that is meant to stay."""
_ASKED = (*_HERE, MemberState.HALTED, MemberState.DRAINING)
"""States of a member that can be asked what it does."""
SEVERED = -1
"""Instead of the generation that a worker was told of: it has no way to the servers of any."""
TRY_LOST = 2.0
"""A try of a slice in another process may take ``lost_s``: it stands still after so many times that."""
MOST_ROUNDS = 2
"""So often those who hang are replaced before a step is made; then the run ends. A slice is tried apart
once two workers have hung at it, which a single worker's run has one after the other."""
CLOSE_S = 60.0
"""The last version of a run that ends where it stands may take so long, beyond the storage's patience."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What the next master has to know, should this one die."""

    state: RunState
    members: tuple[Member, ...]
    row: Row
    target: int
    reason: str
    spec: Spec | None
    fingerprint: dict[str, str]
    excluded: tuple[Excluded, ...]
    committed_tick: int | None
    version: int
    stop_reason: str
    end_text: str
    next_worker: int
    next_server: int
    failures: int
    early_deaths: int
    plan_number: int
    closing: tuple[RunState, str] | None = None
    skipped: tuple[tuple[int, int], ...] = ()
    diverging: bool = False


class MasterState:
    """See the module's docstring.

    restored: (training step, tick, quarantine) of the checkpoint to go on from, or None.
    memory: of the master before this one, to ``adopt`` its members.
    made_with: the fingerprint of the workers that made that checkpoint.
    stop_at_s: when the run's time limit is over; None: it has none.
    """

    def __init__(
        self,
        config: Config,
        *,
        restored: tuple[int, int, tuple[Excluded, ...]] | None = None,
        made_with: Mapping[str, str] | None = None,
        memory: Memory | None = None,
        stop_at_s: float | None = None,
    ) -> None:
        self.config = config
        self.state = RunState.STARTING
        self.members: dict[str, Member] = {}
        self.target, self.reason = config.worker_range[1], "the most that the settings allow"
        standby = 1 if config.servers == 1 and config.snapshot_s > 0 else 0
        self.row = Row([f"server-{number}" for number in range(config.servers + standby)])
        self.version = restored[1] if restored else 0
        self.quarantine = QuarantineRules(restored[2] if restored else ())
        self.spec: Spec | None = None
        self.schedule: Schedule | None = None
        self._needs: list[MemoryNeed] = []
        self.balance = Balance(config.num_slices)
        self.commits = Commits(restored[1] if restored else None)
        self.stop_reason = ""
        self.divergence = Divergence()
        self._diverging = False
        """Whether the run is being stopped because too many steps were left out."""
        self._odd_cost = False
        """Whether people were told of a cost that is none."""
        self.fingerprint: dict[str, str] = {}
        self._made_with = dict(made_with or {})
        self._code = ""
        """Of ElasticFlow, by the first member that told of it."""
        self.troubles: dict[str, str] = {}
        """By server: why it cannot write its part just now."""
        self._assignment: Assignment | None = None
        self._end_text = self._end_detail = ""
        self._next_worker, self._next_server = 1, len(self.row.names)
        self._failures = Failures()
        self._inherited: frozenset[str] = frozenset()
        """Members that may know of a generation that was not written down."""
        _, every_s = config.checkpoint_interval
        self._cuts = Cuts(every_s, stop_at_s)
        self._last_made = self._all_made = False  # the last version is whole: on the leader, on all servers
        self.stall = Stall(config.stall_s)
        self._closing: tuple[RunState, str] | None = None
        """The run ends with the version that there is, so and for this reason; None: it goes on."""
        self._close_by_s: float | None = None
        if memory:
            self._remember(memory)
        self._handlers: dict[type, Callable[[Any, float], list[Action]]] = {
            Join: self._on_join,
            Ready: self._on_ready,
            Heartbeat: self._on_heartbeat,
            Leaving: self._on_leaving,
            Departing: self._on_departing,
            Failed: self._on_failed,
            Faulty: self._on_faulty,
            Progress: self._on_progress,
            Lost: self._on_lost,
            Written: self._on_written,
            Troubled: self._on_troubled,
            Offer: self._on_offer,
            Stacks: self._on_stacks,
            Here: self._on_here,
            Diverged: self._on_diverged,
            Inspected: self._on_inspected,
            Skipped: self._on_skipped,
            ExitedEvent: self._on_exited,
            DisconnectedEvent: self._on_disconnected,
            ReconnectedEvent: self._on_reconnected,
            CommittedEvent: self._on_committed,
            ScaleEvent: self._on_scale,
            StopEvent: self._on_stop,
            OversleptEvent: self._on_overslept,
            PlacedEvent: self._on_placed,
            ExpiryEvent: self._on_expiry,
            LimitEvent: self._on_limit,
            ClockEvent: self._on_time,
        }

    @property
    def ended(self) -> bool:
        return self.state in ENDS

    @property
    def total_ticks(self) -> int | None:
        return self.schedule.total_ticks if self.schedule else None

    @property
    def generation(self) -> int:
        return self.row.generation

    @property
    def needs(self) -> dict[str, MemoryNeed]:
        """By server, the memory that it needs at most; empty as long as the program is not known."""
        return dict(zip(self.row.names, self._needs, strict=False))

    @property
    def regrouping(self) -> bool:
        """Whether a server was lost, and the others wait to go on."""
        return self.row.generation > 0 and self.row.phase is not Phase.SERVING

    @property
    def plan(self) -> tuple[Share, ...]:
        """Which worker computes which slices."""
        return self.balance.shares

    @property
    def num_ready(self) -> int:
        """Workers that take part."""
        return len(self.of("worker", MemberState.READY))

    @property
    def committed_tick(self) -> int | None:
        return self.commits.committed_tick

    @property
    def excluded(self) -> tuple[Excluded, ...]:
        return self.quarantine.excluded

    def start(self, now_s: float) -> list[Action]:
        """The first actions of a run."""
        actions: list[Action] = []
        for name in self.row.names:
            actions += self._start(name, "server", now_s)
        return actions + self._size(now_s)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What to do, in this order, now that ``event`` has happened."""
        if self.ended:
            if isinstance(event, CommittedEvent) and not event.error:
                self.commits.committed(event.tick)  # it was under way
                return [PruneAction(event.tick)]
            return self._on_leaving(event, now_s) if isinstance(event, Leaving) else []
        actions = self._handlers[type(event)](event, now_s)
        self.stall.see(*self._mark(), now_s)
        return actions

    # --- from one master to the next -------------------------------------------------------------

    def memory(self) -> Memory:
        """What the next master needs, should this one die. Holds what goes on changing: encode it now."""
        return Memory(
            state=self.state,
            members=tuple(self.members.values()),
            row=self.row,
            target=self.target,
            reason=self.reason,
            spec=self.spec,
            fingerprint=self.fingerprint,
            excluded=self.excluded,
            committed_tick=self.committed_tick,
            version=self.version,
            stop_reason=self.stop_reason,
            end_text=self._end_text,
            next_worker=self._next_worker,
            next_server=self._next_server,
            failures=self._failures.own,
            early_deaths=self._failures.early,
            plan_number=self.balance.number,
            closing=self._closing,
            skipped=tuple(sorted(self.divergence.skipped)),
            diverging=self._diverging,
        )

    def _remember(self, memory: Memory) -> None:
        self.state = memory.state
        self.members = {member.name: member for member in memory.members}
        self.row = memory.row
        self.target, self.reason = memory.target, memory.reason
        self.fingerprint = memory.fingerprint
        committed = self.excluded
        self.quarantine = QuarantineRules(memory.excluded)
        self.quarantine.learn(committed)
        known = (memory.committed_tick, self.committed_tick)
        self.commits = Commits(max((tick for tick in known if tick is not None), default=None))
        self.version = memory.version
        self.stop_reason, self._end_text = memory.stop_reason, memory.end_text
        self._next_worker, self._next_server = memory.next_worker, memory.next_server
        self._failures = Failures(memory.failures, memory.early_deaths)
        self._closing = memory.closing
        self.divergence, self._diverging = Divergence(memory.skipped), memory.diverging
        self.balance.number = memory.plan_number + PLANS  # beyond any that the one before may have told
        if memory.spec:
            self._learn(memory.spec)
        self.balance.take(make_plan(self._speeds(), self.config.num_slices))

    def adopt(self, living: Mapping[str, int], now_s: float) -> list[Action]:
        """Goes on in place of a master that died. living: process numbers of members that live, by name.

        Who was started, but not written down, is ended. That those who are gone have gone is told after
        this, by ExitedEvent.
        """
        if self.ended:
            return [EndAction(self.state, self._end_text)]
        self._inherited = frozenset(living)
        self._close_by_s = now_s + self._close_s if self._closing else None
        if self.schedule and self.committed_tick == self.schedule.total_ticks:
            return self._committed(self.schedule.total_ticks)
        self._next_worker = max([self._next_worker, *(number_of(n) + 1 for n in living if "worker" in n)])
        self._next_server = max([self._next_server, *(number_of(n) + 1 for n in living if "server" in n)])
        actions: list[Action] = [KillAction(name) for name in living if name not in self.members]
        for name in [name for name in self.row.names if name not in self.members]:
            actions += self._replace(name, now_s)
        for member in self.members.values():
            member.heard_s = member.since_s = member.moved_s = now_s
            # Whoever is expiring still is, and another was asked for; what is known of places is told anew.
            member.doubted_s = member.placed_s = member.replace_s = member.leave_s = None
            member.doubted_by.clear()
            member.pid = living.get(member.name) or member.pid
            if member.role == "worker":
                member.generation = 0  # what it was told may have been lost with the one who told it
        if self.state is not RunState.STARTING:
            self._cuts.begin_again(now_s)
        if self.row.generation and self.row.phase is Phase.SERVING:
            assert self.row.start
            self._assignment = self._assignment_from(self.row.start)
            actions += self._lead_on()
        else:
            actions += self._halt_all(now_s)
        return actions + self._size(now_s)

    # --- members ---------------------------------------------------------------------------------

    def of(self, role: str, *states: MemberState) -> list[Member]:
        """Members of a role, in order of their names' numbers; of any state if none is given."""
        chosen = [m for m in self.members.values() if m.role == role and (not states or m.state in states)]
        return sorted(chosen, key=lambda member: number_of(member.name))

    def _start(self, name: str, role: str, now_s: float) -> list[Action]:
        self.members[name] = Member(name, role, MemberState.STARTING, now_s, heard_s=now_s)
        return [StartAction(name, role)]

    def _size(self, now_s: float) -> list[Action]:
        """Starts or drains workers until there are as many as the target says."""
        if self._all_made and self.spec or self._closing:
            return []
        actions: list[Action] = []
        going = (MemberState.DRAINING, MemberState.LOST)
        staying = [m for m in self.of("worker") if m.state not in going and not m.expiring]
        for _ in range(self.target - len(staying)):
            actions += self._start(f"worker-{self._next_worker}", "worker", now_s)
            self._next_worker += 1
        surplus = len(staying) - self.target
        if surplus > 0:
            for member in sorted(staying, key=_use)[:surplus]:
                actions += self._drain(member, self.reason)
            actions += self._replan()
        return actions

    def _drain(self, member: Member, reason: str) -> list[Action]:
        if member.state is MemberState.STARTING:
            del self.members[member.name]
            return [KillAction(member.name)]
        # One that is loading has no slices to end, and may not listen for Drain yet.
        loading, member.state = member.state is MemberState.LOADING, MemberState.DRAINING
        leave = QuitAction(member.name, reason) if loading else DrainAction(member.name)
        return [leave, NoteAction("info", f"{member.name} is drained: {reason}")]

    def _on_join(self, event: Join, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member is None or member.role != event.role:
            return [QuitAction(event.name, "not a member of this run (any more)")]
        if text := self._other_code(event):
            return self._refuse(member, text, now_s)
        member.host, member.pid, member.endpoint = event.host, event.pid, event.endpoint
        member.available_bytes = event.available_bytes
        member.heard_s = now_s
        if 0 <= event.rehearsed_s < float("inf"):
            self.stall.guess(event.rehearsed_s * self.config.num_slices)
        self.quarantine.learn(event.excluded)
        if member.state is MemberState.STARTING:
            member.state = MemberState.LOADING
            if member.role == "server" and member.name in self._inherited:
                member.state, member.since_s = MemberState.HALTED, now_s
                return [HaltAction(member.name, self.row.generation + 1)]
        return self._admit_worker(member, event, now_s) if member.role == "worker" else self._form(now_s)

    def _admit_worker(self, member: Member, event: Join, now_s: float) -> list[Action]:
        if event.spec is None:
            return [QuitAction(member.name, "said nothing of the program")]
        unlike, changes = unlikeness(member.name, event.fingerprint, self.fingerprint, self._made_with)
        if unlike and self.config.fingerprint == "strict":
            return self._refuse(member, unlike, now_s)
        unlike = f"{unlike}: the same answer is no longer promised" if unlike else changes
        notes: list[Action] = [NoteAction("warning", unlike)] if unlike else []
        if self.spec is None:
            return [*notes, *self._meet_program(event, now_s)]
        if text := objection(self.spec, event.spec):
            return self._end(RunState.FAILED, f"{member.name} {text}")
        if text := miscomputed(member.name, event.fingerprint, self.fingerprint):
            if self.config.fingerprint == "strict":
                return self._refuse(member, text, now_s)
            notes.append(NoteAction("warning", f"{text}: the same answer is no longer promised"))
        return [*notes, *self._assign_worker(member)]

    def _other_code(self, event: Join) -> str:
        """How a member runs another ElasticFlow than the first one, if that is not allowed; else empty."""
        code, first = event.fingerprint.get(OURS, ""), self.fingerprint.get(OURS, self._code)
        self._code = first or code
        if not code or code == self._code or self.config.fingerprint != "strict":
            return ""
        return f"{event.name} would compute other bits than the first member ({OURS}: {self._code} / {code})"

    def _refuse(self, member: Member, text: str, now_s: float) -> list[Action]:
        """One that would compute other bits."""
        quit_ = QuitAction(member.name, text)
        return [quit_, *self._fail(member, f"{text}. Allow it with fingerprint: warn.", now_s)]

    def _meet_program(self, event: Join, now_s: float) -> list[Action]:
        """The first worker says what the program is; from that follows all that is to be done."""
        assert event.spec is not None
        self.fingerprint = event.fingerprint
        schedule = self._learn(event.spec)
        if text := schedule.too_long(tables=bool(event.spec.tables)):
            return self._end(RunState.FAILED, text)
        actions: list[Action] = [NoteAction("warning", text) for text in event.spec.warnings]
        if self.config.compression == "top-k":
            text = "compression: top-k: the model depends on who computes, so the same answer is not promised"
            actions.append(NoteAction("warning", text))
        if max(self.version, self.committed_tick or 0) >= schedule.total_ticks:
            return actions + self._end(
                RunState.FINISHED, f"there is nothing left to do: {schedule.total_steps} steps are done"
            )
        servers = zip(self.row.names[: self.config.servers], self.row.chunks, strict=False)
        if idle := [name for name, chunks in servers if not chunks]:
            text = f"the model is too small for {self.config.servers} servers: {', '.join(idle)} hold nothing"
            actions.append(NoteAction("warning", text))
        return actions + self._form(now_s)

    def _learn(self, spec: Spec) -> Schedule:
        self.spec = spec
        self.schedule = Schedule(
            num_records=spec.num_records,
            num_test=spec.num_test,
            batch_size=self.config.step_records,
            num_slices=self.config.num_slices,
            asynchronous=self.config.asynchronous,
            drop_last=self.config.drop_last,
            epochs=self.config.epochs,
        )
        layout = Layout(spec.entries)
        shares = spread(layout, self.config.servers)
        standbys = len(self.row.names) - self.config.servers
        self.row.chunks = (*(tuple(share) for share in shares), *((),) * standbys)
        self._needs = needs(
            layout,
            spec.optimizer,
            self.row.chunks,
            tables=spec.tables,
            snapshots=self._snapshot_s > 0,
            num_workers=self.config.worker_range[1],
            num_slices=self.config.num_slices,
            packs_versions=self.config.compression == "bf16",
        )
        return self.schedule

    def _on_ready(self, event: Ready, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member is None or event.generation != self.row.generation:
            return []
        member.heard_s = now_s
        if member.state is not MemberState.LOADING:
            return []
        member.state, member.since_s, member.moved_s = MemberState.READY, now_s, now_s
        self._failures.become_ready()
        if member.role == "server":
            member.was_ready = True
            return self._serve(now_s)
        if self.state is RunState.STARTING:
            self.state = RunState.RUNNING
            self._cuts.begin(now_s)
        first, member.was_ready = not member.was_ready, True
        text = f"{event.name} has joined, {event.started_s:.2f} s after its start"
        notes: list[Action] = [NoteAction("info", text)] if first else []
        return [*notes, *self._relieve(now_s), *self._replan(), *self._attempts(event.name)]

    def _replan(self) -> list[Action]:
        """A new plan, if the workers that are ready are not those of the present one."""
        return self._tell_plan(self.balance.fitting(self._speeds()))

    def _speeds(self) -> list[Speed]:
        """Of the workers that are ready."""
        return [Speed(m.name, m.slice_s) for m in self.of("worker", MemberState.READY)]

    def _follow_speeds(self, now_s: float) -> list[Action]:
        if self.row.phase is not Phase.SERVING or not self.balance.is_to_be_compared(now_s):
            return []
        return self._tell_plan(self.balance.follow(self._speeds(), now_s))

    def _tell_plan(self, shares: tuple[Share, ...] | None) -> list[Action]:
        """None: the present plan is to stay."""
        if shares is None:
            return []
        self.balance.take(shares)
        if self.row.phase is not Phase.SERVING:
            return []
        self.balance.number += 1
        return [PlanAction(self.balance.number, shares, tuple(self.row.holders))]

    def _on_heartbeat(self, event: Heartbeat, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member is None:
            return [QuitAction(event.name, "not a member of this run (any more)")]
        if event.tick != member.tick:
            member.moved_s, member.asked_s = now_s, None
        member.heard_s, member.tick = now_s, event.tick
        member.dropped, member.refused = event.dropped, event.refused
        member.memory_bytes, member.activity = event.memory_bytes, event.activity
        member.tries = event.tries
        member.slice_s = event.slice_s if 0 <= event.slice_s < float("inf") else 0.0
        member.usage = event.usage or member.usage
        actions = self._settle_doubts(member, now_s)
        if event.generation > self.row.generation:
            # A master before this one died before it wrote that down.
            self.row.generation = member.generation = event.generation
            return actions + self._halt_all(now_s)
        if member.generation != SEVERED:
            member.generation = max(member.generation, event.generation)
        if member.role == "worker" and min(member.generation, event.generation) < self.row.generation:
            actions += self._assign_worker(member)
        if member.state is MemberState.SUSPECT:
            member.state = MemberState.READY
            note = NoteAction("info", f"{event.name} is heard again")
            actions += [note, *self._replan(), *self._attempts(event.name), *self._judge(now_s)]
        return actions + (self._follow_speeds(now_s) if member.role == "worker" else [])

    # --- the row of servers ----------------------------------------------------------------------

    def _form(self, now_s: float) -> list[Action]:
        """Once the program is known, and every server has joined or offered, they are given their chunks."""
        if not self.spec or self.row.phase is not Phase.GATHERING or self.ended:
            return []
        if self.commits.final_under_way:  # nobody takes the place of those who are lost now
            return []
        servers = [self.members[name] for name in self.row.names]
        if any(server.state is MemberState.STARTING for server in servers):
            return []
        if any(s.state is MemberState.HALTED and s.name not in self.row.offers for s in servers):
            return []
        found = misfit(self.needs, self.members) if self.row.generation == 0 else None
        if found and found.certain:
            return self._end(RunState.FAILED, found.text)
        start = self.row.start = self.row.begin(self.committed_tick)
        if self._closing and not self._is_worth_writing(start):
            return self._end_closed()
        actions = self._go_back_to(start, now_s) if self.row.generation else []
        self.row.generation += 1
        self.row.phase = Phase.RESTORING
        self.row.offers.clear()
        self._assignment = self._assignment_from(start)
        for server in servers:
            server.state, server.generation = MemberState.LOADING, self.row.generation
        if found:
            actions.append(NoteAction("warning", found.text))
        return actions + [AssignAction(server.name, self._assignment) for server in servers]

    def _assignment_from(self, start: Start) -> Assignment:
        assert self.spec and self.schedule
        every_steps, _ = self.config.checkpoint_interval
        infos = [
            ServerInfo(
                name=name,
                endpoint=self.members[name].endpoint,
                chunks=chunks,
                holder="" if holder == name else holder,
            )
            for name, chunks, holder in zip(self.row.names, self.row.chunks, start.holders, strict=True)
        ]
        return Assignment(
            generation=self.row.generation,
            schedule=self.schedule,
            spec=self.spec,
            seed=self.config.seed,
            servers=tuple(infos),
            excluded=self.excluded,
            start_tick=start.tick,
            in_memory=start.source == "memory",
            restore_step=self.schedule.steps_before(start.tick) if start.source == "storage" else None,
            cut_every_steps=every_steps or 0,
            snapshot_s=self._snapshot_s,
            staleness_rule=self.config.staleness_rule,
            ends=self._closing is not None,
            on_nan=self.config.on_nan,
        )

    @property
    def _snapshot_s(self) -> float:
        """Tables may be larger than what other servers have room for: only storage keeps them twice."""
        return 0.0 if self.spec and self.spec.tables else self.config.snapshot_s

    def _go_back_to(self, start: Start, now_s: float) -> list[Action]:
        """Everything after this version has not happened."""
        reached, self.version = self.version, start.tick
        self._last_made = self._all_made = False
        self._cuts.go_back()
        if self.state is RunState.FINISHING and not self.stop_reason:
            self.state = RunState.RUNNING
        self.commits.forget()
        self.divergence.go_back_to(start.tick)
        self.quarantine.clear()
        self.troubles.clear()
        return [RegroupedAction(reached, start.tick, start.source), *self._size(now_s)]

    def _serve(self, now_s: float) -> list[Action]:
        """Once all servers have their chunks, the workers are told of them."""
        servers = [self.members[name] for name in self.row.names]
        if self.row.phase is not Phase.RESTORING or any(s.state is not MemberState.READY for s in servers):
            return []
        self.row.phase = Phase.SERVING
        if self._closing:
            return []  # the servers write what they have, and nobody else is needed
        actions = self._lead_on()
        for worker in self.of("worker"):
            actions += self._assign_worker(worker)
        return actions

    def _lead_on(self) -> list[Action]:
        """What a leading server that is new to its task, or to this master, has to know."""
        actions = self._tell_plan(self.plan) if self.plan else []
        return [*actions, CutAction(self.row.leader, finish=True)] if self.stop_reason else actions

    def _assign_worker(self, worker: Member) -> list[Action]:
        """Tells a worker of the servers, once for each generation."""
        here = worker.state not in (MemberState.STARTING, MemberState.LOST) and not self._closing
        if not here or self.row.phase is not Phase.SERVING or worker.generation == self.row.generation:
            return []
        assert self._assignment
        worker.generation = self.row.generation
        return [AssignAction(worker.name, msgspec.structs.replace(self._assignment, excluded=self.excluded))]

    def _assign_again(self, member: Member) -> list[Action]:
        """Tells a worker that has no way to the servers once more, as soon as there is something to tell."""
        if member.role != "worker":
            return []
        member.generation = SEVERED
        return self._assign_worker(member)

    def _halt_all(self, now_s: float) -> list[Action]:
        """Stops the servers that are left, to find out from where all of them can go on."""
        self.row.phase = Phase.GATHERING
        self.row.offers.clear()
        actions: list[Action] = []
        for server in self.of("server"):
            if server.state is not MemberState.STARTING:
                server.state, server.since_s = MemberState.HALTED, now_s
                actions.append(HaltAction(server.name, self.row.generation + 1))
        for worker in self.of("worker", MemberState.LOST):
            worker.state = MemberState.SUSPECT  # its connection may have closed because of the server
        return actions + self._form(now_s)

    def _on_offer(self, event: Offer, now_s: float) -> list[Action]:
        server, total = self.members.get(event.name), self.total_ticks
        if not server or event.name not in self.row.names or event.generation <= self.row.generation:
            return []
        server.heard_s = now_s
        actions: list[Action] = []
        if server.state is not MemberState.HALTED or event.generation != self.row.generation + 1:
            # A master before this one had halted it, and died before that was written down.
            self.row.generation, server.generation = event.generation - 1, event.generation - 1
            actions = self._halt_all(now_s)
        possible = ((place, v) for place, v in event.held if 0 <= v and (total is None or v <= total))
        self.row.offers[event.name] = tuple(possible)
        return actions + self._form(now_s)

    def _lose_server(self, server: Member, why: str, now_s: float, taken: bool = False) -> list[Action]:
        """Another one takes its place, and all go on from what they have in common."""
        gone: list[Action] = [KillAction(server.name), FaultAction(server.name, "server", why)]
        self.troubles.pop(server.name, None)
        if self.commits.final_under_way:  # all there is to know is written
            server.state, server.since_s = MemberState.LOST, now_s
            return gone
        del self.members[server.name]
        if not server.was_ready and not taken:
            if self._failures.die_early():
                text = f"{self._failures.early} processes in a row died before they were ready"
                return gone + self._end(RunState.FAILED, f"{text}; the last, {server.name}, {why}")
        gone += self._replace(server.name, now_s)
        halted = self.row.generation == 0 or self.row.phase is Phase.GATHERING
        return gone + (self._form(now_s) if halted else self._halt_all(now_s))

    def _replace(self, lost: str, now_s: float) -> list[Action]:
        """Starts another server in the place of one."""
        name = f"server-{self._next_server}"
        self._next_server += 1
        self.row.replace(lost, name)
        return self._start(name, "server", now_s)

    # --- those who go ----------------------------------------------------------------------------

    def _on_leaving(self, event: Leaving, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member and event.usage:
            member.usage = event.usage
        if member and member.role == "worker":
            # Who leaves undrained has got the last version from all servers, or those of before this row.
            self._all_made |= self._last_made and member.state is not MemberState.DRAINING
            if 0 < event.ended == self.row.generation and not self.ended:  # before the leading server's word
                self.state, self._last_made, self._all_made = RunState.FINISHING, True, True
            member.state = MemberState.DRAINING
        return []

    def _on_departing(self, event: Departing, now_s: float) -> list[Action]:
        """It has to go: the others do its slices, and another is asked for. That is nobody's fault."""
        member = self.members.get(event.name)
        if member is None or member.role != "worker" or member.state not in _HERE:
            return []
        return [*self._drain(member, event.reason), *self._replan(), *self._size(now_s), *self._judge(now_s)]

    def _on_placed(self, event: PlacedEvent, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member is not None and member.placed_s is None:
            member.placed_s = now_s
        return []

    def _on_expiry(self, event: ExpiryEvent, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member is not None:
            member.replace_s, member.leave_s = event.replace_s, event.leave_s
        return []

    def _relieve(self, now_s: float) -> list[Action]:
        """Drains workers whose places end soon: when others have come in their stead, or it is time."""
        expiring = [m for m in self.of("worker", *_HERE) if m.expiring]
        num_fresh = sum(not m.expiring for m in self.of("worker", MemberState.READY))
        actions: list[Action] = []
        for left, member in zip(range(len(expiring), 0, -1), sorted(expiring, key=leave_s), strict=True):
            if num_fresh + left > self.target or now_s >= leave_s(member):
                actions += self._drain(member, "its time limit is near")
        return [*actions, *self._replan(), *self._judge(now_s)] if actions else []

    def _on_lost(self, event: Lost, now_s: float) -> list[Action]:
        """A connection in the data plane closed. A worker is dead then, or as good as; a server is asked."""
        member, teller = self.members.get(event.member), self.members.get(event.name)
        if teller is None:
            return []
        if member is None:
            return self._assign_again(teller)  # its servers are not those of now
        if member.role == "server":
            member.doubted_by.add(event.name)
            if teller.state is MemberState.LOST:
                teller.state = MemberState.SUSPECT  # it let go of all servers because of this one
            self._doubt(member, now_s)
            return []
        if any(member.name in server.doubted_by for server in self.of("server")):
            return []  # it lives, and has said why
        here = (MemberState.READY, MemberState.SUSPECT, MemberState.LOADING)
        if member.state not in here or teller.role != "server" or self.regrouping:
            return []
        member.state, member.since_s = MemberState.LOST, now_s
        anew = [] if self._last_made else self._size(now_s)  # at the end it may just have left
        return [*self._replan(), *anew, *self._judge(now_s)]

    def _on_disconnected(self, event: DisconnectedEvent, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member and member.role == "server":
            self._doubt(member, now_s)
        return []

    def _on_reconnected(self, event: ReconnectedEvent, now_s: float) -> list[Action]:
        """Says again what may have got lost; the member does the same."""
        member = self.members.get(event.name)
        if member is None:
            return []
        if member.role == "worker":
            member.generation = 0  # it is told of the servers again, unless it says that it knows
            return [DrainAction(member.name)] if member.state is MemberState.DRAINING else []
        if member.state is MemberState.HALTED:
            return [HaltAction(member.name, self.row.generation + 1)]
        if member.state is MemberState.LOADING and self.row.phase is Phase.RESTORING and self._assignment:
            return [AssignAction(member.name, self._assignment)]
        return self._lead_on() if self.row.phase is Phase.SERVING else []

    def _doubt(self, server: Member, now_s: float) -> None:
        """It has a heartbeat's time to show that it lives."""
        if server.doubted_s is None:
            server.doubted_s = now_s

    def _settle_doubts(self, member: Member, now_s: float) -> list[Action]:
        """It lives. Workers that cannot reach it may try again, servers in another generation."""
        doubted_by = [self.members[name] for name in sorted(member.doubted_by) if name in self.members]
        member.doubted_by.clear()
        member.doubted_s = None
        severed = self.row.phase is not Phase.GATHERING and not self.commits.final_under_way
        if severed and any(each.role == "server" for each in doubted_by):
            return self._halt_all(now_s)
        actions: list[Action] = []
        for worker in doubted_by if self.row.phase is Phase.SERVING else ():
            actions += self._assign_again(worker)
        return actions

    def _on_exited(self, event: ExitedEvent, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member is None:
            return []
        if member.state is MemberState.DRAINING:
            del self.members[event.name]
            note = NoteAction("info", f"{event.name} has left")
            return [note, *self._replan(), *self._size(now_s), *self._judge(now_s)]
        if member.role == "worker" and member.was_ready and not event.taken:
            if self._failures.go(event.failed):
                return self._end_of_gone(event.text)
        if event.failed:
            return self._fail(member, event.text, now_s)
        if member.role == "server":
            return self._lose_server(member, event.text, now_s, event.taken)
        if not event.taken and (end := self._count_early(member, event.text)):
            return end
        return self._remove(member, event.text, now_s)

    def _count_early(self, member: Member, why: str) -> list[Action]:
        """A worker is gone by no order of ours. The end of the run, if too many never were ready."""
        if member.was_ready or not self._failures.die_early():
            return []
        text = f"{self._failures.early} workers in a row died before they were ready; the last {why}"
        program = self.config.program or "PROGRAM"
        advice = f"'elasticflow check {program}' tries its first slice, and the records of that one by one"
        return self._end(RunState.FAILED, f"{text}. {advice}.")

    def _end_of_gone(self, last: str) -> list[Action]:
        text = (
            f"{self._failures.gone} workers ended while step {self._step_in_work} was made; the last {last}"
        )
        known = "No record is known that ends a process every time; their logs may tell more"
        return self._end(RunState.FAILED, f"{text}. {known}.")

    @property
    def _step_in_work(self) -> int:
        return self.schedule.steps_before(self.version) + 1 if self.schedule else 0

    def _remove(self, member: Member, why: str, now_s: float) -> list[Action]:
        """Goes on without a worker, and starts another in its place."""
        self.members.pop(member.name, None)
        fault = FaultAction(member.name, "worker", why)
        return [fault, *self._replan(), *self._size(now_s), *self._judge(now_s)]

    def _on_failed(self, event: Failed, now_s: float) -> list[Action]:
        member = self.members.get(event.name)
        if member is None:
            return []
        if event.kind in USERS_FAULTS and self.state is RunState.STARTING:
            return self._end(RunState.FAILED, event.text)
        if event.kind == BrokenError.__name__:
            return self._end(RunState.BROKEN, event.text)
        if event.for_all:
            return self._end(RunState.FAILED, event.text, event.traceback)
        return self._fail(member, f"failed: {event.text}", now_s, event.traceback)

    def _fail(self, member: Member, why: str, now_s: float, detail: str = "") -> list[Action]:
        """A failure of the member's own: ends the run once there are too many."""
        if not self._failures.fail(self.config.max_failures):
            lose = self._lose_server if member.role == "server" else self._remove
            return lose(member, why, now_s)
        many = f"failure {self._failures.own}, max_failures is {self.config.max_failures}"
        return self._end(RunState.FAILED, f"{member.name} {why} ({many})", detail)

    # --- records on which the program raises -------------------------------------------------------

    def _on_faulty(self, event: Faulty, now_s: float) -> list[Action]:
        if event.tick < self.version or event.name not in self.members:
            return []
        if event.rows and self.quarantine.rows.issuperset(event.rows):
            return [QuarantineAction((event.name,), self.excluded)]  # it has not heard of it (yet)
        first = self.quarantine.report(event)
        others = tuple(m.name for m in self.of("worker", MemberState.READY) if m.name != event.name)
        ask = AttemptAction(others, event.tick, event.slice, event.dies)
        attempt: list[Action] = [ask] if first and others else []
        return attempt + self._judge(now_s)

    def _attempts(self, name: str) -> list[Action]:
        """Has a worker that is here (again) try the slices that wait for its word as well."""
        untried = self.quarantine.untried(name)
        return [AttemptAction((name,), t, n, self.quarantine.is_deadly(t, n)) for t, n in untried]

    def _judge(self, now_s: float) -> list[Action]:
        """Leaves out what the program raises on for every worker that is there, never for one alone."""
        ready = {m.name for m in self.of("worker", MemberState.READY, MemberState.DRAINING)}
        actions: list[Action] = []
        for report in self.quarantine.verdicts(ready):
            actions += self._condemn(report)
        return actions

    def _condemn(self, report: Faulty) -> list[Action]:
        rows = [row for row in report.rows if row not in self.quarantine.rows]
        does = "does not come back from" if report.dies else "raises on"
        if report.test_rows:
            named = ", ".join(map(str, report.test_rows))
            text = f"the program {does} row {named} of the test data: {report.text}"
            return self._end(RunState.FAILED, f"{text} (none of these is left out)", report.traceback)
        if not rows:
            text = f"the program {does} a slice of tick {report.tick}, though {_ALONE[report.dies]}"
            return self._end(RunState.FAILED, f"{text}: {report.text}", report.traceback)
        assert self.spec
        limit = limit_of(self.config, self.spec.num_records)
        if len(self.excluded) + len(rows) > limit.most:
            named = ", ".join(map(str, rows))
            text = f"the program {does} row {named} of the training data: {report.text}"
            return self._end(RunState.FAILED, f"{text} ({limit.reason})", report.traceback)
        if report.dies:  # it has been found out why they had ended
            self._failures.explain()
        self.quarantine.exclude(rows, report.tick)
        names = tuple(m.name for m in self.of("worker"))
        notes = [NoteAction("fault", f"row {row} is left out from now on: {report.text}") for row in rows]
        return [*notes, QuarantineAction(names, self.excluded)]

    # --- numbers that are none ---------------------------------------------------------------------

    def _on_diverged(self, event: Diverged, now_s: float) -> list[Action]:
        if event.generation != self.row.generation or event.name not in self.row.holders or not self.schedule:
            return []
        here = {member.name for member in self.of("worker", MemberState.READY)}
        shares = [share for share in self.plan if share.worker in here]
        asked = self.divergence.told(event, shares, now_s)
        asks = [InspectAction(name, event.tick, tuple(slices)) for name, slices in asked.items()]
        return [*asks, *self._diverge(now_s)]

    def _on_inspected(self, event: Inspected, now_s: float) -> list[Action]:
        self.divergence.answered(event)
        return self._diverge(now_s)

    def _diverge(self, now_s: float) -> list[Action]:
        """Ends the run, once there is no more to be found out."""
        if self.schedule is None or now_s < self._divergence_ends_s():
            return []
        return self._end(RunState.DIVERGED, self.divergence.text(self.schedule, self.committed_tick))

    def _divergence_ends_s(self) -> float:
        here = [member.name for member in self.of("worker", MemberState.READY)]
        return self.divergence.ends_s(here, self.commits)

    def _on_skipped(self, event: Skipped, now_s: float) -> list[Action]:
        known = event.generation == self.row.generation and event.name in self.members
        if not known or not self.schedule or event.tick >= self.schedule.total_ticks:
            return []
        if not self.divergence.skip(event):
            return []
        what = step_of(self.schedule, event.tick)
        what = f"slice {event.slice} of {what}" if event.slice >= 0 else what
        note = NoteAction("fault", f"{what} is left out: there are NaNs or infinite numbers in its gradient")
        most = self.config.max_skipped_steps
        if len(self.divergence.skipped) <= most or self.stop_reason or self.state is not RunState.RUNNING:
            return [note]
        self._diverging = True
        many = f"more than {most} steps had to be left out (max_skipped_steps), the last was {what}"
        return [note, *self._on_stop(StopEvent(many), now_s)]

    # --- progress and checkpoints ------------------------------------------------------------------

    def accepts(self, event: Progress | Written) -> bool:
        """Whether this is of the present generation, from one who should say it, and makes sense."""
        if self.total_ticks is None or event.generation != self.row.generation:
            return False
        if isinstance(event, Progress):
            return event.name == self.row.leader and 0 <= event.version <= self.total_ticks
        return event.name in self.row.holders and 0 <= event.tick <= self.total_ticks

    def _on_progress(self, event: Progress, now_s: float) -> list[Action]:
        if not self.accepts(event):
            return []
        if event.version > self.version:
            self.version = event.version
            self._failures.make_step()
        self.stall.made(self.version, now_s)
        self.quarantine.forget(self.version)
        notes = self._note_cost(event)
        if event.last:
            self.state, self._last_made = RunState.FINISHING, True
        return notes

    def _note_cost(self, event: Progress) -> list[Action]:
        """A warning, once, of a cost that is none while gradients are finite: steps go on."""
        if self._odd_cost or event.loss is None or isfinite(event.loss):
            return []
        self._odd_cost = True
        text = "the cost of a step is not finite; as long as the gradients are, the steps go on"
        return [NoteAction("warning", text)]

    def _on_written(self, event: Written, now_s: float) -> list[Action]:
        if not self.accepts(event):
            return []
        if self.commits.is_committed(event.tick):  # by servers of before, or that it is was not heard
            if event.last and (newest := self.commits.committed_tick) is not None:
                self.commits.end_with(newest)
                return self._committed(newest)
            return [SettledAction((event.name,), event.tick)]
        if event.error or event.part is None:
            return self._cut_failed(
                event.tick, event.last, f"{event.name} could not write its part: {event.error}"
            )
        parts = self.commits.written(event, self.row.holders)
        return [CommitAction(event.tick, parts)] if parts else []

    def _on_troubled(self, event: Troubled, now_s: float) -> list[Action]:
        if event.name not in self.members:
            return []
        before = self.troubles.pop(event.name, "")
        if not event.text:
            return [NoteAction("info", f"{event.name} can use the storage again")] if before else []
        self.troubles[event.name] = event.text
        text = f"{event.name} cannot use the storage just now, and tries again: {event.text}"
        return [NoteAction("fault", text)]

    def _cut_failed(self, tick: int, last: bool, text: str) -> list[Action]:
        news, last = self.commits.give_up(tick, last)
        if not news:
            return []
        if last and self._closing:
            return self._end_closed(f"no checkpoint could be made of it: {text}")
        if last:
            return self._end(RunState.FAILED, f"the final checkpoint is missing: {text}")
        return [NoteAction("fault", f"a checkpoint failed: {text}"), *self._settled(tick)]

    def _settled(self, tick: int) -> list[Action]:
        return [SettledAction(tuple(self.row.holders), tick)]  # who wrote a part need not tell of it again

    def _on_committed(self, event: CommittedEvent, now_s: float) -> list[Action]:
        if event.error:
            return self._cut_failed(event.tick, False, event.error)
        # Who restores may be reading an older one: then the next commit removes that.
        actions: list[Action] = [] if self.row.phase is Phase.RESTORING else [PruneAction(event.tick)]
        actions += self._committed(event.tick)
        return actions if self.ended else [*actions, *self._diverge(now_s)]

    def _committed(self, tick: int) -> list[Action]:
        last = self.commits.committed(tick)
        assert self.schedule is not None
        total, done = self.schedule.total_steps, self.schedule.steps_before(self.committed_tick or tick)
        if tick == self.total_ticks and self._diverging:
            return self._end(RunState.DIVERGED, self.stop_reason)
        if tick == self.total_ticks:
            return self._end(RunState.FINISHED, f"all {total} steps are done")
        if last and self._closing:
            return self._end_closed()
        if last:
            text = f"{self.stop_reason}: {total - done} of {total} steps are missing, go on with --resume"
            return self._end(RunState.DIVERGED if self._diverging else RunState.STOPPED, text)
        actions = self._settled(tick)
        if self.state is RunState.RUNNING and self._cuts.may_hand_over(tick):
            actions += self._hand_over("all that was done is committed")
        return actions

    # --- time --------------------------------------------------------------------------------------

    def _on_time(self, event: ClockEvent, now_s: float) -> list[Action]:
        actions: list[Action] = []
        for member in [*self.of("server"), *self.of("worker")]:
            if member.name in self.members and not self.ended:
                actions += self._check_alive(member, now_s)
        if now_s >= self._cuts.limit_s(bool(self.stop_reason)) and not self.ended:
            actions += self._on_stop(StopEvent(f"its time limit of {self.config.time_limit} is over"), now_s)
        actions += [] if self.ended else self._diverge(now_s)
        if self.ended:
            return actions
        actions += self._check_expiries(now_s)
        actions += [*self._check_stall(now_s), *self._check_strays(now_s)]
        if self.ended:
            return actions
        if self.row.phase is Phase.SERVING and self._cuts.due_s(bool(self.stop_reason)) <= now_s:
            self._cuts.order(self.version, now_s)
            actions.append(CutAction(self.row.leader, finish=False))
        if self._cuts.move_by_s is not None and now_s >= self._cuts.move_by_s:
            actions += self._hand_over("the newest checkpoint must do")
        return actions

    def _check_expiries(self, now_s: float) -> list[Action]:
        """Asks for others in time, and has those leave whose places end."""
        due = [m for m in self.of("worker", *_HERE) if now_s >= replace_s(m) and not m.expiring]
        for member in due:
            member.expiring = True
        overdue = any(m.expiring and now_s >= leave_s(m) for m in self.of("worker", *_HERE))
        return [*(self._size(now_s) if due else []), *(self._relieve(now_s) if due or overdue else [])]

    def _on_limit(self, event: LimitEvent, now_s: float) -> list[Action]:
        if self._cuts.move_by_s is not None:
            return []
        self._cuts.have_to_move(event.leave_s)
        if self.state is RunState.STARTING:
            return self._hand_over("nothing was done yet")
        if self.state is RunState.RUNNING:
            self._cuts.order_for_move()
        return [NoteAction("info", "the time limit of master and servers is near: a checkpoint, then a move")]

    def _hand_over(self, why: str) -> list[Action]:
        self._cuts.hand_over()
        return [NoteAction("info", f"another master takes over; {why}"), HandOverAction()]

    def next_time_s(self) -> float | None:
        """When to send a ClockEvent at the latest."""
        members, stopping = self.members.values(), bool(self.stop_reason)
        times = [at_s for m in members if (at_s := patience_ends_s(m, self.config)) is not None]
        if self.row.phase is Phase.SERVING:
            times.append(self._cuts.due_s(stopping))
        times += [leave_s(m) if m.expiring else replace_s(m) for m in self.of("worker", *_HERE)]
        times += [] if self._cuts.move_by_s is None else [self._cuts.move_by_s]
        times += [self._cuts.limit_s(stopping), self._stall_due_s(), self._divergence_ends_s()]
        times += [self._stray_due_s(member) for member in self.of("worker", MemberState.READY)]
        return min((at_s for at_s in times if at_s < float("inf")), default=None)

    def _check_alive(self, member: Member, now_s: float) -> list[Action]:
        ends_s = patience_ends_s(member, self.config)
        if ends_s is None or now_s < ends_s:
            return []
        if member.state is MemberState.STARTING and not is_there(member):
            return self._give_up(member, now_s)
        silent = f"was silent for {now_s - member.heard_s:.1f} s, and is given up"
        if member.role == "server":
            doubted = member.doubted_s is not None and now_s < member.heard_s + self.config.suspect_s
            return self._lose_server(member, "lost its connections" if doubted else silent, now_s)
        if member.state is MemberState.READY:
            member.state = MemberState.SUSPECT
            fault = FaultAction(member.name, "worker", "is silent; the others do its slices")
            return [fault, *self._replan(), *self._judge(now_s)]
        text = "lost its connection" if member.state is MemberState.LOST else silent
        if end := self._count_early(member, text):
            return end
        return [KillAction(member.name), *self._remove(member, text, now_s)]

    def _give_up(self, member: Member, now_s: float) -> list[Action]:
        """One whose process never came. No failure of its own."""
        end = KillAction(member.name, never_came=True)
        text = f"did not come within {self.config.start_s:g} s of getting its place, and is given up"
        if member.role == "server":
            return [end, *self._lose_server(member, text, now_s, taken=True)]
        return [end, *self._remove(member, text, now_s)]

    def _on_overslept(self, event: OversleptEvent, now_s: float) -> list[Action]:
        self.stall.excuse(event.seconds)
        if self._close_by_s is not None:
            self._close_by_s += event.seconds
        for member in self.members.values():
            member.heard_s += event.seconds
            member.moved_s += event.seconds
            if member.doubted_s is not None:
                member.doubted_s += event.seconds
            if member.placed_s is not None:
                member.placed_s += event.seconds
            if member.state in (MemberState.LOST, MemberState.STARTING):
                member.since_s += event.seconds
        return []

    # --- when nothing moves ------------------------------------------------------------------------

    @property
    def _steps(self) -> bool:
        """Whether steps should be made now: all servers serve, somebody can compute, there are some left."""
        return self._wants_workers and bool(self.of("worker", MemberState.READY))

    @property
    def _wants_workers(self) -> bool:
        """Whether it is not the servers alone who are waited for."""
        return self.row.phase is Phase.SERVING and not self._last_made and not self._closing

    def _mark(self) -> tuple[tuple[object, ...], bool]:
        """What changes when something moves, and whether anything should: see ``Stall.see``.

        Where steps cannot be made yet, servers are waited for, or workers that load. Who still has no place,
        or does anything at all while it loads, has its time.
        """
        if self.ended or self.divergence.pending:
            return ("ends",), False
        if self._steps:
            tries = tuple((member.name, member.tries) for member in self.of("worker") if member.tries)
            return ("steps", self.row.generation, self.version, tries), True
        if self.spec and not self._wants_workers:
            awaited = [self.members[name] for name in self.row.names if name in self.members]
        else:
            loading = self.of("worker", MemberState.STARTING, MemberState.LOADING)
            awaited = [member for member in loading if is_there(member)]
        states = tuple((member.name, member.state, member.activity) for member in awaited)
        runs = bool(awaited) and all(is_there(member) for member in awaited)
        return ("waits", self.row.generation, self.row.phase, self.version, states), runs

    def _stall_limit_s(self) -> float:
        """How long nothing may move."""
        if not self._steps:
            return self.stall.limit_s()
        assert self.schedule
        evaluates = self.version < self.schedule.total_ticks and self.schedule.evaluates(self.version)
        size = self.schedule.num_test / self.schedule.batch_size if evaluates else 1.0
        limit_s = self.stall.limit_s(size, stopping=self.state is RunState.FINISHING)
        trying = any(member.tries % 2 for member in self.of("worker", MemberState.READY))
        return max(limit_s, TRY_LOST * self.config.lost_s) if trying else limit_s

    def _stall_due_s(self) -> float:
        """When to look again whether anything moves."""
        due_s = self.stall.due_s(self._stall_limit_s())
        return due_s if self._close_by_s is None else min(due_s, self._close_by_s)

    @property
    def _close_s(self) -> float:
        return self.config.storage_patience_s + CLOSE_S

    def _check_stall(self, now_s: float) -> list[Action]:
        """Asks who waits for whom once nothing has moved for too long, and acts on the answers."""
        if self._close_by_s is not None and now_s >= self._close_by_s:
            return self._end_closed(f"no checkpoint of it was made within {self._close_s:g} s")
        if now_s < self.stall.due_s(self._stall_limit_s()):
            return []
        if verdict := self.stall.verdict(now_s):
            return self._act_on(verdict, now_s)
        if self._steps and self.state is RunState.FINISHING:
            state = RunState.DIVERGED if self._diverging else RunState.STOPPED
            return self._close(state, self.stop_reason, now_s)
        names = tuple(m.name for m in self.members.values() if is_there(m) and m.state in _ASKED)
        return [LookAction(names, self.stall.ask(names, self.version, now_s))]

    def _stray_due_s(self, member: Member) -> float:
        """When a worker that stays where it is, while the others go on, is to be asked, or replaced."""
        if not self._steps or member.tick + 1 >= self.version:
            return float("inf")
        if member.asked_s is not None:
            return member.asked_s + self.stall.answer_s
        return member.moved_s + self._stall_limit_s()

    def _check_strays(self, now_s: float) -> list[Action]:
        """Nobody waits for these: the others do their slices. But they keep places that others could use."""
        actions: list[Action] = []
        for member in [] if self.ended else self.of("worker", MemberState.READY):
            if now_s < self._stray_due_s(member):
                continue
            if member.asked_s is None:  # so that its log says where it hangs
                member.asked_s = now_s
                actions.append(LookAction((member.name,), 0))
            else:
                actions += self._replace_hung(member, now_s)
        return actions

    def _on_stacks(self, event: Stacks, now_s: float) -> list[Action]:
        self.stall.stacks(event)
        return []

    def _on_here(self, event: Here, now_s: float) -> list[Action]:
        self.stall.here(event.name, event.number)
        verdict = self.stall.verdict(now_s)
        return self._act_on(verdict, now_s) if verdict else []

    def _act_on(self, verdict: Verdict, now_s: float) -> list[Action]:
        """Replaces those who hang; where nobody does, all connect anew. If that was done, ends the run."""
        steps, limit_s = self._steps, self._stall_limit_s()
        what = "no step was made" if steps else "nothing has moved"
        text = f"{what} for {limit_s:.0f} s: {verdict.text}"
        hung = [self.members[name] for name in verdict.hung if name in self.members]
        if not hung and (self._closing or self._last_made or self.row.phase is Phase.RESTORING):
            return [NoteAction("info", text)]  # they read or write: the storage has a patience of its own
        actions: list[Action] = [NoteAction("fault", text)]
        if not hung and verdict.silent:
            return actions  # the question, or its answer, was lost: it is asked again
        self.stall.rounds += 1
        if self.stall.rounds > MOST_ROUNDS and not self._closing:
            return actions + self._close(RunState.STALLED, text, now_s, verdict.stack, hung)
        for member in hung:
            actions += self._replace_hung(member, now_s) if not self.ended else []
        if not hung:
            actions += [NoteAction("info", "all connect anew"), *self._halt_all(now_s)]
        return actions

    def _replace_hung(self, member: Member, now_s: float) -> list[Action]:
        """That counts as no failure: what it was killed for may be another's fault."""
        text = "hangs, and is replaced; what its threads did is in its log"
        if member.name not in self.members:
            return []
        if member.role == "server":
            return self._lose_server(member, text, now_s, taken=True)
        return [KillAction(member.name), *self._remove(member, text, now_s)]

    # --- the end where the run stands --------------------------------------------------------------

    def _close(
        self,
        state: RunState,
        text: str,
        now_s: float,
        detail: str = "",
        hung: Sequence[Member] = (),
    ) -> list[Action]:
        """Ends the run with the version that there is, without the step that is not made."""
        self._closing, self._close_by_s = (state, text), now_s + self._close_s
        self._end_detail = detail
        if self.state is RunState.STARTING or self.spec is None:
            return self._end_closed()
        self.state, self.stop_reason = RunState.FINISHING, self.stop_reason or text
        actions: list[Action] = [KillAction(member.name) for member in hung if member.role == "worker"]
        for member in hung:
            if member.role == "server" and member.name in self.members:
                actions += self._lose_server(member, "hangs", now_s, taken=True)
        halted = self.ended or any(isinstance(action, HaltAction) for action in actions)
        return actions if halted else actions + self._halt_all(now_s)

    def _is_worth_writing(self, start: Start) -> bool:
        """Whether a run that ends at this point has to commit it: else that is done, or cannot be.

        There is one checkpoint a step, which is that after an evaluation.
        """
        assert self.schedule
        new = start.source == "memory" and start.tick > (self.committed_tick or 0)
        return new and not self.schedule.evaluates(start.tick)

    def _end_closed(self, but: str = "") -> list[Action]:
        assert self._closing
        state, text = self._closing
        if self.schedule:
            total, done = self.schedule.total_steps, self.schedule.steps_before(self.committed_tick or 0)
            text += f"{f'; {but}' if but else ''}: {total - done} of {total} steps are missing"
            text += ", go on with --resume"
        return self._end(state, text, self._end_detail)

    # --- requests ----------------------------------------------------------------------------------

    def _on_scale(self, event: ScaleEvent, now_s: float) -> list[Action]:
        if event.workers == self.target:
            return []
        old, self.target, self.reason = self.target, event.workers, "asked for by scale"
        resized = ResizedAction(old, event.workers, self.reason)
        return [resized, *self._size(now_s), *self._relieve(now_s)]

    def _on_stop(self, event: StopEvent, now_s: float) -> list[Action]:
        if self.stop_reason:
            return []
        self.stop_reason = event.reason
        if self.state is RunState.STARTING:
            return self._end(RunState.STOPPED, f"{event.reason}, before the first step")
        if self.state is RunState.FINISHING:
            return []
        self.state = RunState.FINISHING
        note = NoteAction("info", f"{event.reason}: one last checkpoint")
        return [note, CutAction(self.row.leader, finish=True)] if not self.regrouping else [note]

    def _end(self, state: RunState, text: str, detail: str = "") -> list[Action]:
        self.state, self._end_text = state, text
        quits: Sequence[Action] = [
            QuitAction(member.name, text) for role in ("worker", "server") for member in self.of(role)
        ]
        return [*quits, EndAction(state, text, detail)]


def _use(member: Member) -> tuple[int, float]:
    """Who is of least use comes first: who is not ready yet, then the newest."""
    order = (MemberState.STARTING, MemberState.LOADING, MemberState.SUSPECT, MemberState.READY)
    return order.index(member.state), -member.since_s
