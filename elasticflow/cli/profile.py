"""``elasticflow profile``: how fast a program is with 1, 2, 4, ... workers, and what it costs to change that.

One run of the program, as ``train`` would make it, goes up through the sizes and down again; it is not kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from elasticflow import checkpoint
from elasticflow.cli.connection import Connection
from elasticflow.cli.profile_files import Profile, check_folder, curve_points, write
from elasticflow.cli.train import METAVARS, OPTIONS, end_at_once, start_master
from elasticflow.cli.watching import users_part
from elasticflow.cluster.presence import presence_of, wait_until_over
from elasticflow.errors import ConfigError, RunError
from elasticflow.process.own_folders import own_folder
from elasticflow.program.copy import keep, take
from elasticflow.program.loading import parse
from elasticflow.run import config
from elasticflow.run.config import Config
from elasticflow.run.folder import ENDED, FAILURES, RunDir
from elasticflow.run.telling import Report, Status
from elasticflow.scheduler.fit import fit_curve, powers_of_two
from elasticflow.scheduler.measured import MeasuredPhase, Step, changes, measure, overheads_of, steps_of
from elasticflow.step.layout import stages_of
from elasticflow.wire.messages import ScaleRequest, StopRequest

SETTINGS = ("servers", "batch_size", "slices", "seed", "threads", "device", "data", "date")
"""Settings of a run that decide how fast it is."""
EPOCHS = 10**6
"""More than will be run: the run is stopped when all is measured."""
TERMS = ("shared", "fixed", "rounds", "per_gpu")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``profile``."""
    parser.add_argument("program", metavar="PROGRAM", help="Python file that defines model() and forward()")
    parser.add_argument(
        "--workers", type=int, metavar="N",
        help="measure 1, 2, 4, ... up to N workers (default: as many as have a processor each)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=int, default=50, metavar="N",
        help="steps to measure of a size, each time it is come to (default: 50)",
    )  # fmt: skip
    parser.add_argument(
        "--warm-up", type=int, default=10, metavar="N",
        help="steps to throw away before, each time (default: 10)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=1.0, metavar="S",
        help="measure for so long at least, where steps are short (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--patience", type=float, default=120.0, metavar="S",
        help="give up if a size is not there, or not measured, after so long (default: 120)",
    )  # fmt: skip
    parser.add_argument(
        "--to", default="profiles", metavar="DIR",
        help="folder for PROGRAM.csv and PROGRAM.BATCH.json (default: profiles)",
    )  # fmt: skip
    for name in SETTINGS:
        kind = type(getattr(Config(), name))
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=kind, metavar=METAVARS.get(name, "N"), help=OPTIONS[name])
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings, such as conf/local.yaml")
    parser.add_argument("--json", action="store_true", help="print the profile as JSON")


