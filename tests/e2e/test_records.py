"""Records of different lengths, made by chance, mixed and collated: the same digest whoever reads them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .conftest import PROGRAMS, Run, cli, digest_in

OPTIONS = ("--epochs", 3, "--batch-size", 64, "--slices", 4)


def test_whoever_reads_them_is_killed_and_resumed(start: Callable[..., Run]) -> None:
    alone = start("records_torch.py", *OPTIONS, "--workers", 1)
    expected = alone.digest()
    run = start("records_torch.py", *OPTIONS, "--workers", 2, shut=["step 12"])
    status = run.wait_for_step(4)
    run.kill(status.workers[0].name)
    run.stop("step 12")
    again = cli("train", PROGRAMS / "records_torch.py", "--resume", "--run-dir", run.path, "--workers", 4)
    assert digest_in(again.stdout + again.stderr) == expected


def test_records_by_sql_are_the_same_though_the_result_is_gone(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ids = pa.table({"id": range(500), "n": [1 / (1 + number) for number in range(500)]})
    pq.write_table(ids, tmp_path / "ids.parquet")
    (tmp_path / "sizes.csv").write_text("id,size\n" + "".join(f"{id},{id / 8}\n" for id in range(5)))
    monkeypatch.setenv("TABLES", str(tmp_path))
    monkeypatch.setenv("KEPT_IN", "one")
    expected = start("query_torch.py", *OPTIONS, "--workers", 1).digest()
    monkeypatch.setenv("KEPT_IN", "other")
    run = start("query_torch.py", *OPTIONS, "--workers", 2, shut=["step 12"])
    run.wait_for_step(4)
    run.stop("step 12")
    shutil.rmtree(tmp_path / "other")
    (tmp_path / "sizes.csv").touch()
    again = cli("train", PROGRAMS / "query_torch.py", "--resume", "--run-dir", run.path, "--workers", 3)
    assert digest_in(again.stdout + again.stderr) == expected
