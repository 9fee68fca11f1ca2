"""``elasticflow train``: starts a run's master, shows the run, and ends with its exit code.

The master has a supervisor, which is the process that is started here, and has its exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from elasticflow.cli.connection import Connection
from elasticflow.cli.folders import (
    RUNS,
    add_trust_option,
    find_run,
    new_folder,
    newest_folder,
    trust_or_check,
)
from elasticflow.cli.progress import Display
from elasticflow.cli.resuming import add_program_option, new_program, program_of
from elasticflow.cli.terminal import lasting_output
from elasticflow.cli.watching import show_end, watch
from elasticflow.cluster.contract import load_backend
from elasticflow.cluster.folder import advice
from elasticflow.cluster.presence import is_alive, read_address, wait_until_over
from elasticflow.errors import ConfigError, RunError
from elasticflow.process.ending import how_it_ended
from elasticflow.process.stamps import stamp_if_json
from elasticflow.program.arguments import parsed
from elasticflow.program.copy import Copy, keep, take
from elasticflow.program.loading import parse
from elasticflow.run import config
from elasticflow.run.config import Config
from elasticflow.run.folder import EXIT_CODES, FAILURES, RunDir, last_line, log_to_add_to, replace
from elasticflow.run.whereabouts import Whereabouts
from elasticflow.storage.urls import is_hdfs, is_url
from elasticflow.wire.messages import StopRequest

AT_ONCE_S = 20.0
"""So long a master may take to end at once; then it is killed."""
OPTIONS = {
    "workers": "how many workers, N or MIN..MAX",
    "servers": "how many parameter servers",
    "strategy": "who adds up gradients: parameter_server (default), all_reduce: the workers themselves, or "
    "auto: what suits the program",
    "places": "with --strategy all_reduce: parts of the model that workers carry (default: as many as "
    "workers, at most 8)",
    "epochs": "passes over the training data",
    "max_steps": "end after so many steps, if the epochs have more",
    "max_time": "end after so long, done, if there are more steps: 90m, 8h",
    "evaluate_every": "steps between two evaluations (default: those of an epoch)",
    "batch_size": "records in a step",
    "slices": "parts of a batch, a power of two: the unit of computing",
    "mode": "sync (default): a step waits for all of its batch; async: batches are applied as they come",
    "staleness": "with --mode async: so many other batches may be applied while one is computed (default: 0)",
    "seed": "decides first values, order of records and random numbers",
    "threads": "threads a worker computes with",
    "read_processes": "with a slow transform: processes of each worker that make its records ahead of time",
    "device": "what workers compute on: auto (default; a GPU where there is one), cpu or cuda",
    "compression": "of gradients and parameters on the way: none (default), bf16 or top-k",
    "top_k": "with --compression top-k: the share of a gradient's elements that is sent (default: 0.01)",
    "data": "file of records, where the program has no data(): .npz .h5 .csv .parquet",
    "init_from": "begin with the weights of a run (its folder), or of a .npz .safetensors .pt .keras .h5 "
    "file",
    "init_map": "with --init-from: names there and here, such as encoder=net.encoder,head=net.out",
    "date": "what {today} is in --data and --run-dir, such as 2026-11-20 (default: today)",
    "checkpoint_every": "between checkpoints: steps, such as 500, or a time, such as 5m (default: 60s)",
    "keep_checkpoints": "how many to keep",
    "checkpoint_dir": "keep them in a folder of the run's name below this folder or URL: s3://bucket/models",
    "snapshot_s": "seconds between snapshots in other servers' memory: what a lost server costs; 0: none",
    "client_gone": "when this command dies or its terminal closes: continue, or stop with a checkpoint",
    "share": "who else may see status, logs and report: nobody, or the group of the run's folder",
    "deadline": "when the run should be done, to be shown against its ETA: 06:00 (the next one), +8h, ...",
    "time_limit": "stop with a checkpoint after so long: 90m, 8h",
    "max_quarantined": "how many records may be left out because the program raises on them",
    "on_nan": "a step with NaN or infinite gradients: stop or skip",
    "least_gain": "give workers back if all are not faster than half by this part; 0: never",
    "max_skipped_steps": "how many steps may be left out with --on-nan skip",
    "run_dir": "folder of the run (default: runs/PROGRAM-N; on YARN below /user/YOU/elasticflow on HDFS), or "
    "the URL of one in a store, where its checkpoints are to lie",
    "track": "draw curves in some of tensorboard, mlflow, wandb, csv, below RUN/tracks",
    "metrics_port": "port at which Prometheus may ask (default: it may not)",
    "port": "port of the master (default: any free one)",
    "log_format": "lines of logs, and of this command: text (default), or json for who collects them",
}
SWITCHES = {
    "force_quarantine": "leave out so many even if they are more than 1 %% of the records",
    "init_optimizer": "with --init-from RUN, .pt or .keras: begin with its optimizer's state too",
    "measure_slices": "choose the number of slices by what they cost, when the run begins",
    "timeline": "record when workers compute and wait",
    "drop_last": "leave out the records at the end of an epoch that fill no batch",
}
METAVARS = {
    "workers": "MIN..MAX",
    "mode": "sync|async",
    "strategy": "parameter_server|all_reduce|auto",
    "staleness": "K",
    "device": "auto|cpu|cuda",
    "compression": "none|bf16|top-k",
    "top_k": "SHARE",
    "checkpoint_every": "STEPS|TIME",
    "checkpoint_dir": "DIR|URL",
    "snapshot_s": "S",
    "on_nan": "stop|skip",
    "client_gone": "continue|stop",
    "share": "nobody|group",
    "data": "FILE",
    "init_from": "RUN|FILE",
    "init_map": "OLD=NEW,...",
    "date": "DATE",
    "deadline": "MOMENT",
    "time_limit": "TIME",
    "max_time": "TIME",
    "track": "NAME,...",
    "run_dir": "DIR|URL",
    "log_format": "text|json",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``train``."""
    parser.add_argument(
        "program",
        metavar="PROGRAM",
        nargs="?",
        help="Python file that defines model() and forward(), or a script of Keras, Lightning, transformers",
    )
    add_settings(parser)
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint of the run")
    parser.add_argument("--on", help=argparse.SUPPRESS)  # refused; or it would be short for --on-nan


