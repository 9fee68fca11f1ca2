"""Records in Parquet files: one, many, or a table as Hive and Spark leave it, in folders named after its
partitions.

Which files, partitions and row groups there are to be read for some filters, and how many records they have,
is found with ``pyarrow.dataset``; a row group is what is read as a whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from elasticflow.data.blocks import CACHE_BYTES, REMOTE_AHEAD, Block, BlockSource
from elasticflow.data.files import File, Range, data_files, identities, map_files
from elasticflow.data.ragged import Pad
from elasticflow.data.source import Records, Source, kind_of, names_in, reopened
from elasticflow.data.tables import Selection, Wanted, arrow_errors
from elasticflow.data.typed import is_text, rules_of
from elasticflow.errors import DataError

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

LOCAL_AHEAD = 2
"""Row groups that other cores may decode before they are wanted."""

_FAR = 1 << 63
_ADVICE = "Is it a whole Parquet file? Write it again."
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_INTEGER, _DATE = re.compile(r"-?\d{1,18}"), re.compile(r"\d{4}-\d\d-\d\d")


class _RowGroup(NamedTuple):
    """num_rows: those that the filters leave; where they leave all, ``fragment`` is not needed."""

    file: File
    metadata: Any  # of the file: it is not parsed again for each block
    number: int
    num_rows: int
    partition: Mapping[str, Any]
    fragment: Any = None

    def ranges(self, names: Sequence[str]) -> list[Range]:
        """Where the columns lie in the file. Nested ones have several parts."""
        group = self.metadata.row_group(self.number)
        chunks = [group.column(number) for number in range(group.num_columns)]
        wanted = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in names]
        starts = [min(chunk.dictionary_page_offset or _FAR, chunk.data_page_offset) for chunk in wanted]
        sizes = [chunk.total_compressed_size for chunk in wanted]
        return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]

    def has_few_values(self, name: str) -> bool:
        """Whether a column of texts is little more than numbers of values that come again and again."""
        group = self.metadata.row_group(self.number)
        chunks = [group.column(number) for number in range(group.num_columns)]
        return any(
            chunk.path_in_schema == name
            and chunk.dictionary_page_offset is not None
            and 3 * (chunk.data_page_offset - chunk.dictionary_page_offset) < chunk.total_compressed_size
            for chunk in chunks
        )


class Parquet(BlockSource):
    """Records of Parquet files, in the order of the files' names.

    ``Parquet("clicks", x=["a", "b", "c"], y="label", filters=[("date", ">=", "2026-11-01")])``

    path: a file, a folder with all files below it, a pattern (``train/*.parquet``), or a list of these; also
    on HDFS. Folders named ``date=2026-11-20`` are a column ``date`` of what lies in them.
    columns: names, or a dict as the keywords are: a list stacks columns of numbers to one (rows, 3) array
    (int64 if all are whole numbers, else float32), a text renames one. Without any, every column is one.
    vocabularies: by column, the list of its values: a value becomes its place there, from 1; any other, and
    what is missing, 0. hashing: by column, a number n: texts and whole numbers become ids in 0..n-1; None:
    the ids of ``ef.hash_ids``. defaults: by column, what stands for missing values. pad: by column of lists
    of different lengths, an ``ef.data.Pad``.
    filters: as of ``pyarrow.dataset``: an expression, or ``[("date", ">=", "2026-11-01"), ...]``, all of
    which must hold; records that it leaves out do not count.

    Dates become days, times and timestamps seconds since 1970-01-01 (UTC), decimals float64, lists of one
    length (rows, length) arrays. A row group is read as a whole; the cache should hold some eight of them.
    Raises DataError if no file matches, a file is damaged or has other columns, or a column is unfit.
    """

    def __init__(
        self,
        path: Paths,
        columns: Sequence[str] | Selection | None = None,
        *,
        vocabularies: Mapping[str, Sequence[Any]] | None = None,
        hashing: Mapping[str, int | None] | None = None,
        defaults: Mapping[str, Any] | None = None,
        pad: Mapping[str, Pad | float] | None = None,
        filters: Any = None,
        cache_bytes: int = CACHE_BYTES,
        **named: str | Sequence[str],
    ) -> None:
        files = data_files("Parquet", path)
        self.files = identities(files)
        what = f"Parquet {_shown(path)}"
        metadata = list(map_files(_metadata, files))
        partitions, of_partitions = _partitions(what, files)
        schemas = [_schema(file, found, of_partitions) for file, found in zip(files, metadata, strict=True)]
        rules = rules_of(what, vocabularies, hashing, defaults, pad)
        self._types = _all_types(schemas) | of_partitions
        self._wanted = Wanted(what, _selection(what, columns, named), list(self._types), rules)
        inside = [name for name in self._wanted.names if name not in of_partitions]
        _check_same(inside, files, schemas, rules.defaults)
        self._coded = [name for name in rules.coded if is_text(self._types[name])]
        self._filter = _expression(what, filters, self._types)
        self._groups = [
            group
            for file, found, partition in zip(files, metadata, partitions, strict=True)
            for group in self._row_groups(file, found, partition)
        ]
        if not self._groups and self._filter is not None:
            raise DataError(f"{what}: the filters leave no record: {self._filter}.")
        rows = [group.num_rows for group in self._groups]
        super().__init__(
            what,
            rows,
            cache_bytes,
            ahead=REMOTE_AHEAD if files[0].is_remote else LOCAL_AHEAD,
            pads=self._wanted.pads,
        )

    @staticmethod
    def names_in(path: Paths) -> list[str]:
        """What the files, and the folders that they are in, call their columns. Raises DataError."""
        files = data_files("Parquet", path)
        _, partitions = _partitions(f"Parquet {_shown(path)}", files)
        schemas = [_schema(file, _metadata(file), partitions) for file in files]
        return list(_all_types(schemas) | partitions)

    def over(self, path: str | Records, wanted: Mapping[str, str] | None) -> Source:
        there = names_in(path)
        selection, rules = self._wanted.over(there, wanted)
        if isinstance(path, Records):
            return path.opened(selection, rules)
        if kind_of(path) is not Parquet:
            if rules.any:
                raise DataError(
                    f"data {path}: vocabularies, hashing, defaults and pad, by which the run has read its "
                    "columns, are those of ef.data.Parquet. Give Parquet."
                )
            return reopened(path, selection)
        if not selection:
            raise DataError(f"Parquet {path}: has none of the columns that are wanted, but {_listed(there)}.")
        return Parquet(path, selection, **msgspec.structs.asdict(rules))

    def _row_groups(self, file: File, metadata: Any, partition: Mapping[str, Any]) -> list[_RowGroup]:
        """Those that the filters leave something of."""
        rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        groups = [_RowGroup(file, metadata, n, count, partition) for n, count in enumerate(rows)]
        if self._filter is None:
            return [group for group in groups if group.num_rows]
        found = []
        with file.unchanged(), arrow_errors(str(file), "Do the filters fit the columns?"):
            whole = self._fragment(file, file.open() if file.is_remote else file.name, partition)
            schema = self._arrow_schema()
            for fragment in whole.split_by_row_group(self._filter, schema=schema):
                group = groups[fragment.row_groups[0].id]
                scanner = fragment.scanner(schema=schema, filter=self._filter, use_threads=False)
                # Where all must fit the filter pyarrow counts the whole file, whatever the row group.
                if count := min(scanner.count_rows(), group.num_rows):
                    kept = None if count == group.num_rows else fragment
                    found.append(group._replace(num_rows=count, fragment=kept))
        return found

    def _fragment(
        self, file: File, source: Any, partition: Mapping[str, Any], number: int | None = None
    ) -> Any:
        """What pyarrow's datasets are made of: a file, or a row group of it."""
        import pyarrow as pa
        import pyarrow.dataset as ds
        from pyarrow.fs import LocalFileSystem

        known: Any = ds.scalar(True)
        for name, value in partition.items():
            field = ds.field(name)
            known &= field.is_null() if value is None else field == pa.scalar(value, self._types[name])
        return ds.ParquetFileFormat().make_fragment(
            source,
            filesystem=None if file.is_remote else LocalFileSystem(),
            partition_expression=known,
            row_groups=None if number is None else [number],
        )

    def _arrow_schema(self) -> Any:
        import pyarrow as pa

        return pa.schema(list(self._types.items()))

    def read_block(self, number: int) -> Block:
        group = self._groups[number]
        with group.file.unchanged(), arrow_errors(self.block_name(number), _ADVICE):
            table = self._read(group) if group.fragment is None else self._read_some(group)
        return self._wanted.fields(self.block_name(number), table, int(self.block_starts[number]))

    def _read(self, group: _RowGroup) -> Any:
        """Local files are read by pyarrow itself. Threads of its own would be lost in a fork."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        inside = set(group.metadata.schema.to_arrow_schema().names) - group.partition.keys()
        names = [name for name in self._wanted.names if name in inside]
        source = group.file.open(group.ranges(names)) if group.file.is_remote else group.file.name
        coded = [name for name in self._coded if group.has_few_values(name)]
        with pq.ParquetFile(source, metadata=group.metadata, pre_buffer=False, read_dictionary=coded) as file:
            table = file.read_row_group(group.number, columns=names, use_threads=False)
        for name in self._wanted.names:
            if name not in inside:
                value = pa.scalar(group.partition.get(name), self._types[name])
                table = table.append_column(name, pa.repeat(value, group.num_rows))
        return table

    def _read_some(self, group: _RowGroup) -> Any:
        """The records of a row group that the filters leave."""
        fragment = group.fragment
        if group.file.is_remote:
            opened = group.file.open(group.ranges(self._wanted.names))
            fragment = self._fragment(group.file, opened, group.partition, group.number)
        return fragment.to_table(
            schema=self._arrow_schema(), columns=self._wanted.names, filter=self._filter, use_threads=False
        )

    def block_name(self, number: int) -> str:
        return f"{self._groups[number].file}, row group {self._groups[number].number}"


def raw_tables(path: Paths) -> Iterator[tuple[str, Any]]:
    """All there is, as Arrow has it, row group by row group, with what it is called. Raises DataError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = data_files("Parquet", path)
    partitions, types = _partitions(f"Parquet {_shown(path)}", files)
    for file, partition in zip(files, partitions, strict=True):
        with file.unchanged(), arrow_errors(str(file), _ADVICE):
            with pq.ParquetFile(file.open() if file.is_remote else file.name) as opened:
                for number in range(opened.metadata.num_row_groups):
                    table = opened.read_row_group(number, use_threads=False)
                    for name, value in partition.items():
                        column = pa.repeat(pa.scalar(value, types[name]), len(table))
                        table = table.append_column(name, column)
                    yield f"{file}, row group {number}", table


def _shown(path: Paths) -> str:
    if isinstance(path, (str, os.PathLike)):
        return os.fspath(path)
    return ", ".join(os.fspath(each) for each in path)


def _metadata(file: File) -> Any:
    import pyarrow.parquet as pq

    with file.unchanged(), arrow_errors(str(file), _ADVICE):
        return pq.read_metadata(file.open() if file.is_remote else file.name)


def _schema(file: File, metadata: Any, partitions: Collection[str]) -> dict[str, Any]:
    """Types by column name, without those that folders are named after."""
    with arrow_errors(str(file), _ADVICE):
        fields = metadata.schema.to_arrow_schema()
        return {field.name: field.type for field in fields if field.name not in partitions}


def _all_types(schemas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of all columns, each as in the first file that has it."""
    types: dict[str, Any] = {}
    for schema in schemas:
        types = {**schema, **types}
    return {name: types[name] for name in dict.fromkeys([*schemas[0], *types])}


def _partitions(what: str, files: Sequence[File]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the names of its folders say of each file, and the types of that: whole numbers, dates or texts,
    as all of a name are."""
    import pyarrow as pa

    found = [_named(file) for file in files]
    for file, named in zip(files, found, strict=True):
        if named.keys() != found[0].keys():
            raise DataError(
                f"{what}: {file} lies in folders of the partitions {_listed(named)}, {files[0]} in those of "
                f"{_listed(found[0])}. All files of one source must have the same."
            )
    types = {}
    for name in found[0]:
        texts = [text for each in found if (text := each[name]) is not None]
        is_whole, is_date = (all(map(kind.fullmatch, texts)) for kind in (_INTEGER, _DATE))
        types[name] = (
            pa.string() if not (texts and (is_whole or is_date)) else pa.int64() if is_whole else pa.date32()
        )
    try:
        values = [
            {name: pa.scalar(text).cast(types[name]).as_py() for name, text in each.items()} for each in found
        ]
    except pa.ArrowException as error:
        raise DataError(f"{what}: a folder is named after a date that is none: {error}.") from error
    return values, types


def _named(file: File) -> dict[str, str | None]:
    parts = [part.partition("=") for part in file.name.split("/")[:-1] if "=" in part]
    return {name: None if text == _NO_VALUE else unquote(text) for name, _, text in parts}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _selection(
    what: str, columns: Sequence[str] | Selection | None, named: Mapping[str, str | Sequence[str]]
) -> Selection:
    if isinstance(columns, str):
        raise DataError(
            f"{what}: columns is a text, {columns!r}. Give a list of names, [{columns!r}], or a dict."
        )
    chosen: Selection = (
        dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns or ()}
    )
    if twice := chosen.keys() & named.keys():
        raise DataError(
            f"{what}: column {min(twice)!r} is named twice, by columns= and by a keyword of its own."
        )
    return {**chosen, **named}


def _expression(what: str, filters: Any, types: Mapping[str, Any]) -> Any:
    """pyarrow's expression, None for no filters. Values are made those of the columns' types."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    if filters is None or isinstance(filters, ds.Expression):
        return filters
    if not isinstance(filters, (list, tuple)) or not filters:
        raise DataError(
            f'{what}: filters is {filters!r}. Give [("date", ">=", "2026-11-01"), ...] or an expression.'
        )
    either = filters if isinstance(filters[0], list) else [filters]

    def typed(name: str, operator: str, value: Any) -> tuple[str, str, Any]:
        if name not in types:
            raise DataError(f"{what}: filters names a column {name!r}. There are: {_listed(types)}.")
        many = list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]
        values = [pa.scalar(each).cast(types[name]) for each in many]
        return (
            name,
            operator,
            [each.as_py() for each in values] if operator in ("in", "not in") else values[0],
        )

    try:
        return pq.filters_to_expression([[typed(*each) for each in every] for every in either])
    except (pa.ArrowException, ValueError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{what}: filters={filters!r}: {error}. Each is (column, one of = != < > <= >= in not in, value)."
        ) from error


def _check_same(
    names: Sequence[str],
    files: Sequence[File],
    schemas: Sequence[Mapping[str, Any]],
    defaults: Collection[str],
) -> None:
    """Raises DataError if a column has another type in a later file, or is missing in one and has no
    default."""
    for name in names:
        first = next(number for number, schema in enumerate(schemas) if name in schema)
        expected = schemas[first][name]
        for file, schema in zip(files, schemas, strict=True):
            found = schema.get(name)
            if found is None and name not in defaults:
                raise DataError(
                    f"{file}: column {name!r} is missing, but holds {expected} in {files[first]}. All files "
                    f"of one source must have the same columns, unless defaults={{{name!r}: ...}} says what "
                    f"stands for it."
                )
            if found not in (None, expected):
                raise DataError(
                    f"{file}: column {name!r} holds {found}, but holds {expected} in {files[first]}. "
                    "All files of one source must have the same columns."
                )
