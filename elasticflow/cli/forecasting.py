"""The plan of a service as a picture: in the terminal, as a page of HTML that needs nothing else, as PNG."""

from __future__ import annotations

import html
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from elasticflow.errors import ConfigError
from elasticflow.process.texts import harmless
from elasticflow.scheduler.forecast import Forecast, PlannedJob, PlannedShare
from elasticflow.service import talk

LEAST_COLUMNS = 20
LEVELS = " ▁▂▃▄▅▆▇█"
KINDS = (".png", ".html")


def show_plan(answer: talk.ServiceAnswer, to: str) -> None:
    """Prints it, or writes it to a file. Raises ConfigError."""
    forecast = forecast_of(answer)
    if not to:
        print("\n".join(picture(forecast, shutil.get_terminal_size().columns)))
        return
    path = Path(to)
    if path.suffix not in KINDS:
        raise ConfigError(
            f"--plan {to}: is written as {' or '.join(KINDS)}; without a file it is shown here."
        )
    try:
        if path.suffix == ".html":
            path.write_text(page_of(forecast), encoding="utf-8")
        else:
            from elasticflow.scheduler import plots

            plots.save(plots.forecast(forecast), path)
    except OSError as error:
        raise ConfigError(f"--plan {to}: cannot be written: {error.strerror}.") from error
    print(f"{len(forecast.jobs)} runs: {path}", file=sys.stderr)


def forecast_of(answer: talk.ServiceAnswer) -> Forecast:
    """Of all that are under way, the most urgent first."""
    living = [task for task in answer.tasks if task.ended_at is None]
    living.sort(key=lambda task: (task.deadline_at is None, task.deadline_at or task.handed_at))
    jobs = [
        PlannedJob(
            name=task.name,
            standing=task.standing,
            num_gpus=task.workers,
            shares=tuple(PlannedShare(share.until_at, share.workers) for share in task.plan),
            deadline_s=task.by_at or task.deadline_at,
            is_firm=task.planned,
        )
        for task in living
    ]
    return Forecast(answer.now_at, answer.capacity, tuple(jobs))


# --- in the terminal --------------------------------------------------------------------------------


def picture(forecast: Forecast, columns: int, clock: Callable[[float], str] | None = None) -> list[str]:
    """Lines of text. A bar begins with its number of workers; ``|`` is a deadline, dots are no plan."""
    clock = clock or _clock
    head = [(job.name, job.standing, str(job.num_gpus)) for job in forecast.jobs]
    head = [("job", "standing", "now"), *head, ("in plans", "", f"{forecast.taken(forecast.now_s)}")]
    widths = [max(map(len, column)) for column in zip(*head, strict=True)]
    labels = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)) for row in head]
    wide = max(LEAST_COLUMNS, columns - len(labels[0]) - 2)
    lasts_s = (forecast.end_s - forecast.now_s) / wide
    middles_s = [forecast.now_s + (column + 0.5) * lasts_s for column in range(wide)]
    lines = [_axis(forecast, wide, clock)]
    lines += [_bars(job, forecast, wide, clock) for job in forecast.jobs]
    lines.append("".join(_level(forecast.taken(at_s), forecast.num_gpus) for at_s in middles_s))
    told = [f"{label}  {line}".rstrip() for label, line in zip(labels, lines, strict=True)]
    return [*told, f"{forecast.num_gpus} workers; | deadline; ... as it goes now, without a plan"]


