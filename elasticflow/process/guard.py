"""Threads that cannot die unseen: what ends one of them by an error ends its whole process, loudly.

A thread that is gone leaves a process that looks alive: its heart beats, or it holds the run's lock, and all
wait for what it does not do any more. A process that ends is noticed by whoever started it: a member is
replaced, and its failure counted; a master is followed by another, until it has died too often; a command
ends with an error. So nothing in this project starts a ``threading.Thread`` by itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

EXIT_BROKEN_THREAD = 70
"""Exit code of a process in which a thread has died of an error: EX_SOFTWARE of sysexits.h."""


def guarded_thread(
    target: Callable[..., Any],
    name: str,
    *arguments: Any,
    broken: Callable[[], None] = lambda: os._exit(EXIT_BROKEN_THREAD),
) -> threading.Thread:
    """A thread that runs ``target``, not started yet; it does not hold up the end of its process.

    broken: called once the error that ended the thread is in the log.
    """

    def run() -> None:
        try:
            target(*arguments)
        except BaseException:  # noqa: BLE001  (whatever it is, nobody else would hear of it)
            complain(name)
            broken()

    return threading.Thread(target=run, name=name, daemon=True)


def complain(name: str) -> None:
    """Writes the error that is being handled into the log; its last line says what it was."""
    with contextlib.suppress(OSError, ValueError):  # a full disk, or nobody reads it: it ends all the same
        trace = traceback.format_exc().encode("utf-8", "backslashreplace").decode()
        print(f"the thread {name!r} of process {os.getpid()} has died:\n{trace}", end="", file=sys.stderr)
        sys.stderr.flush()
