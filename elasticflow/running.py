"""Runs from Python: what the command line does, for notebooks and scripts. See docs/python.md.

run = ef.train("prog.py", workers="1..4", epochs=3)
run.wait()
net = run.model()["net"]
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from elasticflow import checkpoint
from elasticflow.checkpoint import Manifest
from elasticflow.cli.by_url import placed
from elasticflow.cli.connection import Connection
from elasticflow.cli.folders import RUNS, find_run
from elasticflow.cli.runs import read_status, stop_run
from elasticflow.cli.train import begin, source_of_weights
from elasticflow.cluster.contract import load_cluster
from elasticflow.cluster.presence import is_alive
from elasticflow.errors import CheckpointError, ConfigError, RunError
from elasticflow.program import arguments
from elasticflow.program.copy import fetch
from elasticflow.program.loading import OPTIONAL, REQUIRED, load, parse
from elasticflow.program.notebook import source_of
from elasticflow.run import config
from elasticflow.run.config import Config
from elasticflow.run.folder import FAILURES, replace
from elasticflow.step.layout import Array
from elasticflow.wire.messages import ScaleRequest

T = TypeVar("T")
POLL_S = 0.5
Step: TypeAlias = int | Literal["best"] | None
"""Which checkpoint; None: the newest."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A committed one. digest: SHA-256 of the whole model, see ``elasticflow checkpoint digest``."""

    step: int
    epoch: int
    path: str
    digest: str


class Run:
    """A run, under way or over. place: its folder, or URL; on a cluster also its job's id or name.

    Raises RunError if there is none. trust: even if its folder belongs to somebody else.
    """

    def __init__(self, place: str | os.PathLike[str], *, trust: bool = False) -> None:
        self._run = find_run(os.fspath(place), trust)
        if not self._run.settings.exists():
            raise RunError(f"{self._run.path}: is not the folder of a run.")
        self._held: Any = None
        """What tells the master that whoever began the run is still there."""
        self._master: Any = None
        """Its process, if it was begun here: nobody else can see that it has ended."""

    @property
    def path(self) -> str:
        """Its folder, or URL."""
        return str(self._run.path)

    def __repr__(self) -> str:
        return f"Run({self.path!r})"

    def status(self) -> dict[str, Any]:
        """How it goes, or went: what ``elasticflow status --json`` prints (docs/schema)."""
        return dict(msgspec.to_builtins(read_status(self._run)))

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Waits until it is over, and returns its report (docs/schema).

        Raises RunError if it ended otherwise than by finishing or being stopped, TimeoutError if it goes on.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while is_alive(self._run):
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise TimeoutError(f"{self.path}: still goes on after {timeout_s:g} s")
            time.sleep(POLL_S)  # it may be on a cluster, which tells nobody
        if self._master is not None:
            self._master.wait()
            self._held.close()
        report = self._run.read_report()
        if report is None:
            raise RunError(f"{self.path}: is over, and left no report; its logs may say why.")
        if report.state in FAILURES:
            raise RunError(f"{self.path}: {report.state}: {report.text}")
        return dict(msgspec.to_builtins(report))

    @property
    def metrics(self) -> dict[str, list[Any]]:
        """All evaluations so far as a table, by column: epoch, step, cost, and what ``metrics()`` returns."""
        found = self.status().get("evaluations", [])
        names = dict.fromkeys(name for each in found for name in each)
        return {name: [each.get(name) for each in found] for name in names}

    def checkpoint(self, step: Step = None) -> Checkpoint:
        """The newest that is committed, or that of a step, or the best. Raises CheckpointError."""
        storage = self._run.checkpoints()
        manifest, digest = self._of(step, lambda manifest: (manifest, checkpoint.digest(storage, manifest)))
        path = f"{self._run.checkpoint_place}/{manifest.folder}"
        return Checkpoint(step=manifest.step, epoch=manifest.epoch, path=path, digest=digest)

    def weights(self, step: Step = None) -> dict[str, Array]:
        """All parameters, buffers and tables by name, as ``elasticflow export`` writes them."""
        storage = self._run.checkpoints()
        return self._of(step, lambda manifest: dict(checkpoint.tensors(storage, manifest)))

    def model(self, step: Step = None) -> dict[str, Any]:
        """What the program's ``model()`` returns, with the weights of a checkpoint (the newest).

        The framework's own modules, layers and tensors; rows of tables are in ``weights()``. The run's copy
        of its program is executed for that, in this process.
        """
        from elasticflow.frameworks.values import put_weights

        settings, weights = self._run.config(), self.weights(step)
        arguments.give(settings.args)
        program = load(settings.program, fetch(self._run, settings.program_sha256))
        values = program.model()
        put_weights(values, program.forward, weights)
        return values

    def export(self, file: str | os.PathLike[str], step: Step = None) -> None:
        """Writes the model to a file: see ``elasticflow export``."""
        from elasticflow.cli.exporting import export_run

        self._of(step, lambda manifest: export_run(self._run, manifest, os.fspath(file)))

    def scale(self, workers: int) -> None:
        """Has it go on with another number of workers."""
        with Connection(self._run) as connection:
            connection.ask(ScaleRequest(workers=workers))

    def stop(self) -> None:
        """Has it commit a checkpoint and end, and waits until it has; nothing, if it is over."""
        if is_alive(self._run):
            stop_run(self._run)

    def _of(self, step: Step, act: Callable[[Manifest], T]) -> T:
        return checkpoint.of_one(self._run.checkpoints(), lambda: self._manifest(step), act)

    def _manifest(self, step: Step) -> Manifest:
        storage = self._run.checkpoints()
        if step == "best":
            return checkpoint.load_best(storage)
        steps = checkpoint.commits(storage)
        if not steps or step not in (None, *steps):
            found = f"has {', '.join(map(str, steps))}" if steps else "has none that is committed"
            raise CheckpointError(
                f"{self.path}: {'no checkpoint' if step is None else f'step {step}'}: it {found}."
            )
        return checkpoint.load_manifest(storage, steps[-1] if step is None else step)


