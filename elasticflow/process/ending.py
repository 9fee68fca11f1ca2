"""How a process ended, in words for people."""

from __future__ import annotations

import contextlib
import signal


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
