"""Which program a run goes on with: its own copy, unless another is named on purpose."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from elasticflow.errors import ConfigError, ProgramError
from elasticflow.program.copy import fetch, gather
from elasticflow.run.folder import RunDir
from elasticflow.storage.urls import is_url


def add_program_option(parser: argparse._ActionsContainer) -> None:
    """``--program``, for runs that go on."""
    text = "with --resume: go on with this file as it is now, and not with the run's copy; it is recorded"
    parser.add_argument("--program", dest="new_program", metavar="FILE", help=text)


def new_program(arguments: argparse.Namespace) -> str:
    """What ``--program`` names, "" if nothing. Raises ConfigError for a run that does not go on."""
    named: str | None = getattr(arguments, "new_program", None)
    if named and not arguments.resume:
        raise ConfigError(
            f"--program {named}: changes the program of a run that goes on, with --resume; a new run's is "
            "named without an option."
        )
    return os.path.abspath(named) if named else ""


def program_of(run: RunDir, before: Mapping[str, Any], named: str, anew: str) -> dict[str, str]:
    """The settings that say which program this run goes on with.

    named: the file on the command line, which says which run is meant. anew: that of ``--program``.
    Raises ConfigError if another program than the run's is named, but not on purpose.
    """
    place, sha256 = str(before["program"]), str(before.get("program_sha256", ""))
    if anew:
        return {"program": anew, "program_sha256": ""}
    if not sha256:  # of an ElasticFlow that kept no copies
        return {"program": named or place, "program_sha256": ""}
    if named:
        _compare(run, place, sha256, named)
        if not is_url(run.path) and not os.path.isfile(place):  # data may lie beside it
            place = named
    return {"program": place, "program_sha256": sha256}


def _compare(run: RunDir, place: str, sha256: str, named: str) -> None:
    """Says so if the file that was named is not the run's program."""
    with suppress(ProgramError):  # it may be gone, or broken by now: the copy is not
        now = gather(named)
        if now.sha256 == sha256:
            return
        copy = fetch(run, sha256)
        if now.program == copy.program:
            print(
                f"Note: {named} has changed since this run began ({copy.difference(now)}); it goes on with "
                f"its own copy. --program {named} takes the file as it is now.",
                file=sys.stderr,
            )
            return
    if os.path.basename(named) != os.path.basename(place):
        raise ConfigError(
            f"{named}: the run in {run.path} is of {os.path.basename(place)}; leave the program out to go on "
            f"with it, or change it on purpose by --program {named}."
        )
