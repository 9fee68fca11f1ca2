"""Whoever computes, joins, leaves, hangs or is killed: the same digest."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Run, cli, digest_in

OPTIONS = ("--epochs", 4, "--batch-size", 64, "--slices", 8)
STEPS = 4 * 16


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of one worker and one server, left alone."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    return Run(path, "small_torch.py", *OPTIONS, "--workers", 1).digest()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of 10 ms: a run of some seconds."""
    monkeypatch.setenv("SLICE_S", "0.01")


def _ready(status: dict[str, Any]) -> list[str]:
    return [worker["name"] for worker in status["workers"] if worker["state"] == "ready"]


def _loading(status: dict[str, Any]) -> set[str]:
    return {worker["name"] for worker in status["workers"] if worker["state"] == "loading"}


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (3, 2), (4, 3)])
def test_any_number_of_workers_and_servers(
    start: Callable[..., Run], undisturbed: str, workers: int, servers: int
) -> None:
    run = start("small_torch.py", *OPTIONS, "--workers", workers, "--servers", servers)
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_workers_killed_at_random_moments(start: Callable[..., Run], undisturbed: str, seed: int) -> None:
    """Three kill -9, each of a random worker at a random step, of 3 workers and 2 servers."""
    rng = random.Random(seed)
    run = start("small_torch.py", *OPTIONS, "--workers", 3, "--servers", 2)
    for step in sorted(rng.sample(range(2, STEPS // 2), 3)):
        status = run.wait_until(lambda s, step=step: s["step"] >= step and _ready(s))
        run.kill(rng.choice(_ready(status)))
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
def test_worker_killed_while_joining(start: Callable[..., Run], undisturbed: str) -> None:
    """kill -9 of the newcomer as soon as it has a process, twice."""
    run = start("small_torch.py", *OPTIONS, "--workers", 2)
    run.wait_for_step(3)
    assert cli("scale", run.path, 3).returncode == 0
    killed: list[str] = []
    for _ in range(2):
        status = run.wait_until(lambda s: _loading(s) - set(killed))
        killed.append(min(_loading(status) - set(killed)))
        run.kill(killed[-1])
    run.wait_for_workers(3)
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
def test_the_only_worker_killed(start: Callable[..., Run], undisturbed: str) -> None:
    run = start("small_torch.py", *OPTIONS, "--workers", 1, "--servers", 2)
    run.wait_for_step(10)
    run.kill("worker-1")
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
def test_worker_stopped_and_continued(start: Callable[..., Run], undisturbed: str) -> None:
    """SIGSTOP of one of two workers until the others do its slices for good, then SIGCONT."""
    run = start("small_torch.py", *OPTIONS, "--workers", 2, "--servers", 2)
    run.wait_for_workers(2)
    pid = run.signal("worker-1", signal.SIGSTOP)
    run.wait_until(lambda s: any(w["state"] == "suspect" for w in s["workers"]))
    run.signal("worker-1", signal.SIGCONT)
    run.wait_until(lambda s: all(w["state"] == "ready" for w in s["workers"]))
    assert run.pid("worker-1") == pid
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
def test_workers_added_and_drained(start: Callable[..., Run], undisturbed: str) -> None:
    run = start("small_torch.py", *OPTIONS, "--workers", 1, "--servers", 2)
    run.wait_for_step(5)
    for count in (4, 2, 3, 1):
        assert cli("scale", run.path, count).returncode == 0
        run.wait_for_workers(count)
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
def test_stopped_and_resumed_with_other_numbers(start: Callable[..., Run], undisturbed: str) -> None:
    run = start("small_torch.py", *OPTIONS, "--workers", 2, "--servers", 3)
    run.wait_for_step(20)
    assert cli("stop", run.path).returncode == 0
    assert run.wait()[0] == 3
    resumed = start("small_torch.py", "--workers", 3, "--servers", 1, "--resume", name="run-0")
    output = resumed.finish()
    assert "going on from step" in output
    assert digest_in(output) == undisturbed
