"""What the scripts of any cluster have in common: how a run's leader begins. Pure."""

from __future__ import annotations

import shlex

_AGAIN = """\
# What kills the master's supervisor starts it again: it goes on with all that still lives.
tries=0
until {command}; do
    code=$?
    [ $code -gt 128 ] && [ $((tries += 1)) -le 100 ] || exit $code
    sleep 1
done"""


def script_of(*parts: str) -> str:
    """Its parts one below the other; those that are empty are left out."""
    return "\n".join(part for part in parts if part) + "\n"


def lead_again(python: str, run_dir: str, resume: bool, *options: str) -> str:
    """Has ``elasticflow lead`` run until it ends by itself."""
    command = [python, "-m", "elasticflow.cli", "lead", *options, "--run-dir", run_dir]
    return _AGAIN.format(command=shlex.join([*command, *(["--resume"] if resume else [])]))
