"""Records in Parquet files: one, many, or a table as Hive and Spark leave it, in folders named after its
partitions.

Which files, partitions and row groups there are to be read for some filters, and how many records they have,
is found with ``pyarrow.dataset``; a row group is what is read as a whole.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from elasticflow.data.blocks import CACHE_BYTES, REMOTE_AHEAD, Block, BlockSource
from elasticflow.data.listing import (
    ADVICE,
    Listing,
    RowGroup,
    TableFile,
    hive_listing,
    known,
    left_by,
    listed,
    row_groups,
)
from elasticflow.data.ragged import Pad
from elasticflow.data.source import Records, Source, kind_of, names_in, reopened
from elasticflow.data.tables import Selection, Wanted, arrow_errors
from elasticflow.data.typed import ColumnRules, is_text, rules_of
from elasticflow.errors import DataError

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

MOST_TOLD = 200
"""Characters of filters that are told with a table's version."""
_VALUES = re.compile(r"(value_set=[^\[]*)\[\n(.*?)\n\]", re.DOTALL)
LOCAL_AHEAD = 2
"""Row groups that other cores may decode before they are wanted."""


class _Group(NamedTuple):
    """num_rows: those that the filters leave; where they leave all, ``fragment`` is not needed.

    filtered: they are applied to what was read, since there is no fragment that stands for it.
    """

    of: RowGroup
    num_rows: int
    fragment: Any = None
    filtered: bool = False


class TableSource(BlockSource):
    """Records of a table of Parquet files, whoever lists them. See ``Parquet`` for its arguments."""

    def __init__(
        self,
        listing: Listing,
        selection: Selection,
        rules: ColumnRules,
        filters: Any = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        what = listing.what
        if listing.types is not None:
            chosen = expression_of(what, filters, listing.types)
            listing = left_by(listing, chosen)
            if listing.version and chosen is not None:  # so that other records have another name
                told = f"{listing.version.name} where {_told(filters, chosen)}"
                listing = listing._replace(version=msgspec.structs.replace(listing.version, name=told))
        opened = listing.opened()
        schemas = listing.types_of(opened)
        self._types = listing.column_types(schemas)
        self._wanted = Wanted(what, selection, list(self._types), rules)
        partitions = listing.told_partitions(self._wanted.names)
        self.files = (*listing.identities, *partitions, *rules.told)
        inside = [name for name in self._wanted.names if name not in listing.partitions]
        if listing.types is None:
            _check_same(inside, listing.files, schemas, rules.defaults)
        self._coded = [name for name in rules.coded if is_text(self._types[name])]
        self._filter = expression_of(what, filters, self._types)
        self._groups = [
            group for each in row_groups(opened, self._types) for group in self._left(each) if group.num_rows
        ]
        if not self._groups and self._filter is not None:
            raise DataError(f"{what}: the filters leave no record: {self._filter}.")
        rows = [group.num_rows for group in self._groups]
        is_remote = any(each.file.is_remote for each in listing.files[:1])
        ahead = REMOTE_AHEAD if is_remote else LOCAL_AHEAD
        super().__init__(what, rows, cache_bytes, ahead=ahead, pads=self._wanted.pads)

    def over(self, path: str | Records, wanted: Mapping[str, str] | None) -> Source:
        there = names_in(path)
        selection, rules = self._wanted.over(there, wanted)
        if isinstance(path, Records):
            return path.opened(selection, rules)
        kind = kind_of(path)
        if not issubclass(kind, TableSource):
            if rules.any:
                raise DataError(
                    f"data {path}: vocabularies, hashing, defaults and pad, by which the run has read its "
                    "columns, are those of ef.data.Parquet. Give Parquet."
                )
            return reopened(path, selection)
        if not selection:
            raise DataError(f"Parquet {path}: has none of the columns that are wanted, but {listed(there)}.")
        opened: Source = kind(path, selection, **msgspec.structs.asdict(rules))
        return opened

    # --- filters ---------------------------------------------------------------------------------

    def _left(self, groups: Sequence[RowGroup]) -> list[_Group]:
        """Of a file's row groups, what the filters leave of each."""
        if self._filter is None:
            return [_Group(group, group.num_rows) for group in groups]
        if groups and (groups[0].of.names or groups[0].of.kept is not None):
            return [self._counted(group) for group in groups]
        return self._pushed_down(groups)

    def _counted(self, group: RowGroup) -> _Group:
        """Of a file of which no fragment can be made: records were deleted, or it has names of its own."""
        with group.of.file.unchanged(), arrow_errors(group.name, "Do the filters fit the columns?"):
            count = group.read(list(self._types)).filter(self._filter).num_rows
        return _Group(group, count, filtered=count < group.num_rows)

    def _pushed_down(self, groups: Sequence[RowGroup]) -> list[_Group]:
        if not groups:
            return []
        of, schema, found = groups[0].of, self._arrow_schema(), []
        with of.file.unchanged(), arrow_errors(str(of.file), "Do the filters fit the columns?"):
            whole = self._fragment(of, of.file.open() if of.file.is_remote else of.file.name)
            for fragment in whole.split_by_row_group(self._filter, schema=schema):
                group = groups[fragment.row_groups[0].id]
                scanner = fragment.scanner(schema=schema, filter=self._filter, use_threads=False)
                # Where all must fit the filter pyarrow counts the whole file, whatever the row group.
                count = min(scanner.count_rows(), group.num_rows)
                found.append(_Group(group, count, fragment if count < group.num_rows else None))
        return found

    def _fragment(self, of: TableFile, source: Any, number: int | None = None) -> Any:
        """What pyarrow's datasets are made of: a file, or a row group of it."""
        import pyarrow.dataset as ds
        from pyarrow.fs import LocalFileSystem

        return ds.ParquetFileFormat().make_fragment(
            source,
            filesystem=None if of.file.is_remote else LocalFileSystem(),
            partition_expression=known(of.partition, self._types),
            row_groups=None if number is None else [number],
        )

    def _arrow_schema(self) -> Any:
        import pyarrow as pa

        return pa.schema(list(self._types.items()))

    # --- blocks ----------------------------------------------------------------------------------

    def read_block(self, number: int) -> Block:
        group = self._groups[number]
        with group.of.of.file.unchanged(), arrow_errors(group.of.name, ADVICE):
            table = self._read(group)
        return self._wanted.fields(group.of.name, table, int(self.block_starts[number]))

    def _read(self, group: _Group) -> Any:
        names = self._wanted.names
        if group.filtered:
            return group.of.read(list(self._types)).filter(self._filter).select(names)
        if group.fragment is None:
            coded = [name for name in self._coded if group.of.has_few_values(name)]
            return group.of.read(names, coded)
        fragment, of = group.fragment, group.of.of
        if of.file.is_remote:
            fragment = self._fragment(of, of.file.open(group.of.ranges(names)), group.of.number)
        return fragment.to_table(
            schema=self._arrow_schema(), columns=names, filter=self._filter, use_threads=False
        )

    def block_name(self, number: int) -> str:
        return self._groups[number].of.name


class Parquet(TableSource):
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
        listing = self.listing_of(path)
        rules = rules_of(listing.what, vocabularies, hashing, defaults, pad)
        chosen = selection_of(listing.what, columns, named)
        super().__init__(listing, chosen, rules, filters, cache_bytes)

    @staticmethod
    def listing_of(path: Paths) -> Listing:
        """Its files. Raises DataError."""
        return hive_listing(f"Parquet {_shown(path)}", path)

    @classmethod
    def names_in(cls, path: Paths) -> list[str]:
        """What the files, and the folders that they are in, call their columns. Raises DataError."""
        listing = cls.listing_of(path)
        return list(listing.column_types(listing.types_of(listing.opened())))


def raw_groups(listing: Listing) -> Iterator[RowGroup]:
    """All there is, as Arrow has it: see ``raw_names``. Raises DataError."""
    groups = row_groups(listing.opened(), listing.types or listing.partitions)
    return (group for each in groups for group in each)


def raw_tables(path: str) -> Iterator[tuple[str, Any]]:
    """All there is, as Arrow has it, row group by row group, with what it is called. Raises DataError."""
    listing = kind_of(path).listing_of(path)
    for group in raw_groups(listing):
        own = {its: name for name, its in group.of.names.items()}
        inside = [own.get(name, name) for name in group.metadata.schema.to_arrow_schema().names]
        names = list(listing.types) if listing.types else list(dict.fromkeys([*inside, *group.of.partition]))
        with group.of.file.unchanged(), arrow_errors(str(group.of.file), ADVICE):
            yield group.name, group.read(names)


def _shown(path: Paths) -> str:
    if isinstance(path, (str, os.PathLike)):
        return os.fspath(path)
    return ", ".join(os.fspath(each) for each in path)


def selection_of(
    what: str, columns: Sequence[str] | Selection | None, named: Mapping[str, str | Sequence[str]]
) -> Selection:
    """The columns that are wanted, as both ways of naming them say. Raises DataError."""
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


def expression_of(what: str, filters: Any, types: Mapping[str, Any]) -> Any:
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
            raise DataError(f"{what}: filters names a column {name!r}. There are: {listed(types)}.")
        many = list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]
        values = [_scalar(each, types[name]) for each in many]
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


