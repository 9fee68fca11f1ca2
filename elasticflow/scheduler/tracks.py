"""What is known of a job that is not over: what is left of it, what it has, what it was promised."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf

from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.ladder import Ladder
from elasticflow.scheduler.placement import Gpus
from elasticflow.scheduler.shares import Need, SharePlan
from elasticflow.scheduler.speeds import Ladders

SURELY_S = 1e-3
"""A moment that is computed is past after so long."""


class Standing(Enum):
    """What a job may count on."""

    PROMISED = "promised"
    """Its deadline."""
    HOPEFUL = "hopeful"
    """Nothing yet; but there is room for it, and it gives way only to smaller ones."""
    WAITING = "waiting"
    """Nothing yet, and there is no room for it now."""
    BEST_EFFORT = "best effort"
    """Nothing: it has no deadline."""


@dataclass
class Track:
    """A job under way. ready_s: until then a change of its GPUs keeps it from iterating.

    cost: GPU-seconds that it would have needed by itself when it arrived. slowness: its speed as part of
    what its kind has. surprise_s: what its place made its last change cost more than a plan expects.
    """

    job: Job
    ladders: Ladders
    remaining: float
    updated_s: float
    standing: Standing
    gpus: Gpus = ()
    last_gpus: frozenset[int] = frozenset()
    ready_s: float = 0.0
    gpu_seconds: float = 0.0
    cost: float = 0.0
    slowness: float = 1.0
    surprise_s: float = 0.0
    plan: SharePlan | None = None
    aim_s: float | None = None

    @property
    def job_id(self) -> str:
        """Of its job."""
        return self.job.job_id

    @property
    def deadline_s(self) -> float:
        """By when it is planned to be done: later than it said, if soft; infinite for a best-effort job."""
        if self.aim_s is not None:
            return self.aim_s
        return inf if self.job.deadline_s is None else self.job.deadline_s

    @property
    def ladder(self) -> Ladder:
        """What is to be expected of it."""
        return self.ladders.expected

    @property
    def rung(self) -> int:
        """Of the GPUs it has."""
        return self.ladder.rung(len(self.gpus))

    @property
    def rate(self) -> float:
        """Iterations a second while it iterates."""
        return self.ladder.rates[self.rung]

    @property
    def still_to_do(self) -> float:
        """Iterations; never quite none, as long as nobody said that it is done."""
        return max(self.remaining, 1e-9)

    @property
    def slack_s(self) -> float:
        """Time that it may lose and still be in time by its plan; infinite if it is not in time anyway."""
        slack_s = self.deadline_s - self.plan.finish_s if self.plan else -1.0
        return slack_s if slack_s >= 0 else inf

    def advance(self, now_s: float) -> None:
        """Counts the iterations that it should have done meanwhile."""
        self.gpu_seconds += len(self.gpus) * (now_s - self.updated_s)
        busy_s = now_s - max(self.updated_s, self.ready_s)
        if busy_s > 0:
            self.remaining = max(self.remaining - busy_s * self.rate, 0.0)
        self.updated_s = now_s

    def need(self, deadline_s: float, of: Ladder) -> Need:
        """What is left of it, for planning."""
        lost_s = max(self.ready_s - self.updated_s, 0.0)
        return Need(of, self.still_to_do, deadline_s, len(self.gpus), lost_s)

    def finish_s(self) -> float:
        """When it is done if nothing changes."""
        if not self.gpus:
            return inf
        return max(self.ready_s, self.updated_s) + self.remaining / self.rate

    def safe_finish_s(self) -> float:
        """When it is done for sure if nothing changes."""
        rate = self.ladders.safe.rates[self.ladders.safe.rung(len(self.gpus))]
        return max(self.ready_s, self.updated_s) + self.remaining / rate if rate else inf

    def sure_s(self) -> float:
        """From when on it is in time for sure, if it goes on as expected; infinite if that never comes.

        What is left then is so little that it is done by its deadline at its careful rate, too.
        """
        finish_s, safe = self.finish_s(), self.ladders.safe
        careful = safe.rates[safe.rung(len(self.gpus))] / self.rate if self.gpus else 1.0
        if careful >= 1.0 or finish_s + SURELY_S > self.deadline_s:
            return inf
        return (finish_s - careful * self.deadline_s) / (1.0 - careful) + SURELY_S

    def steady_cost(self) -> float:
        """GPU-seconds that it needs, at the one size that is in time by itself; infinite if none is."""
        ladder = self.ladder
        rung = ladder.rung_in_time(self.remaining, self.deadline_s - self.updated_s)
        return ladder.sizes[rung] / ladder.rates[rung] * self.remaining if rung else inf

    def gpu_seconds_left(self) -> float:
        """What its cost cap still allows; infinite without one."""
        cap = self.job.cost_cap_gpu_s
        return inf if cap is None else cap - self.gpu_seconds

    def highest_affordable(self) -> int:
        """The highest rung on which the rest of it stays below its cost cap."""
        ladder, left = self.ladder, self.gpu_seconds_left()
        if left == inf:
            return ladder.top
        cost = [0.0, *(self._cost_on(rung) for rung in range(1, ladder.top + 1))]
        return max(rung for rung in range(ladder.top + 1) if cost[rung] <= left)

    def _cost_on(self, rung: int) -> float:
        ladder = self.ladder
        if not ladder.rates[rung]:
            return 0.0
        return ladder.sizes[rung] * (
            ladder.change_s(len(self.gpus), rung) + self.remaining / ladder.rates[rung]
        )
