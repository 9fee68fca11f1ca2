"""Records in CSV files (comma-separated text with a line of column names)."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from elasticflow.data.blocks import BLOCK_BYTES, CACHE_BYTES, REMOTE_AHEAD, Block, BlockSource
from elasticflow.data.files import PAGE_BYTES, Bytes, File, identities, map_files, matching_files
from elasticflow.data.source import Records, Source, kind_of, names_in, reopened
from elasticflow.data.tables import Wanted, arrow_errors
from elasticflow.errors import DataError

_NEWLINE, _RETURN = 10, 13
_ADVICE = (
    "All rows must have the number of fields of the header and the types of the first rows; correct the "
    "file, or name the type that fits all rows, such as dtypes={'price': 'float64'}. Line breaks inside "
    "quotes are not allowed."
)


class _TextBlock(NamedTuple):
    """Whole lines of one file: bytes ``start..stop``, which hold ``num_rows`` rows from ``first_row`` on."""

    file: File
    start: int
    stop: int
    first_row: int
    num_rows: int


class CSV(BlockSource):
    """Rows of all files that match a pattern, in the order of the files' names.

    ``CSV("train/*.csv", x=["a", "b", "c"], y="label")``: a list stacks columns of numbers to one
    (rows, 3) array (int64 if all are whole numbers, else float32), a string renames one; without
    keywords, every column of the files is a column, whole numbers as int64, others as float64.
    Each file starts with the same line of column names. Blank lines do not count. Types are those of
    the first ``block_bytes`` of text, unless ``dtypes`` (by the file's column names) says otherwise.
    Raises DataError if no file matches, a header differs, or a row does not fit.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        *,
        delimiter: str = ",",
        dtypes: Mapping[str, str] | None = None,
        cache_bytes: int = CACHE_BYTES,
        block_bytes: int = BLOCK_BYTES,
        **columns: str | Sequence[str],
    ) -> None:
        files = matching_files("CSV", pattern)
        self.files = identities(files)
        what = f"CSV {os.fspath(pattern)}"
        if block_bytes < 1:
            raise DataError(f"{what}: block_bytes is {block_bytes}. It must be at least 1.")
        for name, value in columns.items():
            if isinstance(value, Mapping):
                raise DataError(
                    f"{what}: there is no {name}= for CSV. ef.data.Parquet has rules for columns, and so has "
                    f"ef.data.Query, which reads CSV files: ef.data.Query('SELECT * FROM t', "
                    f"{{'t': {os.fspath(pattern)!r}}}, {name}=...)."
                )
        self._delimiter = delimiter
        self._header = _common_header(files, delimiter)
        self._wanted = Wanted(what, columns, self._header)
        self._types = _arrow_types(what, dtypes or {}, self._header)
        self._blocks = [block for file in files for block in index_lines(file, block_bytes)]
        rows = [block.num_rows for block in self._blocks]
        super().__init__(what, rows, cache_bytes, ahead=REMOTE_AHEAD if files[0].is_remote else 0)

    @staticmethod
    def names_in(path: str) -> list[str]:
        """What the first line calls the columns, if they are separated by commas. Raises DataError."""
        return _common_header(matching_files("CSV", path), ",")

    def over(self, path: str | Records, wanted: Mapping[str, str] | None) -> Source:
        if isinstance(path, Records):
            return path.opened(self._wanted.over(path.names, wanted)[0])
        is_text = kind_of(path) is CSV
        there = _common_header(matching_files("CSV", path), self._delimiter) if is_text else names_in(path)
        selection, _ = self._wanted.over(there, wanted)
        if not is_text:
            return reopened(path, selection)
        dtypes = {name: dtype for name, dtype in _dtypes_of(self._types).items() if name in there}
        columns: dict[str, Any] = dict(selection)
        return CSV(path, delimiter=self._delimiter, dtypes=dtypes, **columns)

    def read_block(self, number: int) -> Block:
        block = self._blocks[number]
        with block.file.unchanged(), arrow_errors(self.block_name(number), _ADVICE):
            table = self._parse(block.file.read(block.start, block.stop))
        self._check(number, table)
        if not self.columns:  # the first block fixes the types of all
            self._types = {field.name: field.type for field in table.schema}
        return self._wanted.fields(self.block_name(number), table, int(self.block_starts[number]))

    def _check(self, number: int, table: Any) -> None:
        """Raises DataError for what else would be told with the remedies that other sources have."""
        import pyarrow as pa

        where, expected = self.block_name(number), self._blocks[number].num_rows
        if table.num_rows != expected:
            raise DataError(f"{where}: are {expected} lines, but {table.num_rows} rows. {_ADVICE}")
        for name, column in zip(table.column_names, table.columns, strict=True):
            if column.null_count and not pa.types.is_floating(column.type):
                first = int(self.block_starts[number]) + column.is_null().to_pylist().index(True)
                raise DataError(
                    f"{where}: column {name!r}, of type {column.type}, has {column.null_count} missing "
                    f"values, the first in record {first:,}. Only columns of floats may (they become NaN): "
                    f"name one, dtypes={{{name!r}: 'float64'}}, or leave the column out."
                )

    def block_name(self, number: int) -> str:
        block = self._blocks[number]
        return f"{block.file}, rows {block.first_row}..{block.first_row + block.num_rows - 1}"

    def _parse(self, text: Bytes) -> Any:
        return _parsed(text, self._header, self._delimiter, self._wanted.names, self._types)


