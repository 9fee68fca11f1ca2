"""The files that predictions are written to: each part a file, and all of them made one, part by part."""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elasticflow.errors import ConfigError, DataError
from elasticflow.step.layout import Array

Columns = Mapping[str, Any]
"""Arrays of NumPy's, or columns of pyarrow's where the input is Parquet, by name."""
COPY_BYTES = 1 << 20
_READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class OutputFormat(NamedTuple):
    """write: a part. join: parts, in their order, to one file. Neither holds more than a part in memory."""

    ending: str
    write: Callable[[Path, Columns], None]
    join: Callable[[Sequence[Path], Path], None]


def format_of(out: str) -> OutputFormat:
    """By a file's ending; a name without one is a folder of Parquet files. Raises ConfigError."""
    ending = os.path.splitext(out.rstrip("/"))[1]
    if ending not in FORMATS:
        raise ConfigError(
            f"--out {out}: predictions are written to a file that ends with "
            f"{', '.join(filter(None, FORMATS))}, or to a folder of Parquet files, whose name has no ending."
        )
    found = FORMATS[ending]
    if found.ending == ".parquet":
        check_arrow(out)
    return found


def check_arrow(out: str) -> None:
    """Raises ConfigError where there is no pyarrow."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"--out {out}: Parquet needs pyarrow: pip install 'elasticflow-trainer[tables]', or write .csv "
            "or .npz."
        ) from error


# --- NPZ -------------------------------------------------------------------------------------------


def _array(name: str, column: Any) -> Array:
    """Raises DataError for what has no place in an array."""
    if isinstance(column, np.ndarray):
        return column
    array: Array = column.to_numpy()
    # Missing whole numbers would become NaN, and all others floats with them.
    lacks = column.null_count > 0 and str(column.type) not in ("halffloat", "float", "double")
    if lacks or array.dtype.kind == "O":
        values = array.tolist()
        if lacks or not all(isinstance(value, str) for value in values):
            raise DataError(
                f"column {name!r}, to be kept, is of type {column.type}, or has missing values, for which "
                ".npz has no place; write .parquet or .csv."
            )
        array = np.array(values)
    return array


def _write_npz(path: Path, columns: Columns) -> None:
    from elasticflow.checkpoint.export import _write_npz as write

    if cut := [name for name in columns if "\0" in name]:  # where it would end in the archive
        raise DataError(f"the column name {cut[0]!r} has no place in .npz; give it another name.")
    write(path, ((name, _array(name, column)) for name, column in columns.items()))


def _join_npz(parts: Sequence[Path], target: Path) -> None:
    """One array after the other, each part after part."""
    with zipfile.ZipFile(target, "w") as archive:
        with np.load(parts[0], allow_pickle=False) as first:
            names = list(first.files)
        for name in names:
            heads = [_head(part, name) for part in parts]
            dtype = np.result_type(*(found for found, _ in heads))
            _check_alike(name, parts, [(found.kind, shape[1:]) for found, shape in heads])
            count = sum(shape[0] for _, shape in heads)
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                description = {
                    "descr": np.lib.format.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": (count, *heads[0][1][1:]),
                }
                np.lib.format.write_array_header_1_0(file, description)
                for part in parts:
                    with np.load(part, allow_pickle=False) as found:
                        values = np.ascontiguousarray(found[name], dtype)
                        file.write((values.view(np.int64) if dtype.kind in "mM" else values).data)


def _head(part: Path, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Type and shape of an array, which is not read."""
    with zipfile.ZipFile(part) as archive:
        _check_alike("columns", [part], [f"{name}.npy" in archive.namelist()])
        with archive.open(f"{name}.npy") as file:
            version = np.lib.format.read_magic(file)
            shape, _, dtype = _READ_HEADER[version](file)
            return dtype, shape


# --- CSV -------------------------------------------------------------------------------------------


