"""Data that are not there are found out before anybody holds a GPU for them, where that can be seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticflow.cluster.missing import check_data
from elasticflow.errors import DataError


@pytest.mark.parametrize("name", ["none.npz", "day=2026-11-20/*.npz", "**/*.parquet"])
def test_missing_where_their_folder_is(tmp_path: Path, name: str) -> None:
    (tmp_path / "day=2026-11-19").mkdir()
    (tmp_path / "day=2026-11-19" / "a.npz").touch()
    with pytest.raises(DataError):
        check_data(str(tmp_path / name), here=True)
    check_data(str(tmp_path / "day=2026-11-19" / "*.npz"), here=True)


def test_what_only_workers_nodes_may_have_is_left_to_them(tmp_path: Path) -> None:
    check_data("", here=True)
    check_data(str(tmp_path / "scratch" / "data" / "*.npz"), here=True)
    check_data(str(tmp_path / "none.npz"), here=False)


def test_a_path_from_where_the_jobs_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError):
        check_data("none.npz", here=True)
    (tmp_path / "some.npz").touch()
    check_data("some.npz", here=True)
