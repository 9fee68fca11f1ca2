"""From what a program's ``data()`` returns, or a path names, to sources."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from elasticflow.data.arrays import Arrays
from elasticflow.data.csv_files import CSV
from elasticflow.data.files import matching_files
from elasticflow.data.hdf5 import HDF5
from elasticflow.data.npz import NPZ
from elasticflow.data.parquet import Parquet
from elasticflow.data.source import Source
from elasticflow.errors import DataError

_ALLOWED = (
    "Allowed are a source (Arrays, HDF5, NPZ, CSV, Parquet), a dict of arrays, a tuple of arrays, or "
    "{'train': ..., 'test': ...} of these"
)
_BY_SUFFIX: dict[str, Callable[[str], Source]] = {
    ".npz": NPZ,
    ".h5": HDF5,
    ".hdf5": HDF5,
    ".csv": CSV,
    ".parquet": Parquet,
}


class Sources(NamedTuple):
    """What a run trains on, and what it is tested on, if anything."""

    train: Source
    test: Source | None = None


def open_source(spec: Any) -> Sources:
    """The sources that a program's ``data()`` describes.

    spec: a Source; a dict of arrays (columns by name); a tuple or list of arrays (by position); or a
    dict with the keys "train" and, if wanted, "test", each one of the former.
    Raises DataError for anything else, and if the columns of both are not named alike.
    """
    if not isinstance(spec, Mapping) or not {"train", "test"} & spec.keys():
        return Sources(_one_source("data()", spec))
    others = [key for key in spec if key not in ("train", "test")]
    if others or "train" not in spec:
        raise DataError(
            f"data() returned a dict with the keys {list(spec)}. Beside 'train' only 'test' is allowed, "
            "and 'train' must be there; or name the columns otherwise."
        )
    train = _one_source("data()['train']", spec["train"])
    test = _one_source("data()['test']", spec["test"]) if "test" in spec else None
    if test is not None:
        _check_alike(train, test)
    return Sources(train, test)


def _one_source(what: str, spec: Any) -> Source:
    if isinstance(spec, Source):
        return spec
    if isinstance(spec, Mapping) and spec and all(isinstance(key, str) for key in spec):
        return Arrays(**spec)
    if isinstance(spec, tuple | list) and spec:
        return Arrays.by_position(spec)
    raise DataError(f"{what} is {_found(spec)}. {_ALLOWED}.")


def _found(spec: Any) -> str:
    if isinstance(spec, Mapping | tuple | list):
        return f"a {type(spec).__name__} with keys that are no strings" if spec else "empty"
    if isinstance(spec, str | os.PathLike):
        return f"a path, {os.fspath(spec)!r}, and not a source such as HDF5({os.fspath(spec)!r})"
    if hasattr(spec, "__array__"):
        return f"one {type(spec).__name__}; write a tuple, (x,), or a dict, {{'x': x}}"
    return f"a {type(spec).__name__}"


def _check_alike(train: Source, test: Source) -> None:
    names, other = ([column.name for column in source.columns] for source in (train, test))
    if set(names) != set(other) or train.positional != test.positional:
        raise DataError(
            f"data(): 'train' has the columns {names}, 'test' has {other}. Name them alike, and return both "
            "as dicts or both as tuples."
        )


def open_path(path: str) -> Source:
    """All columns of the file, or of the files that a glob pattern matches; the suffix tells the format.

    Raises DataError for an unknown suffix, and whatever the source raises.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _BY_SUFFIX and glob.has_magic(path):
        suffix = os.path.splitext(matching_files("data", path)[0].name)[1].lower()
    if suffix not in _BY_SUFFIX:
        raise DataError(f"data {path}: unknown suffix {suffix!r}. Known are {', '.join(_BY_SUFFIX)}.")
    return _BY_SUFFIX[suffix](path)
