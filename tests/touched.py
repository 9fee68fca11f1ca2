"""The tests next to what has changed since the last commit on ``main``: ``python -m tests.touched [BASE]``.

Those that import a changed module, or lie in a changed file; none that start clusters or whole runs. They get
a minute: what is nearest comes first, and with it the pure ones.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEAR = (
    "pure",
    "pretend",
    "simulation",
    "ps",
    "inprocess",
    "checkpoint",
    "data",
    "storage",
    "frameworks",
    "scheduler",
    "cli",
    "trackers",
    "openmetrics",
)
"""Folders of tests that need no cluster, nearest first."""
BUDGET = 40
"""So many files of tests at most."""
ALWAYS = ("tests/pure/test_house.py", "tests/simulation/test_histories.py")
FEW = {"ELASTICFLOW_HISTORIES": "100"}


def changed(base: str) -> set[Path]:
    """Python files that differ from the commit ``base``, new ones included."""
    asked = (["git", "diff", "--name-only", base], ["git", "ls-files", "--others", "--exclude-standard"])
    names = [name for command in asked for name in _said(*command).splitlines()]
    return {ROOT / name for name in names if name.endswith(".py") and (ROOT / name).exists()}


def _said(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _fork_of_main() -> str:
    """Where this branch left ``main``; where there is none, the last commit."""
    try:
        return _said("git", "merge-base", "HEAD", "main").strip()
    except subprocess.CalledProcessError:
        return _said("git", "rev-parse", "HEAD").strip()


def module_of(path: Path) -> str:
    """Its name, as imports have it."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    parts = parts[1:] if parts[0] in ("ps", "slurm", "yarn") else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """Modules, and names in them, that a file imports."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def near(files: set[Path]) -> list[str]:
    """Files of tests, nearest first."""
    modules = {module_of(path) for path in files}
    chosen = []
    for folder in NEAR:
        for test in sorted((ROOT / "tests" / folder).glob("test_*.py")):
            touches = len(imported(test) & modules)
            if test in files or touches:
                chosen.append((test not in files, -touches, NEAR.index(folder), str(test.relative_to(ROOT))))
    return [name for *_, name in sorted(chosen)[:BUDGET]]


def main() -> int:
    """Runs them; what pytest returns."""
    base = sys.argv[1] if len(sys.argv) > 1 else _fork_of_main()
    tests = list(dict.fromkeys([*ALWAYS, *near(changed(base))]))
    print(f"{len(tests)} files of tests next to what differs from {base[:12]}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-x", *tests]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **FEW}).returncode


if __name__ == "__main__":
    sys.exit(main())
