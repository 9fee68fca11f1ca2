"""From what a program's ``data()`` returns, or a path names, to sources."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from elasticflow.data.arrays import Arrays
from elasticflow.data.csv_files import CSV
from elasticflow.data.delta import Delta, is_delta
from elasticflow.data.files import matching_files
from elasticflow.data.hdf5 import HDF5
from elasticflow.data.mapped import Indexed
from elasticflow.data.npz import NPZ
from elasticflow.data.owned import Owned, is_own
from elasticflow.data.parquet import Parquet
from elasticflow.data.source import Source
from elasticflow.errors import DataError

_ALLOWED = (
    "Allowed are a source (Arrays, HDF5, NPZ, CSV, Parquet), a dict of arrays, a tuple of arrays, a "
    "map-style dataset (with __len__ and __getitem__), or {'train': ..., 'test': ...} of these"
)
_BY_SUFFIX: dict[str, type[CSV] | type[NPZ] | type[HDF5] | type[Parquet]] = {
    ".npz": NPZ,
    ".h5": HDF5,
    ".hdf5": HDF5,
    ".csv": CSV,
    ".parquet": Parquet,
}


class PartOfTests(NamedTuple):
    """Records ``first..last`` of those to test with: a source of its own. name: "", if it is the only one."""

    name: str
    first: int
    last: int

    @property
    def prefix(self) -> str:
        """Of the names of its metrics."""
        return f"{self.name}/" if self.name else ""


class Sources(NamedTuple):
    """What a run trains on, and is tested on, if anything. parts: sources of which ``test`` is made."""

    train: Source
    test: Source | None = None
    parts: tuple[PartOfTests, ...] = ()

    @property
    def tests(self) -> tuple[PartOfTests, ...]:
        """All of ``test``, in at least one part; none if there is nothing to test with."""
        if self.test is None:
            return ()
        return self.parts or (PartOfTests("", 0, self.test.num_rows),)


def open_source(spec: Any) -> Sources:
    """The sources that a program's ``data()`` describes.

    spec: a Source; a dict of arrays (columns by name); a tuple or list of arrays (by position); a data frame;
    anything else with ``__len__`` and ``__getitem__``, record by record; or a dict with the keys "train"
    and, if wanted, "test", each one of the former; "test" also a dict of several of them, by name. Raises
    DataError for anything else, and if the columns of all are not named alike.
    """
    if not isinstance(spec, Mapping) or not {"train", "test"} & spec.keys():
        return Sources(one_source("data()", spec))
    others = [key for key in spec if key not in ("train", "test")]
    if others or "train" not in spec:
        raise DataError(
            f"data() returned a dict with the keys {list(spec)}. Beside 'train' only 'test' is allowed, "
            "and 'train' must be there; or name the columns otherwise."
        )
    train = one_source("data()['train']", spec["train"])
    if "test" not in spec:
        return Sources(train)
    tests = _tests(spec["test"])
    for name, test in tests.items():
        _check_alike(train, test, name)
    ends = list(accumulate((test.num_rows for test in tests.values()), initial=0))
    parts = tuple(PartOfTests(name, *bounds) for name, bounds in zip(tests, pairwise(ends), strict=True))
    return Sources(train, _joined(list(tests.values())), parts)


def _tests(spec: Any) -> dict[str, Source]:
    """Sources to test with, by name; the only one has none."""
    if not isinstance(spec, Mapping) or not spec or not all(map(_is_source, spec.values())):
        return {"": one_source("data()['test']", spec)}
    for name in spec:
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,60}", name):
            raise DataError(
                f"data()['test'] has a source named {name!r}; its metrics are named after it, such as "
                "'clean/cost', so a name is a text of letters, digits, '_', '-' and '.'."
            )
    return {name: one_source(f"data()['test'][{name!r}]", each) for name, each in spec.items()}


def _is_source(value: Any) -> bool:
    """Whether it cannot be a column."""
    return isinstance(value, (Source, Mapping, tuple)) or hasattr(value, "__dataframe__")


def _joined(tests: list[Source]) -> Source:
    from elasticflow.data.combined import Concat  # which opens its sources here

    return Concat(*tests) if len(tests) > 1 else tests[0]


def one_source(what: str, spec: Any) -> Source:
    """The source that is meant, see ``open_source``. ``what`` names it in errors."""
    if isinstance(spec, Source):
        return Owned(what, spec) if is_own(spec) else spec
    if isinstance(spec, Mapping) and spec and all(isinstance(key, str) for key in spec):
        return Arrays(**spec)
    if isinstance(spec, tuple | list) and spec:
        if sources := [each for each in spec if _is_no_column(each)]:
            found = f"{len(sources)} of whose {len(spec)} columns are sources, such as {_named(sources[0])}"
            raise DataError(f"{what} is a {type(spec).__name__}, {found}. {_ALLOWED}.")
        return Arrays.by_position(spec)
    if hasattr(spec, "__dataframe__"):
        return Arrays(**{str(name): spec[name].to_numpy() for name in spec.columns})
    if isinstance(tensors := getattr(spec, "tensors", None), tuple):  # torch's TensorDataset
        return Arrays.by_position(tensors)
    if _is_indexed(spec):
        return Indexed(spec)
    raise DataError(f"{what} is {_found(spec)}. {_ALLOWED}.")


def _is_no_column(value: Any) -> bool:
    """Whether it is columns itself. A tuple of arrays may be one column, but then all have as many axes."""
    if isinstance(value, tuple):
        return len({np.ndim(each) for each in value if hasattr(each, "__array__")}) > 1
    known = isinstance(value, (Source, Mapping)) or hasattr(value, "__dataframe__")
    return known or isinstance(getattr(value, "tensors", None), tuple)


def _named(value: Any) -> str:
    name = type(value).__name__
    return repr(value) if isinstance(value, Source) else f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _is_indexed(spec: Any) -> bool:
    known = isinstance(spec, (str, bytes, os.PathLike, Mapping, tuple, list)) or hasattr(spec, "__array__")
    return not known and all(hasattr(spec, name) for name in ("__len__", "__getitem__"))


def _found(spec: Any) -> str:
    if isinstance(spec, Mapping | tuple | list):
        return f"a {type(spec).__name__} with keys that are no strings" if spec else "empty"
    if isinstance(spec, str | os.PathLike):
        return f"a path, {os.fspath(spec)!r}, and not a source such as HDF5({os.fspath(spec)!r})"
    if hasattr(spec, "__array__"):
        return f"one {type(spec).__name__}; write a tuple, (x,), or a dict, {{'x': x}}"
    if hasattr(spec, "__iter__"):
        advice = "return its dataset" if hasattr(spec, "dataset") else "records must be had by number"
        return f"a {type(spec).__name__}, whose records only come one after the other: {advice}"
    return f"a {type(spec).__name__}"


def _check_alike(train: Source, test: Source, name: str = "") -> None:
    names, other = ([column.name for column in source.columns] for source in (train, test))
    if set(names) != set(other) or train.positional != test.positional:
        raise DataError(
            f"data(): 'train' has the columns {names}, {name or 'test'!r} has {other}. Name them alike, and "
            "return both as dicts or both as tuples."
        )


def open_path(path: str) -> Source:
    """All columns of the file, or of the files that a glob pattern matches; the suffix tells the format.

    A folder holds Parquet files, or a table of Delta Lake; so does a URL that ends with a slash.

    Raises DataError for an unknown suffix, and whatever the source raises.
    """
    return kind_of(path)(path)


def kind_of(path: str) -> type[CSV] | type[NPZ] | type[HDF5] | type[Parquet] | type[Delta]:
    """What reads such a file, or such files. Raises DataError as ``open_path`` does."""
    if is_table(path):
        return Delta if is_delta(path) else Parquet
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _BY_SUFFIX and glob.has_magic(path):
        suffix = os.path.splitext(matching_files("data", path)[0].name)[1].lower()
    if suffix not in _BY_SUFFIX:
        raise DataError(f"data {path}: unknown suffix {suffix!r}. Known are {', '.join(_BY_SUFFIX)}.")
    return _BY_SUFFIX[suffix]


def open_columns(path: str, names: Mapping[str, Any]) -> Source:
    """These columns, by what the file, or files, call them, as they are. Raises DataError."""
    if not names:
        there = ", ".join(map(repr, kind_of(path).names_in(path)))
        raise DataError(f"data {path}: has none of the columns that are wanted. There are: {there}.")
    return kind_of(path)(path, **names)


def is_table(path: str) -> bool:
    """Whether a path names a folder, or a URL like one: of Parquet files, as Hive leaves them."""
    suffix = os.path.splitext(path)[1].lower()
    return os.path.isdir(path) or (suffix not in _BY_SUFFIX and path.endswith("/"))