def add_settings(parser: argparse._ActionsContainer) -> None:
    """Options that are settings of a run."""
    for name, text in OPTIONS.items():
        kind = str if name == "track" else type(getattr(Config(), name))
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, dest=name, type=kind, metavar=METAVARS.get(name, "N"), help=text)
    for name, text in SWITCHES.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, dest=name, action="store_true", default=None, help=text)
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings, such as conf/local.yaml")
    text = "an argument of the program, which asks for it by ef.args(NAME=...); may be given several times"
    parser.add_argument("--set", dest="set_args", action="append", metavar="NAME=VALUE", help=text)
    add_program_option(parser)
    add_trust_option(parser)


def settings(arguments: argparse.Namespace, *, several: bool = False) -> Config:
    """The run's settings. Command line beats file beats, where a run is resumed, what it had before.

    several: see ``cli.by_url.placed``.
    """
    options = {name: getattr(arguments, name) for name in (*OPTIONS, *SWITCHES)}
    if options["init_from"] and not arguments.resume:
        options["init_from"] = source_of_weights(options["init_from"], arguments.trust)
    if given := getattr(arguments, "set_args", None):
        options["args"] = parsed(given)
    anew = new_program(arguments)
    if arguments.program:
        options["program"] = os.path.abspath(arguments.program)
    if not arguments.resume:
        chosen = config.make(arguments.config, options)
        if is_url(chosen.run_dir) and _is_elsewhere(chosen, arguments):
            from elasticflow.cli.by_url import placed  # brings NumPy along

            chosen = placed(chosen, RUNS, several=several)
        if chosen.run_dir:
            trust_or_check(RunDir(chosen.run_dir), arguments.trust)
    else:  # which run is meant; other options may only make sense with its settings
        which = {name: options.get(name) for name in ("program", "run_dir", "date")}
        which["program"] = which["program"] or anew or None
        chosen = config.make(arguments.config, which, {})
    if arguments.resume and (chosen.program or chosen.run_dir):
        run = _that_goes_on(chosen, arguments, options)
        trust_or_check(run, arguments.trust)
        before = msgspec.to_builtins(run.config())
        named = os.path.abspath(chosen.program) if chosen.program else ""
        if options["init_from"]:
            options["init_from"] = _same_weights(options["init_from"], before["init_from"])
        options |= program_of(run, before, named, anew)
        chosen = config.make(arguments.config, options, before)
        chosen = msgspec.structs.replace(chosen, run_dir=str(run.path))
        if is_url(run.path) and chosen.program == before["program"]:
            return chosen  # the run has its program with it
    if not chosen.program:
        raise ConfigError("which program? Name a Python file that defines model() and forward().")
    return msgspec.structs.replace(chosen, program=os.path.abspath(chosen.program))


