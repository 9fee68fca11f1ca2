"""Shows a run to a person: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from elasticflow.cli.terminal import bare, cursor_given_back
from elasticflow.process.texts import harmless
from elasticflow.run.dates import against, clock, zone_of
from elasticflow.run.telling import Event, Past, Status

T = TypeVar("T")

LINE_EVERY_S = 2.0
WIDE = 120
"""Columns of a terminal on which all figures fit into one line beside the bar."""


def duration(seconds: float | None) -> str:
    """Such as 1:02:03, 4:05 or ?."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def attempts(status: Past) -> str:
    """To follow how long it has been; "" where this is all there was."""
    return f" (attempt {status.attempt}; {duration(status.total_s)} in all)" if status.attempt > 1 else ""


def scaled(value: float) -> str:
    """Four decimals; or four digits, where those would be nought, or many stand before them."""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"


def figures(status: Status, narrow: bool = False) -> str:
    """The figures of a status, in one line, or two; what is not known yet is left out."""
    ready = sum(worker.state == "ready" for worker in status.workers)
    servers = sum(not server.standby for server in status.servers)
    where = [
        f"epoch {status.epoch}/{status.epochs}",
        f"step {status.step}/{status.steps_total or '?'}",
    ]
    how = [
        "" if status.loss is None else f"loss {scaled(status.loss)}",
        "" if status.records_per_s is None else f"{status.records_per_s:,.0f} records/s",
        f"workers {ready}/{status.target_workers}",
        f"servers {servers}" + (", regrouping" if status.regrouping else ""),
    ]
    outlook = eta(status)
    lines = [[*where, outlook], how] if narrow else [[*where, *how, outlook]]
    return "\n".join("  ".join(part for part in line if part) for line in lines)


def eta(status: Past) -> str:
    """How long it takes; where there is a deadline, until when, and what that means. "": nobody knows."""
    if not isinstance(status, Status):
        return ""
    deadline, eta_s = status.deadline, status.eta_s
    if deadline is None:
        return "" if eta_s is None else f"ETA {duration(eta_s)}"
    if eta_s is not None and status.eta_at is not None:
        return f"ETA {against(deadline, status.eta_at, status.eta_at - eta_s)}"
    if status.state not in ("starting", "running"):
        return ""
    assert status.deadline_at is not None
    due = clock(status.deadline_at, status.started_at + status.elapsed_s, zone_of(deadline))
    return f"ETA too early to tell, deadline {due}"


def deadline_line(report: Past) -> str:
    """What became of the deadline of a run that is over; "" if it had none."""
    if (deadline := report.deadline) is None:
        return ""
    if report.finished_at is not None:
        met = "met" if report.met_deadline else "missed"
        return f"deadline {met}: done at {against(deadline, report.finished_at, report.finished_at)}"
    ended_at = report.started_at + report.elapsed_s
    how = "missed" if report.met_deadline is False else "open"
    return f"deadline {how}: it ended, not done, at {against(deadline, ended_at, ended_at)}"


def start_line(told: Past) -> str:
    """What the time until the first step went into; "" where that is not known."""
    if not told.start or told.first_step_s is None:
        return ""
    parts = ", ".join(f"{part.what} {part.seconds:.2f}" for part in told.start)
    return f"first step after {told.first_step_s:.2f} s: {parts}"


def evaluation_line(evaluation: Mapping[str, Any]) -> str:
    """One evaluation, in one line. JSON knows no NaN: it has null there."""
    measured = {name: value for name, value in evaluation.items() if name not in ("epoch", "step")}
    values = "  ".join(f"{name} {'nan' if v is None else scaled(v)}" for name, v in measured.items())
    return f"epoch {evaluation['epoch']}, step {evaluation['step']}: test {values}"


def best_line(told: Past) -> str:
    """The best checkpoint, and what the learning rate is multiplied by; "" where there is nothing to tell."""
    best = told.best
    line = f"best: {best.metric} {scaled(best.value)}, at step {best.step}" if best else ""
    slower = f"learning rate: times {told.lr_scale:g}" if told.lr_scale != 1.0 else ""
    return "; ".join(filter(None, (line, slower)))


class _Shown(Generic[T]):
    """What of a row, in which each thing has its time, has been shown. Another master may repeat some."""

    def __init__(self, time_of: Callable[[T], float], recall: int) -> None:
        self._time_of, self._recall = time_of, recall
        self._last: list[T] = []

    def fresh(self, row: Sequence[T]) -> Sequence[T]:
        """Those that are new, the oldest first; of the first row, the last ``recall``."""
        time_of = self._time_of
        unseen = [each for each in row if each not in self._last]
        new: Sequence[T] = unseen[-self._recall :]
        if self._last:
            new = [each for each in unseen if time_of(each) >= time_of(self._last[0])]
        newest = max(map(time_of, (*self._last, *row)), default=0)
        self._last = [each for each in (*self._last, *unseen) if time_of(each) == newest]
        return new


class Display:
    """Shows one status after the other; events and evaluations once each. Close it, or use ``with``.

    recall: so many events of the time before the first status, at most.
    """

    def __init__(self, recall: int = 1000) -> None:
        self._events: _Shown[Event] = _Shown(lambda event: event.time_s, recall)
        self._evaluations: _Shown[dict[str, Any]] = _Shown(lambda evaluation: evaluation["step"], recall)
        self._line_s = 0.0
        self._starting = False
        self._console = Console(file=bare(sys.stdout), highlight=False)
        self._bar: Progress | None = None
        self._cursor = contextlib.ExitStack()
        if sys.stdout.isatty():
            text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
            bar = BarColumn(bar_width=20, table_column=Column(min_width=20))
            self._bar = Progress(bar, text, console=self._console, transient=True)
            self._task = self._bar.add_task("starting", total=None)
            self._cursor.enter_context(cursor_given_back(sys.stdout.fileno()))
            self._bar.start()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def show(self, status: Status) -> None:
        """Shows what is new in a status. The end is told by whoever reads the report."""
        for event in self._events.fresh(status.events):
            if event.kind != "end":
                warning = "Warning: " if event.kind == "warning" else ""
                self.line(f"[{duration(event.time_s)}] {warning}{event.text}")
        if self._starting and (line := start_line(status)):
            self.line(line)
        self._starting = status.first_step_s is None
        for evaluation in self._evaluations.fresh(status.evaluations):
            self.line(evaluation_line(evaluation))
        if self._bar:
            total, step = status.steps_total, status.step
            narrow = self._console.width < WIDE
            since = duration(status.elapsed_s)
            text = figures(status, narrow) if total else f"starting, {since}: imports, the program, its data"
            self._bar.update(self._task, total=total, completed=step, description=harmless(text))
        elif time.monotonic() - self._line_s >= LINE_EVERY_S and status.state == "running":
            self._line_s = time.monotonic()
            self.line(figures(status))

    def line(self, text: str) -> None:
        """A line that stays."""
        self._console.print(harmless(text), markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()
        self._cursor.close()
