"""A real process that is told to end while it is in a long call of C."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PATIENCE_S = 30.0
AT_ONCE_S = 0.5
"""Milliseconds, on a machine that has nothing else to do."""
PROGRAM = """
import os, signal, sys, threading, time
from elasticflow.worker.notice import on_notice

def say(text):
    os.write(1, f"{text}\\n".encode())

on_notice(lambda text: say(f"{time.monotonic()} {text}"))
say("ready")
"""
LOCKED = textwrap.dedent("""
    import ctypes
    libc = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(256)
    libc.pthread_mutex_init(mutex, None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
""")
"""In C for ever: signals do not interrupt it, and none of Python's handlers runs."""
Run = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def run() -> Iterator[Run]:
    children: list[subprocess.Popen[bytes]] = []

    def start(rest: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", PROGRAM + rest]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        children.append(child)
        assert line_of(child) == "ready"
        return child

    yield start
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # and what it has forked
        child.communicate(timeout=PATIENCE_S)


def line_of(child: subprocess.Popen[bytes], timeout_s: float = PATIENCE_S) -> str:
    """What it says next, "" if nothing in time."""
    assert child.stdout is not None
    line = b""
    while not line.endswith(b"\n") and select.select([child.stdout], [], [], timeout_s)[0]:
        if not (byte := os.read(child.stdout.fileno(), 1)):
            break
        line += byte
    return line.decode().rstrip("\n")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (signal.SIGTERM, "it was told to end (SIGTERM): preempted, or cancelled"),
        (signal.SIGUSR1, "it was warned of its end (SIGUSR1)"),
    ],
)
def test_it_is_told_at_once_though_the_main_thread_is_in_c(
    run: Run, number: signal.Signals, text: str
) -> None:
    child = run(LOCKED)
    time.sleep(0.3)  # until it is there
    sent_s = time.monotonic()
    child.send_signal(number)
    told_s, _, told = line_of(child).partition(" ")
    assert told == text and float(told_s) - sent_s < AT_ONCE_S
    assert child.poll() is None, "it goes on"


def test_it_is_told_of_each(run: Run) -> None:
    child = run(LOCKED)
    time.sleep(0.3)
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
        child.send_signal(number)
        assert number.name in line_of(child)


def test_other_signals_do_what_they_did(run: Run) -> None:
    mine = "signal.signal(signal.SIGUSR2, lambda *_: say('mine')); say('set')"
    child = run(f"{mine}\nwhile True: signal.pause()")
    assert line_of(child) == "set"
    child.send_signal(signal.SIGUSR2)
    assert line_of(child) == "mine" and not line_of(child, 0.2)
    child.send_signal(signal.SIGINT)
    assert child.wait(PATIENCE_S) == -signal.SIGINT, "a KeyboardInterrupt that nobody caught"


def test_the_main_thread_is_not_disturbed(run: Run) -> None:
    child = run("time.sleep(0.5); say('slept'); sys.exit(3)")
    child.send_signal(signal.SIGTERM)
    assert "SIGTERM" in line_of(child)
    assert line_of(child) == "slept" and child.wait(PATIENCE_S) == 3


def test_it_does_not_hold_up_the_end_of_the_process(run: Run) -> None:
    assert run("").wait(PATIENCE_S) == 0


def test_programs_that_it_starts_can_be_ended(run: Run) -> None:
    """What a handler was set for is not inherited; what is ignored would be."""
    end = "child.terminate(); say(child.wait())"
    child = run(f"import subprocess; child = subprocess.Popen(['sleep', '600']); {end}")
    assert line_of(child) == str(-signal.SIGTERM)


def test_a_flood_of_signals_loses_none_for_good(run: Run) -> None:
    """A full pipe may lose some, the thread lives on."""
    child = run(LOCKED)
    time.sleep(0.3)
    for _ in range(200):
        child.send_signal(signal.SIGUSR1)
    time.sleep(0.2)
    while line_of(child, 0.3):
        pass
    child.send_signal(signal.SIGTERM)
    assert "SIGTERM" in line_of(child)


FORK = """
child = os.fork()
if not child:
    say("forked")
    {child}
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
{parent}
"""
"""As a framework's data loader does it."""


def test_what_is_forked_from_it_can_be_ended(run: Run) -> None:
    """And its end is not taken for the end of this one."""
    child = run(FORK.format(child="while True: signal.pause()", parent="time.sleep(0.3)"))
    assert line_of(child) == "forked"
    (forked,) = children_of(child.pid)
    os.kill(forked, signal.SIGTERM)
    assert line_of(child) == str(-signal.SIGTERM)
    assert line_of(child) == "", "nobody was told"
    assert child.wait(PATIENCE_S) == 0


def test_it_is_still_told_when_it_has_forked(run: Run) -> None:
    child = run(FORK.format(child="os._exit(0)", parent="while True: signal.pause()"))
    assert [line_of(child), line_of(child)] == ["forked", "0"]
    child.send_signal(signal.SIGTERM)
    assert "SIGTERM" in line_of(child)


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
