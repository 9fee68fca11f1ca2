"""Pictures of simulated schedules: who had which GPUs when, how many were used, what became of the deadlines.

Each function returns a figure of matplotlib, which is imported here and nowhere else; ``save`` writes one as
PNG.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elasticflow.errors import ConfigError
from elasticflow.scheduler.forecast import Forecast
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.schedule import DecisionTime, JobSchedule, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
WIDTH_IN, HEIGHT_IN, DPI = 11.0, 6.0, 120
COLOURS = 20
"""So many colours tell jobs apart; a job has the same one in every picture."""
SPANS = 600
"""Of so many spans of time the utilisation is shown as its mean."""
LOST, DOWN = "black", "0.85"
AT_ONCE, LATER = "in time, promised on arrival", "in time, promised later"
LATE, NEVER = "promised, but late", "rejected: not possible even alone"
FIRST = (AT_ONCE, LATER, LATE)
KEPT = {AT_ONCE: "tab:green", LATER: "tab:olive", LATE: "tab:red", NEVER: "0.9"}
"""Colours of what is always told apart."""
OF_STANDING = {"promised": "tab:green", "hopeful": "tab:olive"}
"""Of jobs in a picture of plans."""
MOST_REASONS = 6
"""So many reasons of rejection are told apart in a picture, the most common ones."""


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG."""
    figure.savefig(path, format="png", dpi=DPI)


def all_figures(schedule: JobSchedule, jobs: Iterable[Job] = ()) -> dict[str, Figure]:
    """The figures of one schedule, by the name of their file. jobs: tell which were never possible."""
    figures = {
        "gantt": gantt(schedule),
        "utilisation": utilisation(schedule),
        "deadlines": deadlines([schedule], jobs),
    }
    return {**figures, **({"decisions": decisions([schedule])} if schedule.decision_times else {})}


# --- GPUs over time -------------------------------------------------------------------------------


def gantt(schedule: JobSchedule) -> Figure:
    """A row for each GPU and a bar for each job on it; black: lost to a change; grey: the node was down."""
    from matplotlib.collections import PolyCollection

    figure, axes = _axes(f"{schedule.policy}: who has which GPUs", "hours", "GPU")
    origin_s = _origin_s(schedule)
    bars = [(run, segment) for segment in schedule.segments for run in _runs(segment.gpus)]
    palette = _palette()
    colours = [palette[zlib.crc32(segment.job_id.encode()) % COLOURS] for _, segment in bars]
    jobs = [_bar(run, segment.start_s - origin_s, segment.end_s - origin_s) for run, segment in bars]
    lost = [
        _bar(run, segment.start_s - origin_s, min(segment.start_s + segment.lost_s, segment.end_s) - origin_s)
        for run, segment in bars
        if segment.lost_s
    ]
    size = schedule.shape.gpus_per_node
    down = [
        _bar((outage.node * size, size), outage.start_s - origin_s, outage.end_s - origin_s)
        for outage in schedule.outages
    ]
    for shapes, colour in ((down, DOWN), (jobs, colours), (lost, LOST)):
        axes.add_collection(PolyCollection(shapes, facecolors=colour, edgecolors="white", linewidths=0.1))
    axes.set_ylim(0, schedule.shape.num_gpus)
    axes.set_xlim(0, _hours(schedule))
    return figure


