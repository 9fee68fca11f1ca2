"""Arrays go through memory or over TCP, while others are computed or after that: the same digest."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Run

OPTIONS = ("--epochs", 2, "--batch-size", 16, "--slices", 4)
STEPS = 2 * 20
MIDDLE, LATE = "step 20", f"step {STEPS - 6}"


def config(folder: Path, *, shared: bool, overlap: bool) -> list[object]:
    path = folder / "ways.yaml"
    path.write_text(
        f"shared_memory: {str(shared).lower()}\noverlap: {str(overlap).lower()}\nsnapshot_s: 0.1\n"
    )
    return ["--config", path]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of one worker and one server, by TCP, one thing after the other."""
    folder = tmp_path_factory.mktemp("plain")
    options = config(folder, shared=False, overlap=False)
    with Run(folder / "run", "wide_torch.py", *OPTIONS, *options, "--workers", 1) as run:
        return run.digest()


@pytest.mark.parametrize(("shared", "overlap"), [(True, True), (True, False), (False, True)])
def test_killed_and_stopped(
    start: Callable[..., Run], plain: str, tmp_path: Path, shared: bool, overlap: bool
) -> None:
    """Of three workers one is stopped and goes on later, one is killed, and then a server."""
    options = config(tmp_path, shared=shared, overlap=overlap)
    run = start("wide_torch.py", *OPTIONS, *options, "--workers", 3, "--servers", 2, shut=[MIDDLE, LATE])
    run.wait_for_workers(3)
    run.signal("worker-1", signal.SIGSTOP)
    run.kill("worker-2")
    run.open(MIDDLE)
    run.wait_for_step(STEPS // 2 + 3)
    run.signal("worker-1", signal.SIGCONT)
    run.kill("server-1")
    run.wait_until(lambda status: status.generation == 2 and not status.regrouping)
    run.open(LATE)
    assert run.digest() == plain


@pytest.mark.parametrize("shared", [True, False])
def test_killed_in_the_middle_of_a_push(
    start: Callable[..., Run], plain: str, tmp_path: Path, shared: bool
) -> None:
    """Of two workers, one slice each, with the last layers' gradients sent. The other one has the next
    version of those layers when it is asked for the dead one's slice, and gets the one before again.
    """
    options = config(tmp_path, shared=shared, overlap=True)
    options += ["--slices", 2]
    run = start("wide_torch.py", *OPTIONS, *options, "--workers", 2, "--servers", 2, shut=["backward 20"])
    pids = [run.held_at("backward 20"), run.held_at("backward 20")]
    os.kill(pids[0], signal.SIGKILL)
    run.open("backward 20")
    with Run(tmp_path / "quiet", "wide_torch.py", *OPTIONS, *options, "--workers", 1) as quiet:
        assert run.digest() == quiet.digest()
