"""How a process ended, in words for people; and one that lets go of what it has when it is told to end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType


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


class _Ended(BaseException):
    """By SIGTERM."""


@contextlib.contextmanager
def letting_go() -> Iterator[None]:
    """Has SIGTERM leave what is done herein as an exception does, and end this process then.

    A second one ends it at once.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise _Ended

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except _Ended:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
