"""docs/backends.md shows what is in this folder."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"
SOURCES = [path.read_text().splitlines() for path in sorted(Path(__file__).parent.glob("*.py"))]


def test_what_the_page_shows_is_so() -> None:
    shown = [line[4:] for line in PAGE.read_text().splitlines() if line.startswith("    ") and line.strip()]
    there = {line for lines in SOURCES for line in lines}
    assert len(shown) > 10
    assert [line for line in shown if line not in there] == []
