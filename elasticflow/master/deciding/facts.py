"""All that the master knows of a run. Whoever decides about a subject changes it; nobody acts from here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticflow.master.actions import Action
from elasticflow.master.audits import Audits
from elasticflow.master.balance import Balance
from elasticflow.master.commits import Commits
from elasticflow.master.cuts import Cuts
from elasticflow.master.divergence import Divergence
from elasticflow.master.failures import Failures
from elasticflow.master.gain import Gain
from elasticflow.master.members import ENDS, Member, MemberState, RunState, number_of
from elasticflow.master.quarantine import QuarantineRules
from elasticflow.master.row import Phase, Row
from elasticflow.master.stall import Stall
from elasticflow.master.standings import Standings
from elasticflow.run.config import Config
from elasticflow.step.layout import Layout, rounds_of, spread, stages_of
from elasticflow.step.schedule import Schedule
from elasticflow.training.standing import WatchStanding
from elasticflow.wire.messages import Assignment, Excluded, Progress, Share, Spec, Written
from elasticflow_ps.memory import MemoryNeed, needs

LEAST_BY_DEADLINE = 0.02
"""Of ``least_gain``, in a run that has to be done by a moment."""


@dataclass
class Staff:
    """How many workers there should be, and the names of those to come.

    target: workers that are wanted; reason: why so many, for people.
    inherited: members that may know of a generation that was not written down.
    grant: the number of the newest grant of a service; 0: there is none, and people may ask for others.
    bereft_s: since when nobody could take over the servers of a worker that has failed; None: there is none.
    """

    gain: Gain
    target: int
    reason: str
    next_worker: int
    next_server: int
    inherited: frozenset[str] = frozenset()
    grant: int = 0
    bereft_s: float | None = None


@dataclass
class Agreed:
    """What members have to agree on: the program, and what computes it. The first who come say it.

    made_with: the fingerprint of the workers that made the checkpoint gone on from.
    code: of ElasticFlow, by the first member that told of it.
    needs: by place, the memory that a server needs. assignment: what members were told of it last.
    audits: whether they get the same of the same slices.
    """

    made_with: dict[str, str]
    fingerprint: dict[str, str] = field(default_factory=dict)
    code: str = ""
    spec: Spec | None = None
    schedule: Schedule | None = None
    needs: list[MemoryNeed] = field(default_factory=list)
    assignment: Assignment | None = None
    audits: Audits = field(default_factory=Audits)


@dataclass
class Conclusion:
    """Where the run is, and how it comes to its end, as far as that is known.

    stop_reason: why no more steps are to be made; empty: they are. closing: the run ends with the version
    that there is, so and for this reason; None: it goes on. close_by_s: when that has to be done. halts: its
    servers are still to be halted for that.
    alone_s: since when a stop waits for a step, and no worker is there.
    last_made, all_made: the last version is whole on the leading server, on all servers.
    text, detail: of its end, for people.
    """

    state: RunState = RunState.STARTING
    stop_reason: str = ""
    closing: tuple[RunState, str] | None = None
    close_by_s: float | None = None
    halts: bool = False
    alone_s: float | None = None
    last_made: bool = False
    all_made: bool = False
    text: str = ""
    detail: str = ""


class Facts:
    """See the module's docstring.

    restored: (training step, tick, quarantine) of the checkpoint to go on from, or None.
    stop_at_s: when the run's time limit is over; None: it has none.
    standing: what evaluations had decided by that checkpoint.
    """

    def __init__(
        self,
        config: Config,
        *,
        restored: tuple[int, int, tuple[Excluded, ...]] | None = None,
        made_with: Mapping[str, str] | None = None,
        stop_at_s: float | None = None,
        standing: WatchStanding | None = None,
    ) -> None:
        tick = restored[1] if restored else None
        # Workers carry no server before it is known of how many places the program has need.
        names = [] if config.all_reduce or config.undecided else _names(config.servers, config)
        self.config = config.fixed(config.num_slices) if restored and restored[0] else config
        self.version = tick or 0
        self.members: dict[str, Member] = {}
        most, why = config.worker_range[1], "the most that the settings allow"
        self.staff = Staff(_gain_of(config), most, why, next_worker=1, next_server=len(names))
        self.row = Row(names)
        self.agreed = Agreed(dict(made_with or {}))
        self.balance = Balance(config.num_slices)
        self.quarantine = QuarantineRules(restored[2] if restored else ())
        self.divergence = Divergence()
        self.failures = Failures()
        self.commits = Commits(tick)
        self.standings = Standings([standing] if standing else [])
        self.cuts = Cuts(config.checkpoint_interval[1], stop_at_s)
        self.stall = Stall(config.stall_s)
        self.conclusion = Conclusion()

    @property
    def state(self) -> RunState:
        """Where the run is."""
        return self.conclusion.state

    @state.setter
    def state(self, state: RunState) -> None:
        self.conclusion.state = state

    @property
    def spec(self) -> Spec | None:
        """What the program is; None: nobody has said it yet."""
        return self.agreed.spec

    @property
    def schedule(self) -> Schedule | None:
        """What is to be done; None as long as the program is not known."""
        return self.agreed.schedule

    @property
    def target(self) -> int:
        """How many workers are wanted."""
        return self.staff.target

    @property
    def reason(self) -> str:
        """Why so many, for people."""
        return self.staff.reason

    @property
    def stop_reason(self) -> str:
        """Why no more steps are to be made; empty: they are."""
        return self.conclusion.stop_reason

    @property
    def troubles(self) -> dict[str, str]:
        """By server: why it cannot write its part just now."""
        return self.commits.troubles

    @property
    def fingerprint(self) -> dict[str, str]:
        """Of the first worker; all others are like it."""
        return self.agreed.fingerprint

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
        return dict(zip(self.row.names, self.agreed.needs, strict=False))

    @property
    def carriers(self) -> list[str]:
        """Workers that can carry a server, or a relay, more."""
        able = self.of("worker", MemberState.LOADING, MemberState.READY)
        return [member.name for member in able if not member.expiring]

    @property
    def leaving_carriers(self) -> list[str]:
        """Workers that are about to leave, and stay as long as they carry somebody."""
        carry = {server.carrier for server in self.of("server")}
        return [member.name for member in self.of("worker", MemberState.DRAINING) if member.name in carry]

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
        ready = MemberState.READY
        return sum([m.role == "worker" and m.state is ready for m in self.members.values()])

    @property
    def committed_tick(self) -> int | None:
        return self.commits.committed_tick

    @property
    def num_audited(self) -> int:
        """Slices that were computed twice, and gave the same."""
        return self.agreed.audits.equal

    @property
    def excluded(self) -> tuple[Excluded, ...]:
        return self.quarantine.excluded

    def of(self, role: str, *states: MemberState) -> list[Member]:
        """Members of a role, in order of their names' numbers; of any state if none is given."""
        members = self.members
        names = [n for n, m in members.items() if m.role == role and (not states or m.state in states)]
        if len(names) > 1:
            names.sort(key=number_of)
        return list(map(members.__getitem__, names))

    @property
    def snapshot_s(self) -> float:
        """Tables may be larger than what other servers have room for: only storage keeps them twice."""
        return 0.0 if self.spec and self.spec.tables else self.config.snapshot_s

    @property
    def step_in_work(self) -> int:
        return self.schedule.steps_before(self.version) + 1 if self.schedule else 0

    @property
    def steps(self) -> bool:
        """Whether steps should be made now: all servers serve, somebody can compute, there are some left."""
        return self.wants_workers and self.num_ready > 0

    @property
    def wants_workers(self) -> bool:
        """Whether it is not the servers alone who are waited for."""
        return (
            self.row.phase is Phase.SERVING and not self.conclusion.last_made and not self.conclusion.closing
        )

    def accepts(self, event: Progress | Written) -> bool:
        """Whether this is of the present generation, from one who should say it, and makes sense."""
        if self.total_ticks is None or event.generation != self.row.generation:
            return False
        if isinstance(event, Progress):
            return event.name == self.row.leader and 0 <= event.version <= self.total_ticks
        return event.name in self.row.holders and 0 <= event.tick <= self.total_ticks

    def choose_slices(self, num_slices: int) -> None:
        """The first worker has found that there should be so many."""
        self.config = self.config.fixed(num_slices)
        self.balance = Balance(num_slices)
        self.staff.gain = _gain_of(self.config)

    def learn(self, spec: Spec) -> Schedule:
        """What the program is: from that follows all that is to be done, and by which servers."""
        self.agreed.spec = spec
        self.config = self.config.fixed(self.config.num_slices)
        schedule = self.agreed.schedule = schedule_of(self.config, spec)
        self.standings.go_by(spec.rules, schedule)
        layout = Layout(spec.entries)
        shares = [tuple(share) for share in spread(layout, self.config.num_places)]
        if self.config.all_reduce:
            shares = [share for share in shares if share]
        if not self.row.names:
            # Not those of a master before, which may have told workers to carry some: see ``takeover.adopt``.
            self.row.names = _names(len(shares), self.config, self.staff.next_server)
            self.staff.next_server += len(self.row.names)
        self.row.chunks = (*shares, *((),) * (len(self.row.names) - len(shares)))
        self.agreed.needs = needs(
            layout,
            spec.optimizer,
            self.row.chunks,
            others=spec.others,
            tables=spec.tables,
            snapshots=self.snapshot_s > 0,
            num_workers=self.config.worker_range[1],
            num_slices=self.config.num_slices,
            packs_versions=self.config.compression == "bf16",
        )
        return schedule


