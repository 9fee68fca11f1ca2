"""Replays jobs against a policy, event by event, and records what happened."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import inf

from elasticflow.scheduler import events as ev
from elasticflow.scheduler.capacity import Capacity
from elasticflow.scheduler.curves import Curve
from elasticflow.scheduler.decisions import Admitted, Decision, Placed, Rejected, WakeAt
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.policies.base import Policy
from elasticflow.scheduler.schedule import DecisionTime, JobSchedule, Segment
from elasticflow.scheduler.truth import Running, TrueEnding
from elasticflow.scheduler.worlds import EXACT, World

MEASURE_S = 30.0
"""A job's speed is known after it has iterated so long on the same GPUs."""


def simulate(
    policy: Policy,
    jobs: Sequence[Job],
    world: World = EXACT,
    clock: Callable[[], float] = time.perf_counter,
) -> JobSchedule:
    """What the policy does with the jobs. ``clock`` only times its decisions."""
    return _Simulation(policy, jobs, world, clock).run()


class _Agenda:
    """What is to happen, by time; of what is at one time, in the order in which it was put down."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], list[ev.Event]]]] = []
        self._order = count()

    def put(self, at_s: float, what: Callable[[], list[ev.Event]]) -> None:
        heapq.heappush(self._heap, (at_s, next(self._order), what))

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_s(self) -> float:
        return self._heap[0][0]

    def take(self) -> list[ev.Event]:
        """Has the next happen; what comes of it."""
        return heapq.heappop(self._heap)[2]()


class _Simulation:
    def __init__(self, policy: Policy, jobs: Sequence[Job], world: World, clock: Callable[[], float]) -> None:
        self.policy, self.world, self.clock = policy, world, clock
        self.now_s, self.wake_s = 0.0, inf
        self.running: dict[str, Running] = {}
        self.endings = {job.job_id: TrueEnding(job) for job in jobs}
        self.num_to_come = len(jobs)
        self.slow: dict[int, float] = {}
        self.measured: set[tuple[Curve, int]] = set()
        self.segments: list[Segment] = []
        self.decision_times: list[DecisionTime] = []
        self.num_resizes, self.num_migrations = 0, 0
        self._agenda = _Agenda()
        for job in jobs:
            self._agenda.put(job.submit_s, partial(self._arrive, job))
        self._foretell_nodes()

    def run(self) -> JobSchedule:
        """Until no job is under way any more, and none is to come."""
        while self._agenda and (self.running or self.num_to_come):
            self.now_s = self._agenda.next_s
            happened: list[ev.Event] = []
            while self._agenda and self._agenda.next_s <= self.now_s:
                happened += self._agenda.take()
            if happened:
                self._decide(happened)
        return JobSchedule(
            policy=self.policy.name,
            shape=self.policy.shape,
            segments=tuple(self.segments),
            outcomes=tuple(ending.outcome() for ending in self.endings.values()),
            outages=tuple(one for one in self.world.outages if one.start_s <= self.now_s),
            decision_times=tuple(self.decision_times),
            num_resizes=self.num_resizes,
            num_migrations=self.num_migrations,
        )

    def _foretell_nodes(self) -> None:
        for outage in self.world.outages:
            self._agenda.put(outage.start_s, partial(self._lose, outage.node))
            self._agenda.put(outage.end_s, partial(self._give_back, outage.node))
        for told_s, capacity in self.world.capacities:
            self._agenda.put(told_s, partial(self._foretell, capacity))
        for slow in self.world.slow:
            self._agenda.put(slow.start_s, partial(self._set_speed, slow.node, slow.factor))
            self._agenda.put(slow.end_s, partial(self._set_speed, slow.node, 1.0))

    def _decide(self, happened: list[ev.Event]) -> None:
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
            self.endings[decision.job_id].admitted_s = self.now_s
            self.endings[decision.job_id].by_s = decision.by_s
        elif isinstance(decision, Rejected):
            self.endings[decision.job_id].reason = decision.reason
            self._stop(self.running.pop(decision.job_id))
        elif isinstance(decision, WakeAt) and decision.at_s != self.wake_s:
            self.wake_s = decision.at_s
            self._agenda.put(decision.at_s, self._wake)

    def _arrive(self, job: Job) -> list[ev.Event]:
        self.running[job.job_id] = Running(job, self.world.true_curve(job), job.iterations)
        self.num_to_come -= 1
        return [ev.ArrivalEvent(job)]

    def _wake(self) -> list[ev.Event]:
        if self.now_s != self.wake_s:
            return []
        self.wake_s = inf
        return [ev.TickEvent()]

    def _place(self, running: Running, gpus: tuple[int, ...]) -> None:
        had = running.gpus
        self._stop(running)
        if not gpus:
            return
        from_s = self.now_s if had else max(self.now_s, running.ready_s)
        self.num_resizes += len(had) not in (0, len(gpus))
        self.num_migrations += len(had) == len(gpus)
        self._start(running, gpus, from_s + self.policy.overheads.change_s(running.last_gpus, set(gpus)))

    def _start(self, running: Running, gpus: tuple[int, ...], ready_s: float) -> None:
        factor = self._factor(gpus)
        running.start(gpus, self.now_s, ready_s, factor)
        version = running.version
        self._agenda.put(running.finish_s(), partial(self._complete, running, version))
        if factor != 1.0 or (running.job.curve, len(gpus)) not in self.measured:
            measured_s = max(ready_s, self.now_s) + MEASURE_S
            self._agenda.put(measured_s, partial(self._measure, running, version, factor))

    def _stop(self, running: Running) -> None:
        segment = running.stop(self.now_s)
        if segment is not None:
            self.segments.append(segment)

    def _complete(self, running: Running, version: int) -> list[ev.Event]:
        if running.version != version:
            return []
        self._finish(running)
        return [ev.CompletionEvent(running.job.job_id)]

    def _finish(self, running: Running) -> None:
        self._stop(running)
        self.endings[running.job.job_id].finished_s = self.now_s
        del self.running[running.job.job_id]

    def _measure(self, running: Running, version: int, factor: float) -> list[ev.Event]:
        size = len(running.gpus)
        if running.version != version or factor == 1.0 and (running.job.curve, size) in self.measured:
            return []
        if factor == 1.0:
            self.measured.add((running.job.curve, size))
        return [ev.ProfileCorrectedEvent(running.job.job_id, size, running.rate, own=factor != 1.0)]

    def _lose(self, node: int) -> list[ev.Event]:
        """The jobs on the node are without GPUs until the policy gives them others."""
        for running in self._on_node(node):
            self._stop(running)
            running.last_gpus = frozenset()
            running.ready_s = self.now_s + self.policy.overheads.failure_s
        return [ev.NodeLostEvent(node)]

    def _give_back(self, node: int) -> list[ev.Event]:
        return [ev.NodeBackEvent(node)]

    def _foretell(self, capacity: Capacity) -> list[ev.Event]:
        return [ev.CapacityEvent(capacity)]

    def _set_speed(self, node: int, factor: float) -> list[ev.Event]:
        """The jobs on the node go on at another speed; the policy hears of it once it was measured."""
        self.slow[node] = factor
        for running in self._on_node(node):
            gpus, ready_s = running.gpus, running.ready_s
            self._stop(running)
            self._start(running, gpus, ready_s)
        return []

    def _factor(self, gpus: tuple[int, ...]) -> float:
        """The slowest node sets the pace."""
        if not self.slow:
            return 1.0
        per_node = self.policy.shape.gpus_per_node
        return min(self.slow.get(gpu // per_node, 1.0) for gpu in gpus)

    def _on_node(self, node: int) -> list[Running]:
        per_node = self.policy.shape.gpus_per_node
        return [one for one in self.running.values() if any(gpu // per_node == node for gpu in one.gpus)]
