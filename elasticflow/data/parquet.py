"""Records in Parquet files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from elasticflow.data.blocks import CACHE_BYTES, Block, BlockSource
from elasticflow.data.files import matching_files
from elasticflow.data.tables import Wanted, arrow_errors
from elasticflow.errors import DataError

_ADVICE = "Is it a whole Parquet file? Write it again."


class _RowGroup(NamedTuple):
    path: str
    metadata: Any  # of the file: it is not parsed again for each block
    number: int
    num_rows: int


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
        paths = matching_files("Parquet", pattern)
        what = f"Parquet {os.fspath(pattern)}"
        metadata = {path: _metadata(path) for path in paths}
        schemas = {path: _schema(path, metadata[path]) for path in paths}
        self._wanted = Wanted(what, columns, list(schemas[paths[0]]))
        for path in paths[1:]:
            _check_same(self._wanted.names, paths[0], schemas[paths[0]], path, schemas[path])
        self._groups = [group for path in paths for group in _row_groups(path, metadata[path])]
        super().__init__(what, [group.num_rows for group in self._groups], cache_bytes)

    def read_block(self, number: int) -> Block:
        import pyarrow.parquet as pq

        group = self._groups[number]
        with arrow_errors(self.block_name(number), _ADVICE):
            with pq.ParquetFile(group.path, metadata=group.metadata, pre_buffer=False) as file:
                # Threads would be lost in a fork.
                table = file.read_row_group(group.number, columns=self._wanted.names, use_threads=False)
        return self._wanted.arrays(self.block_name(number), table)

    def block_name(self, number: int) -> str:
        return f"{self._groups[number].path}, row group {self._groups[number].number}"


def _metadata(path: str) -> Any:
    import pyarrow.parquet as pq

    with arrow_errors(path, _ADVICE):
        return pq.read_metadata(path)


def _schema(path: str, metadata: Any) -> dict[str, Any]:
    """Types by column name."""
    with arrow_errors(path, _ADVICE):
        return {field.name: field.type for field in metadata.schema.to_arrow_schema()}


def _row_groups(path: str, metadata: Any) -> list[_RowGroup]:
    groups = [
        _RowGroup(path, metadata, number, metadata.row_group(number).num_rows)
        for number in range(metadata.num_row_groups)
    ]
    return [group for group in groups if group.num_rows]


def _check_same(
    names: Sequence[str], first: str, expected: dict[str, Any], path: str, found: dict[str, Any]
) -> None:
    """Raises DataError if a column is missing in a later file, or has another type there."""
    for name in names:
        if found.get(name) != expected[name]:
            held = f"holds {found[name]}" if name in found else "is missing"
            raise DataError(
                f"{path}: column {name!r} {held}, but holds {expected[name]} in {first}. "
                "All files of one source must have the same columns."
            )
