"""What is told of files of records before anybody trains on them."""

import json
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticflow.cli.main import main
from elasticflow.data import CSV, Parquet, vocabularies
from elasticflow.data.describing import describe
from elasticflow.errors import DataError


@pytest.fixture
def table(tmp_path):
    columns = {
        "city": pa.array(["Rome", "Oslo", None, "Rome"]),
        "n": pa.array([1, None, 3, 5]),
        "f": pa.array([0.5, None, 1.5, 1.0]),
        "day": pa.array([date(2026, 11, 20)] * 4),
        "words": pa.array([["a"], ["b", "b"], [], ["c"]]),
        "record": pa.array([{"a": 1}] * 4),
    }
    path = tmp_path / "clicks" / "hour=7" / "0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return tmp_path / "clicks"


def test_what_columns_hold_and_what_it_takes(table):
    told = {story.name: story for story in describe(str(table))}
    assert list(told) == ["city", "n", "f", "day", "words", "record", "hour"]
    assert told["n"].records == 4 and told["n"].missing == 1
    assert (told["n"].least, told["n"].most, told["n"].mean) == (1, 5, 3)
    assert told["city"].vocabulary() == ["Rome", "Oslo"]
    assert told["words"].lengths == (0, 2) and told["words"].vocabulary() == ["b", "a", "c"]
    assert told["day"].least == date(2026, 11, 20) and told["hour"].least == 7
    assert {name for name, story in told.items() if not story.advice} == {"f", "day", "hour"}
    assert "defaults={'n': ...}" in told["n"].advice and "pad={'words'" in told["words"].advice
    assert "leave it out" in told["record"].advice


def test_the_advice_is_what_a_source_wants(table, capsys, tmp_path):
    assert main(["data", "describe", str(table), "--vocabularies", str(tmp_path / "v.json")]) == 0
    shown = capsys.readouterr().out
    assert "4 records" in shown and "2 values: 'Rome' 2, 'Oslo' 1" in shown and "1 missing (25 %)" in shown
    known = vocabularies(tmp_path / "v.json")
    assert known == {"city": ["Rome", "Oslo"], "words": ["b", "a", "c"]}
    names = ["city", "n", "f", "day", "words", "hour"]
    source = Parquet(table, names, vocabularies=known, defaults={"n": 0}, pad={"words": 0})
    assert source.rows(np.arange(4))["city"].tolist() == [1, 2, 0, 1]


def test_numbers_of_two_bytes(tmp_path):
    pq.write_table(pa.table({"h": np.array([2.5, 0.5], np.float16)}), tmp_path / "0.parquet")
    [told] = describe(str(tmp_path / "0.parquet"))
    assert (told.least, told.most, told.mean) == (0.5, 2.5, 1.5) and told.type == "halffloat"


def test_other_formats_and_json(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", x=np.arange(12.0).reshape(4, 3), y=np.arange(4))
    assert main(["data", "describe", str(tmp_path / "x.npz"), "--json"]) == 0
    x, y = json.loads(capsys.readouterr().out)
    assert (x["least"], x["most"], x["lengths"]) == (0, 11, [3, 3])
    assert (y["records"], y["values"], y["mean"]) == (4, 4, 1.5)


def test_a_file_that_cannot_be_read_is_named(tmp_path, capsys):
    assert main(["data", "describe", str(tmp_path / "none.parquet")]) == 1
    assert "there is no file" in capsys.readouterr().err


def test_what_is_missing_in_text_is_told(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("age,n,price,city\n10,1,0.5,Rome\n,2,,Oslo\n30,3,1.5,Rome\n")
    age, n, price, city = describe(str(path))
    assert (age.missing, age.least, age.most, age.mean) == (1, 10, 30, 20) and not n.missing
    assert age.advice == "has missing values: dtypes={'age': 'float64'} makes them NaN"
    assert price.missing == 1 and price.mean == 1 and not price.advice
    assert "ef.data.Query" in city.advice and city.vocabulary() == ["Rome", "Oslo"]
    source = CSV(path, age="age", price="price", dtypes={"age": "float64"})
    assert np.isnan(source.rows(np.arange(3))["age"]).tolist() == [False, True, False]
    with pytest.raises(DataError, match="there is no hashing= for CSV.*ef.data.Query.*hashing="):
        CSV(path, hashing={"city": None})


def test_nan_is_missing_as_a_null_is(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([1.0, np.nan, 3.0]))
    (x,) = describe(str(tmp_path / "x.npz"))
    assert (x.missing, x.least, x.most, x.mean) == (1, 1, 3, 2)
