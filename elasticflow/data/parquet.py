"""Records in Parquet files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from elasticflow.data.blocks import CACHE_BYTES, Block, BlockSource
from elasticflow.data.files import File, Range, identities, map_files, matching_files
from elasticflow.data.tables import Wanted, arrow_errors
from elasticflow.errors import DataError

_FAR = 1 << 63
_ADVICE = "Is it a whole Parquet file? Write it again."


class _RowGroup(NamedTuple):
    file: File
    metadata: Any  # of the file: it is not parsed again for each block
    number: int
    num_rows: int

    def ranges(self, names: Sequence[str]) -> list[Range]:
        """Where the columns lie in the file. Nested ones have several parts."""
        group = self.metadata.row_group(self.number)
        chunks = [group.column(number) for number in range(group.num_columns)]
        wanted = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in names]
        starts = [min(chunk.dictionary_page_offset or _FAR, chunk.data_page_offset) for chunk in wanted]
        sizes = [chunk.total_compressed_size for chunk in wanted]
        return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]


class Parquet(BlockSource):
    """Rows of all files that match a pattern, in the order of the files' names.

    ``Parquet("train/*.parquet", x=["a", "b", "c"], y="label")``: a list stacks columns of numbers to
    one (rows, 3) array (int64 if all are whole numbers, else float32), a string renames one; without
    keywords, every column of the files is a column. Lists of one length become (rows, length) arrays.
    A row group is read as a whole; the cache should hold some eight of them.
    Raises DataError if no file matches, a file is damaged or has other columns, or a column is unfit.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        *,
        cache_bytes: int = CACHE_BYTES,
        **columns: str | Sequence[str],
    ) -> None:
        files = matching_files("Parquet", pattern)
        self.files = identities(files)
        what = f"Parquet {os.fspath(pattern)}"
        metadata = list(map_files(_metadata, files))
        schemas = [_schema(file, found) for file, found in zip(files, metadata, strict=True)]
        self._wanted = Wanted(what, columns, list(schemas[0]))
        for file, schema in zip(files[1:], schemas[1:], strict=True):
            _check_same(self._wanted.names, files[0], schemas[0], file, schema)
        self._groups = [
            group for file, found in zip(files, metadata, strict=True) for group in _row_groups(file, found)
        ]
        rows = [group.num_rows for group in self._groups]
        super().__init__(what, rows, cache_bytes, is_remote=files[0].is_remote)

    def read_block(self, number: int) -> Block:
        import pyarrow.parquet as pq

        group, names = self._groups[number], self._wanted.names
        with group.file.unchanged(), arrow_errors(self.block_name(number), _ADVICE):
            # Local files are read by pyarrow itself. Threads of its own would be lost in a fork.
            source = group.file.open(group.ranges(names)) if group.file.is_remote else group.file.name
            with pq.ParquetFile(source, metadata=group.metadata, pre_buffer=False) as file:
                table = file.read_row_group(group.number, columns=names, use_threads=False)
        return self._wanted.arrays(self.block_name(number), table)

    def block_name(self, number: int) -> str:
        return f"{self._groups[number].file}, row group {self._groups[number].number}"


def _metadata(file: File) -> Any:
    import pyarrow.parquet as pq

    with file.unchanged(), arrow_errors(str(file), _ADVICE):
        return pq.read_metadata(file.open() if file.is_remote else file.name)


def _schema(file: File, metadata: Any) -> dict[str, Any]:
    """Types by column name."""
    with arrow_errors(str(file), _ADVICE):
        return {field.name: field.type for field in metadata.schema.to_arrow_schema()}


def _row_groups(file: File, metadata: Any) -> list[_RowGroup]:
    groups = [
        _RowGroup(file, metadata, number, metadata.row_group(number).num_rows)
        for number in range(metadata.num_row_groups)
    ]
    return [group for group in groups if group.num_rows]


def _check_same(
    names: Sequence[str], first: File, expected: dict[str, Any], file: File, found: dict[str, Any]
) -> None:
    """Raises DataError if a column is missing in a later file, or has another type there."""
    for name in names:
        if found.get(name) != expected[name]:
            held = f"holds {found[name]}" if name in found else "is missing"
            raise DataError(
                f"{file}: column {name!r} {held}, but holds {expected[name]} in {first}. "
                "All files of one source must have the same columns."
            )
