"""The data that a run's model is applied to: read as the run has read its own."""

from __future__ import annotations

from collections.abc import Mapping

from elasticflow.data import Source
from elasticflow.data.as_trained import AsTrained
from elasticflow.data.ragged import LENGTHS
from elasticflow.data.source import Records
from elasticflow.errors import DataError, ElasticFlowError
from elasticflow.program.loading import Program, describe


def opened(program: Program, trained: Source, path: str | Records, binding: Mapping[str, str]) -> Source:
    """All records there, or of those that are handed in, with the columns that are bound to arguments.

    binding: {argument: column}. Raises DataError.
    """
    columns = [column.name for column in trained.columns]
    wanted: dict[str, str] = {}
    for argument, column in binding.items():
        if column in columns:
            wanted[column] = argument
        else:  # the lengths of a column
            wanted.setdefault(column.removesuffix(LENGTHS), column.removesuffix(LENGTHS))
    names = [column for column in columns if column in wanted]
    try:
        source = trained.over(path, wanted)
    except ElasticFlowError:
        raise
    except Exception as error:  # whatever a function of the program's raises
        raise DataError(
            f"{path}: what data() makes of a record raised {describe(error, program.path)}. Does it need a "
            "column that is not there, such as the label? Have it do without where there is none."
        ) from error
    called = wanted if trained.positional else {}
    return AsTrained(str(path), source, trained.columns, names, called)


def place_of(source: Source, row: int) -> str:
    """Where a record lies, for people: the file and the part of it that is read as a whole; or nothing."""
    inner: object = source
    while hasattr(inner, "inner"):
        inner = inner.inner
    starts = getattr(inner, "block_starts", None)
    name = getattr(inner, "block_name", None)
    if starts is None or name is None:
        files = getattr(source, "files", ())
        return str(files[0].name) if files else "of the data"
    return str(name(int(starts.searchsorted(row, "right")) - 1))
