"""CSV and Parquet files against what was written to them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow.data import CSV, Column, Parquet
from elasticflow.data.csv_files import count_rows, index_lines
from elasticflow.data.files import LocalFile
from elasticflow.errors import DataError

A = np.arange(100)
B = A / 4
NAMES = [f"row {n}" for n in A]
NUMBERS = np.array([99, 3, 3, 57, 0])


@pytest.fixture
def parquet(tmp_path):
    table = pa.table({"a": A, "b": B, "name": NAMES, "half": B.astype(np.float32), "even": A % 2 == 0})
    pq.write_table(table.slice(0, 60), tmp_path / "part-0.parquet", row_group_size=25)
    pq.write_table(table.slice(60), tmp_path / "part-1.parquet", row_group_size=25)
    return tmp_path / "part-*.parquet"


@pytest.fixture
def table(tmp_path):
    lines = [f"{a},{b},{name}" for a, b, name in zip(A, B, NAMES, strict=True)]
    (tmp_path / "part-0.csv").write_text("a,b,name\n" + "\n".join(lines[:60]) + "\n")
    (tmp_path / "part-1.csv").write_text("a,b,name\r\n" + "\r\n".join(lines[60:]))
    return tmp_path / "part-*.csv"


def test_parquet_rows(parquet):
    source = Parquet(parquet)
    rows = source.rows(NUMBERS)
    assert np.array_equal(rows["a"], NUMBERS)
    assert np.array_equal(rows["b"], NUMBERS / 4)
    assert rows["name"].tolist() == [NAMES[n] for n in NUMBERS]
    assert rows["even"].tolist() == [n % 2 == 0 for n in NUMBERS]
    assert [column.dtype for column in source.columns] == ["int64", "float64", "str", "float32", "bool"]
    assert source.block_starts.tolist() == [0, 25, 50, 60, 85, 100]


@pytest.mark.parametrize("block_bytes", [1, 90, 1 << 20])
def test_csv_rows(table, block_bytes):
    source = CSV(table, block_bytes=block_bytes, dtypes={"b": "float64"})
    rows = source.rows(NUMBERS)
    assert np.array_equal(rows["a"], NUMBERS)
    assert np.array_equal(rows["b"], NUMBERS / 4)
    assert rows["name"].tolist() == [NAMES[n] for n in NUMBERS]
    assert source.columns == (Column("a", (), "int64"), Column("b", (), "float64"), Column("name", (), "str"))
    assert 60 in source.block_starts


def test_columns_are_stacked_and_renamed(table, parquet):
    for source in (
        CSV(table, x=["b", "a"], n=["a", "a"], y="a"),
        Parquet(parquet, x=["b", "a"], n=["a"], y="a"),
    ):
        rows = source.rows(NUMBERS)
        assert list(rows) == ["x", "n", "y"]
        assert np.array_equal(rows["x"], np.stack([B, A], axis=1)[NUMBERS].astype(np.float32))
        assert rows["x"].dtype == np.float32 and rows["n"].dtype == np.int64
        assert np.array_equal(rows["n"][:, 0], NUMBERS)
        assert np.array_equal(rows["y"], NUMBERS)


@pytest.mark.parametrize("kind", [CSV, Parquet])
def test_columns_that_are_missing_or_cannot_be_stacked(table, parquet, kind):
    pattern = table if kind is CSV else parquet
    with pytest.raises(DataError, match="no column 'c'. There are: 'a', 'b', 'name'"):
        kind(pattern, x=["a", "c"])
    with pytest.raises(DataError, match="column 'name' holds .* cannot be stacked into 'x'"):
        kind(pattern, x=["a", "name"])
    with pytest.raises(DataError, match="x has no columns"):
        kind(pattern, x=[])


@pytest.mark.parametrize("kind", [CSV, Parquet])
def test_files_that_are_missing_or_differ(tmp_path, kind):
    with pytest.raises(DataError, match="no file matches"):
        kind(tmp_path / "*.none")
    with pytest.raises(DataError, match="there is no file"):
        kind(tmp_path / "none")
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv").write_text("a,c\n1,2\n")
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [1], "b": [2.5]}), tmp_path / "2.parquet")
    with pytest.raises(DataError, match=r"2\.(csv|parquet): .*same columns"):
        kind(tmp_path / f"*.{kind.__name__.lower()}")


def test_lists_of_one_length_become_axes(tmp_path):
    values = np.arange(24).reshape(4, 3, 2)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8.0)), 2)
    pq.write_table(pa.table({"x": values.tolist(), "f": fixed}), tmp_path / "x.parquet", row_group_size=3)
    source = Parquet(tmp_path / "x.parquet")
    assert source.columns == (Column("x", (3, 2), "int64"), Column("f", (2,), "float64"))
    rows = source.rows(np.array([3, 1]))
    assert np.array_equal(rows["x"], values[[3, 1]])
    assert rows["f"].tolist() == [[6, 7], [2, 3]]


def test_dictionaries_dates_and_missing_floats(tmp_path):
    columns = {
        "word": pa.array(["a", "b", "a"]).dictionary_encode(),
        "date": np.array(["2020-01-01", "2020-01-02", "2020-01-03"], "datetime64[s]"),
        "f": pa.array([1.0, None, 3.0]),
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    rows = Parquet(tmp_path / "x.parquet").rows(np.arange(3))
    assert rows["word"].tolist() == ["a", "b", "a"]
    assert np.array_equal(rows["date"], columns["date"].astype(np.int64))
    assert np.isnan(rows["f"]).tolist() == [False, True, False]


@pytest.mark.parametrize(
    "values, words",
    [
        ([1, None], "1 missing values"),
        (["a", None], "1 missing values"),
        ([[1, 2], [3]], "lists of 1 to 2 elements"),
        ([b"a", b"b"], "of type binary"),
        ([{"a": 1}, {"a": 2}], "of type struct"),
    ],
)
def test_parquet_columns_that_do_not_fit(tmp_path, values, words):
    pq.write_table(pa.table({"x": values}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=f"row group 0: column 'x'.*{words}"):
        Parquet(tmp_path / "x.parquet")


def test_parquet_that_is_empty_cut_short_or_something_else(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), path)
    with pytest.raises(DataError, match="empty"):
        Parquet(path)
    pq.write_table(pa.table({"x": A}), path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match="whole Parquet file"):
        Parquet(path)
    path.write_text("hello")
    with pytest.raises(DataError, match="whole Parquet file"):
        Parquet(path)


LINES = st.lists(st.sampled_from(["", "1", "22", "-3.5", "4" * 30]), max_size=30)


@settings(max_examples=300)
@given(LINES, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1, 50))
def test_every_line_is_in_one_block(tmp_path_factory, lines, ending, ends, block_bytes):
    text = ending.join(["header", *lines]) + (ending if ends else "")
    path = tmp_path_factory.mktemp("csv", numbered=True) / "x.csv"
    path.write_bytes(text.encode())
    blocks = list(index_lines(LocalFile(str(path)), block_bytes))
    content = path.read_bytes()
    parts = [content[block.start : block.stop].decode().split() for block in blocks]
    assert [line for part in parts for line in part] == [line for line in lines if line]
    assert [len(part) for part in parts] == [block.num_rows for block in blocks]
    assert [block.first_row for block in blocks] == [1 + sum(map(len, parts[:i])) for i in range(len(parts))]


@pytest.mark.parametrize(
    "text, num_rows",
    [(b"", 0), (b"\n\r\n\n", 0), (b"1", 1), (b"1\n2", 2), (b"1\n\n2\r\n\r\n", 2), (b"\r", 0)],
)
def test_blank_lines_do_not_count(text, num_rows):
    assert count_rows(text) == num_rows


def write_lines(path, *lines):
    path.write_text("\n".join(lines))
    return path


def test_csv_with_blank_lines_and_a_byte_order_mark(tmp_path):
    path = write_lines(tmp_path / "x.csv", "\ufeffa,b", "1,2", "", "3,4", "", "")
    rows = CSV(path).rows(np.array([1, 0]))
    assert rows["a"].tolist() == [3, 1]


def test_csv_with_another_delimiter(tmp_path):
    assert CSV(write_lines(tmp_path / "x.csv", "a;b", "1;2"), delimiter=";").rows(np.array([0]))["b"] == [2]


@pytest.mark.parametrize("block_bytes", [0, -1])
def test_csv_in_blocks_of_nothing(tmp_path, block_bytes):
    (tmp_path / "x.csv").write_text("a\n1\n")
    with pytest.raises(DataError, match=f"block_bytes is {block_bytes}. It must be at least 1"):
        CSV(tmp_path / "x.csv", block_bytes=block_bytes)


def test_csv_without_rows_or_header(tmp_path):
    with pytest.raises(DataError, match="empty: 0 records"):
        CSV(write_lines(tmp_path / "x.csv", "a,b", "", ""))
    with pytest.raises(DataError, match="first line is empty"):
        CSV(write_lines(tmp_path / "x.csv", ""))
    with pytest.raises(DataError, match="two columns are named 'a'"):
        CSV(write_lines(tmp_path / "x.csv", "a,a", "1,2"))


def test_csv_row_with_a_wrong_number_of_fields(tmp_path):
    path = write_lines(tmp_path / "x.csv", "a,b", "1,2", "3,4,5", "6,7")
    with pytest.raises(DataError, match=r"x.csv, rows 1..3: .*Row #2: Expected 2 columns, got 3"):
        CSV(path)


def test_csv_block_that_does_not_fit_the_types_of_the_first(tmp_path):
    path = write_lines(tmp_path / "x.csv", "a", *["1"] * 50, "2.5", *["3"] * 50)
    source = CSV(path, block_bytes=40)
    assert source.rows(np.array([0]))["a"] == [1]
    with pytest.raises(DataError, match=r"x.csv, rows 41\.\.59: .*'2.5'.*dtypes="):
        source.rows(np.array([50]))
    assert CSV(path, block_bytes=40, dtypes={"a": "float32"}).rows(np.array([50]))["a"] == [2.5]


def test_csv_with_a_line_break_in_quotes(tmp_path):
    path = write_lines(tmp_path / "x.csv", "a,b", '1,"two', 'lines"', '3,"4"')
    with pytest.raises(DataError, match=r"x.csv, rows 1\.\.3: .*Line breaks inside quotes are not allowed"):
        CSV(path, y="a")


def test_csv_with_missing_whole_numbers(tmp_path):
    path = write_lines(tmp_path / "x.csv", "a,b", "1,2", ",3")
    missing = r"column 'a', of type int64, has 1 missing values, the first in record 1\..*{'a': 'float64'}"
    with pytest.raises(DataError, match=missing):
        CSV(path)
    rows = CSV(path, dtypes={"a": "float64"}).rows(np.arange(2))
    assert np.isnan(rows["a"]).tolist() == [False, True]


@pytest.mark.parametrize("dtypes, words", [({"c": "int64"}, "names 'c'"), ({"a": "nonsense"}, "cannot be")])
def test_csv_dtypes_that_do_not_fit(tmp_path, dtypes, words):
    with pytest.raises(DataError, match=words):
        CSV(write_lines(tmp_path / "x.csv", "a", "1"), dtypes=dtypes)
