"""From a column of a table to numbers: what becomes of texts, dates, decimals, lists and missing values.

Whole columns at a time: nothing is done record by record in Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from elasticflow.data.ragged import Field, Pad, Ragged
from elasticflow.data.source import Array, native
from elasticflow.errors import DataError
from elasticflow.hashing import GAMMA, hash_texts, mixed
from elasticflow.process.decoding import from_json
from elasticflow.storage.file_ids import VOCABULARIES, FileId, of_value

MOST_BUCKETS = 2**63 - 1
MOST_AXES = 64
"""An array of NumPy's has no more."""
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""A second, in the units of timestamps."""


class ColumnRules(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the file's columns, by their names there.

    vocabularies: a value becomes its place in the list, from 1; one that is not in it, or is missing, 0.
    hashing: a text, bytes or whole number becomes an id in 0..n-1; None: any 64-bit one (``ef.hash_ids``).
    defaults: stands for missing values. pad: which columns hold lists of different lengths, and the rule.
    """

    vocabularies: dict[str, list[Any]] = {}
    hashing: dict[str, int | None] = {}
    defaults: dict[str, Any] = {}
    pad: dict[str, Pad] = {}

    def check(self, what: str, there: Sequence[str]) -> None:
        """Raises DataError for rules of columns that are not there, and for those that exclude each other."""
        for kind in self.__struct_fields__:
            for name in getattr(self, kind):
                if name not in there:
                    listed = ", ".join(map(repr, there))
                    raise DataError(f"{what}: {kind} names a column {name!r}. There are: {listed}.")
        for name in self.vocabularies.keys() & self.hashing.keys():
            raise DataError(
                f"{what}: column {name!r} has both a vocabulary and a hashing rule. Give it one of them."
            )
        for name, count in self.hashing.items():
            if count is not None and not (type(count) is int and 1 <= count <= MOST_BUCKETS):
                raise DataError(
                    f"{what}: hashing[{name!r}] is {count!r}. It must be a whole number of ids, at least 1, "
                    "or None for any 64-bit id."
                )
        for name, value in self.defaults.items():
            if value is None:
                raise DataError(
                    f"{what}: defaults[{name!r}] is None. Give the value that is to stand for missing ones, "
                    "such as -1."
                )
        for name, values in self.vocabularies.items():
            if len(set(values)) < len(values) or None in values:
                raise DataError(
                    f"{what}: vocabularies[{name!r}] has a value twice, or None. Each value is to be there "
                    "once; what is missing becomes 0 anyway."
                )

    def of(self, names: Collection[str]) -> ColumnRules:
        """Those of some columns."""
        return ColumnRules(
            **{
                kind: {name: rule for name, rule in getattr(self, kind).items() if name in names}
                for kind in self.__struct_fields__
            }
        )

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return any(getattr(self, kind) for kind in self.__struct_fields__)

    @property
    def coded(self) -> list[str]:
        """Columns that become ids: read as dictionaries, each of their values is looked at once."""
        return [*self.vocabularies, *self.hashing]

    @property
    def told(self) -> tuple[FileId, ...]:
        """What a run is told of beside files: vocabularies, which come of files that may change, too."""
        if not self.vocabularies:
            return ()
        return (of_value(VOCABULARIES + ", ".join(self.vocabularies), self.vocabularies),)


def rules_of(
    what: str,
    vocabularies: Mapping[str, Sequence[Any]] | None,
    hashing: Mapping[str, int | None] | None,
    defaults: Mapping[str, Any] | None,
    pad: Mapping[str, Pad | float] | None,
) -> ColumnRules:
    """Raises DataError for arguments of another kind."""
    for kind, given in {
        "vocabularies": vocabularies,
        "hashing": hashing,
        "defaults": defaults,
        "pad": pad,
    }.items():
        if not isinstance(given or {}, Mapping):
            raise DataError(
                f"{what}: {kind} is a {type(given).__name__}. It must be a dict by the file's column names."
            )
    for name, values in (vocabularies or {}).items():
        if isinstance(values, (str, bytes)):
            raise DataError(
                f"{what}: vocabularies[{name!r}] is a text. Give the list of its values; of a file that "
                "'elasticflow data describe' wrote, ef.data.vocabularies(FILE) has them."
            )
    return ColumnRules(
        vocabularies={name: list(values) for name, values in (vocabularies or {}).items()},
        hashing=dict(hashing or {}),
        defaults=dict(defaults or {}),
        pad={name: each if isinstance(each, Pad) else Pad(value=each) for name, each in (pad or {}).items()},
    )


