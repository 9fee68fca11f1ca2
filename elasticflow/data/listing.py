"""Which Parquet files a table is made of, and how one row group of them is read, whoever lists them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from elasticflow.data.files import File, Range, data_files, identities, map_files
from elasticflow.data.tables import arrow_errors
from elasticflow.errors import DataError
from elasticflow.storage.file_ids import FileId, of_value

ADVICE = "Is it a whole Parquet file? Write it again."
NOWHERE = "\0"
"""What a file calls a column that it does not have."""
_FAR = 1 << 63
_ID = b"PARQUET:field_id"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""What Hive calls a partition whose value is missing."""
_INTEGER, _DATE = re.compile(r"-?\d{1,18}"), re.compile(r"\d{4}-\d\d-\d\d")


class TableFile(NamedTuple):
    """A Parquet file of a table.

    partition: values that it has for all its records. names: of columns that it calls otherwise, what it
    calls them. kept: bool by record, whether it was not deleted since (beyond: True); None: all
    are left.
    """

    file: File
    partition: Mapping[str, Any]
    names: Mapping[str, str] = {}
    kept: Any = None


class OpenedFile(NamedTuple):
    """metadata: pyarrow's, which is not parsed again for each row group."""

    of: TableFile
    metadata: Any


class Listing(NamedTuple):
    """A table's files, in the order of their records.

    what: the table, in errors. partitions: the types of values that files have for all their records.
    types: of all columns, as the table has them, to which files' are made; None: files alone tell.
    version: of the table, among the files of which a run is told; None: it has none.
    ids: by which files know columns, whatever they are called there; None: by their names. by_name: the ids
    of columns of files that know none. initial: what columns have in files that lack them, if not null.
    any_case: files may write names otherwise.
    """

    what: str
    files: Sequence[TableFile]
    partitions: Mapping[str, Any]
    types: Mapping[str, Any] | None = None
    version: FileId | None = None
    ids: Mapping[str, int] | None = None
    by_name: Mapping[str, int] | None = None
    initial: Mapping[str, Any] = {}
    any_case: bool = False

    @property
    def identities(self) -> tuple[FileId, ...]:
        """As a run is told of them."""
        found = identities([each.file for each in self.files])
        return (self.version, *found) if self.version else found

    def told_partitions(self, names: Sequence[str]) -> tuple[FileId, ...]:
        """What a run is told of columns that folders' names give: another name is another value.

        names: of those that are wanted. Of a table with a version that tells.
        """
        given = [name for name in names if name in self.partitions]
        if self.version or not given:
            return ()
        values = [[each.partition.get(name) for name in given] for each in self.files]
        return (of_value(f"folders by {', '.join(given)}", values),)

    def opened(self) -> list[OpenedFile]:
        """Each file, with what it says of itself. Raises DataError."""
        found = map_files(_metadata, [each.file for each in self.files])
        return [
            OpenedFile(self._known(each, metadata), metadata)
            for each, metadata in zip(self.files, found, strict=True)
        ]

    def _known(self, each: TableFile, metadata: Any) -> TableFile:
        """With what it calls columns, and what it has of those that it lacks."""
        names = self._names(each, metadata)
        there = set(metadata.schema.to_arrow_schema().names) if self.initial else ()
        lacks = {name: value for name, value in self.initial.items() if names.get(name, name) not in there}
        return each._replace(names=names, partition={**lacks, **each.partition})

    def types_of(self, found: Sequence[OpenedFile]) -> list[dict[str, Any]]:
        """By file, the types of its columns by the table's names, without partitions."""
        return [_types(each, self.partitions) for each in found]

    def _names(self, each: TableFile, metadata: Any) -> Mapping[str, str]:
        """By ids, columns that were renamed are found, and one that has an older one's name is not that."""
        if self.ids is None and not self.any_case:
            return each.names
        fields = metadata.schema.to_arrow_schema()
        if self.any_case:
            return {
                name: its for name in self.types or () if (its := _written(each, fields.names, name)) != name
            }
        assert self.ids is not None
        own = {int(field.metadata[_ID]): field.name for field in fields if _ID in (field.metadata or {})}
        if not own and self.by_name is not None:  # written before the table was one of Iceberg's
            own = {self.by_name[name]: name for name in fields.names if name in self.by_name}
        elif not own:
            return each.names
        return {name: its for name, id in self.ids.items() if (its := own.get(id, NOWHERE)) != name}

    def column_types(self, schemas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Of all columns: the table's, or as the first file has each. schemas: ``types_of``."""
        if self.types is not None:
            return dict(self.types)
        types: dict[str, Any] = {}
        for schema in schemas:
            types = {**schema, **types}
        ordered = {name: types[name] for name in dict.fromkeys([*schemas[0], *types])}
        return ordered | dict(self.partitions)


class RowGroup(NamedTuple):
    """number: in the file. start: the first of its records there. types: the table's, of partitions and what
    else files may lack or have otherwise.
    """

    of: TableFile
    metadata: Any
    number: int
    start: int
    types: Mapping[str, Any]

    @property
    def num_rows(self) -> int:
        """That were not deleted."""
        kept = self._kept
        return int(self.metadata.row_group(self.number).num_rows if kept is None else kept.sum())

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.of.file}, row group {self.number}"

    @property
    def _kept(self) -> Any:
        if self.of.kept is None:
            return None
        count = self.metadata.row_group(self.number).num_rows
        told = self.of.kept[self.start :][:count]
        return np.pad(told, (0, count - len(told)), constant_values=True)

    def ranges(self, names: Iterable[str]) -> list[Range]:
        """Where the columns lie in the file. Nested ones have several parts."""
        group = self.metadata.row_group(self.number)
        own = {self.of.names.get(name, name) for name in names}
        chunks = [group.column(number) for number in range(group.num_columns)]
        wanted = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in own]
        starts = [min(chunk.dictionary_page_offset or _FAR, chunk.data_page_offset) for chunk in wanted]
        sizes = [chunk.total_compressed_size for chunk in wanted]
        return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]

    def has_few_values(self, name: str) -> bool:
        """Whether a column of texts is little more than numbers of values that come again and again."""
        group = self.metadata.row_group(self.number)
        own = self.of.names.get(name, name)
        chunks = [group.column(number) for number in range(group.num_columns)]
        return any(
            chunk.path_in_schema == own
            and chunk.dictionary_page_offset is not None
            and 3 * (chunk.data_page_offset - chunk.dictionary_page_offset) < chunk.total_compressed_size
            for chunk in chunks
        )

    def read(self, names: Sequence[str], coded: Collection[str] = ()) -> Any:
        """A pyarrow Table of these columns; null where the file has none. coded: of texts, as codes.

        Local files are read by pyarrow itself. Threads of its own would be lost in a fork.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        there = set(self.metadata.schema.to_arrow_schema().names)
        own = {name: self.of.names.get(name, name) for name in names if name not in self.of.partition}
        own = {name: its for name, its in own.items() if its in there}
        source = self.of.file.open(self.ranges(own)) if self.of.file.is_remote else self.of.file.name
        with pq.ParquetFile(
            source,
            metadata=self.metadata,
            pre_buffer=False,
            coerce_int96_timestamp_unit=self._unit_of_int96(),
            read_dictionary=[own[name] for name in coded if name in own],
        ) as opened:
            table = opened.read_row_group(self.number, columns=list(own.values()), use_threads=False)
        columns = {}
        for name in names:
            if name in own:
                columns[name] = self._as_in_table(name, table.column(own[name]))
            else:
                value = pa.scalar(self.of.partition.get(name), self.types[name])
                columns[name] = pa.chunked_array([pa.repeat(value, len(table))])
        found = pa.table(columns)
        return found if (kept := self._kept) is None else found.filter(pa.array(kept))

    def _unit_of_int96(self) -> str | None:
        """Nanoseconds, as such old timestamps are read else, have no room for the year 9999."""
        import pyarrow as pa

        micros = any(pa.types.is_timestamp(kind) and kind.unit == "us" for kind in self.types.values())
        return "us" if micros else None

    def _as_in_table(self, name: str, column: Any) -> Any:
        """A file may have been written when the column had a smaller type."""
        import pyarrow as pa

        kind = self.types.get(name, column.type)
        return column if column.type == kind or pa.types.is_dictionary(column.type) else column.cast(kind)


def row_groups(found: Sequence[OpenedFile], types: Mapping[str, Any]) -> list[list[RowGroup]]:
    """Of each file; also those without records. types: see ``RowGroup``."""
    groups = []
    for each, metadata in found:
        start, mine = 0, []
        for number in range(metadata.num_row_groups):
            mine.append(RowGroup(each, metadata, number, start, types))
            start += metadata.row_group(number).num_rows
        groups.append(mine)
    return groups


def left_by(listing: Listing, filter: Any) -> Listing:
    """Without the files whose partitions an expression leaves out: those are not even opened.

    Of a table that knows its types before any file is seen.
    """
    if listing.types is None:
        return listing
    left = satisfiable([each.partition for each in listing.files], listing.types, filter)
    return listing._replace(files=[listing.files[number] for number in left])


def satisfiable(
    partitions: Sequence[Mapping[str, Any]], types: Mapping[str, Any], filter: Any
) -> Sequence[int]:
    """Which partitions may have records for an expression of pyarrow; for None, all."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    if filter is None:
        return range(len(partitions))
    form, here = ds.ParquetFileFormat(), LocalFileSystem()
    fragments = [
        form.make_fragment(str(number), here, partition_expression=known(each, types))
        for number, each in enumerate(partitions)
    ]
    dataset = ds.FileSystemDataset(fragments, pa.schema(list(types.items())), form, here)
    return sorted(int(fragment.path) for fragment in dataset.get_fragments(filter))


