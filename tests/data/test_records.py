"""Records that are handed in are read as those of files are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import elasticflow as ef
from elasticflow.data.as_trained import AsTrained
from elasticflow.data.records import TableRecords, table_of
from elasticflow.data.source import Source
from elasticflow.errors import DataError

NEW = {
    "a": [1.5, 2.0],
    "b": [3, 4],
    "city": ["Oslo", "Nowhere"],
    "tags": [[1, 2, 3], []],
    "when": [None, 7.0],
}


def sources(folder: Path) -> dict[str, Source]:
    """The same, in each kind."""
    there = {"a": [0.5, 0.25, 1.0], "b": [1, 2, 3], "city": ["Rome", "Oslo", "Rome"]}
    table = pa.table({**there, "tags": [[1], [2, 3], []], "when": [1.0, None, 2.0]})
    pq.write_table(table, folder / "old.parquet")
    (folder / "old.csv").write_text("a,b,city\n0.5,1,Rome\n0.25,2,Oslo\n")
    np.savez(folder / "old.npz", a=np.array(there["a"]), b=np.array(there["b"]))
    rules = {"vocabularies": {"city": ["Rome", "Oslo"]}, "pad": {"tags": -1}, "defaults": {"when": 9.0}}
    parquet = ef.data.Parquet(folder / "old.parquet", x=["a", "b"], c="city", tags="tags", t="when", **rules)
    return {
        "parquet": parquet,
        "csv": ef.data.CSV(folder / "old.csv", x=["a", "b"], c="city"),
        "npz": ef.data.NPZ(folder / "old.npz"),
        "arrays": ef.data.Arrays(a=np.zeros(3), b=np.zeros(3)),
        "transform": ef.data.Transform(parquet, lambda row: {"sum": row["x"].sum(), "c": row["c"]}),
        "take": ef.data.Take(parquet, 2),
    }


def read(source: Source) -> dict[str, list[object]]:
    rows = np.arange(source.num_rows)
    return {name: array.tolist() for name, array in source.finish(source.drawn(rows, 1), 1).items()}


@pytest.mark.parametrize("kind", ["parquet", "take"])
def test_by_the_rules_of_parquet(tmp_path: Path, kind: str) -> None:
    found = read(
        sources(tmp_path)[kind].over(
            TableRecords(table_of(NEW)), {"x": "x", "c": "c", "tags": "tags", "t": "t"}
        )
    )
    assert found["x"] == [[1.5, 3], [2, 4]] and found["c"] == [2, 0] and found["t"] == [9, 7]
    assert found["tags"] == [[1, 2, 3], [-1, -1, -1]]


def test_as_a_file_of_the_same_would_be(tmp_path: Path) -> None:
    for kind, source in sources(tmp_path).items():
        pq.write_table(table_of(NEW), tmp_path / "new.parquet")
        if kind == "csv":
            (tmp_path / "new.csv").write_text("a,b,city\n1.5,3,Oslo\n2.0,4,Nowhere\n")
        path = tmp_path / f"new.{'csv' if kind == 'csv' else 'parquet'}"
        assert read(source.over(TableRecords(table_of(NEW)), None)) == read(source.over(str(path), None)), (
            kind
        )


def test_columns_that_are_not_there_are_told(tmp_path: Path) -> None:
    records = TableRecords(table_of({"z": [1]}))
    for kind in ("parquet", "csv", "npz", "arrays"):
        with pytest.raises(DataError, match="There are: 'z'"):
            sources(tmp_path)[kind].over(records, None)


@pytest.mark.parametrize(
    "sent", [[], {}, [1], {"a": 1}, "text", [{"a": 1}, {"b": 1}], {"a": [1, "b"]}, {"a": [1], "b": []}]
)
def test_what_makes_no_table_is_told(sent: object) -> None:
    with pytest.raises(DataError, match="the records"):
        table_of(sent)


def test_records_one_by_one() -> None:
    assert table_of([{"a": 1, "b": [2]}, {"b": [3], "a": 4}]).to_pydict() == {"a": [1, 4], "b": [[2], [3]]}


def test_ids_of_64_bits() -> None:
    assert table_of([{"id": 2**64 - 1}, {"id": 1}])["id"].to_pylist() == [2**64 - 1, 1]


@pytest.mark.parametrize("missing", ["number", "id", "city", "tags", "words", "pair"])
def test_a_record_is_the_same_alone_and_among_others(tmp_path: Path, missing: str) -> None:
    """JSON says no type of what is missing, or of an empty list; those sent with it may."""
    there = {
        "number": [1.5],
        "id": [1],
        "city": ["Oslo"],
        "tags": [[1]],
        "words": [["a"]],
        "pair": [[1.5, 2]],
    }
    pq.write_table(pa.table(there), tmp_path / "old.parquet")
    source = ef.data.Parquet(
        tmp_path / "old.parquet",
        vocabularies={"city": ["Oslo"]},
        hashing={"words": 9},
        defaults={"id": -1},
        pad={"tags": -1, "words": 0},
    )
    empty: object = {"tags": [], "words": [], "pair": [1, None]}.get(missing)
    other: object = {"number": 2}.get(missing, there[missing][0])

    def found(values: list[object]) -> list[object]:
        there = source.over(TableRecords(table_of({missing: values})), {missing: missing})
        return read(AsTrained("the records", there, source.columns, [missing]))[missing]

    assert str(found([empty])[0]) == str(found([empty, other])[0])
    assert np.issubdtype(np.array(found([empty])).dtype, np.number)


def test_what_is_missing_is_of_the_type_trained_on(tmp_path: Path) -> None:
    source = sources(tmp_path)["parquet"]
    records = TableRecords(table_of({"when": [None], "tags": [None], "city": [None]}))
    there = source.over(records, {"t": "t", "tags": "tags", "c": "c"})
    assert read(AsTrained("the records", there, source.columns, ["t", "tags", "c"])) == {
        "t": [9],
        "tags": [[-1]],
        "tags_lengths": [0],
        "c": [0],
    }
