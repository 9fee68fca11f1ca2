"""Processes that only compute, beside what is measured or tried: a machine that others use too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

SPIN = "import os\nwhile os.getppid() == {parent}:\n    for _ in range(10**6): pass"
"""Until the one who wanted it has gone, however that ends."""


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keeps so many cores busy, as far as there are so many."""
    with ExitStack() as ends:
        for _ in range(processes):
            process = ends.enter_context(
                subprocess.Popen([sys.executable, "-S", "-c", SPIN.format(parent=os.getpid())])
            )
            ends.callback(process.kill)
        yield
