"""Tables of a lake in an object store, beside the same ones on a local disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from elasticflow.data import Delta, Iceberg, Parquet, open_path  # noqa: E402
from elasticflow.errors import DataError, UnreadableError  # noqa: E402
from tests.clusters.s3 import S3Server  # noqa: E402
from tests.data.lakes import (  # noqa: E402
    clicks,
    content,
    delete_by_vectors,
    empty_delta,
    opened,
    write_delta,
    write_iceberg,
)

RECENT = [("date", ">=", "2026-11-26")]


def test_delta(fs: Any, url: str, tmp_path: Path) -> None:
    """Also by a checkpoint of its log, before which there are no commits any more."""
    here, there = tmp_path / "clicks", f"{url}/clicks"
    write_delta(here)
    for attempt in range(2):
        fs.put(f"{here}/", f"{there}/", recursive=True)
        assert content(opened(Delta, there)) == content(opened(Delta, here))
        assert content(opened(Delta, there, filters=RECENT)) == content(opened(Delta, here, filters=RECENT))
        assert isinstance(open_path(f"{there}/"), Delta)
        with pytest.raises(DataError, match=r"clicks: is a table of Delta\. Read it by ef.data.Delta"):
            Parquet(there)
        if not attempt:
            assert content(opened(Delta, there, version=0)) == content(opened(Delta, here, version=0))
            deltalake.DeltaTable(here).create_checkpoint()
            for version in range(2):
                (here / "_delta_log" / f"{version:020}.json").unlink()
            deltalake.write_deltalake(here, clicks(180), mode="append")
            fs.rm(there, recursive=True)
    with pytest.raises(DataError, match="is no table of Delta Lake"):
        Delta(f"{url}/nothing")


def test_a_checkpoint_of_a_log_that_is_not_whole_is_no_checkpoint(fs: Any, url: str, tmp_path: Path) -> None:
    write_delta(tmp_path / "clicks")
    fs.put(f"{tmp_path}/clicks/", f"{url}/clicks/", recursive=True)
    name = f"{url}/clicks/_delta_log/{2:020}.checkpoint.{1:010}.{2:010}.parquet"
    fs.pipe_file(name, b"the first of two parts")
    assert opened(Delta, f"{url}/clicks").num_rows == 150


@pytest.mark.parametrize("prefix", [None, "", "aB"])
def test_records_that_vectors_delete(fs: Any, url: str, tmp_path: Path, prefix: str | None) -> None:
    empty_delta(str(tmp_path / "clicks"))
    deltalake.write_deltalake(tmp_path / "clicks", clicks(0), mode="append")
    delete_by_vectors(str(tmp_path / "clicks"), lambda id: id % 4 == 1, prefix)
    fs.put(f"{tmp_path}/clicks/", f"{url}/clicks/", recursive=True)
    assert sorted(content(opened(Delta, f"{url}/clicks"))) == [n for n in range(90) if n % 4 != 1]
    with pytest.raises(DataError, match="is a table of Delta"):
        Parquet(f"{url}/clicks/*.parquet")


def test_iceberg(fs: Any, url: str, tmp_path: Path) -> None:
    metadata = write_iceberg(tmp_path / "there", f"{url}/lake")
    fs.put(f"{tmp_path}/there/", f"{url}/lake/", recursive=True)
    shutil.rmtree(tmp_path / "there")
    local = write_iceberg(tmp_path / "here", str(tmp_path / "here"))
    assert content(opened(Iceberg, metadata)) == content(opened(Iceberg, local))
    assert content(opened(Iceberg, metadata, filters=RECENT)) == content(
        opened(Iceberg, local, filters=RECENT)
    )
    with pytest.raises(DataError, match="there is no file"):
        Iceberg(f"{url}/lake/metadata/none.metadata.json")


def test_a_store_that_does_not_answer(
    s3: S3Server, fs: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticflow.data.files.PATIENCE_S", 0.5)
    monkeypatch.setattr("elasticflow.data.delta.PATIENCE_S", 0.5)
    write_delta(tmp_path / "clicks")
    fs.put(f"{tmp_path}/clicks/", f"{url}/clicks/", recursive=True)
    s3.fail("refuse", "GET", "", times=1_000_000)
    with pytest.raises(UnreadableError):
        Delta(f"{url}/clicks")
    with pytest.raises(UnreadableError):
        Iceberg(f"{url}/clicks/metadata/v1.metadata.json")
