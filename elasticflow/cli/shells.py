"""``elasticflow completion``: what has a shell complete verbs, options, their choices, and paths."""

from __future__ import annotations

import argparse

import shtab

from elasticflow.cli.verbs import parser, verbs_of

SHELLS = ("bash", "zsh", "tcsh", "fish")
_FOLDERS = ("DIR", "FOLDER", "RUN", "NAME|DIR", "VENV")
_FILES = ("FILE", "PROGRAM", "CONFIG", "OUT", "TRACE", "JOURNAL", "|FILE", "FILE|", "CONFIG|PROGRAM")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``completion``."""
    parser.add_argument("shell", choices=SHELLS, help='for bash: eval "$(elasticflow completion bash)"')


def completion(arguments: argparse.Namespace) -> int:
    """Prints a script for a shell."""
    print(script(arguments.shell))
    return 0


def script(shell: str) -> str:
    """Of all verbs and options there are."""
    whole = parser()
    for verb in verbs_of(whole).values():
        verb.fill_in()
        for each in (verb, *(verbs_of(verb).values())):
            for action in each._actions:
                _complete_paths(action)
    return shtab.complete(whole, shell)


def _complete_paths(action: argparse.Action) -> None:
    told = action.metavar if isinstance(action.metavar, str) else ""
    if action.choices is None and (told in _FOLDERS or told.startswith(("RUN|", "DIR|"))):
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    elif action.choices is None and any(part in told for part in _FILES):
        action.complete = shtab.FILE  # type: ignore[attr-defined]
