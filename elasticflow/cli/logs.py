"""``elasticflow logs``: what a run's processes have written, and go on writing."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import os
import select
import sys
import time

import msgspec

from elasticflow.cli.folders import add_run_argument, find_shown
from elasticflow.cli.outside import shown_logs
from elasticflow.cluster.logbook import LogBook, log_book_of
from elasticflow.cluster.presence import Presence, presence_of
from elasticflow.errors import RunError
from elasticflow.process.stamps import record_of
from elasticflow.process.texts import harmless
from elasticflow.run.folder import RunDir

MASTERS = ("master", "leader")
"""The log that a run's master writes to: here, and in a cluster's job."""
ROLES = (*MASTERS, "server", "worker")
LONGEST = 1 << 16
"""A line of more bytes, such as garbage without an end, is shown in parts."""
FIRST_S, MOST_S = 0.25, 2.0
"""Between two looks at the files: first, and when nothing has come for a while."""
ALIVE_S = 5.0
"""Between two questions whether the run is over; a cluster's controller may have to answer them."""
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``logs``."""
    add_run_argument(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--role", choices=ROLES, help="only logs of these; master and leader are the same one")
    which.add_argument("--name", metavar="NAME", help="only this log, such as worker-3")
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the run is over")
    parser.add_argument("--json", action="store_true", help="each line as JSON, with its process")
    parser.add_argument("--lines", "-n", type=_count, metavar="N", help="begin with the last N lines of each")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of lines: 0, 1, 2, ...")
    return int(text)


def logs(arguments: argparse.Namespace) -> int:
    """Prints the logs of a run; 0 also where the reader of a pipe has had enough."""
    run, outside = find_shown(arguments.run, arguments.trust)
    if outside and arguments.follow:
        raise RunError(
            f"{run.path}: is somebody else's run, whose logs are shown as they are; leave out --follow."
        )
    with contextlib.closing(shown_logs(run) if outside else log_book_of(run)) as book:
        wanted = _Wanted(run, book, arguments.role, arguments.name, arguments.lines)
        wanted.check(arguments.follow)
        return _show(run, wanted, arguments)


def _show(run: RunDir, wanted: _Wanted, arguments: argparse.Namespace) -> int:
    names = wanted.names()
    is_one = arguments.name or arguments.role in MASTERS or (len(names) == 1 and not arguments.follow)
    in_colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    shown = _Json() if arguments.json else _Plain() if is_one else _Prefixed(in_colour)
    try:
        if arguments.follow:
            _follow(run, wanted, shown)
        else:
            if not wanted.show_new(shown):
                print(f"{run.path}: nothing is in the log of {', '.join(names)}.", file=sys.stderr)
            shown.end()
    except BrokenPipeError:
        with open(os.devnull, "wb") as nothing:  # what is buffered still is written at the process's end
            os.dup2(nothing.fileno(), sys.stdout.fileno())
    return 0


def _follow(run: RunDir, wanted: _Wanted, shown: _Plain) -> None:
    """A shared file system tells nobody what other machines write: it has to be looked at."""
    end, pause_s = _End(run), FIRST_S
    reader = select.poll()
    # With no events asked for, it still tells that the reader of a pipe has gone.
    reader.register(sys.stdout.fileno(), 0)
    while True:
        over = end.has_come()  # before the last look, so that it shows all
        pause_s = FIRST_S if wanted.show_new(shown) else min(2 * pause_s, MOST_S)
        if over:
            return shown.end()
        if reader.poll(1000 * pause_s):
            raise BrokenPipeError


class _End:
    """Whether a run is over, asked seldom."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._ask_s = run, float("-inf")
        self._presence: Presence = presence_of(run)

    def has_come(self) -> bool:
        if not self._run.report.exists() and time.monotonic() < self._ask_s:
            return False
        self._ask_s = time.monotonic() + ALIVE_S
        return not self._presence.is_alive()


