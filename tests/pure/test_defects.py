"""``python -m benchmarks mutations`` is about the sources as they are."""

from __future__ import annotations

import ast
from pathlib import Path

from benchmarks.defects import DEFECTS

ROOT = Path(__file__).parents[2]


def test_each_defect_can_be_put_in() -> None:
    """Whoever changes a line of these says how it would be wrong now."""
    for defect in DEFECTS:
        source = (ROOT / defect.file).read_text(encoding="utf-8")
        assert source.count(defect.right) == 1, f"{defect.what}: {defect.right!r} in {defect.file}"
        ast.parse(source.replace(defect.right, defect.wrong))


def test_each_has_its_own_name() -> None:
    assert len({defect.what for defect in DEFECTS}) == len(DEFECTS)
