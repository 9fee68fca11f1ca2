"""Texts that others have written, error messages above all, made fit to be sent, kept and shown.

An exception's text may be anything: gigabytes, or bytes that are no UTF-8, which Python carries in strings
as lone surrogates (``surrogateescape``) and refuses to encode.
"""

from __future__ import annotations

import io
import re
import sys
import time
from typing import Any

import msgspec

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
MOST_CHARS = 50_000
"""The longest text in a message: a traceback of a thousand lines."""
EVENT_CHARS = 1_000
"""The longest text of an event: a master keeps a thousand of them, and writes all of them down again and
again. What is left out is in the log of the process that told it."""


def clock_time(at_s: float | None) -> str:
    """Of a moment since 1970, for people here: the time of day, after the date if that is not today's."""
    if at_s is None:
        return ""
    there = time.localtime(at_s)
    today = time.strftime("%Y-%m-%d", there) == time.strftime("%Y-%m-%d")
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", there)


def with_clock_times(text: str) -> str:
    """Policies and services tell moments in seconds since 1970."""
    return re.sub(r"\b(\d{10})(?:\.\d+)? s\b", lambda found: clock_time(float(found[1])), text)


def sendable(text: str, most: int = MOST_CHARS) -> str:
    """The text with lone surrogates escaped (``\\udc80``), and what is too long cut out of its middle."""
    if len(text) > most:
        note = f" [... {len(text) - most:,} characters are left out here ...] "
        kept = max(0, most - len(note))
        text = text[: kept - kept // 2] + note + text[len(text) - kept // 2 :]
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def harmless(text: str) -> str:
    """The text with all that a terminal, or a reader's eye, would obey escaped, as in JSON (``\\u001b``).

    Control characters but for tabs and ends of lines, and what turns the direction of writing. Names of
    files, texts of exceptions and names of metrics are other people's, and may hold anything.
    """
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def all_sendable(value: Any) -> Any:
    """The same message, or part of one, with all texts in it ``sendable``."""
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **{name: all_sendable(each) for name, each in fields.items()})
    if isinstance(value, (tuple, list)):
        return type(value)(all_sendable(each) for each in value)
    if isinstance(value, dict):
        return {all_sendable(key): all_sendable(each) for key, each in value.items()}
    return value


def bear_any_text() -> None:
    """Has this process's output take any text, also where the terminal or the locale knows only some."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def as_json(value: Any) -> bytes:
    """JSON for files and scripts, whatever texts are in it."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(all_sendable(value))