def schedule_of(config: Config, spec: Spec) -> Schedule:
    """What there is to be done, of this program with these settings."""
    return Schedule(
        num_records=spec.num_records,
        num_test=spec.num_test,
        batch_size=config.step_records,
        num_slices=config.num_slices,
        asynchronous=config.asynchronous,
        drop_last=config.drop_last,
        epochs=config.epochs,
        max_steps=config.max_steps,
        evaluate_every=config.evaluate_every,
        stages=stages_of(spec.entries),
        updates_before=spec.updates_before,
        rounds=rounds_of(spec.entries),
    )


def _names(count: int, config: Config, first: int = 0) -> list[str]:
    """Of the first servers. Where one has all chunks, another keeps its snapshots."""
    standby = 1 if count == 1 and config.snapshot_s > 0 else 0
    return [f"server-{first + number}" for number in range(count + standby)]


def _gain_of(config: Config) -> Gain:
    """Where people wait for a deadline, workers are given back only if they bring nothing at all."""
    least = min(config.least_gain, LEAST_BY_DEADLINE) if config.deadline else config.least_gain
    return Gain(0.0 if config.asynchronous else least, config.worker_range[0], config.num_slices)


Handlers = Mapping[type, Callable[[Any, Any, float], list[Action]]]
"""By event: what is decided about it, of ``Facts``, the event and the time."""