def raw_tables(pattern: str) -> Iterator[Any]:
    """All columns as they are read, missing values too: pyarrow tables. Raises DataError."""
    files, types = matching_files("CSV", pattern), dict[str, Any]()
    header = _common_header(files, ",")
    for file in files:
        for block in index_lines(file, BLOCK_BYTES):
            what = f"{file}, rows {block.first_row}..{block.first_row + block.num_rows - 1}"
            with file.unchanged(), arrow_errors(what, _ADVICE):
                table = _parsed(file.read(block.start, block.stop), header, ",", header, types)
            types = {field.name: field.type for field in table.schema}
            yield table


def _parsed(
    text: Bytes, header: Sequence[str], delimiter: str, names: Sequence[str], types: Mapping[str, Any]
) -> Any:
    """A pyarrow table of these columns; those of the header that have no type get that of the text."""
    import pyarrow as pa
    import pyarrow.csv as pc

    return pc.read_csv(
        pa.BufferReader(text),
        read_options=pc.ReadOptions(
            column_names=header,
            block_size=len(text) + 1,  # types are those of the whole text
            use_threads=False,  # threads would be lost in a fork
        ),
        parse_options=pc.ParseOptions(delimiter=delimiter),
        convert_options=pc.ConvertOptions(include_columns=names, column_types=types),
    )


def _common_header(files: Sequence[File], delimiter: str) -> list[str]:
    """The column names, which all files share. Raises DataError if they do not, or have none."""
    header, *others = map_files(lambda file: _header(file, delimiter), files)
    for file, other in zip(files[1:], others, strict=True):
        if other != header:
            raise DataError(
                f"{file}: the first line names the columns {other}, but in {files[0]} {header}. "
                "All files of one source must have the same columns."
            )
    return header


def _header(file: File, delimiter: str) -> list[str]:
    line = first_line(file)
    try:
        names = next(csv.reader([line.decode("utf-8-sig")], delimiter=delimiter), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: the first line is no list of column names: {error}.") from error
    if not names:
        raise DataError(f"{file}: the first line is empty. It must name the columns.")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise DataError(f"{file}: two columns are named {twice[0]!r}. Names must be unique.")
    return names


def _arrow_types(what: str, dtypes: Mapping[str, str], header: Sequence[str]) -> dict[str, Any]:
    import pyarrow as pa

    types = {}
    for name, dtype in dtypes.items():
        if name not in header:
            raise DataError(f"{what}: dtypes names {name!r}. There are: {', '.join(map(repr, header))}.")
        try:
            types[name] = pa.string() if dtype == "str" else pa.from_numpy_dtype(np.dtype(dtype))
        except (TypeError, pa.ArrowException) as error:
            raise DataError(
                f"{what}: dtypes: {name!r} cannot be {dtype!r}. Allowed are str and names such as float32."
            ) from error
    return types


def _dtypes_of(types: Mapping[str, Any]) -> dict[str, str]:
    """By names that ``dtypes`` takes; without those that have none."""
    import pyarrow as pa

    found = {}
    for name, kind in types.items():
        if pa.types.is_string(kind):
            found[name] = "str"
        elif pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            found[name] = np.dtype(kind.to_pandas_dtype()).name
    return found


def first_line(file: File) -> bytes:
    """With its line break."""
    with file.buffered(PAGE_BYTES) as opened:
        return opened.readline()


def index_lines(file: File, block_bytes: int) -> Iterator[_TextBlock]:
    """The lines after the first, in blocks of about ``block_bytes`` that end where lines end.

    One pass over the file in large reads. Blocks without a row (blank lines only) are left out.
    """
    start, row, rest = len(first_line(file)), 1, b""
    for fresh in file.pieces(start, block_bytes):
        at_end = len(fresh) < block_bytes
        text = rest + fresh
        cut = len(text) if at_end else text.rfind(b"\n") + 1
        num_rows = count_rows(text[:cut])
        if num_rows:
            yield _TextBlock(file, start, start + cut, row, num_rows)
        start, row, rest = start + cut, row + num_rows, text[cut:]


def count_rows(text: bytes) -> int:
    """How many lines are not blank; the last one may lack its line break."""
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    if not text.endswith(b"\n"):
        ends = np.append(ends, len(data))
    lengths = np.diff(ends, prepend=-1) - 1
    blank = lengths == 0
    short = np.flatnonzero(lengths == 1)
    blank[short] = data[ends[short] - 1] == _RETURN
    return int(np.count_nonzero(~blank))
