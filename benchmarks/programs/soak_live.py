"""Has a worker write each interval of its timeline at once: one that is killed leaves it behind."""

import contextlib
import json
import os
from pathlib import Path

from elasticflow.worker.timeline import Timeline

FOLDER = os.environ.get("SOAK_TIMELINES", "")
SLICE_S = float(os.environ.get("SLICE_S", "0"))
RECORDS, TESTS = 3200, 128
_files = {}
_add = Timeline.add


def _file():
    """One a worker, by its name. One more worker of that name, after a restart of all, adds to it."""
    pid = os.getpid()
    if pid not in _files:
        name = Path("/proc/self/comm").read_text(encoding="utf-8").strip()
        path = Path(FOLDER, f"{name.removeprefix('ef-')}.jsonl")
        _files[pid] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    return _files[pid]


def add_and_write(self, what, tick, since_s, **more):
    now_s = _add(self, what, tick, since_s, **more)
    with contextlib.suppress(OSError):  # a full disk costs the benchmark a line, not the run a worker
        os.write(_file(), json.dumps((what, tick, since_s, now_s)).encode() + b"\n")
    return now_s


if FOLDER:
    Timeline.add = add_and_write
