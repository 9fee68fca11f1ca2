"""Whoever computes, joins, leaves, hangs or is killed: the same digest.

A run that is disturbed while it goes on is shut at a later step, beyond which it goes only once all has
been done to it: so it may be as fast or as slow as it likes.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticflow.run.telling import LiveStatus

from .conftest import Run, cli, digest_in

OPTIONS = ("--epochs", 4, "--batch-size", 64, "--slices", 8)
STEPS = 4 * 16
LATE = f"step {STEPS - 14}"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of one worker and one server, left alone."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    with Run(path, "small_torch.py", *OPTIONS, "--workers", 1) as run:
        return run.digest()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of 10 ms: what is done to the run is done in the middle of them."""
    monkeypatch.setenv("SLICE_S", "0.01")


def _ready(status: LiveStatus) -> list[str]:
    return [worker.name for worker in status.workers if worker.state == "ready"]


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (3, 2), (4, 3)])
def test_any_number_of_workers_and_servers(
    start: Callable[..., Run], undisturbed: str, workers: int, servers: int
) -> None:
    run = start("small_torch.py", *OPTIONS, "--workers", workers, "--servers", servers)
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("seed", "device"), [(1, "cpu"), (2, "cpu"), (3, "delayed")])
def test_workers_killed_at_random_moments(
    start: Callable[..., Run], undisturbed: str, seed: int, device: str
) -> None:
    """Three kill -9, each of a random worker at a random step, of 3 workers and 2 servers.

    device: ``delayed`` does all late, as a GPU does.
    """
    rng = random.Random(seed)
    options = (*OPTIONS, "--workers", 3, "--servers", 2, "--device", device)
    run = start("small_torch.py", *options, shut=[LATE])
    killed: set[str] = set()
    for step in sorted(rng.sample(range(2, STEPS // 2), 3)):
        status = run.wait_until(lambda s, step=step: s.step >= step and set(_ready(s)) - killed)
        chosen = rng.choice([name for name in _ready(status) if name not in killed])
        run.kill(chosen)
        killed.add(chosen)
    run.open(LATE)
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("program", "place", "state"),
    [("small_torch.py", "model", "starting"), ("dying.py", "catching up", "loading")],
)
def test_worker_killed_while_joining(
    start: Callable[..., Run], undisturbed: str, program: str, place: str, state: str
) -> None:
    """kill -9 of the newcomer while it makes its model, or when it has joined and catches up; twice."""
    run = start(program, *OPTIONS, "--workers", 2, shut=[LATE])
    run.wait_for_workers(2)
    run.shut(place)
    assert cli("scale", run.path, 3).returncode == 0
    for newcomer in ("worker-3", "worker-4"):
        pid = run.held_at(place)
        assert {w.name: w.state for w in run.status().workers}[newcomer] == state
        os.kill(pid, signal.SIGKILL)
    run.held_at(place)
    run.open(place)
    run.wait_for_workers(3)
    run.open(LATE)
    output = run.finish()
    for newcomer in ("worker-3", "worker-4"):
        assert f"{newcomer} was killed by SIGKILL" in output
    assert "worker-5 has joined" in output
    assert digest_in(output) == undisturbed


@pytest.mark.usefixtures("slow")
def test_the_only_worker_killed(start: Callable[..., Run], undisturbed: str) -> None:
    run = start("small_torch.py", *OPTIONS, "--workers", 1, "--servers", 2, shut=[LATE])
    run.wait_for_step(10)
    run.kill("worker-1")
    run.open(LATE)
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
def test_worker_stopped_and_continued(start: Callable[..., Run], undisturbed: str) -> None:
    """SIGSTOP of one of two workers until the others do its slices for good, then SIGCONT."""
    run = start("small_torch.py", *OPTIONS, "--workers", 2, "--servers", 2, shut=[LATE])
    run.wait_for_workers(2)
    pid = run.signal("worker-1", signal.SIGSTOP)
    run.wait_until(lambda s: any(w.state == "suspect" for w in s.workers))
    run.signal("worker-1", signal.SIGCONT)
    run.wait_until(lambda s: all(w.state == "ready" for w in s.workers))
    assert run.pid("worker-1") == pid
    run.open(LATE)
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
def test_workers_added_and_drained(start: Callable[..., Run], undisturbed: str) -> None:
    """Newcomers join while steps are made. To leave takes some steps, so there are always some ahead."""
    run = start("small_torch.py", *OPTIONS, "--workers", 1, "--servers", 2, shut=["step 20", "step 40", LATE])
    run.wait_for_step(5)
    for many, few, gate in ((4, 2, "step 20"), (3, 1, "step 40")):
        assert cli("scale", run.path, many).returncode == 0
        run.wait_for_workers(many)
        assert cli("scale", run.path, few).returncode == 0
        run.open(gate)
        run.wait_for_workers(few)
    run.open(LATE)
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
def test_stopped_and_resumed_with_other_numbers(start: Callable[..., Run], undisturbed: str) -> None:
    run = start("small_torch.py", *OPTIONS, "--workers", 2, "--servers", 3, shut=[LATE])
    run.wait_for_step(20)
    assert run.stop(held_at=LATE).returncode == 0
    assert run.wait()[0] == 3
    resumed = start("small_torch.py", "--workers", 3, "--servers", 1, "--resume", name="run-0")
    output = resumed.finish()
    assert "going on from step" in output
    assert digest_in(output) == undisturbed


@pytest.mark.usefixtures("slow")
def test_slices_follow_the_speeds(
    start: Callable[..., Run], undisturbed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker becomes slow, as a GPU does that others use too, and is as fast as before later."""

    def slices(status: LiveStatus) -> list[int]:
        return [worker.slices for worker in status.workers]

    monkeypatch.setenv("SLOW", str(tmp_path))
    run = start("small_torch.py", *OPTIONS, "--workers", 2, shut=["step 4", LATE])
    run.wait_until(lambda status: slices(status) == [4, 4])
    slow = tmp_path / str(run.pid("worker-2"))
    slow.touch()
    run.open("step 4")
    run.wait_until(lambda status: len(_ready(status)) == 2 and slices(status)[0] > 4)
    slow.unlink()
    run.open(LATE)
    assert run.digest() == undisturbed
