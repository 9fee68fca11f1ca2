"""What is shown of a run, and what happens when nobody looks."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as some

from elasticflow.cli.progress import Display, figures, scaled
from elasticflow.cli.runs import as_text
from elasticflow.cli.terminal import HIDE_CURSOR, SHOW_CURSOR, cursor_given_back, lasting_output
from elasticflow.master.actions import NoteAction
from elasticflow.master.members import Member, MemberState
from elasticflow.process.gpu_state import GpuState
from elasticflow.run.telling import Status
from elasticflow.wire.messages import Share

from ..telling import Told


def noted(told: Told, *texts: str) -> Status:
    for text in texts:
        told.story.note(NoteAction("info", text))
    return told.status()


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The events that were shown."""
    return [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines() if line.startswith("[")]


def test_events_are_shown_once_also_where_masters_repeat_them(capsys: pytest.CaptureFixture[str]) -> None:
    """The second master remembers all but the last of the first."""
    told, display = Told(), Display(recall=2)
    display.show(noted(told, "a", "b", "c"))
    assert shown(capsys) == ["b", "c"]
    display.show(noted(told.after(1), "d", "d again"))
    before = told.story.remembered()
    display.show(noted(told, "lost"))
    told.begin(before)
    told.after(1)
    display.show(told.status())
    display.show(noted(told, "e"))
    assert shown(capsys) == ["d", "d again", "lost", "e"]
    display.close()


def test_an_evaluation_is_shown_once_though_the_run_goes_back(capsys: pytest.CaptureFixture[str]) -> None:
    told, display = Told(), Display()
    for tick in (10, 21, 10, 21, 32):
        told.progress(tick + 1, evaluations=((tick, (0.5, 0.5)),))
        display.show(told.status())
    lines = [line for line in capsys.readouterr().out.splitlines() if ": test" in line]
    begins = [f"epoch {number}, step {10 * number}" for number in (1, 2, 3)]
    assert [line.split(":")[0] for line in lines] == begins


@given(some.lists(some.integers(0, 5), max_size=20))
def test_no_event_is_shown_twice_or_left_out(counts: list[int]) -> None:
    told, lines, number = Told(), [], 0
    display = Display()
    display.line = lines.append  # type: ignore[method-assign]
    for count in counts:
        told.after(count % 2)
        display.show(noted(told, *[f"event {number + each}" for each in range(count)]))
        number += count
    told_of = [line.partition("] ")[2] for line in lines if line.startswith("[")]
    assert told_of == [f"event {each}" for each in range(number)]


def test_what_a_worker_has_of_each_step_is_shown() -> None:
    told = Told()
    told.state.has("worker-1", "worker-2")
    told.state.plan = (Share("worker-1", 0, 3), Share("worker-2", 3, 4))
    told.state.workers[0].slice_s = 0.0125
    plain = as_text(told.status())
    assert ", 3 slices of 12.5 ms" in plain and plain.count("slices") == 1, "of the other it is not known"


def test_what_is_not_as_always_is_shown() -> None:
    told = Told()
    told.state.has("worker-1", "worker-2")
    told.state.row.names, told.state.row.chunks = ["server-0", "server-1"], ((0, 1), ())
    servers = [Member(name, "server", MemberState.READY, 0.0) for name in ("server-0", "server-1")]
    workers = told.state.workers
    told.state.of = lambda role: workers if role == "worker" else servers
    plain = as_text(told.status())
    assert "servers 1" in plain and "server-1" in plain and "stands by" in plain
    assert not any(word in plain for word in ("regrouping", "dropped", "refused", "faults", "storage"))
    told.state.regrouping = True
    told.state.troubles = {"server-0": "no space left"}
    told.fault("server-1")
    status = told.story.status(told.state, incarnation=3, dropped=4, refused=5)
    assert "servers 1, regrouping" in figures(status)
    for words in (
        "number 3, 4 messages dropped, 5 connections refused",
        "faults: 2",
        "server-0: no space left",
    ):
        assert words in as_text(status), as_text(status)


def test_output_that_nobody_reads_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with lasting_output():
            print("to somebody", flush=True)
            assert os.read(reading, 100) == b"to somebody\n"
            os.close(reading)
            print("to nobody", flush=True)
            with Display() as display:
                display.line("nor this")
            print("nor this, which is still in a buffer at the end")
        assert sys.stdout is stream


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.11937, "1.1194"),
        (0.0, "0.0000"),
        (6.931e-8, "6.931e-08"),
        (-2.5e9, "-2.5e+09"),
        (0.00123, "0.0012"),
    ],
)
def test_small_and_large_losses_keep_their_digits(value: float, text: str) -> None:
    assert scaled(value) == text


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (
            GpuState(
                name="H100",
                busy=0.98,
                memory_bytes=61 * 10**9,
                memory_total_bytes=80 * 10**9,
                power_w=640.0,
                temperature_c=66,
                clock_mhz=1980,
            ),
            "H100: 98% busy, 61.0 GB of 80.0 GB, 640 W, 66 C, 1980 MHz",
        ),
        (GpuState(name="A2", busy=0.0, slowed="by heat"), "A2: slowed by heat, 0% busy"),
        (GpuState(name="A2", trouble="Xid 79", slowed="by heat"), "A2: Xid 79; slowed by heat"),
        (GpuState(name="A2"), "A2"),
    ],
)
def test_what_a_gpu_knows_of_itself_is_shown(gpu: GpuState, words: str) -> None:
    told = Told()
    told.state.has("worker-1")
    told.state.workers[0].gpu = gpu
    (line,) = (line for line in as_text(told.status()).splitlines() if "worker-1" in line)
    assert line.endswith(f", {words}")


@pytest.fixture
def stopped_by_default() -> Iterator[None]:
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTSTP, before)


@pytest.mark.parametrize("foreground", [True, False])
def test_who_is_stopped_shows_the_cursor_until_he_is_in_the_foreground_again(
    foreground: bool, stopped_by_default: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, other = pty.openpty()
    with contextlib.ExitStack() as at_end:
        at_end.callback(os.close, terminal)
        at_end.callback(os.close, other)
        stops: list[bytes] = []

        def stop(number: int) -> None:
            assert signal.getsignal(number) is signal.SIG_DFL
            stops.append(os.read(terminal, 100))

        monkeypatch.setattr(signal, "raise_signal", stop)
        monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() if foreground else 1)
        with cursor_given_back(other):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTSTP)
            os.write(other, b".")
            assert os.read(terminal, 100).endswith((HIDE_CURSOR if foreground else b"") + b".")
        assert stops[0] == SHOW_CURSOR
        assert len(stops) == 2, "also the next time"
        assert signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_so(stopped_by_default: None) -> None:
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    with cursor_given_back(1):
        assert signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN
