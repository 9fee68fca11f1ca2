"""``elasticflow sweep``: many runs of one program with other values each, and which of them is the best."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import queue
import re
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from elasticflow.checkpoint.place import below
from elasticflow.cli.asking import formatted
from elasticflow.cli.folders import RUNS
from elasticflow.cli.progress import scaled
from elasticflow.cli.report import remembered
from elasticflow.cli.terminal import lasting_output
from elasticflow.cli.train import settings
from elasticflow.cli.trials import ClusterTrials, LocalTrials, ServiceTrials, TrialNews, Trials
from elasticflow.cluster.presence import presence_of
from elasticflow.errors import ConfigError, ElasticFlowError, RunError, UnknownError
from elasticflow.process.ending import letting_go
from elasticflow.process.locked_files import has_left, hold
from elasticflow.process.packages import require
from elasticflow.process.texts import harmless
from elasticflow.program.copy import take
from elasticflow.program.loading import parse
from elasticflow.run import config
from elasticflow.run.config import Config
from elasticflow.run.folder import EXIT_CODES, RunDir
from elasticflow.run.telling import Report
from elasticflow.service.settings import folder_of
from elasticflow.storage.urls import is_url
from elasticflow.sweep.space import OneOf, Space, Value, as_text, read_space
from elasticflow.sweep.study import (
    FAILED,
    FINISHED,
    STORAGE_ERRORS,
    WAS_PRUNED,
    Goal,
    Study,
    ToldTrial,
    size_of_grid,
)

USUAL_TRIALS, USUAL_PARALLEL = 20, 4
SETTINGS = (
    "batch_size",
    "compression",
    "epochs",
    "max_steps",
    "mode",
    "seed",
    "slices",
    "staleness",
    "top_k",
)
"""What a space may name beside the program's arguments."""
STOPPED = "the sweep of trial"
"""What a run that ends with its sweep is told begins so."""
LOCK = "lock"
"""Of its folder: one process goes on with a sweep."""
UNTESTED = 'was never evaluated: does data() return a "test" source?'
COUNTS = (*SETTINGS, "args", "data", "drop_last", "evaluate_every", "init_from", "init_map", "init_optimizer")
"""Settings that decide what a trial comes to: one sweep has the same, but for what its space names."""


@letting_go()
def sweep(arguments: argparse.Namespace) -> int:
    """Begins a sweep, or goes on with it. 0: all trials are done; 1: none has finished; 3: stopped."""
    parse(arguments.program)
    space = read_space(arguments.space)
    _check_settings(space)
    goal = Goal(arguments.metric, arguments.goal or ("min" if arguments.metric == "cost" else "max"))
    for name, least in (("trials", 0), ("parallel", 0), ("max_failures", 1)):
        if getattr(arguments, name) < least:
            raise ConfigError(f"--{name.replace('_', '-')}: must be a number of trials.")
    if arguments.on and arguments.service:
        raise ConfigError("--on and --service: name one of them; a service knows its cluster.")
    points = size_of_grid(space) if arguments.sampler == "grid" else math.inf
    wanted = int(min(arguments.trials or (points if points < math.inf else USUAL_TRIALS), points))
    # Each trial has these, and this program, whatever becomes of the files meanwhile.
    chosen = settings(arguments, several=True)
    program_sha256 = take(msgspec.structs.replace(chosen, run_dir=""))[0].program_sha256
    chosen = msgspec.structs.replace(chosen, program_sha256=program_sha256)
    folder = Path(arguments.folder or RUNS / f"{Path(arguments.program).stem}-sweep").absolute()
    config.check_texts({"--folder": str(folder)})
    if arguments.plots:
        require("matplotlib", "--plots", "bench")
    url = arguments.storage or f"sqlite:///{folder}/study.db"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _held(folder) as lock, lasting_output():
            study = Study(
                url,
                folder.name,
                space,
                goal,
                {**_about(space, goal, arguments.count, chosen), "folder": _token(folder)},
                sampler=arguments.sampler,
                pruner=arguments.pruner,
                seed=chosen.seed,
            )
            return _accompany(Sweep(arguments, folder, lock, study, chosen, wanted))
    except STORAGE_ERRORS as error:
        place = re.sub("//[^@/]*@", "//", url)  # without a password
        why = str(error.__cause__ or error).partition("\n")[0]
        raise RunError(
            f"{place}: cannot be read or written: {why}. Runs that were begun go on; "
            "the same command finds them again."
        ) from error


def _check_settings(space: Space) -> None:
    """Raises ConfigError for what no run may be set to, whatever its other settings."""
    for name, rule in space.items():
        ends = rule.values if isinstance(rule, OneOf) else (rule.low, rule.high)
        for value in ends if name in SETTINGS else ():
            try:
                config.make(None, {name: value})
            except ConfigError as error:
                if isinstance(error.__cause__, msgspec.ValidationError):
                    raise ConfigError(f"--space {name}={rule}: {error}") from error


def _accompany(going: Sweep) -> int:
    """Until it is over, or somebody wants it to be."""
    try:
        going.run()
    except KeyboardInterrupt:
        going.stop()
        print(f"{going.folder}: stopped; the same command goes on with it.", file=sys.stderr)
        return EXIT_CODES["stopped"]
    finally:
        going.close()
        _tell(going.study, going.arguments)
    return 0 if going.study.best() else 1


def _about(space: Space, goal: Goal, count: str, chosen: Config) -> dict[str, Any]:
    """What all trials of a sweep have in common."""
    told = msgspec.to_builtins(chosen)
    fixed = {name: told[name] for name in COUNTS if name not in space}
    own = {"space": as_text(space), "metric": goal.metric, "goal": goal.mode, "count": count}
    return {**own, "program_sha256": chosen.program_sha256, **fixed}


def _token(folder: Path) -> str:
    """Of this folder alone, wherever it is moved: two folders are two sweeps, also in one --storage."""
    path = folder / "token"
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    return path.read_text()


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[int]:
    """Yields what is held. Raises RunError if another process goes on with this sweep just now."""
    try:
        lock = hold(folder / LOCK)
    except BlockingIOError as error:
        raise RunError(
            f"{folder}: another process goes on with this sweep; choose another --folder."
        ) from error
    try:
        yield lock
    finally:
        os.close(lock)


