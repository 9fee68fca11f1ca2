"""A run's folder is removed under it, and another run begins at the same place before it looks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from .conftest import Run
from .processes import remove_under_way

OPTIONS = ("--batch-size", 64, "--workers", 2, "--checkpoint-every", 10)


@pytest.mark.parametrize("wakes", [signal.SIGCONT, signal.SIGKILL, None])
def test_who_comes_back_leaves_the_other_run_alone(
    start: Callable[..., Run], wakes: signal.Signals | None
) -> None:
    """Its master, which was frozen; or, where that is killed, its supervisor, which would begin another.

    Or, where it stays frozen, whoever presses Ctrl-C twice in its terminal.
    """
    calm = start("small_torch.py", "--epochs", 2, *OPTIONS).digest()
    first = start("small_torch.py", "--epochs", 50, *OPTIONS, name="run", shut=["step 20"])
    first.held_at("step 20")
    master = first.status().master.pid
    os.kill(master, signal.SIGSTOP)
    remove_under_way(first.path)
    second = start("small_torch.py", "--epochs", 2, *OPTIONS, name="run", shut=["step 15"])
    second.held_at("step 15")
    if wakes:
        os.kill(master, wakes)
    for _ in range(0 if wakes else 2):
        first.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            first.process.wait(1)
    code, output = first.wait()
    assert code == 1 and "is another run's by now: nothing more can be saved there" in output
    assert not first.dir.report.exists(), "it would be taken for that of the other run"
    assert second.status().num_faults == 0
    second.open("step 15")
    assert second.digest() == calm
    assert second.report().num_faults == 0
