"""Figures of a schedule, for people and for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from elasticflow.scheduler.schedule import JobSchedule, Outcome


def metrics(schedule: JobSchedule) -> dict[str, Any]:
    """All figures. Times are seconds, parts are of 1; ``None`` where there is nothing to count."""
    with_deadline = [one for one in schedule.outcomes if one.deadline_s is not None]
    admitted = [one for one in with_deadline if one.admitted_s is not None]
    in_time = [one for one in with_deadline if one.in_time]
    took = [one.took_s for one in schedule.decision_times]
    return {
        "policy": schedule.policy,
        "num_gpus": schedule.shape.num_gpus,
        "jobs": len(schedule.outcomes),
        "deadline_jobs": len(with_deadline),
        "admitted": len(admitted),
        "admitted_on_arrival": sum(one.admitted_s == one.submit_s for one in admitted),
        "in_time": len(in_time),
        "in_time_promised_on_arrival": sum(one.admitted_s == one.submit_s for one in in_time),
        "satisfactory_ratio": len(in_time) / len(with_deadline) if with_deadline else None,
        "kept_later": sum(one.in_time and one.by_s is not None for one in with_deadline),
        "admitted_and_late": sum(one.late for one in with_deadline),
        "lateness_s": _spread([_lateness_s(one) for one in admitted if one.finished_s is not None]),
        "completion_s": _spread([one.finished_s - one.submit_s for one in in_time if one.finished_s]),
        "utilisation": utilisation(schedule),
        "lost_to_changes": _lost_part(schedule),
        "resizes": schedule.num_resizes,
        "migrations": schedule.num_migrations,
        "outages": len(schedule.outages),
        "decision_s": _spread(took),
        "decisions": len(took),
        "most_active_jobs": max((one.num_active for one in schedule.decision_times), default=0),
    }


def utilisation(schedule: JobSchedule) -> float | None:
    """The part of all GPU-seconds, from the first segment to the last, that jobs held."""
    if not schedule.segments:
        return None
    start_s = min(one.start_s for one in schedule.segments)
    end_s = max(one.end_s for one in schedule.segments)
    held = sum(len(one.gpus) * (one.end_s - one.start_s) for one in schedule.segments)
    return held / ((end_s - start_s) * schedule.shape.num_gpus) if end_s > start_s else None


def _lateness_s(outcome: Outcome) -> float:
    assert outcome.finished_s is not None and outcome.deadline_s is not None
    return max(outcome.finished_s - outcome.deadline_s, 0.0)


def _lost_part(schedule: JobSchedule) -> float | None:
    """Of the GPU-seconds that jobs held, those in which a change kept them from iterating."""
    held = sum(len(one.gpus) * (one.end_s - one.start_s) for one in schedule.segments)
    lost = sum(len(one.gpus) * one.lost_s for one in schedule.segments)
    return lost / held if held else None


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return {
        "mean": float(np.mean(values)),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max": float(max(values)),
    }
