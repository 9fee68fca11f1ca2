"""Checks a schedule against the trace and the profiles alone; knows nothing of any policy.

It asks of every schedule: no GPU has two jobs at once, nor is used on a node that is down; a job has one
set of GPUs at a time, of a size that its curve knows, on no more nodes than it must; it does not run
before it arrives; every change of its GPUs costs it at least what it must; it does not iterate faster than
its curve; who finished did all its iterations, and no more; the outcomes tell what the segments did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.schedule import JobSchedule, Outcome, Segment

TIME_TOLERANCE_S = 1e-6
WORK_TOLERANCE = 1e-6
"""Of a job's iterations: sums of floating-point numbers are that exact."""


def faults(
    schedule: JobSchedule,
    jobs: Sequence[Job],
    overheads: Overheads,
    rates: Mapping[str, Mapping[int, float]] = {},
) -> list[str]:
    """What is wrong with the schedule, in words; an empty list if nothing is.

    rates: the true speeds of jobs whose profiles were wrong, by job and size.
    """
    by_job: dict[str, list[Segment]] = defaultdict(list)
    for segment in sorted(schedule.segments, key=lambda one: (one.start_s, one.end_s)):
        by_job[segment.job_id].append(segment)
    known = {job.job_id: job for job in jobs}
    found = [f"{job_id}: not in the trace" for job_id in by_job if job_id not in known]
    found += _gpu_faults(schedule)
    outcomes = {outcome.job_id: outcome for outcome in schedule.outcomes}
    if set(outcomes) != set(known):
        found.append("the outcomes are not those of the jobs of the trace")
    for job_id, job in known.items():
        segments = by_job.get(job_id, [])
        true_rates = rates.get(job_id) or dict(zip(job.curve.sizes, job.curve.rates, strict=True))
        found += [f"{job_id}: {one}" for one in _shape_faults(job, segments, schedule)]
        found += [f"{job_id}: {one}" for one in _speed_faults(segments, overheads, true_rates)]
        if job_id in outcomes:
            found += [f"{job_id}: {one}" for one in _outcome_faults(job, segments, outcomes[job_id])]
    return found


def _gpu_faults(schedule: JobSchedule) -> Iterable[str]:
    """Two at once on a GPU, GPUs that are not there, nodes that are down."""
    uses: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
    for segment in schedule.segments:
        for gpu in segment.gpus:
            uses[gpu].append((segment.start_s, segment.end_s, segment.job_id))
    for outage in schedule.outages:
        first = outage.node * schedule.shape.gpus_per_node
        for gpu in range(first, first + schedule.shape.gpus_per_node):
            uses[gpu].append((outage.start_s, outage.end_s, "(node down)"))
    for gpu, spans in uses.items():
        if not 0 <= gpu < schedule.shape.num_gpus:
            yield f"GPU {gpu}: there are {schedule.shape.num_gpus}"
        spans.sort()
        for (_, end_s, first_id), (start_s, _, second_id) in zip(spans, spans[1:], strict=False):
            if start_s < end_s - TIME_TOLERANCE_S:
                yield f"GPU {gpu}: {second_id} at {start_s:.3f} s, {first_id} until {end_s:.3f} s"


def _shape_faults(job: Job, segments: Sequence[Segment], schedule: JobSchedule) -> Iterable[str]:
    per_node = schedule.shape.gpus_per_node
    for segment in segments:
        size = len(set(segment.gpus))
        nodes = len({gpu // per_node for gpu in segment.gpus})
        if size != len(segment.gpus) or size not in job.curve.sizes:
            yield f"{len(segment.gpus)} GPUs at {segment.start_s:.3f} s; its curve knows {job.curve.sizes}"
        if nodes > -(-size // per_node):
            yield f"{size} GPUs at {segment.start_s:.3f} s lie on {nodes} nodes"
        if segment.start_s < job.submit_s - TIME_TOLERANCE_S:
            yield f"runs at {segment.start_s:.3f} s, before it arrives at {job.submit_s:.3f} s"
        if segment.end_s < segment.start_s:
            yield f"ends at {segment.end_s:.3f} s, before it starts at {segment.start_s:.3f} s"
    for before, after in zip(segments, segments[1:], strict=False):
        if after.start_s < before.end_s - TIME_TOLERANCE_S:
            yield f"runs twice at {after.start_s:.3f} s"


def _speed_faults(
    segments: Sequence[Segment], overheads: Overheads, rates: Mapping[int, float]
) -> Iterable[str]:
    """Iterations that its GPUs cannot have done in that time, the change paid for."""
    last: set[int] = set()
    last_end_s, owed_s = 0.0, 0.0
    for segment in segments:
        now, rate = set(segment.gpus), rates.get(len(segment.gpus), 0.0)
        goes_on = now == last and segment.start_s <= last_end_s + TIME_TOLERANCE_S
        owed_s = owed_s if goes_on else overheads.change_s(last, now)
        lasts_s = segment.end_s - segment.start_s
        possible = max(lasts_s - owed_s, 0.0) * rate
        if segment.iterations > possible * (1 + WORK_TOLERANCE) + TIME_TOLERANCE_S * rate:
            did = f"{segment.iterations:.3f} iterations from {segment.start_s:.3f} s"
            yield f"{did}; {possible:.3f} are possible"
        last, last_end_s, owed_s = now, segment.end_s, max(owed_s - lasts_s, 0.0)


def _outcome_faults(job: Job, segments: Sequence[Segment], outcome: Outcome) -> Iterable[str]:
    done = sum(segment.iterations for segment in segments)
    if (outcome.submit_s, outcome.deadline_s) != (job.submit_s, job.deadline_s):
        yield "the outcome has another arrival or deadline than the trace"
    if done > job.iterations * (1 + WORK_TOLERANCE):
        yield f"{done:.3f} iterations were done, it has {job.iterations:g}"
    if outcome.finished_s is None:
        return
    if done < job.iterations * (1 - WORK_TOLERANCE):
        yield f"is said to be finished with {done:.3f} of {job.iterations:g} iterations"
    if not segments or abs(segments[-1].end_s - outcome.finished_s) > TIME_TOLERANCE_S:
        yield f"is said to be finished at {outcome.finished_s:.3f} s, when it did not run"
    if outcome.admitted_s is not None and outcome.admitted_s < job.submit_s - TIME_TOLERANCE_S:
        yield "is said to be admitted before it arrived"
