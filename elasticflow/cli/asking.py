"""What a script is told, also where a run cannot be asked, is not there, or left no report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from elasticflow.cluster.presence import Presence, how_it_ended
from elasticflow.errors import ElsewhereError, NoRunError, UnknownError
from elasticflow.process.retry import is_away
from elasticflow.process.texts import as_json
from elasticflow.run.folder import RunDir
from elasticflow.run.telling import Killed, Untold

UNKNOWN, ABSENT, ELSEWHERE = "unknown", "absent", "elsewhere"
"""States, in JSON, of what cannot be asked, of what is not there, and of a run whose folder is not here."""


@contextlib.contextmanager
def told(in_json: bool) -> Iterator[None]:
    """Has both told on stdout where that is to be JSON, beside the error.

    A storage that does not answer is an UnknownError as well.
    """
    try:
        try:
            yield
        except OSError as error:
            if not is_away(error):
                raise
            raise UnknownError(f"cannot be asked just now: {error}") from error
    except (NoRunError, UnknownError) as error:
        if in_json:
            print(formatted(Untold(state=_state_of(error), text=str(error))))
        raise


def _state_of(error: NoRunError | UnknownError) -> str:
    if isinstance(error, UnknownError):
        return UNKNOWN
    return ELSEWHERE if isinstance(error, ElsewhereError) else ABSENT


def formatted(value: Mapping[str, Any] | msgspec.Struct) -> str:
    """As JSON, for people too."""
    return msgspec.json.format(as_json(value)).decode()


def killed(run: RunDir, presence: Presence) -> Killed:
    """Of a run that is over and left no report."""
    end = presence.end()
    text = f"this run is over{how_it_ended(run, presence)}"
    return Killed(state="killed", text=text, cluster_end=end._asdict() if end else None)