def _runs(gpus: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, how many) of GPUs that lie side by side."""
    numbers = np.sort(np.array(gpus, dtype=np.int64))
    for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
        if len(run):
            yield int(run[0]), len(run)


def _bar(run: tuple[int, int], since_s: float, until_s: float) -> list[tuple[float, float]]:
    """The corners of a rectangle, in hours and GPUs."""
    low, high = run[0], run[0] + run[1]
    since, until = since_s / 3600, until_s / 3600
    return [(since, low), (until, low), (until, high), (since, high)]


def utilisation(schedule: JobSchedule) -> Figure:
    """How many GPUs do iterations, how many are lost to changes, how many there are."""
    figure, axes = _axes(f"{schedule.policy}: GPUs in use", "hours", "GPUs")
    held = [(s.start_s, s.end_s, len(s.gpus)) for s in schedule.segments]
    lost = [(s.start_s, min(s.start_s + s.lost_s, s.end_s), len(s.gpus)) for s in schedule.segments]
    size = schedule.shape.gpus_per_node
    down = [(o.start_s, o.end_s, size) for o in schedule.outages]
    times_s, (held_now, lost_now, down_now) = levels([held, lost, down])
    edges_s = _origin_s(schedule) + np.linspace(0, 3600 * _hours(schedule), SPANS + 1)
    held_mean, lost_mean, down_mean = (means(times_s, now, edges_s) for now in (held_now, lost_now, down_now))
    hours = (edges_s[1:] + edges_s[:-1]) / 2 / 3600 - _origin_s(schedule) / 3600
    colours = ("tab:blue", "tab:red")
    labels = ("doing iterations", "lost to changes")
    axes.stackplot(hours, held_mean - lost_mean, lost_mean, labels=labels, colors=colours, linewidth=0)
    axes.plot(hours, schedule.shape.num_gpus - down_mean, label="there", color="black", linewidth=1)
    axes.set_ylim(0, schedule.shape.num_gpus * 1.05)
    axes.set_xlim(0, _hours(schedule))
    axes.legend(loc="upper right")
    return figure


def levels(rows: Sequence[Iterable[tuple[float, float, int]]]) -> tuple[Floats, list[Floats]]:
    """From (since, until, how many): all moments of change, and how many there are from each on."""
    listed = [[span for span in row if span[1] > span[0]] for row in rows]
    times_s = np.unique([moment for row in listed for span in row for moment in span[:2]] or [0.0])
    found = []
    for row in listed:
        change = np.zeros(len(times_s))
        counts = np.array([span[2] for span in row], dtype=float)
        np.add.at(change, np.searchsorted(times_s, [span[0] for span in row]), counts)
        np.add.at(change, np.searchsorted(times_s, [span[1] for span in row]), -counts)
        found.append(np.cumsum(change))
    return times_s, found


def means(times_s: Floats, level: Floats, edges_s: Floats) -> Floats:
    """The mean between each two edges of what is ``level[k]`` from ``times_s[k]`` on, and 0 before."""
    until_s = np.append(times_s, max(times_s[-1], edges_s[-1]) + 1)
    sums = np.concatenate([[0.0], np.cumsum(level * np.diff(until_s))])
    found: Floats = np.diff(np.interp(edges_s, until_s, sums)) / np.diff(edges_s)
    return found


# --- plans ----------------------------------------------------------------------------------------


def forecast(plans: Forecast) -> Figure:
    """A row a job: as wide as it is planned to run, as high as its GPUs; red: its deadline."""
    figure, axes = _axes("Who gets how many GPUs until when", "minutes from now", "")
    figure.set_figheight(2.0 + 0.4 * len(plans.jobs))
    for place, job in enumerate(plans.jobs):
        since_s, kind = plans.now_s, OF_STANDING.get(job.standing, "tab:blue")
        for share in job.shares:
            since, until = (since_s - plans.now_s) / 60, (share.until_s - plans.now_s) / 60
            since_s = share.until_s
            if share.num_gpus:
                high = 0.15 + 0.7 * share.num_gpus / max(1, plans.num_gpus)
                alpha = 1.0 if job.is_firm else 0.35
                axes.barh(place, until - since, left=since, height=high, color=kind, alpha=alpha)
                axes.text(since, place, f" {share.num_gpus}", va="center", fontsize="small")
        if job.deadline_s is not None:
            due = (min(job.deadline_s, plans.end_s) - plans.now_s) / 60
            axes.plot([due, due], [place - 0.45, place + 0.45], color="tab:red", linewidth=2)
    axes.set_yticks(range(len(plans.jobs)), [f"{job.name}: {job.standing}" for job in plans.jobs])
    axes.set_xlim(0, (plans.end_s - plans.now_s) / 60)
    axes.set_ylim(len(plans.jobs) - 0.5, -0.5)
    return figure


# --- deadlines ------------------------------------------------------------------------------------


def deadlines(
    schedules: Sequence[JobSchedule], jobs: Iterable[Job] = (), bound: float | None = None
) -> Figure:
    """What became of the deadline jobs under each policy, by cause. bound: of every scheduler's ratio."""
    jobs = list(jobs)
    figure, axes = _axes("Deadline jobs, by what became of them", "part of the deadline jobs", "")
    figure.set_figheight(2.5 + 0.5 * len(schedules))
    counts = [
        Counter(causes(schedule.outcomes, impossible(jobs, schedule.shape.num_gpus)))
        for schedule in schedules
    ]
    total: Counter[str] = sum(counts, Counter())
    reasons = [name for name, _ in total.most_common() if name not in KEPT]
    colours = {**KEPT, **dict(zip(reasons, _greys(len(reasons)), strict=True))}
    names = [name for name in (*FIRST, *reasons, NEVER) if total[name]]
    places = np.arange(len(schedules))
    left = np.zeros(len(schedules))
    for name in names:
        parts = np.array([count[name] / max(1, count.total()) for count in counts])
        axes.barh(places, parts, left=left, color=colours[name], label=name)
        left += parts
    for place, count in zip(places, counts, strict=True):
        ratio = (count[AT_ONCE] + count[LATER]) / max(1, count.total())
        axes.text(0.01, float(place), f"{ratio:.3f}", va="center", color="white")
    if bound is not None:
        axes.axvline(bound, color="black", linestyle="--", label=f"bound {bound:.3f}")
    axes.set_yticks(places, [schedule.policy for schedule in schedules])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    if names or bound is not None:
        figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