def profile(arguments: argparse.Namespace) -> int:
    """Measures, writes the files, and prints a table."""
    parse(arguments.program)
    _check(arguments)
    chosen = _settings(arguments)
    check_folder(Path(arguments.to), arguments.program)
    sizes = powers_of_two(arguments.workers or _num_workers(chosen))
    with own_folder("elasticflow-profile-") as folder:
        run = RunDir(folder / "run")
        chosen, copy = take(msgspec.structs.replace(chosen, run_dir=str(run.path), checkpoint_dir=""))
        if copy:
            keep(run, copy)
        run.create(chosen)
        phases = _go_through(run, sizes, arguments)
        found = _profile_of(run, chosen, phases)
    table, details = write(Path(arguments.to), found)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        print("\n".join(page(found)))
        print(f"written: {table}, {details}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    for name, least in (("workers", 1), ("steps", 2), ("warm_up", 0), ("seconds", 0.0), ("patience", 1.0)):
        value = getattr(arguments, name)
        if value is not None and not value >= least:
            raise ConfigError(f"--{name.replace('_', '-')}: {value} is too few; give {least} or more.")


def _settings(arguments: argparse.Namespace) -> Config:
    """The settings of the run: with one worker at first, and nothing in the way of its steps."""
    options: dict[str, Any] = {name: getattr(arguments, name) for name in SETTINGS}
    options |= {
        "program": os.path.abspath(arguments.program),
        "workers": f"1..{arguments.workers or 1}",  # so many must be possible
        "epochs": EPOCHS,
        "timeline": True,
        "checkpoint_every": "24h",
        "client_gone": "stop",
    }
    chosen = config.make(arguments.config, options)
    if chosen.backend != "local":
        raise ConfigError(
            f"backend: {chosen.backend}: 'profile' measures on this machine; use a file without it."
        )
    return msgspec.structs.replace(chosen, workers="1", deadline="", time_limit="", max_time="")


def _num_workers(chosen: Config) -> int:
    """As many as have processors of their own."""
    return max(1, min(len(os.sched_getaffinity(0)) // chosen.threads, chosen.num_slices))


# --- the run --------------------------------------------------------------------------------------


def _go_through(run: RunDir, sizes: tuple[int, ...], arguments: argparse.Namespace) -> list[MeasuredPhase]:
    """Runs the program through the sizes, up and down. Raises RunError with the program's traceback told."""
    asked_s, phases = time.monotonic(), list[MeasuredPhase]()
    wanted = (*sizes, *reversed(sizes[:-1]))
    with _started(run) as master:
        try:
            with Connection(run, waiting=lambda text: None) as connection:
                measuring = _Measuring(connection, arguments)
                for size in wanted:
                    phases.append(measuring.phase(size, asked_s))
                    asked_s = time.monotonic()
                connection.insist(StopRequest(reason="measured"))
                while (status := connection.next_status()) is None or status.state not in ENDED:
                    pass
        except RunError:
            # A run that has been told to stop may be over before its last status has come.
            is_over = len(phases) == len(wanted) and not presence_of(run).is_alive()
            if _failure(run, master) is None and not is_over:
                raise
        master.wait()
        wait_until_over(run)
    if failure := _failure(run, master):
        print(users_part(failure.traceback, failure.program), end="", file=sys.stderr)
        raise RunError(f"{failure.program}: {failure.text}")
    return phases


@contextlib.contextmanager
def _started(run: RunDir) -> Iterator[subprocess.Popen[bytes]]:
    """The run's master, which is ended with all its members if it has not ended by then."""
    master, hold = start_master(run, False)
    with os.fdopen(hold, "wb"):
        try:
            yield master
        finally:
            if master.poll() is None:
                end_at_once(run, master)


def _failure(run: RunDir, master: subprocess.Popen[bytes]) -> Report | None:
    """The report of a run that failed by itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        master.wait(timeout=5)
    report = run.read_report()
    return report if report and report.state in FAILURES else None


class _Measuring:
    """Waits for what is to be measured."""

    def __init__(self, connection: Connection, arguments: argparse.Namespace) -> None:
        self._connection, self._arguments = connection, arguments
        self._give_up_s = 0.0
        self._size = 0

    def phase(self, size: int, asked_s: float) -> MeasuredPhase:
        """Asks for a size, and stays with it until it is measured."""
        self._size, self._give_up_s = size, time.monotonic() + self._arguments.patience
        self._connection.send(ScaleRequest(workers=size))
        step = self._until(lambda status: _is_complete(status, size))
        ready_s = time.monotonic()
        self._until(lambda status: status.step >= step + self._arguments.warm_up)
        since_s = time.monotonic()
        step = self._until(lambda status: True)  # asked for after that: on a busy machine news are old
        enough_s = since_s + self._arguments.seconds
        # One more step than is measured: the first and the last are cut in two.
        wanted = step + self._arguments.steps + 2
        self._until(lambda status: status.step >= wanted and time.monotonic() >= enough_s)
        return MeasuredPhase(size, asked_s, ready_s, since_s, time.monotonic())

    def _until(self, ready: Any) -> int:
        """Waits for such a status; returns its step."""
        while True:
            status = self._connection.next_status()
            if status is None or not (status.state in ENDED or ready(status)):
                self._check_patience(status)
            elif status.state in ENDED:
                raise RunError(status.events[-1].text if status.events else "the run has ended")
            else:
                return int(status.step)

    def _check_patience(self, status: Status | None) -> None:
        if time.monotonic() < self._give_up_s:
            return
        why = f" ({status.shortage})" if status and status.shortage else ""
        raise RunError(
            f"workers: {self._size} could not be measured within {self._arguments.patience:g} s{why}; "
            "give it more --patience, or measure fewer --workers or --steps"
        )


def _is_complete(status: Status, size: int) -> bool:
    return [worker.state for worker in status.workers] == ["ready"] * size and status.step > 0


# --- what it tells --------------------------------------------------------------------------------


def _profile_of(run: RunDir, chosen: Config, phases: list[MeasuredPhase]) -> Profile:
    report = run.read_report()
    assert report is not None and report.first_step_s is not None and report.checkpoint_step is not None
    manifest = checkpoint.load_manifest(run.checkpoints(), report.checkpoint_step)
    steps = _steps(run, report, stages_of(manifest.entries))
    points = measure(steps, phases)
    if not points:
        raise RunError(f"{chosen.program}: not one whole step was measured; ask for more --steps")
    rates = {point.workers: point.rate for point in points}
    fit = fit_curve(rates, {point.workers: point.noise for point in points})
    costs = changes(steps, phases, rates)
    return Profile(
        program=os.path.basename(chosen.program),
        global_batch_size=chosen.batch_size,
        slices=chosen.num_slices,
        servers=chosen.servers,
        threads=chosen.threads,
        measured_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        fingerprint={name: str(value) for name, value in manifest.fingerprint.items()},
        curve=curve_points(points, fit, powers_of_two(chosen.num_slices)),
        terms=dict(zip(TERMS, fit.terms, strict=True)),
        misfit=fit.misfit,
        steps={point.workers: point.steps for point in points},
        first_step_s=report.first_step_s,
        changes=tuple(costs),
        overheads=overheads_of(costs, report.first_step_s),
    )


def _steps(run: RunDir, report: Report, stages: int) -> list[Step]:
    """The run's steps, from what its workers wrote down: a tick begins when the first of them begins it.

    stages: ticks of a step.
    """
    begins_s: dict[int, float] = {}
    for path in sorted((run.folder / "timelines").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            _, tick, since_s, _ = json.loads(line)
            begins_s[tick] = min(since_s, begins_s.get(tick, since_s))
    num_steps = run.config().evaluate_every or (report.steps_total or 0) // report.epochs
    return steps_of(begins_s, num_steps, bool(report.num_evaluations), stages)


def page(found: Profile) -> list[str]:
    """A table for a person."""
    lines = [
        f"{found.program}, batches of {found.global_batch_size} in {found.slices} slices, "
        f"{found.servers} servers, {found.threads} threads",
        "workers  iterations/s    error  speed-up",
    ]
    first = found.curve[0]
    for point in found.curve:
        how = f"measured over {found.steps[point.workers]} steps" if point.measured else "fitted"
        speed_up = point.rate / first.rate
        lines.append(f"{point.workers:7}{point.rate:14.4g}{point.error:9.1%}{speed_up:10.2f}  {how}")
    lines.append(
        f"the formula is taken to be {found.misfit:.1%} off; first step after {found.first_step_s:.2f} s"
    )
    lines += [
        f"{change.old} to {change.new} workers: there after {change.ready_s:.2f} s, a step took "
        f"{change.standstill_s * 1000:.0f} ms longer, {change.lost_s:.2f} s lost"
        for change in found.changes
    ]
    return lines
