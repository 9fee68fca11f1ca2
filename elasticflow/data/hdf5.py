"""Records in the datasets of an HDF5 file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from elasticflow.data.blocks import BLOCK_BYTES, CACHE_BYTES, REMOTE_AHEAD, Block, BlockSource
from elasticflow.data.files import File, Range, existing_file, identities
from elasticflow.data.permutation import Rows
from elasticflow.data.source import (
    Array,
    Records,
    Source,
    choose_names,
    common_length,
    kept_names,
    make_column,
    names_in,
    native,
    reopened,
)
from elasticflow.errors import DataError
from elasticflow.process.available import available_memory
from elasticflow.process.garbage import uncollected

MOST_DATASETS, MOST_HOPS = 4096, 32
"""That a file is looked through for; from one link to the next."""
MOST_BLOCKS = 1 << 22
LARGE_BYTES = 256 << 20
"""A block of more is only read if there is memory for it."""
_NAME_IT = "Nobody would notice if that changed: name that file instead, or copy the records into this one."


class HDF5(BlockSource):
    """Datasets of one file, records along the first axis.

    ``HDF5("digits.h5", x="images", y="group/labels")``: column name = dataset in the file; without
    keywords, every dataset of the root is a column. Rows are read in blocks of about ``block_bytes``,
    made of whole chunks of the dataset. Variable-length strings become ``U`` arrays.
    Raises DataError if the file is missing, damaged or no HDF5 file, or a dataset is missing or unfit: also
    if its records lie in another file (by a link, virtually, or as external storage), which nobody watches.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        cache_bytes: int = CACHE_BYTES,
        block_bytes: int = BLOCK_BYTES,
        **names: str,
    ) -> None:
        self._file = existing_file("HDF5", path)
        self.files = identities([self._file])
        what = f"HDF5 file {self._file}"
        self._chunks: dict[str, _Chunks] = {}
        with _opened(self._file) as file:
            self._names = choose_names(what, "dataset", names, _datasets(file, names))
            datasets = {column: file[name] for column, name in self._names.items()}
            for name, dataset in datasets.items():
                _check_home(f"{what}: dataset {self._names[name]!r}", dataset)
                _check(f"{what}: dataset {self._names[name]!r}", name, dataset)
            num_rows = common_length(what, {self._names[name]: len(d) for name, d in datasets.items()})
            per_block = _rows_per_block(list(datasets.values()), num_rows, block_bytes)
            _check_size(what, list(datasets.values()), num_rows, per_block)
            if self._file.is_remote:
                self._chunks = {column: _Chunks.of(dataset) for column, dataset in datasets.items()}
        starts = range(0, num_rows, per_block)
        rows = [min(per_block, num_rows - start) for start in starts]
        super().__init__(what, rows, cache_bytes, ahead=REMOTE_AHEAD if self._file.is_remote else 0)

    def read_block(self, number: int) -> Block:
        start, stop = self.block_starts[number : number + 2].tolist()
        ranges = [each for chunks in self._chunks.values() for each in chunks.ranges(start, stop)]
        with _opened(self._file, ranges) as file:
            return {column: _read(file[name], start, stop) for column, name in self._names.items()}

    @staticmethod
    def names_in(path: str) -> list[str]:
        """What the file calls its datasets. Raises DataError."""
        with _opened(existing_file("HDF5", path)) as file:
            return list(_datasets(file, {}))

    def over(self, path: str | Records, wanted: Mapping[str, str] | None) -> Source:
        return reopened(path, kept_names(self._names, names_in(path), wanted))

    def block_name(self, number: int) -> str:
        return f"{self.what}, rows {self.block_starts[number]}..{self.block_starts[number + 1]}"


class _Chunks(NamedTuple):
    """Where the chunks of a dataset lie in the file, in the order of their first rows.

    ``num_rows``: of each chunk; 0 for rows that lie one after the other, of which only the first is given.
    Empty where the bytes lie elsewhere, as those of strings do.
    """

    first_rows: Rows
    num_rows: int
    starts: Rows
    sizes: Rows

    @classmethod
    def of(cls, dataset: Any) -> _Chunks:
        found: list[tuple[int, int, int]] = []
        if dataset.chunks:
            dataset.id.chunk_iter(lambda one: found.append((one.chunk_offset[0], one.byte_offset, one.size)))
            found.sort()
        elif offset := dataset.id.get_offset():
            size = dataset.dtype.itemsize * math.prod(dataset.shape[1:])
            found = [(0, offset, size)]
        table = np.array(found, np.int64).reshape(-1, 3)
        return cls(table[:, 0], dataset.chunks[0] if dataset.chunks else 0, table[:, 1], table[:, 2])

    def ranges(self, start: int, stop: int) -> list[Range]:
        """Of the file, for these rows."""
        if not len(self.starts):
            return []
        if not self.num_rows:
            offset, size = int(self.starts[0]), int(self.sizes[0])
            return [(offset + start * size, offset + stop * size)]
        first = np.searchsorted(self.first_rows, start - self.num_rows, side="right")
        last = np.searchsorted(self.first_rows, stop, side="left")
        places = zip(self.starts[first:last].tolist(), self.sizes[first:last].tolist(), strict=True)
        return [(place, place + size) for place, size in places]


