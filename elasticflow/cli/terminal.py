"""Output that nobody may be there to read."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, TextIO, cast

from elasticflow.process.texts import harmless

SHOW_CURSOR, HIDE_CURSOR = b"\x1b[?25h", b"\x1b[?25l"


def stand_in_for_closed() -> None:
    """Where standard input, output or error are closed (``>&-``), what is written goes nowhere.

    Else the next file or socket that is opened would be taken for them.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))


class Lasting:
    """A text stream that can be written to for ever, also when its terminal or pipe is closed.

    A command that only shows something must not fail, or end, when nobody looks any more.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._let_go():
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._let_go():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _let_go(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            with open(os.devnull, "wb") as nothing:  # what is buffered still is written at the process's end
                os.dup2(nothing.fileno(), self._stream.fileno())


class Harmless:
    """A text stream to which other people's texts may be written: what a terminal would obey is escaped.

    Who has commands for the terminal writes them to ``bare(stream)``.
    """

    def __init__(self, stream: TextIO) -> None:
        self.bare = stream

    def write(self, text: str) -> int:
        self.bare.write(harmless(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bare, name)


def bare(stream: TextIO) -> TextIO:
    """The stream that takes commands for the terminal."""
    return getattr(stream, "bare", stream)


@contextlib.contextmanager
def harmless_output() -> Iterator[None]:
    """Has standard output and standard error be ``Harmless``."""
    out, err = (cast(TextIO, Harmless(bare(stream))) for stream in (sys.stdout, sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Has standard output and standard error last, see ``Lasting``; and ``Harmless`` they are too."""
    streams = (Lasting(bare(stream)) for stream in (sys.stdout, sys.stderr))
    out, err = (cast(TextIO, Harmless(cast(TextIO, stream))) for stream in streams)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


@contextlib.contextmanager
def cursor_given_back(terminal: int) -> Iterator[None]:
    """While the cursor is hidden there: it is shown where this process is stopped (Ctrl-Z) or ended.

    terminal: its descriptor. Signals that somebody handles or ignores are left alone.
    """

    def give_back(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(terminal, SHOW_CURSOR)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        signal.signal(number, give_back)  # it goes on
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(terminal) == os.getpgrp():  # in the foreground: else the cursor is the shell's
                os.write(terminal, HIDE_CURSOR)

    numbers: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        asked = (signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
        numbers = [number for number in asked if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, give_back)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
