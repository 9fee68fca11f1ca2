"""What a policy knows, written down, and a policy that knows it: for journals that begin in the middle.

Ladders are not written down: they follow from curves and measurements.
"""

from __future__ import annotations

from collections import deque
from math import inf

import msgspec
import numpy as np

from elasticflow.scheduler.capacity import Capacity
from elasticflow.scheduler.curves import Curve
from elasticflow.scheduler.demand import Demand
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.placement import Gpus
from elasticflow.scheduler.policies.base import Policy
from elasticflow.scheduler.policies.elastic import Elastic
from elasticflow.scheduler.shares import SharePlan
from elasticflow.scheduler.tracks import Standing, Track


class PlanRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """See SharePlan. grows_s: None: never."""

    level: int
    size_now: int
    shares: int | list[int]
    finish_s: float
    gpu_seconds: float
    starts_s: list[float] | None = None
    grows_s: float | None = None
    is_safe: bool = True


class TrackRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """See Track. cost: None: infinite."""

    job: Job
    remaining: float
    updated_s: float
    standing: Standing
    gpus: Gpus = ()
    last_gpus: frozenset[int] = frozenset()
    ready_s: float = 0.0
    gpu_seconds: float = 0.0
    cost: float | None = 0.0
    slowness: float = 1.0
    surprise_s: float = 0.0
    plan: PlanRecord | None = None
    aim_s: float | None = None


class PolicyRecord(msgspec.Struct, frozen=True):
    """measured: iterations a second by curve and size. arrivals: when jobs came, with their GPU-seconds;
    None: infinitely many."""

    capacity: Capacity
    overheads: Overheads
    num_usable: int
    down: set[int]
    tracks: list[TrackRecord]
    measured: list[tuple[Curve, int, float]]
    arrivals: list[tuple[float, float | None]]


def record_of(policy: Policy) -> PolicyRecord:
    """Between two events."""
    arrivals = policy.demand.arrivals if isinstance(policy, Elastic) else ()
    return PolicyRecord(
        policy.capacity,
        policy.overheads,
        policy.num_usable,
        set(policy.placement.down),
        [_record(track) for track in policy.tracks.values()],
        [(profile, size, rate) for (profile, size), rate in policy.speeds.measured.items()],
        [(at_s, _finite(cost)) for at_s, cost in arrivals],
    )


def recall(policy: Policy, record: PolicyRecord) -> None:
    """Has a new policy, of the same cluster, know that."""
    policy.capacity, policy.num_usable = record.capacity, record.num_usable
    for node in record.down:
        policy.placement.lose(node)
    policy.speeds.measured.update({(profile, size): rate for profile, size, rate in record.measured})
    policy.count_on(record.overheads)
    for each in record.tracks:
        track = Track(
            each.job,
            policy.speeds.ladders(each.job, each.slowness),
            each.remaining,
            each.updated_s,
            each.standing,
            each.gpus,
            each.last_gpus,
            each.ready_s,
            each.gpu_seconds,
            _or_inf(each.cost),
            each.slowness,
            each.surprise_s,
            _plan(each.plan) if each.plan else None,
            each.aim_s,
        )
        policy.tracks[track.job_id] = track
    policy.placement.put({each.job.job_id: each.gpus for each in record.tracks if each.gpus})
    if isinstance(policy, Elastic):
        arrivals = [(at_s, _or_inf(cost)) for at_s, cost in record.arrivals]
        policy.demand = Demand(deque(arrivals), sorted(cost for _, cost in arrivals))


def _record(track: Track) -> TrackRecord:
    return TrackRecord(
        track.job,
        track.remaining,
        track.updated_s,
        track.standing,
        track.gpus,
        track.last_gpus,
        track.ready_s,
        track.gpu_seconds,
        _finite(track.cost),
        track.slowness,
        track.surprise_s,
        _plan_record(track.plan) if track.plan else None,
        track.aim_s,
    )


def _plan_record(plan: SharePlan) -> PlanRecord:
    return PlanRecord(
        plan.level,
        plan.size_now,
        plan.shares if isinstance(plan.shares, int) else plan.shares.tolist(),
        float(plan.finish_s),
        float(plan.gpu_seconds),
        None if plan.starts_s is None else plan.starts_s.tolist(),
        _finite(plan.grows_s),
        plan.is_safe,
    )


def _plan(record: PlanRecord) -> SharePlan:
    return SharePlan(
        record.level,
        record.size_now,
        record.shares if isinstance(record.shares, int) else np.array(record.shares, np.int64),
        record.finish_s,
        record.gpu_seconds,
        None if record.starts_s is None else np.array(record.starts_s),
        _or_inf(record.grows_s),
        record.is_safe,
    )


def _finite(number: float) -> float | None:
    return None if number == inf else float(number)


def _or_inf(number: float | None) -> float:
    return inf if number is None else number
