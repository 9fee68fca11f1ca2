"""Files of predictions: parts, joined, are what would have been written at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticflow.applying.outputs import FORMATS, format_of
from elasticflow.errors import ConfigError, DataError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

WHOLE = {
    "name": np.array(["a", "b", "c, d", 'e "f"', "longer than that", "", "g"]),
    "score": np.arange(14, dtype=np.float32).reshape(7, 2) / 3,
    "best": np.arange(7) % 2,
    "right": np.arange(7) % 2 == 0,
    "when": np.arange(7).astype("M8[s]"),
}


def joined(folder: Path, ending: str, columns: dict[str, Any], cuts: tuple[int, ...] = (0, 2, 6, 7)) -> Path:
    parts = []
    for first, last in zip(cuts, cuts[1:], strict=False):
        parts.append(folder / f"{first}{ending}")
        FORMATS[ending].write(parts[-1], {name: column[first:last] for name, column in columns.items()})
    FORMATS[ending].join(parts, folder / f"whole{ending}")
    return folder / f"whole{ending}"


def test_npz(tmp_path: Path) -> None:
    with np.load(joined(tmp_path, ".npz", WHOLE), allow_pickle=False) as found:
        assert found.files == list(WHOLE)
        for name, column in WHOLE.items():
            assert found[name].dtype == column.dtype and (found[name] == column).all()


def test_csv(tmp_path: Path) -> None:
    lines = joined(tmp_path, ".csv", WHOLE).read_text().splitlines()
    assert lines[0] == "name,score.0,score.1,best,right,when"
    assert lines[1] == "a,0.0,0.33333334,0,True,1970-01-01T00:00:00"
    assert lines[3] == '"c, d",1.3333334,1.6666666,0,True,1970-01-01T00:00:02'
    assert len(lines) == 8


def test_parquet(tmp_path: Path) -> None:
    table = pq.read_table(joined(tmp_path, ".parquet", WHOLE))
    assert table["name"].to_pylist() == WHOLE["name"].tolist()
    assert np.array(table["score"].to_pylist(), np.float32).tolist() == WHOLE["score"].tolist()
    assert pq.ParquetFile(tmp_path / "whole.parquet").num_row_groups == 3


@pytest.mark.parametrize("ending", [".npz", ".csv", ".parquet"])
def test_columns_of_tables(tmp_path: Path, ending: str) -> None:
    """As pyarrow has them."""
    columns = {"id": pa.chunked_array([[1, 2, 3]]), "name": pa.chunked_array([["a", "b", "c"]])}
    path = joined(tmp_path, ending, columns, (0, 1, 3))
    if ending == ".npz":
        assert {name: array.tolist() for name, array in np.load(path).items()} == {
            "id": [1, 2, 3],
            "name": ["a", "b", "c"],
        }
    elif ending == ".csv":
        assert path.read_text() == "id,name\n1,a\n2,b\n3,c\n"
    else:
        assert pq.read_table(path).to_pydict() == {"id": [1, 2, 3], "name": ["a", "b", "c"]}


def test_what_has_no_place(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'cube' is an array of 3 axes, for which \.csv has no place"):
        FORMATS[".csv"].write(tmp_path / "a.csv", {"cube": np.zeros((2, 2, 2))})
    for lacking in (["a", None], [2**53 + 1, None], [True, None]):
        with pytest.raises(DataError, match=r"has missing values, for which \.npz has no place"):
            FORMATS[".npz"].write(tmp_path / "a.npz", {"name": pa.chunked_array([lacking])})
    with pytest.raises(DataError, match=r"'p' and another column would both be called 'p\.1' in \.csv"):
        FORMATS[".csv"].write(tmp_path / "a.csv", {"p.1": np.zeros(2), "p": np.zeros((2, 2))})
    with pytest.raises(DataError, match=r"column name 'a\\nb' has no place in \.csv"):
        FORMATS[".csv"].write(tmp_path / "a.csv", {"a\nb": np.zeros(2)})
    with pytest.raises(DataError, match=r"column name 'a\\x00b' has no place in \.npz"):
        FORMATS[".npz"].write(tmp_path / "a.npz", {"a\0b": np.zeros(2)})
    for ending in (".csv", ".parquet"):
        with pytest.raises(
            DataError, match=rf"'none' has rows of shape \[0\], .* for which \{ending} has no"
        ):
            FORMATS[ending].write(tmp_path / f"a{ending}", {"none": np.zeros((2, 0))})
    FORMATS[".csv"].write(tmp_path / "b.csv", {"name": pa.chunked_array([["a", None]])})
    assert (tmp_path / "b.csv").read_text() == "name\na\n\n" or '""' in (tmp_path / "b.csv").read_text()
    FORMATS[".parquet"].write(tmp_path / "c.parquet", {"cube": np.zeros((2, 2, 2))})
    assert pq.read_table(tmp_path / "c.parquet")["cube"].to_pylist() == np.zeros((2, 2, 2)).tolist()


@pytest.mark.parametrize("ending", [".npz", ".csv", ".parquet"])
def test_parts_that_do_not_go_together(tmp_path: Path, ending: str) -> None:
    parts = [tmp_path / f"{number}{ending}" for number in range(2)]
    FORMATS[ending].write(parts[0], {"score": np.zeros((2, 2))})
    FORMATS[ending].write(parts[1], {"score": np.zeros((2, 3))})
    with pytest.raises(DataError, match="the same names, types and shapes"):
        FORMATS[ending].join(parts, tmp_path / f"whole{ending}")


def test_endings() -> None:
    assert format_of("scores").ending == format_of("a/scores.parquet").ending == ".parquet"
    with pytest.raises(ConfigError, match=r"ends with \.parquet, \.csv, \.npz, or to a folder"):
        format_of("scores.txt")
