"""What keeps the house in order: names that mean one thing, and documents that name files that are there."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

import elasticflow
from elasticflow.api import OPTIMIZERS

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "elasticflow",
    "kubernetes/elasticflow_kubernetes",
    "ps/elasticflow_ps",
    "slurm/elasticflow_slurm",
    "yarn/elasticflow_yarn",
)
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
WORDS = 30
"""So many words of our own may have to be learned."""
LINES, ATTRIBUTES = 400, 15
"""A class with more has another in it that deserves a name."""


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


def test_the_table_of_rooms_has_them_all() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (ROOT / "elasticflow").glob("*/__init__.py")}
    assert rooms == {
        room for row in re.findall(r"^\|(.*?)\|", text, re.M) for room in re.findall(r"`(\w+)/`", row)
    }


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


def test_few_words_are_our_own() -> None:
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    own = re.search(r"## Our own\n(.*?)\n## ", text, re.DOTALL)
    assert own and len(re.findall(r"\*\*.+?\*\*", own[1])) <= WORDS


def test_no_class_is_large() -> None:
    large = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                lines, attributes = (node.end_lineno or 0) - node.lineno + 1, _attributes(node)
                if lines > LINES or len(attributes) > ATTRIBUTES:
                    large.append(f"{node.name}: {lines} lines, {len(attributes)} attributes")
    assert large == []


def _attributes(cls: ast.ClassDef) -> set[str]:
    """What its methods assign to ``self``."""
    methods = [node for node in cls.body if isinstance(node, ast.FunctionDef)]
    statements = [node for method in methods for node in ast.walk(method)]
    targets: list[ast.expr] = [t for node in statements if isinstance(node, ast.Assign) for t in node.targets]
    targets += [node.target for node in statements if isinstance(node, (ast.AnnAssign, ast.AugAssign))]
    flat = [
        each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]
    return {
        each.attr
        for each in flat
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self"
    }


def test_names_that_people_use_are_told_alike() -> None:
    """``from elasticflow import *``, what an error lists, and what is there."""
    homes = {name for names in elasticflow._HOMES.values() for name in names}
    assert homes | {"data", "lr", "metrics"} == set(elasticflow.__all__)
    assert {*OPTIMIZERS, "Groups"} <= homes