@contextmanager
def _opened(file: File, ranges: Sequence[Range] = ()) -> Iterator[Any]:
    """The open file. Raises DataError for what HDF5 cannot read, now or inside the ``with``."""
    import h5py

    # Otherwise HDF5 refuses files on file systems that have no locks.
    options = {} if file.is_remote else {"locking": "best-effort"}
    # h5py holds its lock while it reads from the store, whose answer may come by another thread; and any of
    # h5py's objects that dies there waits for that lock.
    with file.unchanged(), uncollected() if file.is_remote else nullcontext():
        try:
            with h5py.File(file.open(ranges) if file.is_remote else file.name, "r", **options) as opened:
                yield opened
        except DataError:
            raise
        except (OSError, LookupError, RuntimeError, ValueError, TypeError, OverflowError) as error:
            # h5py knows no errors of its own, and translates the library's to any of these.
            raise DataError(
                f"HDF5 file {file} is damaged or is no HDF5 file: {error}. Write it again."
            ) from error


def _datasets(file: Any, names: dict[str, str]) -> list[str]:
    """Datasets of the root, and those of the names asked for that lie deeper. Raises DataError."""
    if not names and len(file) > MOST_DATASETS:
        raise DataError(
            f"HDF5 file {file.filename}: {len(file):,} datasets; name those that are wanted, such as "
            'HDF5(file, x="images").'
        )
    root = [name for name in islice(file, MOST_DATASETS) if _is_dataset(file, name)]
    deeper = [name for name in names.values() if name not in root and _is_dataset(file, name)]
    return root + list(dict.fromkeys(deeper))


def _is_dataset(file: Any, name: str) -> bool:
    """Raises DataError for what is in another file; that is not even opened."""
    import h5py

    waiting, group, hops = name.split("/")[::-1], file, 0
    while waiting:
        part = waiting.pop()
        if part in ("", "."):
            continue
        link = group.get(part, getlink=True) if isinstance(group, h5py.Group) else None
        if isinstance(link, h5py.ExternalLink):
            raise DataError(f"HDF5 file {file.filename}: {name!r} is a link to {link.filename}. {_NAME_IT}")
        if isinstance(link, h5py.SoftLink):
            if (hops := hops + 1) > MOST_HOPS:
                return False
            group = file if link.path.startswith("/") else group
            waiting += link.path.split("/")[::-1]
        elif link is None:
            return False
        else:
            group = group[part]
    return isinstance(group, h5py.Dataset)


def _check_home(what: str, dataset: Any) -> None:
    """Raises DataError unless its records are in the file itself, and can be read."""
    from h5py import h5z

    made = dataset.id.get_create_plist()
    if dataset.is_virtual or made.get_external_count():
        raise DataError(f"{what}: its records lie in other files. {_NAME_IT}")
    for number in range(made.get_nfilters()):
        code, _, _, name = made.get_filter(number)
        if not h5z.filter_avail(code):
            raise DataError(
                f"{what}: is compressed by filter {code} ({name.decode(errors='replace')!r}), which this "
                "HDF5 library does not have; install the plugin, or write the file with gzip."
            )


def _check_size(what: str, datasets: list[Any], num_rows: int, per_block: int) -> None:
    """Raises DataError where a file claims more records, or larger ones, than can be dealt with."""
    row_bytes = sum(dataset.dtype.itemsize * math.prod(dataset.shape[1:]) for dataset in datasets)
    if (num_blocks := -(-num_rows // per_block)) > MOST_BLOCKS:
        raise DataError(
            f"{what}: {num_rows:,} records, in {num_blocks:,} blocks, of which there can be {MOST_BLOCKS:,}; "
            "is the file what it should be? If so, use a larger block_bytes."
        )
    if (num_bytes := per_block * row_bytes) > LARGE_BYTES:
        left = min(available_memory().values(), default=num_bytes)
        if num_bytes > left:
            raise DataError(
                f"{what}: {per_block:,} records, which must be read at once, have {num_bytes:,} bytes, and "
                f"{left:,} are free. Write the file with smaller chunks."
            )


def _check(what: str, column: str, dataset: Any) -> None:
    import h5py

    if h5py.check_string_dtype(dataset.dtype) is None or not dataset.shape:
        make_column(what, column, dataset.shape or (), dataset.dtype)


def _rows_per_block(datasets: list[Any], num_rows: int, block_bytes: int) -> int:
    """How many rows come to about ``block_bytes``, in whole chunks of the coarsest dataset."""
    row_bytes = sum(dataset.dtype.itemsize * math.prod(dataset.shape[1:]) for dataset in datasets)
    chunk_rows = max(dataset.chunks[0] if dataset.chunks else 1 for dataset in datasets)
    num_chunks = max(1, block_bytes // max(1, row_bytes * chunk_rows))
    return int(min(num_rows, chunk_rows * num_chunks))


def _read(dataset: Any, start: int, stop: int) -> Array:
    import h5py

    text = h5py.check_string_dtype(dataset.dtype)
    if text is not None and text.length is None:
        strings: Array = dataset.asstr()[start:stop].astype("U")
        return strings
    return native(dataset[start:stop])