def _that_goes_on(which: Config, arguments: argparse.Namespace, options: Mapping[str, Any]) -> RunDir:
    """The run that is meant. which: its program, or its folder or URL. options: of the command line."""
    if not is_url(which.run_dir):
        return RunDir(which.run_dir or newest_folder(which))
    if not _is_elsewhere(which, arguments):
        return RunDir(which.run_dir)
    from elasticflow.cli.by_url import resumed

    def begun() -> Config:
        return config.make(arguments.config, {**options, "program": which.program or None})

    only_look = getattr(arguments, "dry_run", False)
    preflight = getattr(arguments, "preflight", lambda settings: parse(settings.program))
    return resumed(which.run_dir, begun, RUNS, bool(new_program(arguments)), only_look, preflight)


def _is_elsewhere(chosen: Config, arguments: argparse.Namespace) -> bool:
    """Whether the URL of its folder is not that, as it is on YARN, but a place for its checkpoints."""
    backend = getattr(arguments, "on", None) or chosen.backend
    if getattr(arguments, "service", None) and backend == "local":  # that may be one on YARN
        return not is_hdfs(chosen.run_dir)
    return backend != "yarn"


def _same_weights(named: str, before: str) -> str:
    """Those with which the run that goes on has begun: a script may name them each time, others never."""
    if before and (named == before or os.path.abspath(named) == os.path.abspath(before)):
        return before
    raise ConfigError(
        f"--init-from {named}: is for a run that begins; one that goes on has its weights. Leave out "
        "--resume, and give it another --run-dir."
    )


def source_of_weights(named: str, trust: bool) -> str:
    """What ``--init-from`` names: a file, or a run's folder. Raises ConfigError, RunError."""
    if is_url(named) or os.path.isfile(named):
        return named if is_url(named) else os.path.abspath(named)
    return str(find_run(named, trust).path)


class TrainFolder:
    """A run's folder before its master has it: made ready, and put back as it was if nothing began."""

    def __init__(self, path: Path, chosen: Config, resume: bool, copy: Copy | None) -> None:
        self.run = RunDir(path)
        self._fresh = not resume
        self._made = [folder for folder in (path, *path.parents) if not folder.exists()]
        self._settings, self._is_ours = b"", False
        try:
            self._make_ready(path, chosen, resume, copy)
        except BaseException:
            if self._fresh and self._is_ours:
                self.put_back()
            raise

    def _make_ready(self, path: Path, chosen: Config, resume: bool, copy: Copy | None) -> None:
        run = self.run
        ours = run.settings.exists()
        if path.exists() and not ours and (not path.is_dir() or any(p != run.lock for p in path.iterdir())):
            raise RunError(f"{path}: is not empty, and not the folder of a run; choose another --run-dir.")
        lock = run.hold()
        try:
            if not resume and run.settings.exists():
                raise RunError(
                    f"{path}: holds a run already; go on with it by --resume, or choose another --run-dir."
                )
            if (job := run.host()) is not None:  # it was on a cluster, and goes on here
                if is_alive(run):
                    raise RunError(f"{path}: this run is under way, in job {job.id} ({job.backend}).")
                run.job.unlink()
            self._settings = run.settings.read_bytes() if resume else b""
            self._is_ours = True
            if copy:
                keep(run, copy)
            run.end_attempt()
            run.address.unlink(missing_ok=True)  # of a master that has ended; in a copy, of the original's
            run.create(msgspec.structs.replace(chosen, run_dir=str(path)))
        except OSError as error:
            raise RunError(f"{path}: cannot be written: {error.strerror}; {advice(error)}.") from error
        finally:
            os.close(lock)

    def put_back(self) -> None:
        """No master began: leaves nothing new behind, unless somebody else has the folder by now."""
        if not self._fresh:
            return self.forget()
        with contextlib.suppress(RunError, OSError), self._held():
            self.run.forsake()
            for path in self.run.folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            for path in self._made:
                path.rmdir()

    def forget(self) -> None:
        """It failed before its first step: a run that was resumed has the settings again that it had.

        The folder stays, with the logs, which say why.
        """
        if self._fresh:
            return
        with contextlib.suppress(RunError, OSError), self._held():
            replace(self.run.settings, self._settings)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        lock = self.run.hold()
        try:
            yield
        finally:
            os.close(lock)


