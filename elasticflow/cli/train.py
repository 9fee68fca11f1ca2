"""``elasticflow train``: starts a run's master, shows the run, and ends with its exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from elasticflow import checkpoint, config
from elasticflow.cli.connection import Connection
from elasticflow.cli.progress import Display, duration, evaluation_line
from elasticflow.config import Config
from elasticflow.errors import ConfigError, RunError
from elasticflow.messages import StatusRequest, StopRequest
from elasticflow.program import parse
from elasticflow.run_dir import RunDir
from elasticflow.storage import DirectoryStorage

RUNS = Path("runs")
OPTIONS = {
    "workers": "how many workers, N or MIN..MAX",
    "servers": "how many parameter servers",
    "epochs": "passes over the training data",
    "batch_size": "records in a step",
    "slices": "parts of a batch, a power of two: the unit of computing",
    "seed": "decides first values, order of records and random numbers",
    "threads": "threads a worker computes with",
    "data": "file of records, where the program has no data(): .npz .h5 .csv .parquet",
    "checkpoint_every": "steps (500) or a time (30s, 5m) between checkpoints",
    "keep_checkpoints": "how many to keep",
    "max_quarantined": "how many records may be left out because the program raises on them",
    "run_dir": "folder of the run (default: runs/PROGRAM-N)",
    "port": "port of the master (default: any free one)",
}
METAVARS = {"workers": "MIN..MAX", "checkpoint_every": "STEPS|TIME", "data": "FILE", "run_dir": "DIR"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``train``."""
    parser.add_argument(
        "program", metavar="PROGRAM", nargs="?", help="Python file that defines model() and forward()"
    )
    for name, text in OPTIONS.items():
        numeric = Config.__annotations__[name] != "str"
        metavar = METAVARS.get(name, "N" if numeric else "X")
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, dest=name, type=int if numeric else str, metavar=metavar, help=text)
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint of the run")
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings, such as conf/local.yaml")
    parser.add_argument(
        "--timeline", action="store_true", default=None, help="record when workers compute and wait"
    )


def settings(arguments: argparse.Namespace) -> Config:
    """The run's settings. Command line beats file beats, where a run is resumed, what it had before."""
    options = {name: getattr(arguments, name) for name in (*OPTIONS, "timeline")}
    if arguments.program:
        options["program"] = os.path.abspath(arguments.program)
    chosen = config.make(arguments.config, options)
    if arguments.resume and (chosen.program or chosen.run_dir):
        run = RunDir(chosen.run_dir or _newest_folder(chosen))
        before = msgspec.to_builtins(run.config())
        chosen = config.make(arguments.config, {**options, "run_dir": str(run.path)}, before)
    if not chosen.program:
        raise ConfigError("which program? Name a Python file that defines model() and forward().")
    return msgspec.structs.replace(chosen, program=os.path.abspath(chosen.program))


def _folders(chosen: Config) -> list[tuple[int, Path]]:
    """Folders of earlier runs of the program that were named by us, with their numbers."""
    stem = Path(chosen.program).stem
    found = [(re.fullmatch(rf"{re.escape(stem)}-(\d+)", path.name), path) for path in RUNS.glob("*")]
    return sorted((int(match[1]), path) for match, path in found if match)


def _new_folder(chosen: Config) -> Path:
    last = max((number for number, _ in _folders(chosen)), default=0)
    return RUNS / f"{Path(chosen.program).stem}-{last + 1}"


def _newest_folder(chosen: Config) -> Path:
    folders = _folders(chosen)
    if not folders:
        what = os.path.basename(chosen.program)
        raise ConfigError(
            f"--resume: there is no run of {what} in {RUNS.resolve()}; name its folder with --run-dir."
        )
    return folders[-1][1]


class _Folder:
    """A run's folder before its master has it: made ready, and put back as it was if nothing began."""

    def __init__(self, path: Path, chosen: Config, resume: bool) -> None:
        self.run = run = RunDir(path)
        self._fresh = not resume
        self._made = [folder for folder in (path, *path.parents) if not folder.exists()]
        ours = run.settings.exists()
        if path.exists() and not ours and (not path.is_dir() or any(p != run.lock for p in path.iterdir())):
            raise RunError(f"{path}: is not empty, and not the folder of a run; choose another --run-dir.")
        lock = run.hold()
        try:
            if not resume and run.settings.exists():
                raise RunError(
                    f"{path}: holds a run already; go on with it by --resume, or choose another --run-dir."
                )
            self._settings = run.settings.read_bytes() if resume else b""
            run.create(msgspec.structs.replace(chosen, run_dir=str(path)))
        except OSError as error:
            raise RunError(
                f"{path}: cannot be written: {error.strerror}; choose another --run-dir."
            ) from error
        finally:
            os.close(lock)

    def put_back(self) -> None:
        """Nothing began: leaves nothing new behind, unless somebody else has the folder by now."""
        with contextlib.suppress(RunError, OSError):
            lock = self.run.hold()
            try:
                if self._fresh:
                    for path in self.run.path.iterdir():
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                    for path in self._made:
                        path.rmdir()
                else:
                    self.run.settings.write_bytes(self._settings)
            finally:
                os.close(lock)


def _make_folder(chosen: Config, resume: bool) -> _Folder:
    """The folder that was named, or the first new one that nobody else takes at the same time."""
    if chosen.run_dir:
        return _Folder(Path(chosen.run_dir), chosen, resume)
    while True:
        path = _new_folder(chosen)
        try:
            return _Folder(path, chosen, resume)
        except RunError:
            if _new_folder(chosen) == path:
                raise


