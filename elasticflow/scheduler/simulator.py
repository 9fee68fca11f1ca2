"""Replays jobs against a policy, event by event, and records what happened."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from elasticflow.scheduler import events as ev
from elasticflow.scheduler.decisions import Admitted, Decision, Placed, Rejected, WakeAt
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.policies.base import Policy
from elasticflow.scheduler.schedule import DecisionTime, Outage, Outcome, Schedule, Segment

Clock: TypeAlias = Callable[[], float]


@dataclass
class Running:
    """The truth about a job under way, which the policy learns from events alone."""

    job: Job
    remaining: float
    gpus: tuple[int, ...] = ()
    last_gpus: frozenset[int] = frozenset()
    since_s: float = 0.0
    ready_s: float = 0.0
    rate: float = 0.0
    version: int = 0

    def remaining_at(self, now_s: float) -> float:
        """Iterations left."""
        return max(self.remaining - max(now_s - self.ready_s, 0.0) * self.rate, 0.0)

    def finish_s(self) -> float:
        """When it is done if nothing changes."""
        return self.ready_s + self.remaining / self.rate


@dataclass
class Ending:
    """What became of a job so far."""

    admitted_s: float | None = None
    finished_s: float | None = None
    reason: str = ""


@dataclass
class Simulator:
    """One run of one policy."""

    policy: Policy
    jobs: Sequence[Job]
    overheads: Overheads
    clock: Clock = time.perf_counter
    now_s: float = 0.0
    running: dict[str, Running] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    decision_times: list[DecisionTime] = field(default_factory=list)
    num_resizes: int = 0
    num_migrations: int = 0

    def __post_init__(self) -> None:
        self._endings = {job.job_id: Ending() for job in self.jobs}
        self._heap: list[tuple[float, int, ev.Event, int]] = []
        self._order = 0
        self._wake_s = float("inf")
        for job in self.jobs:
            self._push(job.submit_s, ev.ArrivalEvent(job))

    def run(self) -> Schedule:
        """Until no job is under way any more, and none is to come."""
        while self._heap:
            self.now_s = self._heap[0][0]
            happened = self._due()
            if happened:
                self._step(happened)
        return self._schedule()

    def _push(self, at_s: float, event: ev.Event, version: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at_s, self._order, event, version))

    def _due(self) -> list[ev.Event]:
        """All that happens now, but for what was foreseen and is not so any more."""
        happened: list[ev.Event] = []
        while self._heap and self._heap[0][0] <= self.now_s:
            _, _, event, version = heapq.heappop(self._heap)
            if isinstance(event, ev.CompletionEvent):
                running = self.running.get(event.job_id)
                if running is None or running.version != version:
                    continue
                self._complete(running)
            elif isinstance(event, ev.TickEvent):
                if self.now_s != self._wake_s:
                    continue
                self._wake_s = float("inf")
            elif isinstance(event, ev.ArrivalEvent):
                self.running[event.job.job_id] = Running(event.job, event.job.iterations)
            happened.append(event)
        return happened

    def _step(self, happened: list[ev.Event]) -> None:
        progress = {one: job.remaining_at(self.now_s) for one, job in self.running.items() if job.gpus}
        started = self.clock()
        decisions = self.policy.handle([ev.ProgressEvent(progress), *happened], self.now_s)
        took_s = self.clock() - started
        self.decision_times.append(DecisionTime(self.now_s, took_s, len(self.running)))
        for decision in decisions:
            self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Placed):
            self._place(self.running[decision.job_id], decision.gpus)
        elif isinstance(decision, Admitted):
            self._endings[decision.job_id].admitted_s = self.now_s
        elif isinstance(decision, Rejected):
            self._endings[decision.job_id].reason = decision.reason
            self._close(self.running.pop(decision.job_id))
        elif isinstance(decision, WakeAt) and decision.at_s != self._wake_s:
            self._wake_s = decision.at_s
            self._push(decision.at_s, ev.TickEvent())

    def _place(self, running: Running, gpus: tuple[int, ...]) -> None:
        had = running.gpus
        self._close(running)
        running.gpus, running.since_s = gpus, self.now_s
        running.version += 1
        running.rate = running.job.curve.rate(len(gpus))
        if not gpus:
            return
        paused_until_s = self.now_s if had else max(self.now_s, running.ready_s)
        running.ready_s = paused_until_s + self.overheads.change_s(running.last_gpus, set(gpus))
        running.last_gpus = frozenset(gpus)
        self.num_resizes += len(had) != len(gpus) and bool(had)
        self.num_migrations += len(had) == len(gpus)
        self._push(running.finish_s(), ev.CompletionEvent(running.job.job_id), running.version)

    def _close(self, running: Running) -> None:
        """Ends the segment of the GPUs that the job had until now."""
        if running.gpus and self.now_s > running.since_s:
            left = running.remaining_at(self.now_s)
            lost_s = min(running.ready_s, self.now_s) - running.since_s
            done = running.remaining - left
            job_id = running.job.job_id
            self.segments.append(Segment(job_id, running.gpus, running.since_s, self.now_s, lost_s, done))
            running.remaining = left
        running.gpus, running.rate = (), 0.0

    def _complete(self, running: Running) -> None:
        self._close(running)
        running.remaining = 0.0
        self._endings[running.job.job_id].finished_s = self.now_s
        del self.running[running.job.job_id]

    def _schedule(self) -> Schedule:
        outcomes = []
        for job in self.jobs:
            end = self._endings[job.job_id]
            outcomes.append(
                Outcome(job.job_id, job.submit_s, job.deadline_s, end.admitted_s, end.finished_s, end.reason)
            )
        return Schedule(
            policy=self.policy.name,
            shape=self.policy.shape,
            segments=tuple(self.segments),
            outcomes=tuple(outcomes),
            outages=tuple(self.outages),
            decision_times=tuple(self.decision_times),
            num_resizes=self.num_resizes,
            num_migrations=self.num_migrations,
        )