def make_folder(chosen: Config, resume: bool) -> TrainFolder:
    """The folder that was named, or the first new one that nobody else takes at the same time."""
    chosen, copy = take(chosen)
    if chosen.run_dir:
        return TrainFolder(RunDir(chosen.run_dir).folder, chosen, resume, copy)
    while True:
        path = new_folder(chosen)
        try:
            return TrainFolder(path, chosen, resume, copy)
        except RunError:
            if new_folder(chosen) == path:
                raise


def train(arguments: argparse.Namespace) -> int:
    """Runs the program to its end; returns the exit code."""
    stamp_if_json(arguments.log_format or "", "train")
    if arguments.on:
        raise ConfigError(
            f"--on {arguments.on}: 'train' runs a program here, 'elasticflow submit' elsewhere."
        )
    if arguments.program and not arguments.resume:
        parse(arguments.program)
    chosen = settings(arguments)
    stamp_if_json(chosen.log_format, "train")
    load_backend(chosen.backend)
    if chosen.backend != "local" and not arguments.resume:
        raise ConfigError(
            f"backend: {chosen.backend}: 'train' runs a program here, 'elasticflow submit' elsewhere."
        )
    chosen = msgspec.structs.replace(chosen, backend="local")
    begun = begin(chosen, arguments.resume)
    with lasting_output(), os.fdopen(begun.hold, "wb"):
        return _accompany(begun.folder, begun.master)


class Launched(NamedTuple):
    """A run whose master is there. hold: see ``start_master``."""

    folder: TrainFolder
    master: subprocess.Popen[bytes]
    hold: int


def begin(chosen: Config, resume: bool) -> Launched:
    """Makes the folder ready, and starts the master. Raises ElasticFlowError, and leaves all as it was."""
    folder = make_folder(chosen, resume)
    try:
        return Launched(folder, *start_master(folder.run, resume))
    except BaseException:
        folder.put_back()
        raise


def _accompany(folder: TrainFolder, master: subprocess.Popen[bytes]) -> int:
    """Shows the run until its end."""
    run, stopping, whereabouts = folder.run, _Stopping(), Whereabouts(folder.run)
    try:
        with closing(whereabouts), Display() as display:
            if sys.stdout.isatty():
                display.line(f"{run.path}: {_how_to_leave(run)}")
            try:
                why = watch(run, display, lambda connection: stopping.interrupted(connection, display))
            except RunError:
                if not whereabouts.is_anothers():
                    raise
                why = ""
            if not run.path.exists() or whereabouts.is_anothers():
                master.wait()
                raise RunError(f"{run.path}: {why or whereabouts.story()}")
            wait_until_over(run)  # first, for that has an end: both master and supervisor hold the lock
            code = master.wait()
            report = run.read_report()
            if report:
                display.show(report)  # what happened after the last status that came
    except KeyboardInterrupt:
        end_at_once(run, master, whereabouts.is_anothers)
        if whereabouts.is_anothers():
            raise RunError(f"{run.path}: {whereabouts.story()}") from None
        raise RunError(
            f"{run.path}: ended at once; 'elasticflow train --resume --run-dir {run.path}' goes on from the "
            "last checkpoint."
        ) from None
    if report is None:
        left = (
            f"{run.path}: the master {how_it_ended(code)}, and left no report; "
            f"the last words in {run.master_log}: {last_line(run.master_log)}"
        )
        if code < 0:
            left += f"; go on with --resume: {run.resume_command}"
        if code not in set(EXIT_CODES.values()) - {0}:
            raise RunError(left)
        print(f"Error: {left}", file=sys.stderr)
        return code
    show_end(run, report)
    if report.first_step_s is None and report.state in FAILURES:
        folder.forget()
    return code if code in EXIT_CODES.values() else EXIT_CODES[report.state]


