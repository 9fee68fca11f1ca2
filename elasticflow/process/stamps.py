"""Lines of logs begin with the time, so that those of several processes can be compared."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any, TextIO, cast

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d ")
"""Such as ``2026-11-23T08:50:00.123+01:00 ``."""


def now() -> str:
    """The time with its zone, and a space."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds") + " "


def unstamped(line: str) -> str:
    """The line as it was written."""
    found = STAMP.match(line)
    return line[found.end() :] if found else line


class Stamped:
    """A text stream whose lines begin with the time at which they were begun. For several threads."""

    def __init__(self, stream: TextIO, time: Callable[[], str] = now) -> None:
        self._stream, self._time = stream, time
        self._lock = threading.Lock()
        self._is_new = True

    def write(self, text: str) -> int:
        if text:
            with self._lock:
                stamp = self._time()
                first = stamp if self._is_new else ""
                self._is_new = text.endswith("\n")
                inner = text[:-1].replace("\n", f"\n{stamp}") + text[-1]
                self._stream.write(first + inner)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def stamp_output() -> None:
    """Has all that this process writes from now on be ``Stamped``, but for what libraries in C write."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Stamped):
            setattr(sys, name, cast(TextIO, Stamped(stream)))
