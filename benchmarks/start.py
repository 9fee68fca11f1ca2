"""From the command to the first step, over what importing the framework takes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.cases import SMALL
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import job

ROUNDS = 5
COMMAND = "python -m benchmarks start"


def _import_s() -> float:
    since_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - since_s


def _first_step_s() -> float:
    """Until a worker has the version after the first step."""
    with job(SMALL, "--workers", 1, "--servers", 1, steps=16) as one:
        one.wait()
        timeline = one.only_timeline()
        return next(each.until_s for each in timeline if each.what == "waiting") - one.started_s


def run() -> Iterator[Figure]:
    """In turns."""
    imports, firsts = [], []
    for _ in range(ROUNDS):
        imports.append(_import_s())
        firsts.append(_first_step_s())
    first, bare = median(firsts), median(imports)
    note = f"{first - bare:+.3f} s"
    yield figure("first step / 'import torch'", first, "s", bare, COMMAND, note)
