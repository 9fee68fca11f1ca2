"""Slices that are computed twice: what differs ends the run, and what does not changes no bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticflow.run.telling import LiveStatus

from .conftest import Run, cli, digest_in

TRAIN = ("--epochs", 12, "--batch-size", 64, "--slices", 8)


def config(folder: Path, **settings: object) -> list[object]:
    path = folder / "audited.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    return ["--config", path]


def pids_of_ready(status: LiveStatus) -> list[int]:
    return [each.pid for each in status.workers if each.state == "ready" and each.pid]


@pytest.mark.parametrize("workers", [1, 3])
def test_what_gives_other_bits_the_second_time_ends_the_run(
    start: Callable[..., Run], tmp_path: Path, workers: int
) -> None:
    """A single worker is compared with itself."""
    run = start("odd_torch.py", *TRAIN, "--workers", workers, *config(tmp_path, audit=3))
    code, output = run.wait()
    assert code not in (0, 3) and run.report().state == "broken", output
    assert "audit: slice " in output and "gave other gradients" in output, output


@pytest.mark.parametrize(
    "program", ["small_torch.py", "tables_torch.py", "looped_torch.py", "small_tensorflow.py"]
)
def test_a_run_is_audited_while_workers_are_killed(
    start: Callable[..., Run], tmp_path: Path, program: str
) -> None:
    """kill -9 of a worker after 20 steps, and of another after 40."""
    right = start(program, *TRAIN, "--workers", 1).digest()
    run = start(program, *TRAIN, "--workers", 3, "--servers", 2, *config(tmp_path, audit=5))
    killed = set[int]()  # who is dead may be told of as ready for a moment longer
    for step in (20, 40):
        status = run.wait_until(lambda s, step=step: s.step >= step and set(pids_of_ready(s)) - killed)
        pid = next(pid for pid in pids_of_ready(status) if pid not in killed)
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    output = run.finish()
    assert digest_in(output) == right
    report = run.report()
    assert report.num_faults >= 2, output
    assert report.audited > 20 and f"audit: {report.audited:,} slices computed twice" in output
    assert f"audit    {report.audited:,} slices" in cli("report", run.path).stdout


def test_a_device_of_its_own_is_audited(start: Callable[..., Run], tmp_path: Path) -> None:
    right = start("small_torch.py", *TRAIN, "--workers", 1).digest()
    run = start("small_torch.py", *TRAIN, "--workers", 2, *config(tmp_path, audit=3, device="delayed"))
    assert run.digest() == right and run.report().audited > 100
