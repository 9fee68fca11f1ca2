"""What ``train`` and ``attach`` share: a run shown until it is over, and how it ended."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from elasticflow import checkpoint
from elasticflow.cli.connection import Connection
from elasticflow.cli.progress import best_line, deadline_line, duration, evaluation_line
from elasticflow.cluster.presence import (
    NoMaster,
    Replaced,
    how_it_ended,
    is_alive,
    presence_of,
    wait_for_master,
    wait_until_over,
)
from elasticflow.errors import ElasticFlowError, RunError
from elasticflow.run.folder import ENDED, FAILURES, RunDir
from elasticflow.run.telling import TAKEN_OVER, Past, Report, Status, WorkersSeconds
from elasticflow.run.tracks import TrackDir


class Shows(Protocol):
    """Whom a run is shown to."""

    def show(self, status: Status) -> None:
        """How it is."""

    def line(self, text: str) -> None:
        """What it waits for."""


def follow(run: RunDir, display: Shows, interrupted: Callable[[Connection], None]) -> Report | None:
    """Shows a run that may wait for its place, and may have ended by now, until it is over.

    Raises Replaced if another run has its folder by then, or somebody has resumed it.
    """
    presence = presence_of(run)
    while presence.is_alive():
        wait_for_master(run, lambda text: display.line(f"{run.path}: {text}"))
        with contextlib.suppress(NoMaster):
            watch(run, display, interrupted)
            wait_until_over(run, presence)
    if presence.is_anothers():
        raise Replaced(f"{run.path}: this run is over{how_it_ended(run, presence)}.")
    report = run.read_report()
    if report:
        display.show(report)  # what happened after the last status that came
    return report


def watch(run: RunDir, display: Shows, interrupted: Callable[[Connection], None]) -> str:
    """Shows the run until it is over; returns why, if it has said so. interrupted: what Ctrl-C does."""
    try:
        with Connection(run, waiting=lambda text: display.line(f"{run.path}: {text}")) as connection:
            while True:
                try:
                    status = connection.next_status()
                    if status is not None:
                        display.show(status)
                        if status.state in ENDED:
                            return next((each.text for each in status.events[::-1] if each.kind == "end"), "")
                except KeyboardInterrupt:
                    interrupted(connection)
    except RunError:
        if run.path.exists() and is_alive(run):
            raise
    return ""


def show_end(run: RunDir, report: Report) -> None:
    """What people want to know of a run that is over. The last line says what is missing, if anything is."""
    began = report.first_step_s is not None
    if began:
        print(
            f"steps {report.step}/{report.steps_total}, records {report.records_covered:,} of "
            f"{report.records_total:,}, {duration(report.elapsed_s)} in all, "
            f"first step after {report.first_step_s:.2f} s"
        )
        print(f"workers' seconds: {_seconds(report.workers_seconds)}")
        if report.num_faults:
            print(f"faults: {faults_line(report)}")
    if report.quarantined:
        print(f"quarantined rows: {', '.join(map(str, report.quarantined))}")
    if skipped := skipped_line(report):
        print(f"skipped: {skipped}")
    if audited := audited_line(report):
        print(f"audit: {audited}")
    if line := deadline_line(report):
        print(line)
    if report.evaluations:
        print(evaluation_line(report.evaluations[-1]))
    if line := best_line(report):
        print(line)
    step = report.checkpoint_step
    if step is not None:
        storage = run.checkpoints()
        print(f"checkpoint: {run.checkpoint_place}/{checkpoint.folder_of(step)}")
        try:
            print(f"digest: {checkpoint.digest(storage, checkpoint.load_manifest(storage, step))}")
        except (OSError, ElasticFlowError) as error:  # how the run has ended is to be said all the same
            print(f"digest: not to be had just now: {error}")
    if isinstance(run.path, Path):
        tracks = TrackDir(run.path / "tracks")
        for name, problem in tracks.read_problems().items():
            print(f"tracker {name}: {problem}")
        if tracks.is_held():
            print(
                "curves: are still being drawn; what is wrong will be said in "
                f"{run.logs / 'tracking.log'}, and 'elasticflow track {run.path}' draws what is missing then"
            )
    if began:
        print(f"more: elasticflow report {run.path}")
    if report.state not in FAILURES:
        goes_on = f": {run.resume_command}" if report.text.endswith("--resume") else ""
        print(f"{report.state}: {report.text}{goes_on}")
        return
    print(f"logs: elasticflow logs {run.path}")
    sys.stdout.flush()
    print(users_part(report.traceback, report.program), end="", file=sys.stderr)
    print(f"Error: {report.text}{_how_to_go_on(run, report)}", file=sys.stderr)


def _seconds(seconds: WorkersSeconds) -> str:
    always = ("productive", "waiting", "starting")
    told = seconds.by_name().items()
    return ", ".join(f"{name} {value:.1f}" for name, value in told if value >= 0.05 or name in always)


def faults_line(report: Past) -> str:
    """How many faults there were, and what they cost together."""
    cost = f"{report.standstill_s + report.stalled_s:.2f} s"
    steps = report.steps_redone
    return f"{report.num_faults}, which cost {cost}" + (f" and {steps} steps made again" if steps else "")


def skipped_line(report: Past) -> str:
    """How many steps were left out because of NaN or infinite gradients; "" if none was."""
    if not (skipped := report.skipped):
        return ""
    return f"{skipped} {'updates' if report.mode == 'async' else 'steps'} with NaN or infinite gradients"


def audited_line(report: Past) -> str:
    """How many slices were computed twice and gave the same; "" if none was."""
    return f"{report.audited:,} slices computed twice, with the same bits" if report.audited else ""


def users_part(trace: str, program: str) -> str:
    """The part of a traceback that is about the user's program; our own is in the logs."""
    start = trace.find(f'  File "{os.path.realpath(program)}"')
    if start < 0:
        return ""
    return "Traceback (most recent call last):\n" + trace[start:].partition("\n\n")[0].rstrip() + "\n"


def _how_to_go_on(run: RunDir, report: Report) -> str:
    """What is missing of a run that failed on the way, and what would get it done."""
    if report.first_step_s is None or report.steps_total is None or report.text.endswith(TAKEN_OVER):
        return ""
    kept = report.checkpoint_step
    missing = report.steps_total - (kept or 0)
    start = (
        f"step {kept}, which is kept"
        if kept is not None
        else "the beginning: no checkpoint was committed yet"
    )
    return (
        f"\n{missing} of {report.steps_total} steps are missing; '{run.resume_command}' goes on from {start}."
    )
