"""What all policies share: the jobs under way, their places, and the order in which an event is handled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from elasticflow.scheduler import events as ev
from elasticflow.scheduler.capacity import ALL
from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.scheduler.decisions import Decision, Placed, WakeAt
from elasticflow.scheduler.fairness import Quotas
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.placement import Gpus, Placement
from elasticflow.scheduler.speeds import Speeds
from elasticflow.scheduler.timeline import ClusterTimeline
from elasticflow.scheduler.tracks import Standing, Track

PINNED = 1e12
"""What it costs to move a job that would be late for it."""


class Policy(ABC):
    """``handle`` gets what has happened and the time, and returns what is to be done, with reasons.

    A decision depends on nothing but the events so far and their times.
    """

    name = ""

    def __init__(self, shape: ClusterShape, overheads: Overheads, quotas: Quotas | None = None) -> None:
        self.shape, self.overheads, self.quotas = shape, overheads, quotas or Quotas()
        self.placement = Placement(shape)
        self.capacity = ALL
        self.num_usable = shape.num_gpus
        """GPUs that may be used now: of those that are there, as many as the capacity allows."""
        self.tracks: dict[str, Track] = {}
        self.speeds = Speeds(shape.num_gpus, overheads)
        self._has_learned = False
        """Something of which ladders of others may follow."""

    def handle(self, events: Sequence[ev.Event], now_s: float) -> list[Decision]:
        """Takes in all events of one moment, then decides once."""
        for track in self.tracks.values():
            track.advance(now_s)
        arrivals = []
        for event in events:
            if isinstance(event, ev.ArrivalEvent):
                arrivals.append(event.job)
            else:
                self._take_in(event, now_s)
        self._count_on_what_was_learned()
        self.num_usable = int(min(self.placement.num_up, self.capacity.at(now_s)))
        decisions = self.admit(arrivals, now_s)
        decisions += self._place(self.share(now_s), now_s)
        return decisions + self.settle(now_s) + self._first(self.wake(now_s), now_s)

    def empty_timeline(self, now_s: float, max_steps: int = 512) -> ClusterTimeline:
        """GPUs that may be used from now on, as far as that is known."""
        return self.capacity.timeline(now_s, self.placement.num_up, max_steps)

    @abstractmethod
    def admit(self, arrivals: Sequence[Job], now_s: float) -> list[Decision]:
        """Decides on those that arrived, and again on those that wait."""

    @abstractmethod
    def share(self, now_s: float) -> dict[str, int]:
        """The number of GPUs of each job from now on; who is not named has none."""

    def arrange(self, sizes: dict[str, int]) -> dict[str, Gpus]:
        """Places the jobs; returns those whose GPUs are others now."""
        return self.placement.arrange(sizes, self.move_cost)

    def settle(self, now_s: float) -> list[Decision]:
        """What can be said only once all have their places."""
        return []

    def wake(self, now_s: float) -> list[Decision]:
        """When it wants to be asked again even if nothing happens."""
        return []

    def follow(self, job: Job, now_s: float, standing: Standing) -> Track:
        """Counts the job among those under way."""
        track = Track(job, self.speeds.ladders(job), job.iterations, now_s, standing)
        self.tracks[job.job_id] = track
        return track

    def count_on(self, overheads: Overheads) -> None:
        """Changes cost that from now on."""
        self.overheads = overheads
        self.speeds.count_on(overheads)
        self._has_learned = True
        self._count_on_what_was_learned()

    def drop(self, job_id: str) -> None:
        """The job is over."""
        self.placement.release(job_id)
        self.tracks.pop(job_id, None)

    def check_invariants(self) -> None:
        """What is true after every event."""
        self.placement.check_invariants()
        for job_id, track in self.tracks.items():
            assert track.gpus == self.placement.held.get(job_id, ()), job_id

    def _first(self, wakes: list[Decision], now_s: float) -> list[Decision]:
        """The wish to be asked again, or the next change of capacity, whichever comes first."""
        change_s = self.capacity.next_change_s(now_s)
        if change_s < min((one.at_s for one in wakes if isinstance(one, WakeAt)), default=inf):
            return [WakeAt(change_s, "the capacity changes")]
        return wakes

    def _take_in(self, event: ev.Event, now_s: float) -> None:
        if isinstance(event, ev.CompletionEvent):
            self.drop(event.job_id)
        elif isinstance(event, ev.NodeLostEvent):
            for job_id in self.placement.lose(event.node):
                track = self.tracks[job_id]
                track.gpus, track.last_gpus = (), frozenset()
                track.ready_s = now_s + self.overheads.failure_s
        elif isinstance(event, ev.NodeBackEvent):
            self.placement.back(event.node)
        elif isinstance(event, ev.CapacityEvent):
            self.capacity = event.capacity
        elif isinstance(event, ev.ProgressEvent):
            for job_id, remaining in event.remaining.items():
                self.tracks[job_id].remaining = remaining
        elif isinstance(event, ev.ProfileCorrectedEvent):
            self.correct(event)
        elif isinstance(event, ev.ProfileReplacedEvent):
            track = self.tracks[event.job_id]
            track.job = replace(track.job, curve=event.curve)
            for size, rate in event.measured.items():
                self.speeds.learn(track.job, size, rate)
            track.ladders = self.speeds.ladders(track.job, track.slowness)
            self._has_learned = True

    def correct(self, event: ev.ProfileCorrectedEvent) -> None:
        """A job's speed was measured: plans of its kind, or of it alone, count on it from this event on."""
        track = self.tracks[event.job_id]
        if event.own:
            usual = self.speeds.ladders(track.job).expected.rates[track.rung]
            track.slowness = min(event.rate / usual, 1.0)
            track.ladders = self.speeds.ladders(track.job, track.slowness)
        elif self.speeds.learn(track.job, event.num_gpus, event.rate):
            self._has_learned = True

    def _count_on_what_was_learned(self) -> None:
        """Once, however much it was: ladders of all kinds follow from each measurement (``distrust``)."""
        if self._has_learned:
            self._has_learned = False
            for one in self.tracks.values():
                one.ladders = self.speeds.ladders(one.job, one.slowness)

    def move_cost(self, job_id: str) -> float:
        """GPU-seconds lost by moving it."""
        num_gpus = len(self.tracks[job_id].gpus)
        return num_gpus * self.overheads.move_s(num_gpus)

    def _place(self, sizes: dict[str, int], now_s: float) -> list[Decision]:
        before = set(self.placement.held)
        changed = self.arrange(sizes)
        stopped = [(job_id, ()) for job_id in sorted(before - set(self.placement.held))]
        return [self._change(job_id, gpus, now_s) for job_id, gpus in (*stopped, *changed.items())]

    def _change(self, job_id: str, gpus: tuple[int, ...], now_s: float) -> Placed:
        """Follows what a change of GPUs costs the job."""
        track = self.tracks[job_id]
        had = len(track.gpus)
        track.surprise_s = 0.0
        if gpus:
            cost_s = self.overheads.change_s(track.last_gpus, set(gpus))
            track.surprise_s = max(cost_s - self.overheads.resize_s(had, len(gpus)), 0.0)
            track.ready_s = max(now_s, track.ready_s if not had else now_s) + cost_s
            track.last_gpus = frozenset(gpus)
        if track.slowness != 1.0:  # it may have left the node that was slow
            track.slowness, track.ladders = 1.0, self.speeds.ladders(track.job)
        track.gpus = gpus
        return Placed(job_id, gpus, self.why(track, had, len(gpus)))

    def why(self, track: Track, before: int, after: int) -> str:
        """The reason of a change of its GPUs."""
        if before == after:
            return f"{after} GPUs elsewhere: makes room for a larger block"
        return f"{before} to {after}"
