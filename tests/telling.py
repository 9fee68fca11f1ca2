"""A run's story told by hand: what a master's server would tell it, without one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from elasticflow.api import SGD
from elasticflow.master.actions import EndAction
from elasticflow.master.divergence import Divergence
from elasticflow.master.members import Member, MemberState, RunState
from elasticflow.master.row import Row
from elasticflow.master.standings import Standings
from elasticflow.master.status import Story, StoryMemory
from elasticflow.run.config import Config
from elasticflow.run.telling import Report, Status
from elasticflow.step.layout import Entry, Rule
from elasticflow.step.schedule import Schedule
from elasticflow.wire.messages import Excluded, Progress, Share, Spec, Usage
from elasticflow_ps.memory import MemoryNeed

SCHEDULE = Schedule(num_records=100, num_test=10, batch_size=10, num_slices=4, epochs=3)
"""10 steps an epoch, 11 ticks."""
SPEC = Spec(
    framework="torch",
    entries=(Entry("w", (1,), "float32", Rule.UPDATE),),
    optimizer=SGD(lr=1.0),
    metrics=("accuracy",),
    num_records=100,
    num_test=10,
    data_signature="",
)


def report_of(state: str, text: str, **values: Any) -> Report:
    """Of a run that has ended so."""
    told = Told()
    report = told.story.report(told.state, EndAction(RunState(state), text))
    return msgspec.structs.replace(report, **values)


@dataclass
class Seen:
    """What a story looks at of a master's state."""

    schedule: Schedule | None = SCHEDULE
    spec: Spec | None = SPEC
    state: RunState = RunState.RUNNING
    generation: int = 1
    regrouping: bool = False
    target: int = 2
    reason: str = "asked for"
    excluded: tuple[Excluded, ...] = ()
    committed_tick: int | None = None
    troubles: dict[str, str] = field(default_factory=dict)
    row: Row = field(default_factory=lambda: Row(["server-0"]))
    needs: dict[str, MemoryNeed] = field(default_factory=dict)
    workers: list[Member] = field(default_factory=list)
    plan: tuple[Share, ...] = ()
    divergence: Divergence = field(default_factory=Divergence)
    num_audited: int = 0
    standings: Standings = field(default_factory=Standings)

    @property
    def num_ready(self) -> int:
        return len(self.workers)

    def of(self, role: str) -> list[Member]:
        return self.workers if role == "worker" else []

    def has(self, *names: str, usage: Usage | None = None) -> None:
        """So many workers are ready."""
        self.workers = [
            Member(name, "worker", MemberState.READY, 0.0, usage=usage or Usage()) for name in names
        ]


class Told:
    """A story, its clock, and how what happens is told to it."""

    def __init__(self, remembered: StoryMemory | None = None, at_s: float = 0.0) -> None:
        self.now_s = at_s
        self.state: Any = Seen()
        self.config = Config()
        self.begin(remembered)

    def begin(self, remembered: StoryMemory | None) -> None:
        """A master's clock begins anywhere, and so does the wall's."""
        self.story = Story(
            self.config,
            "run",
            0,
            remembered,
            clock=lambda: self.now_s + 1000,
            wall=lambda: self.now_s + 3600,
            boot=lambda: ("", 0.0),
        )

    @property
    def clock_s(self) -> float:
        return self.now_s + 1000

    def after(self, seconds: float) -> Told:
        self.now_s += seconds
        return self

    def fault(
        self, member: str, text: str = "was killed by SIGKILL", role: str = "", *, early: bool = False
    ) -> None:
        self.story.fault(member, role or member.partition("-")[0], text, self.clock_s, early=early)

    def progress(self, version: int, **values: Any) -> None:
        message = Progress(name="server-0", generation=self.state.generation, version=version, **values)
        self.story.progress(self.state, message)

    def regrouped(self, reached: int, start: int, source: str = "memory") -> None:
        self.state.generation += 1
        self.story.regrouped(reached, start, source, self.clock_s)

    def next_master(self) -> None:
        """This one dies now; the next one reads what it wrote down just before."""
        written = msgspec.json.encode(self.story.remembered())
        self.begin(msgspec.json.decode(written, type=StoryMemory))

    def status(self) -> Status:
        return self.story.status(self.state)

    def faults(self) -> list[tuple[str, float, int, float | None]]:
        """Of each: whose, its cost in seconds and steps, and how long it lasted."""
        return [
            (each.member, round(each.seconds, 3), each.steps, each.lasted_s) for each in self.status().faults
        ]