def _told(filters: Any, chosen: Any) -> str:
    """Filters, which are ``chosen`` as an expression, in a line: the same in every process, and others in
    another; but not lists of more than twenty values within an expression of the program's."""
    words = " ".join(_VALUES.sub(_sorted_values, str(chosen)).split()).replace("/", "|")
    if len(words) <= MOST_TOLD and "..." not in words:
        return words
    whole = repr(_ordered(filters)) if isinstance(filters, (list, tuple)) else words
    return f"{words[:MOST_TOLD]}... {hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()}"


def _sorted_values(found: re.Match[str]) -> str:
    """A list of values, which may have been a set, as an expression shows it: of a long one only the ends."""
    shown = found[2].split(",\n")
    return f"{found[1]}[{'...' if '...' in found[2] else ','.join(sorted(shown))}]"


def _ordered(filters: Any) -> Any:
    """With lists in the place of sets, which come in another order in each process."""
    if isinstance(filters, (set, frozenset)):
        return sorted(filters, key=repr)
    return [_ordered(each) for each in filters] if isinstance(filters, (list, tuple)) else filters


def _scalar(value: Any, kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_decimal(kind) and isinstance(value, int):
        return pa.scalar(Decimal(value), kind)
    return pa.scalar(value).cast(kind)


def _check_same(
    names: Sequence[str],
    files: Sequence[TableFile],
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
                    f"{file.file}: column {name!r} is missing, but holds {expected} in {files[first].file}. "
                    "All files of one source must have the same columns, unless "
                    f"defaults={{{name!r}: ...}} says what stands for it."
                )
            if found not in (None, expected):
                raise DataError(
                    f"{file.file}: column {name!r} holds {found}, but holds {expected} in "
                    f"{files[first].file}. All files of one source must have the same columns."
                )
