"""``elasticflow new`` and ``elasticflow example``: something to begin with."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import elasticflow
from elasticflow.errors import ConfigError

SKELETONS = Path(__file__).parent / "skeletons"
EXAMPLES = (
    Path(elasticflow.__file__).parent / "examples",
    Path(elasticflow.__file__).parents[1] / "examples",
)
"""Where they lie in an installed package, and beside the package in a checkout."""


def new(arguments: argparse.Namespace) -> int:
    """Writes a commented program, and says how to go on. Raises ConfigError if the file is there."""
    target = Path(arguments.file)
    if target.exists():
        raise ConfigError(f"{target}: is there already; name another file.")
    shutil.copyfile(SKELETONS / f"{arguments.kind}.py", target)
    print(f"{target}: try it by 'elasticflow check {target}', train it by 'elasticflow train {target}'")
    return 0


def example(arguments: argparse.Namespace) -> int:
    """Copies an example's folder here. Raises ConfigError if there is none of this name."""
    folder = next((each for each in EXAMPLES if each.is_dir()), None)
    known = (
        sorted(each.name for each in folder.iterdir() if each.is_dir() and each.name[0] not in "._")
        if folder
        else []
    )
    if not arguments.name:
        print("\n".join(known))
        return 0
    if arguments.name not in known or folder is None:
        raise ConfigError(
            f"example {arguments.name!r}: there is none; there are {', '.join(known) or 'none'}."
        )
    target = Path(arguments.name)
    if target.exists():
        raise ConfigError(f"{target}: is there already; go to another folder, or remove it.")
    shutil.copytree(
        folder / arguments.name, target, ignore=shutil.ignore_patterns("__pycache__", "data", "runs")
    )
    programs = sorted(
        path for path in target.glob("*.py") if "def model(" in path.read_text(encoding="utf-8")
    )
    print(f"{target}: train it by 'elasticflow train {programs[0] if programs else target}'")
    return 0
