"""Sources over other files than they were made for: the same columns by the same rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticflow.data import CSV, NPZ, Arrays, Collate, Concat, Parquet, Take, Transform
from elasticflow.data.as_trained import AsTrained
from elasticflow.data.kept import KeptColumns
from elasticflow.data.ragged import Pad, Ragged
from elasticflow.data.source import Source
from elasticflow.errors import DataError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def table(path: Path, **columns: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return str(path)


def all_of(source: Source) -> dict[str, Any]:
    fields = source.finish(source.rows(np.arange(source.num_rows)), 0)
    return {name: array.tolist() for name, array in fields.items()}


@pytest.fixture
def trained(tmp_path: Path) -> Parquet:
    path = table(tmp_path / "old.parquet", a=[1.0, 2.0], b=[3.0, 4.0], city=["Rome", "Oslo"], y=[0, 1])
    cities = {"city": ["Rome", "Oslo"]}
    return Parquet(
        path, {"x": ["a", "b"], "c": "city", "y": "y"}, vocabularies=cities, filters=[("a", ">", 0)]
    )


def test_rules_stay_filters_do_not(trained: Parquet, tmp_path: Path) -> None:
    new = table(tmp_path / "new.parquet", b=[5.0, 6, 7], a=[-1.0, 8, 9], city=["Oslo", None, "Lima"])
    found = trained.over(new, {"x": "x", "c": "c"})
    assert all_of(found) == {"x": [[-1, 5], [8, 6], [9, 7]], "c": [2, 0, 0]}
    assert all_of(trained.over(new, None)) == all_of(found)  # there is no label, and none is missed
    with pytest.raises(DataError, match="there is no column 'y'"):
        trained.over(new, {"x": "x", "y": "y"})


def test_another_kind_of_file_has_no_such_rules(trained: Parquet, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", a=[1.0], b=[2.0], city=[1])
    with pytest.raises(DataError, match="Give Parquet"):
        trained.over(str(tmp_path / "new.npz"), {"c": "c"})


def test_texts_of_csv_have_the_types_of_before(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("a,b,y\n1.5,2,0\n")
    (tmp_path / "new.csv").write_text("b,a\n7,1\n8,2.5\n")
    source = CSV(tmp_path / "old.csv", x="a", b="b", y="y")
    assert all_of(source.over(str(tmp_path / "new.csv"), {"x": "x", "b": "b"})) == {
        "x": [1, 2.5],
        "b": [7, 8],
    }


def test_arrays_of_files_keep_their_other_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "old.npz", images=[1.0, 2], labels=[0, 1])
    np.savez(tmp_path / "new.npz", images=[3.0])
    source = NPZ(tmp_path / "old.npz", x="images", y="labels")
    assert all_of(source.over(str(tmp_path / "new.npz"), {"x": "x"})) == {"x": [3.0]}


def test_columns_by_position_have_the_names_of_arguments(tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=[3.0, 4.0])
    source = Arrays.by_position((np.ones(2), np.zeros(2)))
    assert all_of(source.over(str(tmp_path / "new.npz"), {"0": "x"})) == {"0": [3, 4]}


def test_what_python_makes_of_records_it_makes_of_others(tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", a=[3.0, 4.0])
    source = Transform(Take(Arrays(a=np.ones(3), y=np.zeros(3)), 2), lambda record: {"x": 2 * record["a"]})
    assert all_of(source.over(str(tmp_path / "new.npz"), {"x": "x"})) == {"x": [6, 8]}
    whole = Collate(Concat(source, source), lambda columns: {"x": columns["x"] - columns["x"].mean()})
    assert all_of(whole.over(str(tmp_path / "new.npz"), {"x": "x"})) == {"x": [-1, 1]}


def test_numbers_get_the_types_that_were_trained_on(tmp_path: Path) -> None:
    trained = Arrays(x=np.ones((2, 3), np.float32), n=np.ones(2, np.int64))
    given = Arrays(x=np.ones((4, 3)), n=np.ones(4, np.int32), more=np.ones(4))
    found = AsTrained("new.npz", given, trained.columns, ["x", "n"]).rows(np.arange(2))
    assert {name: field.dtype.name for name, field in found.items()} == {"x": "float32", "n": "int64"}
    with pytest.raises(DataError, match=r"'x' holds float64 of shape \[2\], and float32 of shape \[3\]"):
        AsTrained("new.npz", Arrays(x=np.ones((4, 2))), trained.columns, ["x"])
    with pytest.raises(DataError, match="'n' holds float64"):
        AsTrained("new.npz", Arrays(n=np.ones(4)), trained.columns, ["n"])
    with pytest.raises(DataError, match="there is no column 'n'. There are: 'x'"):
        AsTrained("new.npz", Arrays(x=np.ones((4, 3))), trained.columns, ["n"])


def test_a_column_by_position_is_called_by_its_argument() -> None:
    trained, given = Arrays(x=np.ones((2, 3))), Arrays(x=np.ones((4, 2)))
    with pytest.raises(DataError, match="column 'image' holds float64 of shape"):
        AsTrained("the records", given, trained.columns, ["x"], {"x": "image"})


def test_columns_are_kept_as_they_are(tmp_path: Path) -> None:
    """Across row groups and files, with the names of folders, missing values too."""
    days = pa.array(np.arange(5, dtype=np.int32), pa.date32())
    for day, part in (("2026-11-01", slice(0, 3)), ("2026-11-02", slice(3, 5))):
        columns = {"name": ["a", None, "c", "d", "e"][part], "day": days[part]}
        table(tmp_path / "new" / f"date={day}" / "part.parquet", **columns)
    kept = KeptColumns(str(tmp_path / "new"), ["date", "name", "day"])
    assert kept.num_rows == 5
    whole = pq.read_table(tmp_path / "new")
    for first in range(5):
        for last in range(first + 1, 6):
            found = kept.rows(first, last)
            assert found["name"].to_pylist() == whole["name"].to_pylist()[first:last]
            assert found["day"].equals(whole["day"].slice(first, last - first))
            assert [str(each) for each in found["date"].to_pylist()] == [
                "2026-11-01" if n < 3 else "2026-11-02" for n in range(first, last)
            ]
    with pytest.raises(DataError, match="no column 'nam' to keep. There are: 'name', 'day', 'date'"):
        KeptColumns(str(tmp_path / "new"), ["nam"])


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_a_number_that_the_type_has_no_room_for_is_named(value: int) -> None:
    trained = Arrays(n=np.zeros(2, np.int32))
    there = AsTrained("new.npz", Arrays(n=np.array([1, value])), trained.columns, ["n"])
    assert there.rows(np.arange(1))["n"].dtype == np.int32
    with pytest.raises(DataError, match=rf"new.npz: column 'n' holds {value}, and int32"):
        there.rows(np.arange(2))


def test_what_pads_is_of_the_type_trained_on() -> None:
    trained = Arrays(x=Ragged.of([np.array([1.5])], Pad(value=0.5)))
    given = Arrays(x=Ragged.of([np.array([1, 2]), np.array([3])], Pad(value=0.5)))
    there = AsTrained("new.npz", given, trained.columns, ["x"])
    assert there.finish(there.rows(np.arange(2)), 0)["x"].tolist() == [[1, 2], [3, 0.5]]