def train(
    program: str | os.PathLike[str] | None = None, *, settings_file: str | None = None, **given: Any
) -> Run:
    """Begins a run on this machine, in processes of its own, and returns at once.

    program: a file. given: without one the functions of a program by their names, ``model=`` and ``forward=``
    at least, whose source is written into a file below ``runs/``; and settings, as in conf/local.yaml, such
    as ``workers="1..4"`` and ``epochs=3``. settings_file: of more of them. The run ends as ``client_gone``
    says if this process does.
    Raises ConfigError, ProgramError, RunError.
    """
    chosen = placed(_chosen(program, settings_file, given), RUNS)
    begun = begin(msgspec.structs.replace(chosen, backend="local"), resume=False)
    run = Run(str(begun.folder.run.path))
    run._held, run._master = os.fdopen(begun.hold, "wb"), begun.master
    return run


def submit(
    program: str | os.PathLike[str] | None = None,
    *,
    on: str,
    settings_file: str | None = None,
    **given: Any,
) -> Run:
    """As ``train``, on a cluster: ``on="slurm"``, ``"yarn"`` or ``"kubernetes"``.

    Returns once the job is submitted.
    """
    chosen = msgspec.structs.replace(_chosen(program, settings_file, given), backend=on)
    chosen = chosen if on == "yarn" else placed(chosen, RUNS)
    _, folder = load_cluster(on, "submit").submit(chosen, False)
    return Run(str(folder))


def resume(place: str | os.PathLike[str], **settings: Any) -> Run:
    """Goes on with a run of this machine's from its newest checkpoint; settings: those that are to be
    others."""
    run = Run(place)
    if is_alive(run._run):
        raise RunError(f"{run.path}: this run is under way.")
    before = msgspec.to_builtins(run._run.config())
    chosen = config.make(None, _checked(settings), before)
    begun = begin(msgspec.structs.replace(chosen, run_dir=run.path, backend="local"), resume=True)
    run._held, run._master = os.fdopen(begun.hold, "wb"), begun.master
    return run


def _chosen(
    program: str | os.PathLike[str] | None, settings_file: str | None, given: Mapping[str, Any]
) -> Config:
    named = (*REQUIRED, *OPTIONAL)
    of_file = {name: value for name, value in given.items() if name in named and callable(value)}
    options = _checked({name: value for name, value in given.items() if name not in of_file})
    if program is not None:
        if of_file:
            raise ConfigError(f"{os.fspath(program)}: name a program's file, or its functions, not both.")
        options["program"] = os.path.abspath(program)
    elif of_file:
        if missing := {"model", "forward"} - of_file.keys():
            raise ConfigError(f"{min(missing)}: is not given; a program has model() and forward().")
        options["program"] = str(_written(source_of(of_file)))
    if options.get("init_from"):
        options["init_from"] = source_of_weights(os.fspath(options["init_from"]), trust=False)
    chosen = config.make(settings_file, options)
    if not chosen.program:
        raise ConfigError("which program? Name a file, or give the functions model= and forward=.")
    parse(chosen.program)
    return msgspec.structs.replace(chosen, program=os.path.abspath(chosen.program))


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    config.check_names(settings)
    return {name: os.fspath(v) if isinstance(v, os.PathLike) else v for name, v in settings.items()}


def _written(source: str) -> Path:
    """Named after what is in it, so the same functions are the same program."""
    name = hashlib.sha256(source.encode()).hexdigest()[:12]
    path = RUNS.resolve() / "programs" / f"session_{name}.py"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, source.encode())
    return path


__all__ = ["Checkpoint", "Run", "resume", "submit", "train"]