def vocabularies(path: str | os.PathLike[str]) -> dict[str, list[Any]]:
    """The values of columns, by name, that ``elasticflow data describe --vocabularies FILE`` wrote.

    path: also a URL on HDFS. Raises DataError if it is no such file.
    """
    from elasticflow.data.files import existing_file

    file = existing_file("vocabularies", path)
    with file.open() as opened:
        text = opened.read()
    try:
        found: dict[str, list[Any]] = from_json(bytes(text), dict[str, list[str | int | float | bool]])
    except msgspec.MsgspecError as error:
        raise DataError(
            f'vocabularies: {file} is not JSON of lists of values by column, such as {{"city": ["Rome"]}}: '
            f"{error}."
        ) from error
    return found


class Typed:
    """One column of a table, made numbers by the rules.

    where: of its rows, for errors. record_of: the number, in the source, of the record that a row is of.
    """

    def __init__(self, where: str, name: str, rules: ColumnRules, record_of: Callable[[int], int]) -> None:
        self._where, self._name, self._rules, self._record_of = where, name, rules, record_of

    @property
    def _what(self) -> str:
        return f"{self._where}: column {self._name!r}"

    def convert(self, column: Any) -> Field:
        """column: a pyarrow ChunkedArray. Returns (rows,), (rows, length, ...) for lists of one length, or
        Ragged.

        Raises DataError for what does not fit.
        """
        import pyarrow as pa

        if is_list(column.type):
            if _axes(column.type) >= MOST_AXES:
                raise self._unfit(f"lists, nested {_axes(column.type)} deep")
            return self._lists(column)
        if pa.types.is_string_view(column.type):  # as Polars sends them
            column = column.cast(pa.large_string())
        if pa.types.is_binary_view(column.type):
            column = column.cast(pa.large_binary())
        if pa.types.is_dictionary(column.type) and self._name not in self._rules.coded:
            column = column.cast(column.type.value_type)
        column = self._filled(column)
        if self._name in self._rules.vocabularies:
            return self._coded(column, self._in_vocabulary)
        if self._name in self._rules.hashing:
            return self._coded(column, self._hashed)
        return native(self._plain(column))

    def _filled(self, column: Any) -> Any:
        """Without missing values, but where they have a meaning of their own."""
        import pyarrow as pa

        if not column.null_count:
            return column
        if self._name in self._rules.defaults:
            value = self._rules.defaults[self._name]
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            try:
                return column.fill_null(pa.scalar(value).cast(column.type))
            except pa.ArrowException as error:
                raise DataError(
                    f"{self._what} is of type {column.type}, and defaults={{{self._name!r}: {value!r}}} is "
                    "no such value."
                ) from error
        if pa.types.is_floating(column.type) or self._name in self._rules.vocabularies:
            return column
        raise DataError(
            f"{self._what}, of type {column.type}, has {column.null_count} missing values, the first in "
            f"record {self._first_of(column.is_null()):,}. Only columns of floats may (they become NaN): "
            f"say what stands for them, defaults={{{self._name!r}: ...}} (of ef.data.CSV: "
            f"dtypes={{{self._name!r}: 'float64'}}), or leave the column out."
        )

    def _first_of(self, mask: Any) -> int:
        return self._record_of(int(np.flatnonzero(mask)[0]))

    def _coded(self, column: Any, code: Any) -> Array:
        """Ids: of each value of a dictionary once, where the column has one."""
        import pyarrow as pa

        parts = []
        for chunk in column.chunks:
            if pa.types.is_dictionary(chunk.type):
                codes = np.append(code(chunk.dictionary), 0)  # the last: of what is missing
                parts.append(
                    codes.take(chunk.indices.fill_null(len(codes) - 1).to_numpy(zero_copy_only=False))
                )
            else:
                parts.append(code(chunk))
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _in_vocabulary(self, values: Any) -> npt.NDArray[np.int64]:
        import pyarrow as pa
        import pyarrow.compute as pc

        listed = self._rules.vocabularies[self._name]
        try:
            places = pc.index_in(values, pa.array(listed, values.type)).fill_null(-1)
        except (pa.ArrowException, TypeError, OverflowError, NotImplementedError) as error:
            raise DataError(
                f"{self._what} is of type {values.type}, and its vocabulary has values of another: {error}."
            ) from error
        codes: npt.NDArray[np.int64] = places.to_numpy(zero_copy_only=False).astype(np.int64) + 1
        return codes

    def _hashed(self, values: Any) -> npt.NDArray[np.int64]:
        import pyarrow as pa

        count = self._rules.hashing[self._name]
        if is_text(values.type):
            values = values.cast(pa.large_binary())
            _, offsets, data = values.buffers()
            ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
            texts = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
            keys = hash_texts(texts, ends[:-1], ends[1:]).view(np.uint64)
        elif pa.types.is_integer(values.type):
            ids = values.to_numpy(zero_copy_only=False).astype(np.int64)
            keys = ids.view(np.uint64) if count is None else mixed(ids.view(np.uint64) + GAMMA)
        else:
            raise DataError(
                f"{self._what} is of type {values.type}. Texts, bytes and whole numbers can be hashed; leave "
                "it out of hashing."
            )
        return (keys if count is None else keys % np.uint64(count)).view(np.int64)

    def _plain(self, column: Any) -> Array:
        """Dates are days, and moments seconds, since 1970-01-01 (UTC); decimals are float64."""
        import pyarrow as pa

        kind, types = column.type, pa.types
        if types.is_date(kind):
            days: Array = column.cast(pa.date32()).cast(pa.int32()).to_numpy().astype(np.int64)
            return days
        if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time(kind):
            ticks = (
                column.cast(pa.int32()).cast(pa.int64()) if types.is_time32(kind) else column.cast(pa.int64())
            )
            seconds: Array = ticks.to_numpy() / UNITS[kind.unit]
            return seconds
        if types.is_decimal(kind):
            column = column.cast(pa.float64())
        if types.is_string(kind) or types.is_large_string(kind):
            texts: Array = column.to_numpy().astype("U")
            return texts
        if (
            types.is_null(kind)
            or types.is_nested(kind)
            or types.is_interval(kind)  # which pyarrow does not survive to make an array of
            or types.is_binary(kind)
            or types.is_large_binary(kind)
        ):
            raise self._unfit(kind)
        array: Array = column.to_numpy()
        if array.dtype.kind not in "biuf":
            raise self._unfit(kind)
        return array

    def _unfit(self, kind: Any) -> DataError:
        return DataError(
            f"{self._what} is of type {kind}. Allowed are numbers, booleans, texts, dates and times, "
            f"decimals, and lists of these; bytes with hashing={{{self._name!r}: ...}}. Convert the column "
            "first, or leave it out."
        )

    def _lists(self, column: Any) -> Field:
        """Lists nest to further axes; the outermost may differ in length, where there is a rule."""
        import pyarrow as pa
        import pyarrow.compute as pc

        pad = self._rules.pad.get(self._name)
        if column.null_count and pad is None:
            first = self._first_of(column.is_null())
            raise DataError(
                f"{self._what}, of type {column.type}, has {column.null_count} missing lists, the first in "
                f"record {first:,}. With pad={{{self._name!r}: ef.data.Pad()}} they are empty ones."
            )
        counted = pc.list_value_length(column)
        lengths = counted.fill_null(0).to_numpy().astype(np.int64)
        if pad is None and len(lengths) and (lengths != lengths[0]).any():
            other = self._first_of(lengths != lengths[0])
            raise DataError(
                f"{self._what} holds lists of {lengths.min()} to {lengths.max()} elements, the first of "
                f"another length in record {other:,}. pad={{{self._name!r}: ef.data.Pad()}} "
                "makes those of a slice equally long; or leave the column out."
            )
        flat = pc.list_flatten(column)
        if not isinstance(flat, pa.ChunkedArray):
            flat = pa.chunked_array([flat])
        ends = np.cumsum(lengths)

        def record_of(element: int) -> int:
            return self._record_of(int(ends.searchsorted(element, "right")))

        inner = Typed(self._where, self._name, _without_pad(self._rules, self._name), record_of)
        elements = inner.convert(flat)
        if isinstance(elements, Ragged):
            raise self._unfit(column.type)
        if pad is not None:
            return Ragged(elements, np.concatenate([[0], ends]))
        length = int(lengths[0]) if len(lengths) else 0
        return elements.reshape(len(column), length, *elements.shape[1:])


def _without_pad(rules: ColumnRules, name: str) -> ColumnRules:
    return msgspec.structs.replace(rules, pad={}) if name in rules.pad else rules


def is_text(kind: Any) -> bool:
    """Whether these are texts or bytes."""
    import pyarrow as pa

    types = pa.types
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def is_list(kind: Any) -> bool:
    """Whether these are lists, of any kind."""
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _axes(kind: Any) -> int:
    """How deep lists are nested."""
    found = 0
    while is_list(kind):
        kind, found = kind.value_type, found + 1
    return found
