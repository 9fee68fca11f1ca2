"""When a job is promised its deadline, and what is said to one that is not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from elasticflow.scheduler.demand import Demand
from elasticflow.scheduler.shares import Need, SharePlan, fastest_plan
from elasticflow.scheduler.timeline import ClusterTimeline
from elasticflow.scheduler.tracks import Track


@dataclass(frozen=True)
class AdmissionRules:
    """A job that has room is promised its deadline at once, unless it is dear and the room is scarce.

    cheap_part: a job is dear if this part of those that came lately cost less. room: then its window must
    still have so many times its GPU-seconds free; and more, by the root of how much dearer it is, where it
    costs more than ``many`` times what those do: for its promise so many others are lost if a crowd comes,
    of which nobody knows yet. imminent_s: who is done so soon is promised anyway.
    """

    cheap_part: float = 0.6
    room: float = 4.0
    many: float = 4.0
    imminent_s: float = 60.0

    def room_for(self, cost: float, usual: float) -> float:
        """How many times its GPU-seconds must be free; usual: the cost of jobs that are not dear."""
        times = max(1.0, cost / (self.many * usual)) if usual else 1.0
        return self.room * math.sqrt(times)


def may_promise(
    track: Track, plan: SharePlan, timeline: ClusterTimeline, demand: Demand, rules: AdmissionRules
) -> str | None:
    """Why the job, whose plan is in the timeline, may be promised its deadline; None if it may not yet."""
    if not plan.is_safe or plan.gpu_seconds > track.gpu_seconds_left():
        return None
    if track.safe_finish_s() <= min(timeline.now_s + rules.imminent_s, track.deadline_s):
        return f"will be done in at most {rules.imminent_s:.0f} s"
    if demand.part_cheaper(track.cost) <= rules.cheap_part:
        return f"needs {_gpu_time(plan.gpu_seconds)}"
    free = free_gpu_seconds(timeline, track.deadline_s)
    if free >= rules.room_for(track.cost, demand.cost_at(rules.cheap_part)) * plan.gpu_seconds:
        return f"needs {_gpu_time(plan.gpu_seconds)}; {_gpu_time(free)} stay free in its time"
    return None


def free_gpu_seconds(timeline: ClusterTimeline, until_s: float) -> float:
    """What nobody has taken from now until then."""
    num_steps = timeline.num_before(until_s)
    lasts_s = np.diff(timeline.starts_s[:num_steps], append=until_s)
    return float((timeline.free[:num_steps] * lasts_s).sum())


def earliest_deadline_s(track: Track, timeline: ClusterTimeline) -> float | None:
    """The earliest deadline that could be promised beside all others; None if there is none."""
    need = Need(track.ladders.safe, track.still_to_do, timeline.now_s, len(track.gpus))
    plan = fastest_plan(need, timeline)
    return plan.finish_s if plan else None


def hopeless(track: Track, now_s: float) -> tuple[str, float | None] | None:
    """Why its deadline cannot be promised even alone, and which could be instead; None if it can."""
    took_s, size = _fastest_alone(track)
    late_s = now_s + took_s - track.deadline_s
    if late_s > 0:
        late = f"{late_s:.0f} s" if late_s < 100 else f"{late_s / 60:.0f} min"
        text = f"would finish {late} late even with {size} GPUs"
        return (text, now_s + took_s) if size else ("its curve knows no size that the cluster has", None)
    cost, left = track.steady_cost(), track.gpu_seconds_left()
    if cost > left:
        return f"would cost {_gpu_time(cost)} by then, its cap leaves {_gpu_time(left)}", None
    return None


def _gpu_time(seconds: float) -> str:
    return f"{seconds / 60:.3g} GPU-minutes" if seconds < 3600 else f"{seconds / 3600:,.1f} GPU-hours"


def _fastest_alone(track: Track) -> tuple[float, int]:
    """Seconds it takes on the size that is fastest, the start included, and that size; infinite on none."""
    ladder = track.ladders.expected
    took = [
        (ladder.change_s(len(track.gpus), rung) + track.remaining / rate, ladder.sizes[rung])
        for rung, rate in enumerate(ladder.rates)
        if rate
    ]
    return min(took, default=(np.inf, 0))
