"""What is said to whoever hands a job in: promised, hopeful, or which deadline could be promised instead.

Nothing is estimated: a copy of the policy is told of the job, and of the same job with other deadlines and
priorities, and what it decides is the answer. Who asks with the deadline that was named is promised it, if
nothing else happened meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from math import inf

from elasticflow.scheduler import events as ev
from elasticflow.scheduler.decisions import Admitted
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.policies.elastic import Elastic
from elasticflow.scheduler.tracks import Standing, Track

MOST_DOUBLINGS, MOST_HALVINGS = 10, 6
CLOSE_PART = 0.02
"""A deadline is near enough to the earliest one if it is later by that part of the time until then."""


class AnswerKind(str, Enum):
    """What a job may count on."""

    PROMISED = "promised"
    """Its deadline."""
    HOPEFUL = "hopeful"
    """Nothing yet, but it has a plan that is in time."""
    NOT_BEFORE = "not before"
    """Its deadline cannot be kept beside what was promised to others."""
    BEST_EFFORT = "best effort"
    """It has no deadline."""


@dataclass(frozen=True)
class JobAnswer:
    """finish_s: when it would be done as things are; None: nobody knows. earliest_s: the earliest deadline
    that would be promised now. priority, priority_s: the lowest that would make it earlier, and how early.
    is_whole: nothing was left out for lack of time; else there may be an earlier one.
    """

    kind: AnswerKind
    finish_s: float | None = None
    earliest_s: float | None = None
    priority: int | None = None
    priority_s: float | None = None
    is_whole: bool = True

    def text(self, clock: Callable[[float], str]) -> str:
        """For a person; ``clock`` writes a time."""
        done = f", done at {clock(self.finish_s)} by its plan" if self.finish_s is not None else ""
        if self.kind is not AnswerKind.NOT_BEFORE:
            return f"{self.kind.value}{done}"
        if self.earliest_s is None:
            return (
                "no deadline can be promised now" if self.is_whole else "which could be is not known so soon"
            )
        other = ""
        if self.priority is not None and self.priority_s is not None:
            other = f"; with priority {self.priority} at {clock(self.priority_s)}"
        earliest = clock(self.earliest_s)
        return (
            f"{f'not before {earliest}' if self.is_whole else f'would be by {earliest} at the latest'}{other}"
        )


def answer(
    policy: Elastic, job: Job, now_s: float, *, is_late: Callable[[], bool] = lambda: False
) -> JobAnswer:
    """What would be, or for a job under way is, said to this job. Changes nothing.

    is_late: asked before each decision that is tried: who asks cannot wait for another. Then the best that is
    known is the answer, ``is_whole`` or not.
    """
    track = policy.tracks.get(job.job_id) or _told(policy, job, now_s)[1]
    finish_s = None
    if track is not None:
        finish_s = track.plan.finish_s if track.plan else track.finish_s()
        finish_s = None if finish_s == inf else finish_s
    if job.is_best_effort:
        return JobAnswer(AnswerKind.BEST_EFFORT, finish_s)
    if track is not None and track.standing is Standing.PROMISED:
        return JobAnswer(AnswerKind.PROMISED, finish_s)
    if track is not None and track.standing is Standing.HOPEFUL:
        return JobAnswer(AnswerKind.HOPEFUL, finish_s)
    earliest_s = earliest_promise_s(policy, job, now_s, is_late)
    for priority in () if is_late() else _priorities(policy, job):
        sooner_s = earliest_promise_s(policy, replace(job, priority=priority), now_s, is_late)
        if sooner_s is not None and (
            earliest_s is None or sooner_s < earliest_s - _close_s(earliest_s, now_s)
        ):
            return JobAnswer(
                AnswerKind.NOT_BEFORE, finish_s, earliest_s, priority, sooner_s, is_whole=not is_late()
            )
    return JobAnswer(AnswerKind.NOT_BEFORE, finish_s, earliest_s, is_whole=not is_late())


def earliest_promise_s(
    policy: Elastic, job: Job, now_s: float, is_late: Callable[[], bool] = lambda: False
) -> float | None:
    """The earliest deadline that would be promised now, a little later at most; None: none would.

    Where it became late meanwhile: one that would be promised, or None if none was found until then.
    """
    alone_s = policy.alone_s(job)
    if alone_s == inf:
        return None
    too_early_s, left_s = now_s, alone_s
    for _ in range(MOST_DOUBLINGS):
        if is_late():
            return None
        if _is_promised(policy, job, now_s + left_s, now_s):
            break
        too_early_s, left_s = now_s + left_s, 2 * left_s
    else:
        return None
    at_s = now_s + left_s
    for _ in range(MOST_HALVINGS):
        if at_s - too_early_s <= _close_s(at_s, now_s) or is_late():
            break
        middle_s = (too_early_s + at_s) / 2
        if _is_promised(policy, job, middle_s, now_s):
            at_s = middle_s
        else:
            too_early_s = middle_s
    return at_s


def _close_s(at_s: float, now_s: float) -> float:
    return CLOSE_PART * (at_s - now_s)


def _priorities(policy: Elastic, job: Job) -> list[int]:
    """Those at which somebody who has no promise would have to give way, the lowest first."""
    others = {one.job.priority for one in policy.tracks.values() if one.standing is Standing.HOPEFUL}
    return sorted({one + 1 for one in others if one >= job.priority})


def _is_promised(policy: Elastic, job: Job, deadline_s: float, now_s: float) -> bool:
    return _told(policy, replace(job, deadline_s=deadline_s), now_s)[0]


def _told(policy: Elastic, job: Job, now_s: float) -> tuple[bool, Track | None]:
    """Whether the job would be promised its deadline, and what would be known of it."""
    tried = policy.copy()
    before: list[ev.Event] = [ev.CompletionEvent(job.job_id)] if job.job_id in tried.tracks else []
    decisions = tried.handle([*before, ev.ArrivalEvent(job)], now_s)
    promised = any(isinstance(one, Admitted) and one.job_id == job.job_id for one in decisions)
    return promised, tried.tracks.get(job.job_id)
