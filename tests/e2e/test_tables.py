"""Embedding tables, whoever reads, updates, stores and restores their rows: the same digest."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from .conftest import Run, cli, digest_in

OPTIONS = ("--epochs", 3, "--batch-size", 50, "--slices", 8)
STEPS = 3 * 16
MIDDLE, LATE = "step 20", f"step {STEPS - 6}"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of one worker and one server, left alone, with one checkpoint, at the end."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    with Run(path, "tables_torch.py", *OPTIONS, "--workers", 1, "--checkpoint-every", "24h") as run:
        return run.digest()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of 10 ms: what is done to the run is done in the middle of them."""
    monkeypatch.setenv("SLICE_S", "0.01")


@pytest.mark.parametrize(
    ("workers", "servers", "device"), [(2, 1, "cpu"), (3, 2, "cpu"), (4, 3, "cpu"), (3, 2, "delayed")]
)
def test_any_number_of_workers_and_servers(
    start: Callable[..., Run], undisturbed: str, workers: int, servers: int, device: str
) -> None:
    """Checkpoints every 5 steps, most of them of the rows that have changed since the one before.

    device: ``delayed`` does all late, as a GPU does, but for the rows, which are looked up meanwhile.
    """
    many = ("--workers", workers, "--servers", servers, "--checkpoint-every", 5, "--device", device)
    run = start("tables_torch.py", *OPTIONS, *many)
    assert run.digest() == undisturbed
    assert "whole" in cli("checkpoint", "verify", run.path).stdout


@pytest.mark.usefixtures("slow")
def test_worker_stopped_and_workers_killed(start: Callable[..., Run], undisturbed: str) -> None:
    """Of three, one is stopped at step 20 and goes on later; two are killed, one between its reads."""
    run = start("tables_torch.py", *OPTIONS, "--workers", 3, "--servers", 2, shut=[MIDDLE, "slice 24", LATE])
    run.wait_for_workers(3)
    run.signal("worker-1", signal.SIGSTOP)
    run.kill("worker-2")
    run.open(MIDDLE)
    os.kill(run.held_at("slice 24"), signal.SIGKILL)
    run.open("slice 24")
    run.wait_for_step(26)
    run.signal("worker-1", signal.SIGCONT)
    run.open(LATE)
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("victim", ["server-0", "server-1", "master"])
def test_server_or_master_killed(start: Callable[..., Run], undisturbed: str, victim: str) -> None:
    """kill -9 at step 20. With a server rows are lost: all go back to the commit of step 15."""
    # Of the first checkpoint it is sure that none before it is still being written.
    many = ("--workers", 2, "--servers", 2, "--checkpoint-every", 15)
    run = start("tables_torch.py", *OPTIONS, *many, shut=[MIDDLE, LATE])
    run.wait_for_workers(2)
    run.wait_until(lambda status: status.checkpoint_step == 15)
    run.held_at(MIDDLE)
    run.kill(victim)
    run.open(MIDDLE)
    if victim != "master":
        run.wait_until(lambda status: status.generation == 2 and not status.regrouping)
    run.open(LATE)
    assert run.digest() == undisturbed


def test_server_killed_while_rows_are_read(start: Callable[..., Run], undisturbed: str) -> None:
    """kill -9 of a server while a worker is between two reads of a slice: the second one is given up."""
    many = ("--workers", 1, "--servers", 2, "--checkpoint-every", 5)
    run = start("tables_torch.py", *OPTIONS, *many, shut=["slice 20"])
    run.held_at("slice 20")
    run.kill("server-1")
    run.open("slice 20")
    assert run.digest() == undisturbed


def test_stopped_server_does_not_hold_a_worker(start: Callable[..., Run], undisturbed: str) -> None:
    """SIGSTOP of a server while a worker is between two reads: it is replaced, and the worker goes on."""
    many = ("--workers", 1, "--servers", 2, "--checkpoint-every", 5)
    run = start("tables_torch.py", *OPTIONS, *many, shut=["slice 20", LATE])
    run.held_at("slice 20")
    run.signal("server-1", signal.SIGSTOP)
    run.open("slice 20")
    run.wait_until(lambda status: status.generation == 2 and not status.regrouping)
    run.open(LATE)
    assert run.digest() == undisturbed


@pytest.mark.parametrize("servers", [(1, 3), (3, 2)])
def test_goes_on_with_another_number_of_servers(
    start: Callable[..., Run], undisturbed: str, servers: Sequence[int]
) -> None:
    """A run of several commits is stopped in the middle; other servers take over the row files."""
    many = ("--workers", 2, "--servers", servers[0], "--checkpoint-every", 5)
    run = start("tables_torch.py", *OPTIONS, *many, shut=[MIDDLE])
    run.held_at(MIDDLE)
    assert run.stop(held_at=MIDDLE).returncode == 0
    code, output = run.wait()
    assert code == 3, output
    resumed = cli("train", "--resume", "--run-dir", run.path, "--servers", servers[1])
    assert digest_in(resumed.stdout) == undisturbed, resumed.stderr


def test_checkpoints_hold_what_has_changed(start: Callable[..., Run], tmp_path: Path) -> None:
    """Row files are smaller than the first, old ones go, and what is left is whole when it is copied."""
    many = ("--workers", 1, "--servers", 2, "--checkpoint-every", 2, "--keep-checkpoints", 2)
    run = start("tables_torch.py", *OPTIONS, *many)
    digest = run.digest()
    files = sorted(path.name for path in (run.path / "rows").iterdir())
    steps = {int(re.search(r"step-(\d+)", name)[1]) for name in files}  # type: ignore[index]
    assert 2 <= len(steps) < STEPS // 2, files
    assert digest in cli("checkpoint", "digest", run.path).stdout
    exported = tmp_path / "model.npz"
    assert cli("export", run.path, exported).returncode == 0
    with np.load(exported) as arrays:
        users, ids = arrays["users.rows"], arrays["users.ids"]
    assert sorted(ids) == list(range(50)) and users.shape == (50, 8)


def test_tensorflow(start: Callable[..., Run]) -> None:
    digests = set()
    for workers, servers in ((1, 1), (3, 2)):
        run = start("tables_tensorflow.py", *OPTIONS, "--workers", workers, "--servers", servers)
        digests.add(run.digest())
    assert len(digests) == 1