def impossible(jobs: Iterable[Job], num_gpus: int) -> frozenset[str]:
    """Deadline jobs that the whole cluster to themselves could not finish in time."""
    timed = [(job, job.deadline_s) for job in jobs if job.deadline_s is not None]
    return frozenset(job.job_id for job, deadline_s in timed if not _is_possible(job, deadline_s, num_gpus))


def _is_possible(job: Job, deadline_s: float, num_gpus: int) -> bool:
    fastest = job.curve.rate(job.curve.best_size(num_gpus))
    return fastest * (deadline_s - job.submit_s) >= job.iterations


def causes(outcomes: Iterable[Outcome], never: Collection[str] = ()) -> Iterator[str]:
    """For each deadline job what became of it: in time, late, or why it was not promised anything.

    never: jobs that were not possible from the beginning.
    """
    jobs = [outcome for outcome in outcomes if outcome.deadline_s is not None]
    told = {outcome.job_id: _reason(outcome.reason) for outcome in jobs}
    rejected = [outcome for outcome in jobs if outcome.admitted_s is None and outcome.job_id not in never]
    common = Counter(told[outcome.job_id] for outcome in rejected)
    kept = {reason for reason, _ in common.most_common(MOST_REASONS)}
    for outcome in jobs:
        if outcome.in_time:
            yield AT_ONCE if outcome.admitted_s == outcome.submit_s else LATER
        elif outcome.late:
            yield LATE
        elif outcome.job_id in never:
            yield NEVER
        else:
            reason = told[outcome.job_id]
            yield f"rejected: {reason if reason in kept else 'other reasons'}"


def _reason(text: str) -> str:
    """A reason without its figures, so that those of many jobs are the same."""
    text = text.removeprefix("rejected: ").strip()
    text = re.sub(r"\d[\d.,:]*( ?(s|min|h|days?)\b)?", "…", text)
    return re.sub(r"…( …)+", "…", text) or "no reason told"


# --- what deciding costs --------------------------------------------------------------------------


def decisions(schedules: Sequence[JobSchedule]) -> Figure:
    """How long a decision takes, by how many jobs are active: the median and the slowest of each hundred."""
    figure, axes = _axes("What a decision costs", "active jobs", "ms")
    for schedule in schedules:
        active, middle_s, slow_s = growth(schedule.decision_times)
        (line,) = axes.plot(
            active, middle_s * 1000, marker="o", markersize=3, label=f"{schedule.policy}: median"
        )
        axes.plot(
            active, slow_s * 1000, linestyle="--", color=line.get_color(), label=f"{schedule.policy}: p99"
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    return figure


def growth(times: Sequence[DecisionTime]) -> tuple[Floats, Floats, Floats]:
    """Active jobs, in steps that grow by a quarter; median and 99th percentile of the decisions' seconds."""
    active = np.array([max(1, each.num_active) for each in times])
    took_s = np.array([each.took_s for each in times])
    steps = np.round(np.log(active) / np.log(1.25)).astype(int)
    groups = [steps == step for step in np.unique(steps)]
    return (
        np.array([active[group].mean() for group in groups]),
        np.array([np.median(took_s[group]) for group in groups]),
        np.array([np.percentile(took_s[group], 99) for group in groups]),
    )


# --- what they share ------------------------------------------------------------------------------


def _axes(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    """An empty figure. Raises ConfigError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "plots need matplotlib, which is not installed; pip install 'elasticflow-trainer[bench]', "
            "or ask for no plots"
        ) from error
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _palette() -> list[Any]:
    from matplotlib import colormaps

    colours = colormaps["tab20"]
    return [colours(number) for number in range(COLOURS)]


def _greys(count: int) -> list[str]:
    return [f"{0.35 + 0.5 * number / max(1, count):.2f}" for number in range(count)]


def _origin_s(schedule: JobSchedule) -> float:
    """When the first job came."""
    return min((outcome.submit_s for outcome in schedule.outcomes), default=0.0)


def _hours(schedule: JobSchedule) -> float:
    """From then until the last job was done."""
    ends_s = [segment.end_s for segment in schedule.segments]
    return max(1e-3, (max(ends_s, default=0.0) - _origin_s(schedule)) / 3600)