class Sweep:
    """Its trials that are under way, and what follows from what they tell."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        folder: Path,
        lock: int,
        study: Study,
        chosen: Config,
        wanted: int,
    ) -> None:
        self.arguments, self.folder, self._lock, self.study = arguments, folder, lock, study
        if chosen.checkpoint_dir:  # or trials of one number would meet there, of any sweep
            chosen = msgspec.structs.replace(chosen, checkpoint_dir=below(chosen.checkpoint_dir, str(folder)))
        self._settings, self._wanted = chosen, wanted
        self._news: queue.SimpleQueue[TrialNews] = queue.SimpleQueue()
        self._trials = self._place()
        self._parallel = arguments.parallel or (
            1 if isinstance(self._trials, LocalTrials) else USUAL_PARALLEL
        )
        self._runs: dict[int, RunDir] = {}
        self._followed: set[int] = set()
        """Of these; Ctrl-C may come at any time."""
        self._failed = 0
        """In a row."""

    def _place(self) -> Trials:
        arguments = self.arguments
        if arguments.service:
            most = self._settings.worker_range[1] if arguments.workers else 0
            return ServiceTrials(self._news.put, folder_of(arguments.service), most)
        backend = arguments.on or self._settings.backend
        if backend != "local":
            return ClusterTrials(self._news.put, backend)
        return LocalTrials(self._news.put, self.folder / "forkservers")

    def run(self) -> None:
        """Until all trials are done. Raises RunError if too many fail."""
        for number, values in self.study.under_way().items():
            self._begin(number, values)
        while True:
            while len(self._runs) < self._parallel and self.study.num_trials < self._wanted:
                self._begin(*self.study.ask())
            if not self._runs:
                return
            self._hear(self._news.get())

    def close(self) -> None:
        """Whatever goes on, nothing begins any more."""
        self._trials.close()

    def stop(self) -> None:
        """All that are under way commit a checkpoint and end, unless a service has them.

        Whoever goes on finds them as they are.
        """
        if self._trials.outlive:
            return
        for number, run in self._runs.items():
            with contextlib.suppress(ElasticFlowError):
                self._trials.stop(run, f"{STOPPED} {number} was stopped")
            if number not in self._followed:
                self._trials.follow(number, run)
        while self._runs:
            if (news := self._news.get()).is_over:
                self._runs.pop(news.trial, None)

    def _run_dir(self, number: int) -> str:
        base = self._settings.run_dir or str(self.folder)
        return f"{base}/trial-{number}" if is_url(base) else os.path.abspath(f"{base}/trial-{number}")

    def _begin(self, number: int, values: Mapping[str, Value]) -> None:
        """Begins a trial, or goes on with it. Raises RunError where another process may do so by now."""
        if has_left(self.folder / LOCK, self._lock):
            raise RunError(
                f"{self.folder}: was removed, moved or replaced while this sweep used it. "
                "Runs that were begun go on."
            )
        run = RunDir(self._run_dir(number))
        self._check_own(run, values)
        self.study.put(number, str(run.path))
        self._runs[number] = run
        try:
            if not run.settings.exists():
                self._say(number, f"begins: {_as_words(values)}")
                chosen = self._chosen(values)
                self._runs[number] = self._trials.begin(
                    msgspec.structs.replace(chosen, run_dir=str(run.path)), resume=False
                )
            elif not self._trials.is_under_way(run) and self._is_to_go_on(number, run):
                self._say(number, f"goes on: {_as_words(values)}")
                for each in _evaluations_before(run):
                    self._report(number, each)
                self._trials.go_on(run)
        except UnknownError:
            raise  # it may well go on, and be asked later
        except ElasticFlowError as error:
            self._news.put(TrialNews(number, is_over=True, text=str(error)))
        else:
            self._trials.follow(number, self._runs[number])
        self._followed.add(number)  # from now on it is told when that is over

    def _check_own(self, run: RunDir, values: Mapping[str, Value]) -> None:
        """Raises ConfigError if there is a run that is no trial with these values."""
        if not run.settings.exists():
            return
        found, chosen = run.config(), self._chosen(values)
        for name in ("args", "program_sha256", *(name for name in values if name in SETTINGS)):
            if (was := getattr(found, name)) != (now := getattr(chosen, name)):
                raise ConfigError(
                    f"{run.path}: is a run of something else: its {name} is {was}, that of this trial {now}. "
                    "Choose another --folder, and another --run-dir where that is given, or remove the run."
                )

    def _is_to_go_on(self, number: int, run: RunDir) -> bool:
        """Whether a run that is over was ended by the end of the sweep, or by somebody's kill."""
        report = run.read_report()
        return report is None or report.state == "stopped" and not self.study.is_pruned(number)

    def _chosen(self, values: Mapping[str, Value]) -> Config:
        """The settings of one trial. Raises ConfigError."""
        own = {name: value for name, value in values.items() if name in SETTINGS}
        args = {name: value for name, value in values.items() if name not in SETTINGS}
        return config.make(None, {**own, "args": args}, msgspec.to_builtins(self._settings))

    # --- what they tell --------------------------------------------------------------------------

    def _hear(self, news: TrialNews) -> None:
        if news.is_over:
            del self._runs[news.trial]
        elif news.text:
            self._say(news.trial, f"is waited for: {news.text}")
        evaluations = news.report.evaluations if news.report else news.evaluations
        promising = [self._report(news.trial, each) for each in evaluations]
        if news.is_over and self._is_to_begin_again(news):
            self._begin(news.trial, self.study.under_way()[news.trial])
        elif news.is_over:
            self._end(news.trial, news.report, news.text)
        elif not all(promising):
            self.study.prune(news.trial)
            with contextlib.suppress(ElasticFlowError):  # it is over by now, or tells again
                self._trials.stop(self._runs[news.trial], "pruned by the sweep")

    def _is_to_begin_again(self, news: TrialNews) -> bool:
        """Whether the sweep had been stopped, and was killed and begun again before the run had ended."""
        stopped = news.report is not None and news.report.state == "stopped"
        return stopped and news.text.startswith(STOPPED) and not self.study.is_pruned(news.trial)

    def _report(self, number: int, evaluation: Mapping[str, Any]) -> bool:
        """Whether it is worth to go on after that evaluation. Raises RunError without such a metric."""
        metric = self.study.goal.metric
        known = [name for name in evaluation if name not in ("epoch", "step")]
        if metric not in known:
            self.stop()
            raise RunError(f"--metric {metric}: the program's evaluations have {', '.join(known)}.")
        value = evaluation[metric]
        return value is None or not self.study.report(number, self._at(evaluation), float(value))

    def _at(self, evaluation: Mapping[str, Any]) -> int:
        """Which of a run's evaluations that is: trials are compared at the same one."""
        every = self._settings.evaluate_every
        return -(-int(evaluation["step"]) // every) if every else int(evaluation["epoch"])

    def _end(self, number: int, report: Report | None, text: str) -> None:
        state, value = FAILED, None
        if report and self.study.is_pruned(number) and report.state == "stopped":
            state = WAS_PRUNED
        elif report and report.state == "finished":
            value = self._value(number, report)
            state, text = (FINISHED, report.text) if value is not None else (FAILED, self._lack(report))
        self.study.end(number, state, value, text)
        self._failed = self._failed + 1 if state == FAILED else 0
        if state == FINISHED and value is not None:
            best = self.study.best()
            note = "; the best so far" if best and best.trial == number else ""
            self._say(number, f"finished: {self.study.goal.metric} {scaled(value)}{note}")
        else:
            self._say(number, f"{state}: {text}")
        begun = report is not None and report.first_step_s is not None or self.study.reported(number)
        never = not begun or text == UNTESTED
        if state == FAILED and (self._failed >= self.arguments.max_failures or never and not number):
            self.stop()
            others = f", and {self._failed - 1} before it" if self._failed > 1 else ""
            raise RunError(f"trial {number} failed{others}: {text}")

    def _value(self, number: int, report: Report) -> float | None:
        """What counts of a run that has ended well; None: nothing was measured, or it is no number.

        A report tells what came after the checkpoint that its run went on from: the study knows the rest.
        """
        goal = self.study.goal
        told = {self._at(each): each.get(goal.metric) for each in report.evaluations}
        known = sorted({**self.study.reported(number), **told}.items())
        counted = known[-1:] if self.arguments.count == "last" else known
        values = [float(value) for _, value in counted if value is not None]
        if not values:
            return None
        return max(values) if goal.mode == "max" else min(values)

    def _lack(self, report: Report) -> str:
        """Why there is nothing that counts."""
        return f"its {self.study.goal.metric} is no number" if report.evaluations else UNTESTED

    def _say(self, number: int, text: str) -> None:
        if not self.arguments.json:
            print(harmless(f"trial {number} {text}"), flush=True)


def _evaluations_before(run: RunDir) -> list[dict[str, Any]]:
    """What a run has told that goes on now: it does not tell again what was before its checkpoint."""
    with contextlib.suppress(RunError):  # it had not begun
        return (run.read_report() or remembered(run, presence_of(run))).evaluations
    return []


def _as_words(values: Mapping[str, Value]) -> str:
    shown = ((name, f"{v:.4g}" if isinstance(v, float) else v) for name, v in values.items())
    return " ".join(f"{name}={value}" for name, value in shown)


def _tell(study: Study, arguments: argparse.Namespace) -> None:
    """All trials, the best, and pictures if they are wanted."""
    trials, best = study.told(), study.best()
    if arguments.json:
        print(formatted({"trials": trials, "best": best.trial if best else None}))
    for each in () if arguments.json else sorted(trials, key=lambda one: _rank(one, study.goal)):
        value = "" if each.value is None else scaled(each.value)
        print(harmless(f"{each.trial:>5}  {each.state:<9}  {value:<10}  {_as_words(each.values)}"))
    try:
        files = study.draw(arguments.plots) if arguments.plots and best else []
    except (OSError, ValueError) as error:  # what matters has been told
        print(f"Warning: --plots {arguments.plots}: {error}", file=sys.stderr)
        files = []
    if arguments.json:
        return
    for file in files:
        print(file)
    if best:
        print(f"best: trial {best.trial}, {study.goal.metric} {scaled(best.value or 0.0)}: {best.run}")


def _rank(trial: ToldTrial, goal: Goal) -> tuple[bool, float]:
    value = trial.value if trial.state == FINISHED else None
    return value is None, 0.0 if value is None else -value if goal.mode == "max" else value
