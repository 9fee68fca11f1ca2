"""How a process ended, in words for people; and one that lets go of what it has when it is told to end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


def signal_name(number: int) -> str:
    """Such as SIGKILL; "": there is no signal of this number."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return ""


def how_it_ended(status: int) -> str:
    """To follow a process's name. status: its exit code, or -n where signal n ended it."""
    if status >= 0:
        return f"ended with exit code {status}"
    return f"was killed by {signal_name(-status) or f'signal {-status}'}"


def leave(code: int) -> NoReturn:
    """Ends this process without tidying up, even where its log takes no more words, as on a full disk."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


TWICE_S = 1.0
"""Who sends a signal to a process and to its group sends it twice at once."""


class _Ended(BaseException):
    """By SIGTERM."""


@contextlib.contextmanager
def letting_go() -> Iterator[None]:
    """Has SIGTERM leave what is done herein as an exception does, and end this process then.

    One that comes later than just after that, as those of ``timeout`` do, ends it at once.
    """
    told_s: list[float] = []

    def leave(number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if not told_s:
            told_s.append(now_s)
            raise _Ended
        if now_s > told_s[0] + TWICE_S:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except _Ended:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
