"""A word from the cluster that this process must end soon: SIGTERM, or SIGUSR1 where a site warns by that."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from elasticflow.process.guard import guarded_thread

SIGNALS = {
    signal.SIGTERM: "it was told to end (SIGTERM): preempted, or cancelled",
    signal.SIGUSR1: "it was warned of its end (SIGUSR1)",
}


def on_notice(tell: Callable[[str], None]) -> None:
    """Has ``tell`` called, in a thread of its own and at once, with each signal's text.

    To be called in the main thread. Python handles signals between two of its instructions there, and one
    may take a minute in the framework; what the kernel writes into a pipe can be read before.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in SIGNALS:
        # Into the pipe Python writes only signals that have a handler of its own.
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def read() -> None:
        while data := os.read(reader, 1):
            if text := SIGNALS.get(signal.Signals(data[0])):
                tell(text)

    guarded_thread(read, "notice").start()
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """In what is forked from this process, such as a data loader's: who ends it does not mean this one."""
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
