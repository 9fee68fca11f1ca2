"""Records that are handed in, in the place of a file's: of a request to a model that is served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elasticflow.data.arrays import ArraySource
from elasticflow.data.ragged import Ragged
from elasticflow.data.source import Records, Source
from elasticflow.data.tables import Selection, Wanted, arrow_errors
from elasticflow.data.typed import ColumnRules, is_list
from elasticflow.errors import DataError


class TableRecords(Records):
    """Those of a pyarrow table."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __str__(self) -> str:
        return "the records"

    @property
    def names(self) -> list[str]:
        found: list[str] = self._table.column_names
        return found

    def opened(self, selection: Selection, rules: ColumnRules | None = None) -> Source:
        if not selection:
            there = ", ".join(map(repr, self.names)) or "none"
            raise DataError(f"{self}: none of the columns that are wanted is there. There are: {there}.")
        wanted = Wanted(str(self), selection, self.names, rules)
        with arrow_errors(str(self), "Send other values."):
            kept = {name: _typed(self._table.column(name), name, wanted.rules) for name in wanted.names}
            fields = wanted.fields(str(self), kept, 0)
        for column, pad in wanted.pads.items():
            if isinstance(field := fields[column], Ragged):
                field.pad = pad
        return ArraySource(str(self), fields)


def _typed(column: Any, name: str, rules: ColumnRules) -> Any:
    """A column with a type, where JSON says none: of records of which all lack a value, or whose lists are
    empty, or of floats that are written as whole numbers where some are missing.

    So what is answered to a record does not follow from those that it is sent with.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    leaf, depth = column, 0
    while is_list(leaf.type):
        leaf, depth = pc.list_flatten(leaf), depth + 1
    is_untyped = pa.types.is_null(leaf.type)
    has_rule = name in rules.coded or name in rules.defaults
    if not is_untyped and (has_rule or not leaf.null_count or not pa.types.is_integer(leaf.type)):
        return column
    if name in rules.vocabularies:
        kind = pa.array(rules.vocabularies[name]).type
    elif name in rules.defaults:
        kind = pa.scalar(rules.defaults[name]).type
    elif name in rules.hashing:
        kind = pa.string()
    else:
        lacks_lists = not depth and name in rules.pad
        # Where there is no value, booleans pass for all kinds of numbers.
        kind = pa.float64() if leaf.null_count and not lacks_lists else pa.bool_()
    for _ in range(max(depth, int(name in rules.pad))):
        kind = pa.list_(kind)
    return column.cast(kind)


def table_of(sent: Any) -> Any:
    """A pyarrow table of columns by name, or of a list of records, each a dict; as JSON has them.

    Raises DataError.
    """
    import pyarrow as pa

    if isinstance(sent, Sequence) and sent and all(isinstance(each, Mapping) for each in sent):
        if any(each.keys() != sent[0].keys() for each in sent):
            raise DataError("the records: not all have the same columns.")
        sent = {name: [each[name] for each in sent] for name in sent[0]}
    if not isinstance(sent, Mapping) or not sent or not all(isinstance(each, list) for each in sent.values()):
        raise DataError(
            'the records: they are to be columns, such as {"x": [[1.5, 2], [3, 4]]}, or a list of records, '
            'such as [{"x": [1.5, 2]}, {"x": [3, 4]}].'
        )
    arrays = {}
    for name, values in sent.items():
        try:
            try:
                arrays[name] = pa.array(values)
            except OverflowError:
                arrays[name] = pa.array(values, pa.uint64())  # ids of 64 bits, say
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"the records: column {name!r} has values of several kinds: {error}.") from error
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise DataError(f"the records: columns of different lengths: {found}.")
    return pa.table(arrays)
