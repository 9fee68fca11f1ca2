"""Lines of logs begin with the time, whoever writes them, and in however many pieces."""

from __future__ import annotations

import io
import itertools
import json
import os
import select
import signal
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as some

from elasticflow.process.stamps import (
    FORMAT,
    LONGEST,
    PROCESS,
    STAMP,
    JsonLines,
    LogLine,
    Stamped,
    level_of,
    now,
    record_of,
    stamp_output,
    unstamped,
)


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


def json_lines(pieces: list[str], process: str = "worker-1") -> str:
    written = io.StringIO()
    stream = JsonLines(written, process, "stdout", lambda: "T ")  # type: ignore[arg-type]
    for piece in pieces:
        assert stream.write(piece) == len(piece)
    return written.getvalue()


@given(some.lists(some.text(max_size=6) | some.text('a"\\\n\r\u2028\ud800', max_size=6)))
def test_each_line_is_a_json_object_in_however_many_pieces(pieces: list[str]) -> None:
    *lines, rest = json_lines(pieces).split("\n")
    *expected, half = "".join(pieces).split("\n")
    found = [json.loads(line) for line in lines]
    assert [each["message"] for each in found] == expected and not rest
    assert all(each["time"] == "T" and each["process"] == "worker-1" for each in found)


def test_a_line_of_json_has_the_time_at_which_it_was_begun_and_an_end() -> None:
    written, count = io.StringIO(), itertools.count()
    stream = JsonLines(written, "p", "stdout", lambda: f"{next(count)} ")  # type: ignore[arg-type]
    for piece in ("be", "gun\n", "next\nand\nno end"):
        stream.write(piece)
    stream.end()
    stream.end()
    stream.write("x" * (LONGEST + 1))
    found = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [(each["time"], each["message"][:6]) for each in found] == [
        ("0", "begun"),
        ("2", "next"),
        ("2", "and"),
        ("2", "no end"),
        ("4", "xxxxxx"),
    ]


def test_what_a_line_says_of_itself() -> None:
    for line, level in (
        ("warning: the disk is full", "warning"),
        ("Error: no", "error"),
        ("ValueError: no", "error"),
        ("torch.OutOfMemoryError: no", "error"),
        ("[1:02:03] Warning: worker-1 has died", "warning"),
        ("errors of yesterday", "info"),
        ("epoch 1/3", "info"),
        ("", "info"),
    ):
        assert level_of(line) == level
        assert json.loads(json_lines([line, "\n"]))["level"] == level


def test_a_line_of_json_is_read_again() -> None:
    line = json_lines(['Error: "no"\n'])
    assert unstamped(line) == 'Error: "no"\n'
    assert record_of(line.strip()) == LogLine("T", "error", "worker-1", "stdout", 'Error: "no"')
    assert record_of(f"{now()}Error: no", "master").level == "error"
    cut = line[:20]
    assert record_of(cut, "master") == LogLine("", "info", "master", "", cut)
    assert record_of("from a library in C", "master").message == "from a library in C"


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_child_that_was_forked_while_another_thread_wrote(
    form: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in (FORMAT, PROCESS):
        monkeypatch.setenv(name, "")
    with capfd.disabled(), open(os.devnull, "w") as nothing:
        monkeypatch.setattr(sys, "stdout", nothing)
        monkeypatch.setattr(sys, "stderr", sys.stdout)
        stamp_output(form)
        writing, forked = threading.Event(), threading.Event()
        inner = sys.stdout.plain.write  # type: ignore[attr-defined]

        def slow(text: str) -> int:
            writing.set()
            forked.wait(60)
            return int(inner(text))

        monkeypatch.setattr(sys.stdout.plain, "write", slow)  # type: ignore[attr-defined]
        thread = threading.Thread(target=print, args=("held",))
        thread.start()
        writing.wait(60)
        if not (pid := os.fork()):
            forked.set()
            print("of the child")
            os._exit(7)
        forked.set()
        thread.join()
        with os.fdopen(os.pidfd_open(pid)) as child:
            if not select.select([child], [], [], 60)[0]:
                os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_process_turns_to_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    for name in (FORMAT, PROCESS):
        monkeypatch.setenv(name, "")
    stamp_output()
    stamp_output("json", "server-1")
    stamp_output()  # as those that it starts do
    print("warning: one")
    print("two", file=sys.stderr)
    shown = capsys.readouterr()
    assert record_of(shown.out.strip()).process == "server-1" and not sys.stdout.isatty()
    assert record_of(shown.out.strip()).level == "warning"
    assert record_of(shown.err.strip()).stream == "stderr" and unstamped(shown.err) == "two\n"
