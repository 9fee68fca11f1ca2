"""Whatever a request has in it, the process that answers it lives on."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import elasticflow as ef
from elasticflow.data.source import Source
from elasticflow.serving.answering import Answering
from elasticflow.serving.orders import ARROW, JSON, ModelAnswer, ModelRequest

GOOD = b'{"x": [1.5], "city": ["Oslo"], "tags": [[1, 2]]}'


class Echo:
    """A model that gives what it is given."""

    batch_records = 100

    def __init__(self, trained: Source) -> None:
        self._trained = trained

    def opened(self, records: object) -> Source:
        return self._trained.over(records, {name: name for name in ("x", "city", "tags")})  # type: ignore[arg-type]

    def predicted(self, source: Source, first: int, last: int, at_once: int) -> Mapping[str, object]:
        return source.finish(source.drawn(np.arange(first, last), 0), 0)


@pytest.fixture
def answering(tmp_path: Path) -> Answering:
    table = pa.table({"x": [1.5], "city": ["Oslo"], "tags": [[1, 2]]})
    pq.write_table(table, tmp_path / "old.parquet")
    trained = ef.data.Parquet(tmp_path / "old.parquet", vocabularies={"city": ["Oslo"]}, pad={"tags": 0})
    return Answering(Echo(trained))  # type: ignore[arg-type]


def sent(**columns: object) -> bytes:
    return streamed(pa.table({"x": [1.5], "city": ["Oslo"], "tags": [[1, 2]], **columns}))


def streamed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def asked(answering: Answering, body: bytes, kind: str) -> ModelAnswer:
    """Sent together with one that is well."""
    answer, well = answering.answers([ModelRequest(body, kind, JSON), ModelRequest(GOOD, JSON, JSON)])
    assert not well.fault and b"1.5" in well.body
    return answer


@pytest.mark.parametrize("depth", [64, 500, 900])
def test_lists_in_lists(answering: Answering, depth: int) -> None:
    body = GOOD.replace(b"1.5", b"[" * depth + b"1" + b"]" * depth)
    answer = asked(answering, body, JSON)
    assert answer.fault == "request" and b"nested" in answer.body


def test_columns_of_the_same_name(answering: Answering) -> None:
    columns = [pa.array([1.5]), pa.array([2.5]), pa.array(["Oslo"]), pa.array([[1, 2]])]
    body = streamed(pa.table(columns, names=["x", "x", "city", "tags"]))
    answer = asked(answering, body, ARROW)
    assert answer.fault == "request" and b"two columns are named 'x'" in answer.body


@pytest.mark.parametrize(
    "column",
    [
        pa.array([pa.MonthDayNano([1, 2, 3])]),
        pa.array(["1"], pa.json_()),
        pa.array([b"a"], pa.binary_view()),
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((1, 2), np.float32)),
    ],
    ids=lambda column: str(column.type)[:20],
)
@pytest.mark.parametrize("name", ["x", "city", "tags"])
def test_types_of_other_kinds(answering: Answering, column: pa.Array, name: str) -> None:
    answer = asked(answering, sent(**{name: column}), ARROW)
    assert answer.fault in ("", "request")


def test_arrow_that_is_damaged(answering: Answering) -> None:
    """Such as offsets that lie beyond the texts."""
    whole, drawn = sent(), random.Random(1)
    for _ in range(300):
        body = bytearray(whole)
        body[drawn.randrange(len(body))] = drawn.choice([0, 1, 127, 255])
        asked(answering, bytes(body), ARROW)
