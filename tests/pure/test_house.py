"""What keeps the house in order: names that mean one thing, and documents that name files that are there."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("elasticflow", "ps/elasticflow_ps", "slurm/elasticflow_slurm", "yarn/elasticflow_yarn")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
DOCUMENTS = [
    path
    for pattern in ("*.md", "docs/*.md", "*/README.md", "tests/clusters/README.md")
    for path in sorted(ROOT.glob(pattern))
]
NAMED = re.compile(
    r"(?<![\w./-])((?:elasticflow|ps|slurm|yarn|tests|benchmarks|examples|conf|docs|e2e|pure|inprocess)/"
    r"(?:[\w./-]*\.(?:py|md|yaml|sbatch|toml|c|h|png)|[\w./-]*\btest_\w+))\b"
)
"""Files by their path, and tests, as documents name them: below ``tests``, and without an ending."""
MODULE = re.compile(r"``(elasticflow(?:_\w+)?(?:\.[a-z_]\w*)+)")
LOOSE = 8
"""So many modules may lie at the core package's root."""


def test_no_two_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert {name: at for name, at in homes.items() if len(at) > 1} == {}


def test_modules_lie_in_rooms() -> None:
    loose = [path.name for path in (ROOT / "elasticflow").glob("*.py") if path.name != "__init__.py"]
    assert len(loose) <= LOOSE, loose


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_documents_name_are_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    places = [ROOT, ROOT / "tests", document.parent]
    missing = [
        name
        for name in NAMED.findall(text)
        if not any((place / f"{name}{ending}").exists() for place in places for ending in ("", ".py"))
    ]
    assert missing == []


def test_modules_that_docstrings_name_are_there() -> None:
    missing = []
    for path in SOURCES:
        for name in MODULE.findall(path.read_text(encoding="utf-8")):
            package, _, rest = name.partition(".")
            home = next(ROOT / each for each in PACKAGES if each.endswith(package))
            parts = rest.split(".")
            places = [home.joinpath(*parts[:count]) for count in (len(parts), len(parts) - 1) if count]
            if not any(place.is_dir() or place.with_suffix(".py").exists() for place in places):
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []


def test_nothing_of_a_build_is_committed() -> None:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert not [name for name in names.splitlines() if name.endswith((".so", ".pyc", ".egg-info"))]