class _Wanted:
    """The logs that were asked for. lines: of each that is there, only the last so many at first."""

    def __init__(
        self, run: RunDir, book: LogBook, role: str | None, name: str | None, lines: int | None
    ) -> None:
        self._run, self._book, self._role, self._name, self._lines = run, book, role, name, lines

    def check(self, follow: bool) -> None:
        """Raises RunError if there is nothing to show, now or later."""
        there = self._book.names()
        if self._name and self._name not in there:
            raise RunError(f"{self._run.path}: there is no log of {self._name!r}; {_listed(there)}.")
        if not follow and not there and not self._role:
            advice = f"'elasticflow status {self._run.path}' says how it goes."
            raise RunError(f"{self._run.path}: there is no log yet. {advice}")
        if not follow and not self.names():
            raise RunError(f"{self._run.path}: there is no log of a {self._role}; {_listed(there)}.")

    def names(self) -> list[str]:
        """Of the processes whose logs are there, and asked for."""
        return [name for name in self._book.names() if self._is_wanted(name)]

    def show_new(self, shown: _Plain) -> bool:
        """Whether there was anything."""
        names, news = self.names(), False
        for name in names:
            for piece in self._book.new(name, self._lines):
                shown.show(name, piece, names)
                news = True
        self._lines = None  # of a log that appears later, all is new
        sys.stdout.buffer.flush()
        return news

    def _is_wanted(self, name: str) -> bool:
        if self._name:
            return name == self._name
        role = name.partition("-")[0]
        return not self._role or role == self._role or (self._role in MASTERS and role in MASTERS)


def _listed(names: list[str]) -> str:
    return f"there are {', '.join(names)}" if names else "there are none"


class _Plain:
    """One log, as it is, but for what a terminal would obey."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")  # a piece may end anywhere

    def show(self, name: str, piece: bytes, names: list[str]) -> None:
        self._write(self._decoder.decode(piece))

    def end(self) -> None:
        self._write(self._decoder.decode(b"", final=True))
        sys.stdout.buffer.flush()

    def _write(self, text: str) -> None:
        sys.stdout.buffer.write(harmless(text).encode())


class _Lines(_Plain):
    """Whole lines of several logs."""

    def __init__(self) -> None:
        super().__init__()
        self._halves: dict[str, bytes] = {}
        """By log: a line that has not ended yet."""

    def show(self, name: str, piece: bytes, names: list[str]) -> None:
        *lines, half = (self._halves.get(name, b"") + piece).split(b"\n")
        while len(half) > LONGEST:
            lines.append(half[:LONGEST])
            half = half[LONGEST:]
        self._halves[name] = half
        self._show(name, [line.decode(errors="backslashreplace") for line in lines], names)

    def _show(self, name: str, lines: list[str], names: list[str]) -> None:
        raise NotImplementedError

    def end(self) -> None:
        for name, half in self._halves.items():
            if half:
                self.show(name, b"\n", list(self._halves))
        super().end()


class _Prefixed(_Lines):
    """Each line behind the name of its log."""

    def __init__(self, in_colour: bool) -> None:
        super().__init__()
        self._in_colour = in_colour

    def _show(self, name: str, lines: list[str], names: list[str]) -> None:
        prefix = self._prefix(name, max(map(len, names)))
        sys.stdout.buffer.write(b"".join(b"%s%s\n" % (prefix, harmless(line).encode()) for line in lines))

    def _prefix(self, name: str, width: int) -> bytes:
        text = f"{harmless(name):<{width}} | "
        if self._in_colour:
            number = list(self._halves).index(name)
            text = f"\x1b[{COLOURS[number % len(COLOURS)]}m{text}\x1b[0m"
        return text.encode(errors="backslashreplace")


class _Json(_Lines):
    """Each line a ``LogLine``, however it was written."""

    def _show(self, name: str, lines: list[str], names: list[str]) -> None:
        found = (msgspec.json.encode(record_of(line, name)) for line in lines)
        sys.stdout.buffer.write(b"".join(b"%s\n" % line for line in found))
