"""Runs over tables that grow while they train: all workers read the version that was there at first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from tests.data.lakes import clicks, write_delta, write_iceberg  # noqa: E402

from .conftest import PROGRAMS, Run, cli, digest_in  # noqa: E402

OPTIONS = ("--epochs", 3, "--batch-size", 16, "--slices", 4, "--checkpoint-every", 5)


def test_a_table_that_grows_under_a_run(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is killed, one joins, the run is stopped and resumed, and copied: by then there is more."""
    table = tmp_path / "clicks"
    write_delta(table)
    monkeypatch.setenv("TABLE", str(table))
    monkeypatch.setenv("VERSION", "2")
    expected = start("lake_torch.py", *OPTIONS, "--workers", 1).digest()
    monkeypatch.delenv("VERSION")
    run = start("lake_torch.py", *OPTIONS, "--workers", 2, shut=["step 12", "step 20"], name="grown")
    run.held_at("step 12")
    run.wait_for_workers(2)
    deltalake.write_deltalake(table, clicks(180), mode="append")
    run.kill("worker-1")
    assert cli("scale", run.path, 3).returncode == 0
    run.open("step 12")
    run.wait_for_workers(3)
    assert run.stop("step 20").returncode == 0
    deltalake.DeltaTable(table).delete("id >= 200")
    deltalake.DeltaTable(table).optimize.compact()
    assert cli("checkpoint", "copy", run.path, tmp_path / "copied").returncode == 0
    for folder in run.path, tmp_path / "copied":
        again = cli("train", PROGRAMS / "lake_torch.py", "--resume", "--run-dir", folder, "--workers", 2)
        assert digest_in(again.stdout + again.stderr) == expected
    anew = start("lake_torch.py", *OPTIONS, "--workers", 1)
    assert anew.digest() != expected, "a new run reads what there is now"
    compared = cli("compare", run.path, anew.path)
    assert "data: not the same" in compared.stdout, compared.stdout
    assert " clicks@2 and " in compared.stdout and " clicks@5 and " in compared.stdout, compared.stdout


def test_files_that_were_vacuumed_under_a_run(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot read on, and says why; no other records are read for those."""
    table = tmp_path / "clicks"
    write_delta(table)
    monkeypatch.setenv("TABLE", str(table))
    run = start("lake_torch.py", *OPTIONS, "--workers", 1, shut=["step 12"])
    run.held_at("step 12")
    assert run.stop("step 12").returncode == 0
    deltalake.DeltaTable(table).delete("id < 100")
    deltalake.DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    again = cli("train", PROGRAMS / "lake_torch.py", "--resume", "--run-dir", run.path)
    assert again.returncode == 1
    assert f"Delta {table}, version 2: a file of it is gone; was it vacuumed since?" in again.stderr
    done = cli("predict", run.path, "--data", table, "--out", tmp_path / "out.npz", "--keep", "id")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz") as out:
        assert sorted(out["id"]) == list(range(100, 180)), "the model is applied to what there is now"


def test_a_table_of_iceberg(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TABLE", write_iceberg(tmp_path / "clicks", str(tmp_path / "clicks")))
    expected = start("lake_torch.py", *OPTIONS, "--workers", 1).digest()
    run = start("lake_torch.py", *OPTIONS, "--workers", 2, shut=["step 12"])
    run.held_at("step 12")
    run.wait_for_workers(2)
    run.kill("worker-1")
    run.open("step 12")
    assert run.digest() == expected