def _axis(forecast: Forecast, wide: int, clock: Callable[[float], str]) -> str:
    """Clock times, as many as there is room for."""
    line, at = "", 0
    while at < wide:
        text = clock(forecast.now_s + at * (forecast.end_s - forecast.now_s) / wide)
        if at + len(text) > wide:
            break
        line = f"{line:<{at}}{text}"
        at += max(len(text) + 4, wide // 5)
    return line


def _bars(job: PlannedJob, forecast: Forecast, wide: int, clock: Callable[[float], str]) -> str:
    cells = [" "] * (wide + 1)
    lasts_s = forecast.end_s - forecast.now_s

    def column(at_s: float) -> int:
        return max(0, min(wide, round((at_s - forecast.now_s) / lasts_s * wide)))

    since, drawn = 0, "-" if job.is_firm else "."
    for share in job.shares:
        until = max(column(share.until_s), since)
        bar = f"{share.num_gpus}{drawn * wide}" if share.num_gpus else " " * wide
        cells[since:until] = bar[: until - since]
        since = until
    told = "" if job.shares else "(not planned: nobody knows yet how long it takes)"
    cells[: len(told)] = told[: wide + 1]
    if job.deadline_s is not None:
        if job.deadline_s <= forecast.end_s:
            cells[column(job.deadline_s)] = "|"
        else:
            due = f"> {clock(job.deadline_s)}"
            cells[wide - len(due) :] = due
    return "".join(cells)


def _level(taken: int, capacity: int) -> str:
    return LEVELS[min(len(LEVELS) - 1, -(-taken * (len(LEVELS) - 1) // max(1, capacity)))]


def _clock(at_s: float) -> str:
    there = time.localtime(at_s)
    today = time.strftime("%Y-%m-%d", there) == time.strftime("%Y-%m-%d")
    return time.strftime("%H:%M:%S" if today else "%m-%d %H:%M", there)


# --- as a page ----------------------------------------------------------------------------------------

STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222 }
svg { width: 100%; height: auto } text { font: 12px system-ui, sans-serif; fill: #222 }
.promised { fill: #2a7f3f } .hopeful { fill: #b8a000 } .other { fill: #4a7fb5 } .loose { opacity: .35 }
.count { fill: #fff } .due { stroke: #b00020; stroke-width: 2 } .grid { stroke: #ddd } .quiet { fill: #777 }
"""
WIDE, LABEL, ROW, TICKS = 1100, 260, 26, 6


def page_of(forecast: Forecast) -> str:
    """One file of HTML with a picture in it; it asks for nothing from elsewhere, and has no script."""
    high = ROW * (len(forecast.jobs) + 2)
    body = [
        *_ticks(forecast, high),
        *(one for at, job in enumerate(forecast.jobs) for one in _row(forecast, at, job)),
    ]
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(forecast.now_s))
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>ElasticFlow: the plan</title>'
        f"<style>{STYLE}</style></head><body><h1>Who gets how many workers until when</h1>"
        f"<p>As of {when}; {forecast.num_gpus} workers. Green: its deadline, the red line, is promised. "
        "Pale: as it goes now, without a plan.</p>"
        f'<svg viewBox="0 0 {WIDE} {high}">{"".join(body)}</svg></body></html>\n'
    )


def _x(forecast: Forecast, at_s: float) -> float:
    part = (at_s - forecast.now_s) / (forecast.end_s - forecast.now_s)
    return LABEL + (WIDE - LABEL - 10) * max(0.0, min(1.0, part))


def _ticks(forecast: Forecast, high: int) -> Iterable[str]:
    for tick in range(TICKS):
        at_s = forecast.now_s + tick * (forecast.end_s - forecast.now_s) / TICKS
        x = _x(forecast, at_s)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{ROW}" y2="{high}"/>'
        yield f'<text class="quiet" x="{x:.1f}" y="{ROW - 8}">{_clock(at_s)}</text>'


def _row(forecast: Forecast, at: int, job: PlannedJob) -> Sequence[str]:
    y = ROW * (at + 1)
    found = [f'<text x="0" y="{y + 17}">{html.escape(harmless(f"{job.name}: {job.standing}"))}</text>']
    since_s, kind = forecast.now_s, job.standing if job.standing in ("promised", "hopeful") else "other"
    for share in job.shares:
        x, until = _x(forecast, since_s), _x(forecast, share.until_s)
        since_s = share.until_s
        if not share.num_gpus:
            continue
        loose = "" if job.is_firm else " loose"
        size = f'x="{x:.1f}" y="{y + 4}" width="{max(1.0, until - x):.1f}" height="{ROW - 8}"'
        found.append(f'<rect class="{kind}{loose}" {size}/>')
        if until - x > 10 * len(str(share.num_gpus)):
            found.append(f'<text class="count" x="{x + 3:.1f}" y="{y + 17}">{share.num_gpus}</text>')
    if job.deadline_s is not None:
        x = _x(forecast, job.deadline_s)
        found.append(f'<line class="due" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 1}" y2="{y + ROW - 2}"/>')
        if job.deadline_s > forecast.end_s:
            text = f'text-anchor="end" class="quiet" x="{x - 4:.1f}" y="{y + 17}"'
            found.append(f"<text {text}>due {_clock(job.deadline_s)}</text>")
    return found