def _how_to_leave(run: RunDir) -> str:
    away = "goes on" if run.config().client_gone == "continue" else "ends so as well"
    return (
        f"Ctrl-C ends it with a checkpoint; if this terminal closes, it {away}. "
        f"'elasticflow attach {run.path}' shows it elsewhere."
    )


class _Stopping:
    """The first Ctrl-C drains and checkpoints, a second one ends the run."""

    def __init__(self) -> None:
        self._asked = False

    def interrupted(self, connection: Connection, display: Display) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        display.line("Ctrl-C: this step, a checkpoint, then the end. Once more to leave at once.")
        connection.insist(StopRequest(reason="stopped by Ctrl-C"))


def start_master(run: RunDir, resume: bool) -> tuple[subprocess.Popen[bytes], int]:
    """Starts the master's supervisor in a session of its own: the terminal's signals are for this process.

    Also returns a descriptor that nobody else holds: when it closes, however that comes, the master knows
    that this process is gone. Until the master has it, the run's lock is held here: whoever asks meanwhile is
    not told that the run is over. Raises RunError.
    """
    lock = run.hold()
    ready, said = os.pipe()
    hears, hold = os.pipe()
    command = [sys.executable, "-m", "elasticflow.master", str(run.path)]
    descriptors = ["--ready-fd", str(said), "--client-fd", str(hears), "--lock-fd", str(lock)]
    with os.fdopen(lock, "wb"), log_to_add_to(run.master_log) as log:
        master = subprocess.Popen(
            [*command, *descriptors, *(["--resume"] if resume else [])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[said, hears, lock],
            start_new_session=True,
        )
    # Otherwise a master that dies before it says anything would be waited for without end.
    os.close(said)
    os.close(hears)
    try:
        with os.fdopen(ready) as line:
            text = line.readline()
    except KeyboardInterrupt:
        os.close(hold)
        end_at_once(run, master)
        raise
    if text != "\n":
        os.close(hold)
        ended = how_it_ended(master.wait())
        raise RunError(
            text.strip()
            or f"the master did not start: it {ended}; its last words: {last_line(run.master_log)}"
        )
    return master, hold


def end_at_once(
    run: RunDir, master: subprocess.Popen[bytes], is_anothers: Callable[[], bool] = lambda: False
) -> None:
    """The master ends its members, and itself. Ctrl-C does not interrupt this.

    is_anothers: whether the folder is another run's, whose master it names then.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    master.terminate()
    try:
        master.wait(AT_ONCE_S)
    except subprocess.TimeoutExpired:  # the master hangs; its supervisor then tidies up
        with contextlib.suppress(RunError, ProcessLookupError):
            if is_anothers():
                os.killpg(master.pid, signal.SIGKILL)  # both are in a session of their own
            else:
                os.kill(read_address(run).pid, signal.SIGKILL)
        try:
            master.wait(AT_ONCE_S)
        except subprocess.TimeoutExpired:
            master.kill()
            master.wait()
    if not is_anothers():
        with contextlib.suppress(RunError, ProcessLookupError):  # where its supervisor was killed before
            os.kill(read_address(run).pid, signal.SIGTERM)
        wait_until_over(run)
    signal.signal(signal.SIGINT, before)
