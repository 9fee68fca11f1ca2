"""Records that are handed in, in the place of a file's: of a request to a model that is served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elasticflow.data.arrays import ArraySource
from elasticflow.data.ragged import Ragged
from elasticflow.data.source import Records, Source
from elasticflow.data.tables import Selection, Wanted
from elasticflow.data.typed import ColumnRules
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
        fields = wanted.fields(str(self), self._table, 0)
        for column, pad in wanted.pads.items():
            if isinstance(field := fields[column], Ragged):
                field.pad = pad
        return ArraySource(str(self), fields)


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
            arrays[name] = pa.array(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"the records: column {name!r} has values of several kinds: {error}.") from error
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise DataError(f"the records: columns of different lengths: {found}.")
    return pa.table(arrays)
