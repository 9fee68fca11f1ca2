"""Lines of logs begin with the time, so that those of several processes can be compared; or are JSON."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any, TextIO, cast

import msgspec

from elasticflow.errors import ConfigError
from elasticflow.process.decoding import from_json

FORMATS = ("text", "json")
FORMAT, PROCESS = "ELASTICFLOW_LOG_FORMAT", "ELASTICFLOW_LOG_PROCESS"
"""Of the environment: how lines are written, by this process and those that it starts, and in whose name."""
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d ")
"""Such as ``2026-11-23T08:50:00.123+01:00 ``."""
_LEVEL = re.compile(r"(?:\[[\d:]+\] )?(?:(?i:(error|warning|info|debug)\b)|\S*(?:Error|Exception): )")
LONGEST = 1 << 20
"""Characters of a line of JSON; what is longer is several."""


class LogLine(msgspec.Struct, frozen=True):
    """A line of a log. time: ISO 8601 with its zone, "": not known. stream: stdout or stderr."""

    time: str
    level: str = "info"
    process: str = ""
    stream: str = ""
    message: str = ""


def now() -> str:
    """The time with its zone, and a space."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds") + " "


def level_of(line: str) -> str:
    """What a line says of itself by its first word; info, where that is none of these."""
    found = _LEVEL.match(line)
    return (found[1] or "error").lower() if found else "info"


def record_of(line: str, process: str = "") -> LogLine:
    """A line of a log, without its end, however it was written. process: whose log it is in."""
    if line.startswith('{"time":'):
        with contextlib.suppress(msgspec.MsgspecError):  # the disk may have been full within it
            return from_json(line, LogLine)
    found = STAMP.match(line)
    message = line[found.end() :] if found else line
    return LogLine(found[0].strip() if found else "", level_of(message), process, "", message)


def unstamped(line: str) -> str:
    """The line as it was written."""
    if line.startswith('{"time":'):
        text = line.rstrip("\n")
        return record_of(text).message + line[len(text) :]
    found = STAMP.match(line)
    return line[found.end() :] if found else line


class Stamped:
    """A text stream whose lines begin with the time at which they were begun. For several threads."""

    def __init__(self, stream: TextIO, time: Callable[[], str] = now) -> None:
        self._stream, self._time = stream, time
        # What ends an object, or answers a signal, may print while this thread does.
        self._lock = threading.RLock()
        self._is_new = True

    def renew_lock(self) -> None:
        """In a child of a fork: another thread may have been writing, and is not here to let go."""
        self._lock = threading.RLock()

    @property
    def plain(self) -> TextIO:
        """The stream itself."""
        return self._stream

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


class JsonLines(Stamped):
    """A text stream whose lines are each a ``LogLine``, written whole: what leads to the same file, other
    streams, and processes that were forked, may write between two. What has no end is a line when the process
    ends, or after ``LONGEST`` characters."""

    def __init__(self, stream: TextIO, process: str, name: str, time: Callable[[], str] = now) -> None:
        super().__init__(stream, time)
        self._process, self._name = process, name
        self._half, self._since = "", ""
        atexit.register(self.end)

    def write(self, text: str) -> int:
        with self._lock:
            time = self._time()
            *lines, half = (self._half + text).split("\n")
            begun = self._since if self._half else time
            stamps = [begun, *([time] * len(lines))]
            while len(half) > LONGEST:
                lines, half = [*lines, half[:LONGEST]], half[LONGEST:]
                stamps.append(time)
            self._half, self._since = half, stamps[len(lines)]
            if lines:
                self._stream.write("".join(map(self._told, stamps, lines)))
                self._stream.flush()
        return len(text)

    def end(self) -> None:
        """Its half line is one."""
        if self._half:
            with contextlib.suppress(OSError, ValueError):  # nobody reads any more; it is closed
                self.write("\n")

    def isatty(self) -> bool:
        """Nothing is drawn in it."""
        return False

    @property
    def bare(self) -> JsonLines:
        """Itself: there is no terminal that would take commands."""
        return self

    def renew_lock(self) -> None:
        super().renew_lock()
        self._half = ""  # the parent will say it

    def _told(self, time: str, line: str) -> str:
        told = {
            "time": time.strip(),
            "level": level_of(line),
            "process": self._process,
            "stream": self._name,
            "message": line,
        }
        return f"{json.dumps(told)}\n"


def is_json(form: str = "") -> bool:
    """Whether lines are to be JSON by a setting, or, where it says nothing, by the environment."""
    return (form or os.environ.get(FORMAT)) == "json"


def check_format() -> None:
    """Raises ConfigError where the environment says what there is not."""
    if (form := os.environ.get(FORMAT, "")) not in ("", *FORMATS):
        raise ConfigError(f"{FORMAT}: {form!r}; allowed are {' and '.join(FORMATS)}.")


def stamp_if_json(form: str, process: str) -> None:
    """Has a command, which writes for people else, write JSON."""
    if is_json(form):
        stamp_output("json", process)


def stamp_output(form: str = "", process: str = "") -> None:
    """Has all that this process writes from now on be ``Stamped``, but for what libraries in C write.

    form: one of ``FORMATS``; "": as the environment says. process: in whose name; "": likewise. Those that it
    starts do the same.
    """
    for name, value in ((FORMAT, form), (PROCESS, process)):
        if value:
            os.environ[name] = value
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or (isinstance(stream, Stamped) and not is_json()):
            continue
        plain = stream.plain if isinstance(stream, Stamped) else stream
        own = os.environ.get(PROCESS, "")
        stamped = JsonLines(plain, own, name) if is_json() else Stamped(plain)
        setattr(sys, name, cast(TextIO, stamped))


def _renew_locks() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Stamped):
            stream.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)
