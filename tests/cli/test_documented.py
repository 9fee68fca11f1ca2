"""What the documentation has people type is known to the command line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from elasticflow.cli.verbs import parser

ROOT = Path(__file__).parents[2]
PATTERNS = ("README.md", "*/README.md", "examples/*/*.md", "docs/*.md")
PAGES = [page for pattern in PATTERNS for page in ROOT.glob(pattern)]
COMMAND = re.compile(r"(?m)(?:^ *(?:\$ )?|`)(elasticflow [a-z][^`\n]*)")
NO_COMMAND = re.compile(r"[][|…{}]|\.\.\.|\\$")
"""A pattern of several, or the beginning of one."""
ENDS = re.compile(r" {3}| [#&>]")
UNKNOWN = ("unrecognized arguments", "invalid choice")


def commands_of(page: Path) -> list[str]:
    found = [ENDS.split(command)[0].strip() for command in COMMAND.findall(page.read_text())]
    return [command for command in found if not NO_COMMAND.search(command)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_verbs_and_options_are_there(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Words in the place of numbers, and what is left out, are no mistakes."""
    for command in commands_of(page):
        try:
            parser().parse_args(shlex.split(command)[1:])
        except SystemExit:
            told = capsys.readouterr().err
            assert not any(words in told for words in UNKNOWN), f"{command}: {told}"


def test_commands_are_found() -> None:
    assert sum(len(commands_of(page)) for page in PAGES) > 100
