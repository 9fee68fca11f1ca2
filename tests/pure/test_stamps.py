"""Lines of logs begin with the time, whoever writes them, and in however many pieces."""

from __future__ import annotations

import io
import itertools
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as some

from elasticflow.process.stamps import STAMP, Stamped, now, stamp_output, unstamped


@given(some.lists(some.text("ab\n\r\u2028", max_size=6)))
def test_each_line_has_one_stamp_and_nothing_else_changes(pieces: list[str]) -> None:
    written = io.StringIO()
    stream = Stamped(written, lambda: "T ")  # type: ignore[arg-type]
    for piece in pieces:
        assert stream.write(piece) == len(piece)
    *lines, rest = "".join(pieces).split("\n")
    expected = "".join(f"T {line}\n" for line in lines) + (f"T {rest}" if rest else "")
    assert written.getvalue() == expected


def test_a_line_has_the_time_at_which_it_was_begun() -> None:
    written, count = io.StringIO(), itertools.count()
    stream = Stamped(written, lambda: f"{next(count)} ")  # type: ignore[arg-type]
    for piece in ("be", "gun\n", "next\n"):
        stream.write(piece)
    assert written.getvalue().splitlines() == ["0 begun", "2 next"]


def test_threads_do_not_tear_each_others_lines() -> None:
    written = io.StringIO()
    stream = Stamped(written)  # type: ignore[arg-type]

    def write() -> None:
        for _ in range(500):
            stream.write("a whole line\n")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {unstamped(line) for line in written.getvalue().splitlines()} == {"a whole line"}


def test_the_stamp_is_iso_time_with_a_zone() -> None:
    assert STAMP.fullmatch(now()) and unstamped(f"{now()}Error: no") == "Error: no"
    assert unstamped("2026 was a year") == "2026 was a year"


def test_what_a_process_writes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    stamp_output()
    stamp_output()
    print("one\ntwo")
    print("three", file=sys.stderr)
    shown = capsys.readouterr()
    assert [unstamped(line) for line in shown.out.splitlines()] == ["one", "two"]
    assert STAMP.match(shown.err) and unstamped(shown.err) == "three\n"
