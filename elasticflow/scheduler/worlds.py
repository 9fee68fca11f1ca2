"""What is true in a simulation and not told: real speeds, nodes that fail, nodes that are slow."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from elasticflow.scheduler.capacity import Capacity
from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.scheduler.curves import Curve, curve
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.schedule import Outage

DAY_S = 86_400.0


@dataclass(frozen=True)
class Slowness:
    """A node runs at ``factor`` times its speed from ``start_s`` to ``end_s``."""

    node: int
    start_s: float
    end_s: float
    factor: float


@dataclass(frozen=True)
class World:
    """curves: the true curve of a profile, where it is another one.

    capacities: from when on somebody knows what may be used, and what that is.
    """

    curves: Mapping[Curve, Curve] = field(default_factory=dict)
    outages: tuple[Outage, ...] = ()
    slow: tuple[Slowness, ...] = ()
    capacities: tuple[tuple[float, Capacity], ...] = ()

    def true_curve(self, job: Job) -> Curve:
        """How fast the job really is."""
        return self.curves.get(job.curve, job.curve)


EXACT = World()
"""As the profiles say, and nothing fails."""


def wrong_profiles(jobs: Iterable[Job], error: float, seed: int) -> dict[Curve, Curve]:
    """True curves, each rate by itself up to ``error`` above or below its profile, all as likely."""
    chance = random.Random(seed)
    profiles = sorted({job.curve for job in jobs}, key=lambda one: (one.sizes, one.rates))
    return {
        profile: curve(
            {size: profile.rate(size) * (1 + chance.uniform(-error, error)) for size in profile.sizes}
        )
        for profile in profiles
    }


def random_outages(
    shape: ClusterShape, jobs: Sequence[Job], mtbf_s: float, repair_s: float, seed: int
) -> tuple[Outage, ...]:
    """Nodes that fail by chance, on average every ``mtbf_s`` each, while there may be jobs."""
    chance = random.Random(seed)
    start_s = min(job.submit_s for job in jobs)
    end_s = max(max(job.submit_s, job.deadline_s or 0.0) for job in jobs)
    outages = []
    for node in range(shape.num_nodes):
        at_s = start_s + chance.expovariate(1 / mtbf_s)
        while at_s < end_s:
            outages.append(Outage(node, at_s, at_s + repair_s))
            at_s += repair_s + chance.expovariate(1 / mtbf_s)
    return tuple(sorted(outages, key=lambda one: (one.start_s, one.node)))


def random_slowness(
    shape: ClusterShape, jobs: Sequence[Job], part: float, factor: float, lasts_s: float, seed: int
) -> tuple[Slowness, ...]:
    """Nodes that are slow by chance, so that each is for ``part`` of the time."""
    chance = random.Random(seed)
    start_s = min(job.submit_s for job in jobs)
    end_s = max(max(job.submit_s, job.deadline_s or 0.0) for job in jobs)
    slow = []
    for node in range(shape.num_nodes):
        at_s = start_s + chance.expovariate(part / lasts_s)
        while at_s < end_s:
            slow.append(Slowness(node, at_s, at_s + lasts_s, factor))
            at_s += lasts_s + chance.expovariate(part / lasts_s)
    return tuple(sorted(slow, key=lambda one: (one.start_s, one.node)))
