"""Lines of logs begin with the time, so that those of several processes can be compared; or are JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, TextIO, cast

import msgspec

FORMATS = ("text", "json")
FORMAT, PROCESS = "ELASTICFLOW_LOG_FORMAT", "ELASTICFLOW_LOG_PROCESS"
"""Of the environment: how lines are written, by this process and those that it starts, and in whose name."""
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d ")
"""Such as ``2026-11-23T08:50:00.123+01:00 ``."""
_LEVEL = re.compile(r"(?:\[[\d:]+\] )?(?:(?i:(error|warning|info|debug)\b)|\S*(?:Error|Exception): )")
_END = '"}'
"""Of a line of JSON."""


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
        for rest in ("", _END):  # the process may have ended within it
            with contextlib.suppress(msgspec.MsgspecError):
                return msgspec.json.decode(line + rest, type=LogLine)
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
        self._lock = threading.Lock()
        self._is_new = True

    def renew_lock(self) -> None:
        """In a child of a fork: another thread may have been writing, and is not here to let go."""
        self._lock = threading.Lock()

    @property
    def plain(self) -> TextIO:
        """The stream itself."""
        return self._stream

    def write(self, text: str) -> int:
        if text:
            with self._lock:
                self._stream.write("".join(self._pieces(text, self._time())))
        return len(text)

    def _pieces(self, text: str, time: str) -> Iterator[str]:
        for number, line in enumerate(text.split("\n")):
            if number:
                if self._is_new:
                    yield self._head(time, "")
                yield self._tail()
                self._is_new = True
            if line:
                if self._is_new:
                    yield self._head(time, line)
                yield self._body(line)
                self._is_new = False

    def _head(self, time: str, line: str) -> str:
        """Of a line that begins so."""
        return time

    def _body(self, text: str) -> str:
        return text

    def _tail(self) -> str:
        return "\n"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Speaker:
    """Whose line has begun, of several streams that lead to one file."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holder: JsonLines | None = None


class JsonLines(Stamped):
    """A text stream whose lines are each a ``LogLine``. What comes of a line is written at once, in pieces.

    speaker: of this and other streams, whose half lines end where a line of this one begins.
    """

    def __init__(
        self, stream: TextIO, process: str, name: str, speaker: Speaker, time: Callable[[], str] = now
    ) -> None:
        super().__init__(stream, time)
        self._process, self._name, self._speaker = process, name, speaker

    def write(self, text: str) -> int:
        with self._speaker.lock:
            if text and self._speaker.holder not in (None, self):
                self._speaker.holder.end()
            super().write(text)
            self._speaker.holder = None if self._is_new else self
            if self._is_new:
                self._stream.flush()
        return len(text)

    def renew_lock(self) -> None:
        super().renew_lock()
        self._speaker.lock = threading.RLock()

    def end(self) -> None:
        """Its half line is one."""
        if not self._is_new:
            super().write("\n")
            self._stream.flush()

    def isatty(self) -> bool:
        """Nothing is drawn in it."""
        return False

    @property
    def bare(self) -> JsonLines:
        """Itself: there is no terminal that would take commands."""
        return self

    def _head(self, time: str, line: str) -> str:
        facts = {
            "time": time.strip(),
            "level": level_of(line),
            "process": self._process,
            "stream": self._name,
        }
        return json.dumps(facts)[:-1] + ', "message": "'

    def _body(self, text: str) -> str:
        return json.dumps(text)[1:-1]

    def _tail(self) -> str:
        return f"{_END}\n"


def is_json(form: str = "") -> bool:
    """Whether lines are to be JSON by a setting, or, where it says nothing, by the environment."""
    return (form or os.environ.get(FORMAT)) == "json"


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
    speaker = Speaker()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or (isinstance(stream, Stamped) and not is_json()):
            continue
        plain = stream.plain if isinstance(stream, Stamped) else stream
        own = os.environ.get(PROCESS, "")
        stamped = JsonLines(plain, own, name, speaker) if is_json() else Stamped(plain)
        setattr(sys, name, cast(TextIO, stamped))


def _renew_locks() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Stamped):
            stream.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)
