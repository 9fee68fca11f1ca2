"""What a process is doing just now, told by a thread of it that still runs: its threads' stacks.

Where even that thread does not get to run, since another hangs in C and does not let go of Python's lock,
``Alarm`` writes the stacks all the same: it waits in C.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

LOG = 2
"""The descriptor of a process's log."""
SHOWN = 30
"""So many frames of the main thread are told, the innermost."""


_of_alarms: set[str] = set()
"""Threads that the present alarm has begun: each time it is put off, another one."""


def write_all(why: str) -> None:
    """Writes the stacks of all threads into this process's log."""
    with suppress(OSError, ValueError):  # a full disk
        os.write(LOG, f"--- {time.strftime('%H:%M:%S')} {why}: what each thread does now\n".encode())
        faulthandler.dump_traceback(file=LOG, all_threads=True)
        os.write(LOG, b"---\n")


def main_stack(program: str) -> tuple[str, str]:
    """Where the main thread is: the innermost line of the user's program, else of all; and its stack."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "", ""
    frames = traceback.extract_stack(frame)
    of_program = [each for each in frames if program and _is_same(each.filename, program)]
    inner = (of_program or frames)[-1]
    where = f"{Path(inner.filename).name}, line {inner.lineno}, in {inner.name}: {inner.line}"
    return where, "".join(traceback.format_list(frames[-SHOWN:]))


def _is_same(filename: str, program: str) -> bool:
    return os.path.realpath(filename) == os.path.realpath(program)


class Alarm:
    """Writes all stacks into the log if ``put_off`` is not called for so many seconds."""

    def __init__(self, silent_s: float) -> None:
        self._silent_s, self._armed_s = silent_s, float("-inf")

    def put_off(self, now_s: float) -> None:
        """To be called often."""
        if self._silent_s and now_s >= self._armed_s + self._silent_s / 4:
            self._armed_s = now_s
            before = _threads()
            faulthandler.dump_traceback_later(self._silent_s, file=LOG)
            _of_alarms.clear()
            _of_alarms.update(set(_threads()) - set(before))

    def end(self) -> None:
        if self._silent_s:
            faulthandler.cancel_dump_traceback_later()


class Activity:
    """Whether a process does anything: a number that grows as long as any of its threads runs at all.

    A thread that waits, for a lock or for a word that never comes, does not run in the meantime. The thread
    that asks is left out, and so are those of ZeroMQ, which run because it sends, and those of ``Alarm``.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._number = 0

    def look(self) -> int:
        """The number by now. What began or ended in between is not counted."""
        now = {tid: turns for tid in _threads() if (turns := _turns(tid))}
        if any(self._known.get(tid, turns) != turns for tid, turns in now.items()):
            self._number += 1
        self._known = now
        return self._number


def num_threads() -> int:
    """Of this process, those included that only libraries know of: with more than one it cannot be forked."""
    return len(os.listdir("/proc/self/task"))


def thread_names() -> list[str]:
    """Of all but the one that asks, as the system has them: a library names its own."""
    own, task, names = str(threading.get_native_id()), Path("/proc/self/task"), list[str]()
    for tid in os.listdir(task):
        with suppress(OSError):  # it has just ended
            if tid != own:
                names.append((task / tid / "comm").read_text(encoding="utf-8", errors="replace").strip())
    return names


def _threads() -> list[str]:
    own = str(threading.get_native_id())
    with suppress(OSError):
        return [tid for tid in os.listdir("/proc/self/task") if tid != own and tid not in _of_alarms]
    return []


def _turns(tid: str) -> str:
    """How often a thread has given up a processor; "" for those that do not count."""
    with suppress(OSError):
        task = Path("/proc/self/task", tid)
        if not (task / "comm").read_text(encoding="utf-8", errors="replace").startswith("ZMQbg"):
            lines = (task / "status").read_text(encoding="utf-8", errors="replace").splitlines()
            return " ".join(line.split()[1] for line in lines if "ctxt_switches" in line)
    return ""
