"""The files that a dataset of a program's own reads, where it has their names in a list, or that of one.

Most that read a file for each record find them as they begin: ``self.files = sorted(glob(...))``, the samples
of torchvision's ImageFolder, a table of names beside a folder. Others open one by its name, ``self.path``, or
have it open. Then nobody trains on others than the run began with. Files that it names otherwise nobody
knows of.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from stat import S_ISREG
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from elasticflow.data.files import LocalFile
from elasticflow.data.permutation import Rows
from elasticflow.errors import UnreadableError
from elasticflow.process.clocks import process_began_s
from elasticflow.storage.file_ids import DATASET, STAY, FileId, list_id

MOST_FILES = 1024
"""Of so many, from all over a list, samples are taken: to open each of a million takes minutes."""
MOST_DEPTH = 4
"""Of datasets within datasets."""

T = TypeVar("T")
Names: TypeAlias = "Sequence[str]"
READING = ("r", "rb", "rt", "c")
"""Modes of what is open and not written to. c: NumPy's for a mapped file, of which a copy is."""
_PLAIN = (bool, int, float, str, np.generic)


class Listed:
    """The files of a dataset of ``num_rows`` records.

    files: what they are, for all processes to compare. A list that has one name for each record says of which
    each is: such a file must stay as it is from when a process has first looked at it.
    """

    def __init__(self, dataset: Any, num_rows: int) -> None:
        self.files: tuple[FileId, ...] = ()
        self._of_records: list[tuple[Names, npt.NDArray[np.uint64]]] = []
        # What is read of one must not depend on what others are there by now, as of a cache.
        datasets = list(_datasets(dataset))
        for place, each, _ in datasets:
            for name, file in _files_of(each):
                self.files += tuple(_of(f"{place}.{name}", _identities([file], len(datasets))))
        lists = [
            (where, _picked(names, picks), _picked(beside, picks))
            for place, each, picks in datasets
            for where, names, beside in _lists(each, place)
        ]
        most = max(2, MOST_FILES // max(1, len(lists)))
        for where, names, beside in lists:
            if not names:  # there are subsets of none, and files that are not there yet
                continue
            some = np.unique(np.linspace(0, len(names) - 1, min(most, len(names))).astype(np.int64))
            sampled = _identities([names[number] for number in some], len(lists))
            if len(sampled) == len(some):  # else its dataset writes them, as a cache, or reads but some
                self.files += tuple(_of(where, sampled))
                self.files += (list_id(where, len(names), [_relative(names), beside]),)
            if len(names) == num_rows:
                stamps = np.zeros(num_rows, np.uint64)
                self._of_records.append((names, stamps))
                self._stamp(names, stamps, some)

    @contextmanager
    def unchanged(self, number: int) -> Iterator[None]:
        """While a record is made. Raises UnreadableError, instead of any error, if its file has changed."""
        for names, stamps in self._of_records:
            if not stamps[number]:
                self._stamp(names, stamps, np.array([number]))
        try:
            yield
        except Exception as error:
            if change := self._change(number):
                raise UnreadableError(f"{change}. {STAY}") from error
            raise
        if change := self._change(number):
            raise UnreadableError(f"{change}. {STAY}")

    def _stamp(self, names: Names, stamps: npt.NDArray[np.uint64], numbers: Rows) -> None:
        for number in numbers:
            stamps[number] = _stamp_of(names[number])

    def _change(self, number: int) -> str:
        """In words; "" if there is none."""
        for names, stamps in self._of_records:
            if (before := int(stamps[number])) and before != (now := _stamp_of(names[number])):
                what = "has changed: it was written to, touched or replaced since" if now else "is gone"
                return f"{names[number]} {what}"
        return ""


def _of(where: str, files: Iterable[FileId]) -> Iterator[FileId]:
    return (msgspec.structs.replace(each, of_list=where) for each in files)


def _identities(names: Names, num_lists: int) -> list[FileId]:
    """Of those that can be read. Of others the program's own error is told, if it reads them at all."""
    found = []
    for name in names:
        with suppress(OSError, ValueError, UnreadableError):
            found.append(LocalFile(name).identity(len(names) * num_lists))
    return found


def _stamp_of(name: str) -> int:
    """What is another whenever a file was written to or replaced, unless its time was set back; 0: there is
    none. (Some file systems make inodes up each time.)"""
    try:
        stat = os.stat(name)
    except (OSError, ValueError):  # such as of a text that is no file's name
        return 0
    return hash((stat.st_size, stat.st_mtime_ns)) & (1 << 64) - 1 or 1


def _relative(names: Names) -> list[str]:
    """From the folder on in which all lie: they may be moved together."""
    common = os.path.commonprefix([min(names), max(names)]).rfind("/") + 1
    return [name[common:] for name in names]


# --- where a dataset has them -------------------------------------------------------------------------


class _NamedRows(NamedTuple):
    """Something with rows. rows: all of them; the first and the last are looked at before."""

    first: Sequence[Any]
    last: Sequence[Any]
    rows: Callable[[], Sequence[Sequence[Any]]]


_Picks: TypeAlias = "tuple[tuple[int, Sequence[int]], ...]"
"""Which records of so many subsets have, the innermost first."""


def _datasets(dataset: Any, place: str = DATASET, depth: int = 0) -> Iterator[tuple[str, Any, _Picks]]:
    """A dataset, or those that it is made of, and those within: where each is, and what subsets have."""
    if depth == MOST_DEPTH:
        return
    if inner := _inner(dataset):
        for which, (each, numbers) in enumerate(inner):
            pick: _Picks = ()
            if numbers is not None and hasattr(each, "__len__"):
                pick = ((len(each), numbers),)
            for where, found, picks in _datasets(each, f"{place}[{which}]", depth + 1):
                yield where, found, (*picks, *pick)
        return
    yield place, dataset, ()
    for name, value in _kept(dataset).items():
        if _is_dataset(value):
            yield from _datasets(value, f"{place}.{name}", depth + 1)


def _picked(of_list: Sequence[T], picks: _Picks) -> Sequence[T]:
    """Of a list with one for each record; another is left as it is."""
    for count, numbers in picks:
        if len(of_list) == count:
            of_list = [of_list[number] for number in numbers]
    return of_list


def _kept(dataset: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(dataset, "__dict__", {})
    return found


def _files_of(dataset: Any) -> Iterator[tuple[str, str]]:
    """The files that it names alone, or has open: by which attribute, and their names."""
    for name, value in _kept(dataset).items():
        if file := _file_of(value):
            yield name, file


def _lists(dataset: Any, place: str) -> Iterator[tuple[str, Names, list[Any]]]:
    """Its lists of names of files: where each is, the names, and what stands beside each, such as its class.

    Without names: whose files are not there yet. place: where the dataset itself is.
    """
    kept = _kept(dataset)
    folders = ["", *(os.fspath(each) for each in kept.values() if _is_text(each) and os.path.isdir(each))]
    seen = set[int]()
    for name, value in (("", dataset), *kept.items()):  # some have one list by two names, as ImageFolder
        if id(value) not in seen and (table := _table(value)):
            seen.add(id(value))
            yield from _named_in(table, f"{place}.{name}", folders)


def _named_in(
    table: _NamedRows, place: str, folders: Sequence[str]
) -> Iterator[tuple[str, Names, list[Any]]]:
    """Of each column whose first and last values name files, perhaps of one of these folders, or might."""
    for column, ends in enumerate(zip(table.first, table.last, strict=False)):
        for folder in folders if all(map(_is_text, ends)) else ():
            if all(os.path.isfile(os.path.join(folder, each)) for each in ends):
                rows = table.rows()
                with suppress(TypeError, IndexError):  # not all rows are of one kind
                    names = [os.path.join(folder, os.fspath(row[column])) for row in rows]
                    yield f"{place}[{column}]", names, [_beside(row, column) for row in rows]
                break
        else:
            if all(map(_is_text, ends)) and any(_may_be_files(folder, ends) for folder in folders):
                yield f"{place}[{column}]", [], []


def _may_be_files(folder: str, names: Sequence[Any]) -> bool:
    """Whether each is in a folder that it names, and that is there, as those of a cache that is to come."""
    places = [os.path.join(folder, each) for each in names if os.path.dirname(each)]
    there = [os.path.isdir(os.path.dirname(each)) and not os.path.isdir(each) for each in places]
    return len(there) == len(names) and all(there)


def _file_of(value: Any) -> str:
    """That it names, or has open to read, such as one of HDF5; "": none, or one that this process writes.

    Nor an empty one: no record comes of it, and to lock one changes its time.
    """
    with suppress(Exception):  # a program's own object may do anything
        if not _is_text(value):
            value = (getattr(value, "filename", "") or value.name) if value.mode in READING else ""
        stat = os.stat(value)
        if S_ISREG(stat.st_mode) and stat.st_size and stat.st_mtime < process_began_s():
            return str(os.fspath(value))
    return ""


def _beside(row: Sequence[Any], place: int) -> list[Any]:
    return [each for other, each in enumerate(row) if other != place and isinstance(each, _PLAIN)]


def _table(value: Any) -> _NamedRows | None:
    pandas = sys.modules.get("pandas")
    if pandas and isinstance(value, pandas.Series | pandas.DataFrame) and len(value):
        frame = value.to_frame() if isinstance(value, pandas.Series) else value
        return _NamedRows(
            tuple(frame.iloc[0]),
            tuple(frame.iloc[-1]),
            lambda: list(frame.itertuples(index=False, name=None)),
        )
    if isinstance(value, np.ndarray) and value.ndim in (1, 2) and value.dtype.kind in "UO":
        value = value.tolist()
    if not isinstance(value, list | tuple) or not value:
        return None
    if _is_text(value[0]):
        return _NamedRows(value[:1], value[-1:], lambda: [(each,) for each in value])
    if isinstance(value[0], list | tuple) and isinstance(value[-1], list | tuple):
        return _NamedRows(value[0], value[-1], lambda: value)
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _inner(dataset: Any) -> list[tuple[Any, Sequence[int] | None]]:
    """Of PyTorch's own that are made of others: each, and which records of it; None: all."""
    if "torch" not in sys.modules:
        return []
    from torch.utils.data import ConcatDataset, StackDataset, Subset

    if isinstance(dataset, Subset):
        return [(dataset.dataset, dataset.indices)]
    if isinstance(dataset, ConcatDataset | StackDataset):
        parts = dataset.datasets
        return [(each, None) for each in (parts.values() if isinstance(parts, dict) else parts)]
    return []


def _is_dataset(value: Any) -> bool:
    if "torch" not in sys.modules:
        return False
    from torch.utils.data import Dataset

    return isinstance(value, Dataset)