def _write_csv(path: Path, columns: Columns) -> None:
    """An array of two axes is as many columns, ``name.0`` and so on."""
    flat: dict[str, list[str]] = {}
    for name, column in columns.items():
        _check_wide(name, column, ".csv")
        if not isinstance(column, np.ndarray):
            found = {name: ["" if value is None else str(value) for value in column.to_pylist()]}
        elif column.ndim == 1:
            found = {name: column.astype("U").tolist()}
        elif column.ndim == 2:
            found = {f"{name}.{n}": column[:, n].astype("U").tolist() for n in range(column.shape[1])}
        else:
            raise DataError(
                f"{name!r} is an array of {column.ndim} axes, for which .csv has no place; write .parquet or "
                ".npz."
            )
        if twice := sorted(flat.keys() & found.keys()):
            raise DataError(
                f"{name!r} and another column would both be called {twice[0]!r} in .csv; write .parquet or "
                ".npz, or leave one out."
            )
        flat |= found
    if broken := [name for name in flat if not name.isprintable()]:
        raise DataError(f"the column name {broken[0]!r} has no place in .csv; write .parquet or .npz.")
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(flat)
        writer.writerows(zip(*flat.values(), strict=True))


def _join_csv(parts: Sequence[Path], target: Path) -> None:
    with target.open("xb") as joined:
        heads = []
        for number, part in enumerate(parts):
            with part.open("rb") as file:
                heads.append(head := file.readline())
                if not number:
                    joined.write(head)
                while piece := file.read(COPY_BYTES):
                    joined.write(piece)
        _check_alike("columns", parts, heads)


# --- Parquet ---------------------------------------------------------------------------------------


def _arrow(column: Any) -> Any:
    """Arrays of more axes become lists of lists, all of one length."""
    import pyarrow as pa

    if not isinstance(column, np.ndarray):
        return column
    lengths = column.shape[1:]
    found = pa.array(np.ascontiguousarray(column).reshape(-1))
    for length in reversed(lengths):
        found = pa.FixedSizeListArray.from_arrays(found, length)
    return found


def _write_parquet(path: Path, columns: Columns) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, column in columns.items():
        _check_wide(name, column, ".parquet")
    table = pa.table({name: _arrow(column) for name, column in columns.items()})
    pq.write_table(table, path, row_group_size=max(1, len(table)))


def _join_parquet(parts: Sequence[Path], target: Path) -> None:
    """A row group a part."""
    import pyarrow.parquet as pq

    schemas = [pq.read_schema(part) for part in parts]
    _check_alike("columns", parts, schemas)
    with pq.ParquetWriter(target, schemas[0]) as writer:
        for part in parts:
            with pq.ParquetFile(part) as file:
                table = file.read(use_threads=False)
            writer.write_table(table, row_group_size=max(1, len(table)))


def _check_wide(name: str, column: Any, ending: str) -> None:
    """Raises DataError for rows of nothing: a file in which they have no place would not have the records."""
    if isinstance(column, np.ndarray) and 0 in column.shape[1:]:
        raise DataError(
            f"{name!r} has rows of shape {list(column.shape[1:])}, of no values, for which {ending} has no "
            "place; write .npz, or leave it out."
        )


def _check_alike(what: str, parts: Sequence[Path], heads: Sequence[Any]) -> None:
    for part, head in zip(parts, heads, strict=True):
        if head != heads[0] or head is False:
            raise DataError(
                f"{what}: are {head} in {part.name}, and {heads[0]} in {parts[0].name}: "
                "predict() has to return the same names, types and shapes for all records, and columns to "
                "keep must be of one type."
            )


FORMATS = {
    "": OutputFormat(".parquet", _write_parquet, _join_parquet),
    ".parquet": OutputFormat(".parquet", _write_parquet, _join_parquet),
    ".csv": OutputFormat(".csv", _write_csv, _join_csv),
    ".npz": OutputFormat(".npz", _write_npz, _join_npz),
}