def known(partition: Mapping[str, Any], types: Mapping[str, Any]) -> Any:
    """What a file's partition says of its records, as an expression of pyarrow."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    found: Any = ds.scalar(True)
    for name, value in partition.items():
        field = ds.field(name)
        found &= field.is_null() if value is None else field == pa.scalar(value, types[name])
    return found


def hive_listing(what: str, paths: Any) -> Listing:
    """Of files, or of a table as Hive and Spark leave it. Raises DataError."""
    files = data_files(what.split(" ")[0], paths)
    partitions, types = _partitions(what, files)
    return Listing(what, [TableFile(*each) for each in zip(files, partitions, strict=True)], types)


def listed(names: Iterable[str]) -> str:
    """For people."""
    return ", ".join(map(repr, names)) or "none"


def _written(each: TableFile, there: Sequence[str], name: str) -> str:
    """How a file writes a name, in whatever case. Raises DataError where that is not certain."""
    if name in there:
        return name
    found = [its for its in there if its.lower() == name]
    if found[1:]:
        raise DataError(f"{each.file}: column {name!r} may be {found[0]!r} or {found[1]!r} there.")
    return found[0] if found else name


def _metadata(file: File) -> Any:
    import pyarrow.parquet as pq

    with file.unchanged(), arrow_errors(str(file), ADVICE):
        return pq.read_metadata(file.open() if file.is_remote else file.name)


def _types(each: OpenedFile, partitions: Collection[str]) -> dict[str, Any]:
    with arrow_errors(str(each.of.file), ADVICE):
        fields = each.metadata.schema.to_arrow_schema()
    of_table = {own: name for name, own in each.of.names.items()}
    found = {of_table.get(field.name, field.name): field.type for field in fields}
    return {name: kind for name, kind in found.items() if name not in partitions}


def _partitions(what: str, files: Sequence[File]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the names of its folders say of each file, and the types of that: whole numbers, dates or texts,
    as all of a name are."""
    import pyarrow as pa

    found = [_named(file) for file in files]
    for file, named in zip(files, found, strict=True):
        if named.keys() != found[0].keys():
            raise DataError(
                f"{what}: {file} lies in folders of the partitions {listed(named)}, {files[0]} in those of "
                f"{listed(found[0])}. All files of one source must have the same."
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
    return {name: None if text == NO_VALUE else unquote(text) for name, _, text in parts}