def train(arguments: argparse.Namespace) -> int:
    """Runs the program to its end; returns the exit code."""
    if arguments.program:
        parse(arguments.program)
    chosen = settings(arguments)
    parse(chosen.program)
    folder = _make_folder(chosen, arguments.resume)
    run = folder.run
    try:
        master = _start_master(run, arguments.resume)
    except BaseException:
        folder.put_back()
        raise
    try:
        with Display() as display:
            code = _watch(run, master, display)
    except KeyboardInterrupt:
        _end_at_once(master)
        raise RunError(
            f"{run.path}: ended at once; 'elasticflow train --resume --run-dir {run.path}' goes on from the "
            "last checkpoint."
        ) from None
    report = _read_report(run)
    if report is None:
        raise RunError(
            f"{run.path}: the master ended with exit code {code}, and left no report; "
            f"the last words in {run.master_log}: {_last_line(run.master_log)}"
        )
    _show_report(run, report)
    if report["first_step_s"] is None and report["state"] == "failed":
        folder.put_back()
    return code


def _start_master(run: RunDir, resume: bool) -> subprocess.Popen[bytes]:
    """Starts the master in a session of its own: the terminal's signals are for this process."""
    ready, said = os.pipe()
    command = [sys.executable, "-m", "elasticflow.master", str(run.path), "--ready-fd", str(said)]
    with run.master_log.open("ab") as log:
        master = subprocess.Popen(
            [*command, *(["--resume"] if resume else [])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[said],
            start_new_session=True,
        )
    os.close(said)
    try:
        with os.fdopen(ready) as line:
            text = line.readline()
    except KeyboardInterrupt:
        _end_at_once(master)
        raise
    if text != "\n":
        master.wait()
        raise RunError(text.strip() or f"the master did not start: {_last_line(run.master_log)}")
    return master


def _end_at_once(master: subprocess.Popen[bytes]) -> None:
    """The master ends its members, and itself. Ctrl-C does not interrupt this."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    master.terminate()
    master.wait()
    signal.signal(signal.SIGINT, before)


def _last_line(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "(none)"


def _watch(run: RunDir, master: subprocess.Popen[bytes], display: Display) -> int:
    """Shows the run until it is over. The first Ctrl-C drains and checkpoints, a second one ends it."""
    news, stopping = -1, False
    try:
        connection = Connection(run)
    except RunError:  # it is over already
        return master.wait()
    with connection:
        connection.send(StatusRequest(newer_than=news))
        while True:
            try:
                answer = connection.receive(timeout_s=1.0)
                if answer is None and master.poll() is not None:
                    return master.returncode
                if answer is None or answer.status is None:
                    continue
                display.show(answer.status)
                news = answer.status["news"]
                if answer.status["state"] in ("finished", "stopped", "failed"):
                    return master.wait()
                connection.send(StatusRequest(newer_than=news))
            except KeyboardInterrupt:
                if stopping:
                    raise
                stopping = True
                display.line("Ctrl-C: this step, a checkpoint, then the end. Once more to leave at once.")
                connection.send(StopRequest(reason="stopped by Ctrl-C"))


def _read_report(run: RunDir) -> dict[str, Any] | None:
    if not run.report.exists():
        return None
    report: dict[str, Any] = msgspec.json.decode(run.report.read_bytes())
    return report


def _show_report(run: RunDir, report: dict[str, Any]) -> None:
    """What people want to know of a run that is over. The last line says what is missing, if anything is."""
    seconds = report["workers_seconds"]
    if report["first_step_s"] is not None:
        print(
            f"steps {report['step']}/{report['steps_total']}, records {report['records_covered']:,} of "
            f"{report['records_total']:,}, {duration(report['elapsed_s'])} in all, "
            f"first step after {report['first_step_s']:.2f} s"
        )
        print(
            f"workers' seconds: computing {seconds['computing']:.1f}, waiting {seconds['waiting']:.1f}, "
            f"starting {seconds['starting']:.1f}; slices computed {report['slices_computed']}, "
            f"{report['slices_computed_as_backup']} of them for others"
        )
    if report["quarantined"]:
        print(f"quarantined rows: {', '.join(map(str, report['quarantined']))}")
    if report["evaluations"]:
        print(evaluation_line(report["evaluations"][-1]))
    step = report["checkpoint_step"]
    if step is not None:
        storage = DirectoryStorage(run.path)
        print(f"checkpoint: {run.path / checkpoint.folder_of(step)}")
        print(f"digest: {checkpoint.digest(storage, checkpoint.load_manifest(storage, step))}")
    if report["first_step_s"] is not None:
        print(f"report: {run.report}")
    if report["state"] != "failed":
        print(f"{report['state']}: {report['text']}")
        return
    sys.stdout.flush()
    print(_users_part(report["traceback"], report["program"]), end="", file=sys.stderr)
    print(f"Error: {report['text']}{_how_to_go_on(run, report)}", file=sys.stderr)


def _users_part(trace: str, program: str) -> str:
    """The part of a traceback that is about the user's program; our own is in the logs."""
    start = trace.find(f'  File "{os.path.realpath(program)}"')
    if start < 0:
        return ""
    return "Traceback (most recent call last):\n" + trace[start:].partition("\n\n")[0].rstrip() + "\n"


def _how_to_go_on(run: RunDir, report: dict[str, Any]) -> str:
    """What is missing of a run that failed on the way, and what would get it done."""
    if report["first_step_s"] is None:
        return ""
    kept = report["checkpoint_step"]
    missing = report["steps_total"] - (kept or 0)
    start = (
        f"step {kept}, which is kept"
        if kept is not None
        else "the beginning: no checkpoint was committed yet"
    )
    return (
        f"\n{missing} of {report['steps_total']} steps are missing; "
        f"'elasticflow train --resume --run-dir {run.path}' goes on from {start}."
    )
