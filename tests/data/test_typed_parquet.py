"""Parquet as others leave it: types, missing values, partitions, filters, and what is said of the rest."""

import json
import os
import shutil
from datetime import date, datetime, time, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import elasticflow as ef
from elasticflow.data import Pad, Parquet, Ragged, open_path
from elasticflow.errors import DataError
from elasticflow.run.work import files_told
from elasticflow.storage.file_ids import first_change

CITIES = ["Rome", None, "Oslo", "Rome", "Bern"]
ALL = np.arange(5)


def write(path, group=2, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


@pytest.fixture
def hive(tmp_path):
    """Two days of clicks, and what tools leave beside the data."""
    for day, first in (("2026-11-20", 0), ("2026-11-21", 5)):
        path = tmp_path / "clicks" / f"date={day}" / "hour=7" / "000000_0"
        write(path, a=np.arange(first, first + 5), city=pa.array(CITIES))
        (path.parent / "_SUCCESS").touch()
        (path.parent / ".000000_0.crc").write_text("no Parquet")
    write(tmp_path / "clicks" / "_temporary" / "0", a=[1])
    return tmp_path / "clicks"


def test_texts_may_be_views(tmp_path):
    path = write(tmp_path / "x.parquet", s=pa.array(["a", "b"], pa.string_view()))
    assert Parquet(path).rows(np.arange(2))["s"].tolist() == ["a", "b"]
    assert Parquet(path, vocabularies={"s": ["b"]}).rows(np.arange(2))["s"].tolist() == [0, 1]


def test_dates_moments_times_and_decimals_become_numbers(tmp_path):
    moment = datetime(2026, 11, 20, 7, 30, 0, 250_000, timezone.utc)
    path = write(
        tmp_path / "x.parquet",
        day=pa.array([date(1970, 1, 2), date(2026, 11, 20)]),
        moment=pa.array([moment, moment], pa.timestamp("us", "UTC")),
        naive=pa.array([datetime(1970, 1, 1, 0, 1)] * 2, pa.timestamp("ms")),
        clock=pa.array([time(0, 1), time(1)], pa.time32("s")),
        price=pa.array([Decimal("1.25"), Decimal("-3")], pa.decimal128(9, 2)),
    )
    rows = Parquet(path).rows(np.array([1, 0]))
    assert rows["day"].tolist() == [(date(2026, 11, 20) - date(1970, 1, 1)).days, 1]
    assert rows["day"].dtype == np.int64
    assert rows["moment"].tolist() == [moment.timestamp()] * 2
    assert rows["naive"].tolist() == [60, 60]
    assert rows["clock"].tolist() == [3600, 60]
    assert rows["price"].tolist() == [-3, 1.25]


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_vocabulary_makes_places_of_values_and_0_of_all_else(tmp_path, dictionary):
    cities = pa.array(CITIES)
    path = write(
        tmp_path / "x.parquet", city=cities.dictionary_encode() if dictionary else cities, n=[7, 8, 9, 7, 1]
    )
    source = Parquet(path, vocabularies={"city": ["Bern", "Rome"], "n": [9, 7]})
    rows = source.rows(ALL)
    assert rows["city"].tolist() == [2, 0, 0, 2, 1]
    assert rows["n"].tolist() == [2, 0, 1, 2, 0]
    assert [column.dtype for column in source.columns] == ["int64", "int64"]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_hashed_texts_are_those_of_hash_ids(tmp_path, kind):
    texts = ["Rome", "", "Zürich", "a\0", "a"]
    path = write(
        tmp_path / "x.parquet", a=pa.array([t.encode() if kind == pa.binary() else t for t in texts], kind)
    )
    expected = ef.hash_ids(texts)
    assert Parquet(path, hashing={"a": None}).rows(ALL)["a"].tolist() == expected.tolist()
    few = Parquet(path, hashing={"a": 10}).rows(ALL)["a"]
    assert few.tolist() == (expected.view(np.uint64) % np.uint64(10)).tolist()


def test_hashed_numbers(tmp_path):
    path = write(tmp_path / "x.parquet", a=np.arange(5))
    assert Parquet(path, hashing={"a": None}).rows(ALL)["a"].tolist() == [0, 1, 2, 3, 4]
    few = Parquet(path, hashing={"a": 3}).rows(ALL)["a"]
    assert few.min() >= 0 and few.max() < 3 and few.dtype == np.int64


def test_defaults_stand_for_missing_values(tmp_path):
    path = write(
        tmp_path / "x.parquet",
        n=pa.array([1, None, 3, None, 5]),
        f=pa.array([1.0, None, 3.0, None, 5.0]),
        day=pa.array([None] * 4 + [date(1970, 1, 3)]),
        city=pa.array(CITIES),
        words=pa.array([["a"], [None], ["b"], ["a"], ["b"]]),
    )
    defaults = {"n": -1, "f": 0.5, "day": date(1970, 1, 2), "city": "?", "words": "b"}
    source = Parquet(path, defaults=defaults, hashing={"city": None}, vocabularies={"words": ["a", "b"]})
    rows = source.rows(ALL)
    assert rows["n"].tolist() == [1, -1, 3, -1, 5]
    assert rows["f"].tolist() == [1, 0.5, 3, 0.5, 5]
    assert rows["day"].tolist() == [1, 1, 1, 1, 2]
    assert rows["city"][1] == ef.hash_ids(["?"])[0]
    assert rows["words"].tolist() == [[1], [2], [2], [1], [2]]


def test_lists_of_different_lengths_are_padded_by_slice(tmp_path):
    lists = [[1, 2, 3], None, [], [4], [5, 6]]
    path = write(tmp_path / "x.parquet", text=pa.array(lists), y=ALL)
    source = Parquet(path, pad={"text": Pad(value=-1)})
    fields = source.rows(np.array([4, 0, 2, 1, 3, 0]))
    assert isinstance(fields["text"], Ragged)
    arrays = source.finish(fields, 0)
    assert arrays["text"].tolist() == [[5, 6, -1], [1, 2, 3], [-1] * 3, [-1] * 3, [4, -1, -1], [1, 2, 3]]
    assert arrays["text_lengths"].tolist() == [2, 3, 0, 0, 1, 3]
    part = source.finish({name: field[2:5] for name, field in fields.items()}, 0)
    assert part["text"].tolist() == [[-1], [-1], [4]] and part["y"].tolist() == [2, 1, 3]
    alone = source.finish(source.rows(np.array([2, 1, 3])), 0)
    assert all(np.array_equal(alone[name], part[name]) for name in part)
    assert source.columns[0].shape == (-1,) and source.optional == ("text_lengths",)


def test_partitions_are_columns(hive):
    source = Parquet(hive, vocabularies={"city": ["Rome", "Oslo", "Bern"]})
    rows = source.rows(np.array([0, 5, 9]))
    assert [column.name for column in source.columns] == ["a", "city", "date", "hour"]
    assert rows["a"].tolist() == [0, 5, 9]
    assert rows["date"].tolist() == [20777, 20778, 20778] and rows["hour"].tolist() == [7, 7, 7]
    with pytest.raises(DataError, match="column 'city'.*record 1"):
        open_path(f"{hive}")  # which has no rules
    assert len(Parquet([hive / "date=2026-11-21", hive / "date=2026-11-20"], ["a", "hour"])) == 10


def read_all(source):
    return {name: field.tolist() for name, field in source.rows(np.arange(len(source))).items()}


@pytest.mark.parametrize(
    "filters, kept",
    [
        ([("date", ">=", "2026-11-21")], [5, 6, 7, 8, 9]),
        ([("date", "=", "2026-11-20"), ("a", ">", 1)], [2, 3, 4]),
        ([[("a", "=", 0)], [("a", "in", [8, 9])]], [0, 8, 9]),
        ([("city", "=", "Rome")], [0, 3, 5, 8]),
        (ds.field("city").is_null() & (ds.field("a") < 5), [1]),
    ],
)
def test_filters_leave_records_out(hive, filters, kept):
    source = Parquet(hive, ["a", "date"], filters=filters)
    assert read_all(source)["a"] == kept and len(source) == len(kept)
    assert source.signature != Parquet(hive, ["a", "date"]).signature


def test_filters_are_pushed_down_to_files_and_row_groups(hive, monkeypatch):
    opened = []
    monkeypatch.setattr(
        pq, "ParquetFile", lambda name, **options: opened.append(name) or REAL(name, **options)
    )
    source = Parquet(hive, ["a"], filters=[("date", "=", "2026-11-21"), ("a", ">=", 7)])
    assert source.num_rows == 3 and source.block_starts.tolist() == [0, 2, 3]
    assert opened and all("2026-11-21" in name for name in opened)


REAL = pq.ParquetFile


def test_a_file_without_a_column_has_its_default(tmp_path):
    write(tmp_path / "1.parquet", a=[1, 2])
    write(tmp_path / "2.parquet", a=[3], new=[5])
    with pytest.raises(DataError, match=r"1.parquet: column 'new' is missing.*defaults="):
        Parquet(tmp_path)
    assert read_all(Parquet(tmp_path, defaults={"new": 0})) == {"a": [1, 2, 3], "new": [0, 0, 5]}


def test_a_run_is_told_of_vocabularies_as_of_files(tmp_path):
    path = write(tmp_path / "t.parquet", city=["Rome", "Oslo"])
    told = [
        Parquet(path, vocabularies={"city": values}).files
        for values in (["Rome"], ["Rome"], ["Rome", "Oslo"], ["Oslo"])
    ]
    assert told[0] == told[1] and len(told[0]) == 2 and len(Parquet(path, hashing={"city": None}).files) == 1
    assert "vocabularies of city has changed" in first_change(told[0], told[2])
    assert "has as many bytes as before, but others" in first_change(told[0], told[3])
    assert len({files_told(each) for each in told}) == 3


def test_a_run_is_told_of_columns_that_folders_give(hive, tmp_path):
    source = Parquet(hive, ["a", "date"])
    shutil.copytree(hive, tmp_path / "moved")
    assert files_told(Parquet(tmp_path / "moved", ["a", "date"]).files) == files_told(source.files)
    without = Parquet(hive, ["a"])
    os.rename(hive / "date=2026-11-20", hive / "date=2025-11-20")
    assert files_told(Parquet(hive, ["a"]).files) == files_told(without.files)
    found = first_change(source.files[-1:], Parquet(hive, ["a", "date"]).files[-1:])
    assert "folders by date has changed" in found


def test_vocabularies_from_a_file(tmp_path):
    (tmp_path / "v.json").write_text(json.dumps({"city": ["Rome", "Oslo"]}))
    assert ef.data.vocabularies(tmp_path / "v.json") == {"city": ["Rome", "Oslo"]}
    (tmp_path / "v.json").write_text('["Rome"]')
    with pytest.raises(DataError, match="no JSON|is not JSON of lists of values by column"):
        ef.data.vocabularies(tmp_path / "v.json")


@pytest.mark.parametrize(
    "options, words",
    [
        (
            {"columns": ["n"]},
            r"row group 1: column 'n', of type int64, has 1 missing.*first in record 3.*defaults=",
        ),
        ({"columns": ["lists"]}, r"column 'lists' holds lists of 1 to 2.*record 2\. pad=\{'lists'"),
        (
            {"columns": ["n"], "defaults": {"n": "x"}},
            r"column 'n' is of type int64, and defaults=.* is no such",
        ),
        ({"defaults": {"m": 1}}, "defaults names a column 'm'. There are: 'n', 'lists'"),
        ({"hashing": {"n": 0}}, "hashing\\['n'\\] is 0. It must be"),
        (
            {"hashing": {"f": 9}, "columns": ["f"]},
            "of type double. Texts, bytes and whole numbers can be hashed",
        ),
        ({"vocabularies": {"n": "words.txt"}}, "vocabularies\\['n'\\] is a text"),
        ({"vocabularies": {"n": [1, 1]}}, "has a value twice"),
        ({"vocabularies": {"n": ["a"]}, "columns": ["n"]}, "its vocabulary has values of another"),
        ({"vocabularies": {"n": [1]}, "hashing": {"n": 1}}, "both a vocabulary and a hashing rule"),
        ({"columns": "n"}, "columns is a text, 'n'. Give a list"),
        ({"columns": ["n"], "n": "f"}, "column 'n' is named twice"),
        ({"filters": "n > 1"}, "filters is 'n > 1'. Give"),
        ({"filters": [("m", ">", 1)]}, "filters names a column 'm'"),
        ({"filters": [("n", "~", 1)]}, "filters="),
        ({"filters": [("n", ">", "x")]}, "filters="),
        ({"filters": [("f", ">", 100)], "columns": ["f"]}, "the filters leave no record"),
        ({"columns": ["bytes"]}, r"column 'bytes' is of type binary.*hashing=\{'bytes'"),
        ({"columns": ["holes"]}, r"column 'holes', of type int64, has 1 missing.*first in record 3\."),
        ({"columns": ["nested"]}, r"column 'nested' holds lists of 1 to 2.*record 3\. pad="),
        ({"defaults": {"n": None}}, "defaults\\['n'\\] is None. Give the value"),
        ({"x": ["n", "huge"], "defaults": {"n": 0}}, "'huge' holds 18446744073709551615, and 'x'.*is int64"),
        ({"vocabularies": {"uuid": ["a"]}, "columns": ["uuid"]}, "'uuid' is of type.*values of another"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, options, words):
    path = write(
        tmp_path / "x.parquet",
        group=3,
        n=pa.array([1, 2, 3, None]),
        lists=pa.array([[1], [2], [3, 4], [4, 5]]),
        f=np.arange(4.0),
        bytes=pa.array([b"a"] * 4),
        holes=pa.array([[1, 2], [3, 4], [5, 6], [7, None]]),
        nested=pa.array([[[1], [2]], [[3], [4]], [[5], [6]], [[7], [8, 9]]]),
        huge=pa.array([1, 2, 3, 2**64 - 1], pa.uint64()),
        uuid=pa.array([b"0" * 16] * 4, pa.uuid()),
    )
    with pytest.raises(DataError, match=words):
        source = Parquet(path, **options)
        source.rows(np.arange(len(source)))


def test_partitions_that_differ_are_named(tmp_path):
    write(tmp_path / "a=1" / "x.parquet", n=[1])
    write(tmp_path / "b=1" / "x.parquet", n=[1])
    with pytest.raises(DataError, match="partitions 'b'.*in those of 'a'"):
        Parquet(tmp_path)


@pytest.mark.parametrize(
    "pad, words", [({"multiple": 0}, "at least 1"), ({"longest": 5, "multiple": 2}, "multiple of")]
)
def test_rules_of_padding_that_make_no_sense(pad, words):
    with pytest.raises(DataError, match=words):
        Pad(**pad)


@pytest.mark.parametrize(
    "pad, expected",
    [
        (Pad(multiple=4), [[1, 2, 3, 0], [4, 0, 0, 0]]),
        (Pad(longest=2), [[1, 2], [4, 0]]),
        (Pad(side="left", value=9), [[1, 2, 3], [9, 9, 4]]),
    ],
)
def test_how_records_are_padded(pad, expected):
    ragged = Ragged.of([np.array([1, 2, 3]), np.array([4])])
    array, lengths = ragged.padded(pad)
    assert array.tolist() == expected
    assert lengths.tolist() == ([2, 1] if pad.longest else [3, 1])
