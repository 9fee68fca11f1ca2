"""How a run begins, or goes on, inside of its own job: what ``elasticflow lead`` does on every cluster."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from elasticflow.cli.resuming import program_of
from elasticflow.cli.train import OPTIONS, SWITCHES
from elasticflow.errors import ConfigError, RunError
from elasticflow.leading import patiently
from elasticflow.run import config
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir


def stem_of(arguments: argparse.Namespace) -> str:
    """The program's name, after which a run's folder is called that nobody has named. Raises ConfigError."""
    if not arguments.program:
        raise ConfigError("which program? Name a Python file that defines model() and forward().")
    return Path(arguments.program).stem


def settings_in_job(
    run: RunDir, arguments: argparse.Namespace, named: str, anew: str, *, moves: bool = False, **known: Any
) -> Config:
    """A run's settings. Raises ConfigError; RunError if there is a run in this folder that is not to go on.

    named: the program. anew: another one for a run that goes on, see ``program_of``. moves: whether the
    program lies in each job's own folder, whatever it was before. known: settings that nobody else may name.
    """
    if patiently(run.settings.exists) and not arguments.resume:
        raise RunError(
            f"{run.path}: holds a run already; go on with it by --resume, or choose another --run-dir."
        )
    options = {name: getattr(arguments, name) for name in (*OPTIONS, *SWITCHES)} | known
    before = msgspec.to_builtins(run.config()) if run.settings.exists() else None
    if before and arguments.resume:
        options |= program_of(run, before, named, anew)
    if named and (not before or (moves and not anew)):
        options["program"] = named
    return config.make(arguments.config, options, before)
