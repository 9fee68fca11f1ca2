"""A process that has the model, and answers requests: ``python -m elasticflow.serving.answering``, see
``applying.life``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from elasticflow.applying.life import Pipe, live
from elasticflow.applying.predicting import LoadedModel
from elasticflow.data.records import TableRecords, table_of
from elasticflow.data.tables import arrow_errors
from elasticflow.errors import DataError, ElasticFlowError, ProgramError
from elasticflow.process.decoding import from_json, from_msgpack
from elasticflow.serving.orders import (
    ARROW,
    AskOrder,
    LoadModel,
    ModelAnswer,
    ModelAnswers,
    ModelColumn,
    ModelReady,
    ModelRequest,
    ServingOrder,
    ServingWord,
)
from elasticflow.step.layout import Array
from elasticflow.worker.whose_fault import OutsideError


class _Sent(NamedTuple):
    """One request's records. rows: it was a list of them."""

    number: int
    request: ModelRequest
    table: Any
    rows: bool


class Answering:
    """What one process does with requests."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model

    def answers(self, requests: Sequence[ModelRequest]) -> tuple[ModelAnswer, ...]:
        """One for each. Those with the same columns are computed together; if that fails, each alone."""
        found: dict[int, ModelAnswer] = {}
        alike: dict[Any, list[_Sent]] = {}
        for number, request in enumerate(requests):
            try:
                sent = _Sent(number, request, *_read(request))
            except DataError as error:
                found[number] = _refused(error, "request")
            else:
                alike.setdefault(tuple(sent.table.schema), []).append(sent)
        for group in alike.values():
            for sents in [group] if len(group) == 1 else [group, *([each] for each in group)]:
                try:
                    found |= self._together(sents)
                except OutsideError:
                    raise  # of the machine, not of a request: this process ends, and others take them
                except ElasticFlowError as error:
                    if len(sents) == 1:
                        whose = "program" if isinstance(error, ProgramError) else "request"
                        found[sents[0].number] = _refused(error, whose)
                    continue
                if sents is group:
                    break
        return tuple(found[number] for number in range(len(requests)))

    def _together(self, sents: Sequence[_Sent]) -> dict[int, ModelAnswer]:
        import pyarrow as pa

        source = self._model.opened(TableRecords(pa.concat_tables([sent.table for sent in sents])))
        columns = self._model.predicted(source, 0, source.num_rows, self._model.batch_records)
        found, start = {}, 0
        for sent in sents:
            stop = start + len(sent.table)
            part = {name: array[start:stop] for name, array in columns.items()}
            found[sent.number] = ModelAnswer(_written(part, sent), stop - start)
            start = stop
        return found


def _read(request: ModelRequest) -> tuple[Any, bool]:
    """The records, as a table, and whether they were sent one by one. Raises DataError."""
    if request.format == ARROW:
        import pyarrow as pa

        with arrow_errors("the records", "They are to be a stream of Arrow's IPC format."):
            table, rows = pa.ipc.open_stream(request.body).read_all(), False
            table.validate(full=True)  # offsets beyond its end, say: this process would die of them
    else:
        try:
            sent = from_json(request.body, Any)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"the records are no JSON: {error}.") from error
        table, rows = table_of(sent), isinstance(sent, list)
    if not len(table):
        raise DataError("the records: there are none.")
    return table, rows


def _written(columns: dict[str, Array], sent: _Sent) -> bytes:
    if sent.request.answer == ARROW:
        import pyarrow as pa

        batch = pa.record_batch({name: _arrow(array) for name, array in columns.items()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue())
    lists = {name: array.tolist() for name, array in columns.items()}
    told: Any = lists
    if sent.rows:
        told = [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    return msgspec.json.encode({"predictions": told})


def _arrow(array: Array) -> Any:
    """Of several axes: lists of a fixed length, in lists of a fixed length."""
    import pyarrow as pa

    made = pa.array(np.ascontiguousarray(array).reshape(-1))
    for length in reversed(array.shape[1:]):
        made = pa.FixedSizeListArray.from_arrays(made, length)
    return made


def _refused(error: ElasticFlowError, whose: str) -> ModelAnswer:
    return ModelAnswer(str(error).encode(), fault=whose)


def _answer(pipe: Pipe) -> None:
    def say(word: ServingWord) -> None:
        pipe.send_bytes(msgspec.msgpack.encode(word))

    order = from_msgpack(pipe.recv_bytes(), ServingOrder)
    assert isinstance(order, LoadModel)
    model = LoadedModel(order.settings, Path(order.weights))
    answering = Answering(model)
    columns = (ModelColumn(each.name, each.dtype, each.shape) for each in model.wanted)
    say(ModelReady(tuple(columns)))
    while True:
        order = from_msgpack(pipe.recv_bytes(), ServingOrder)
        assert isinstance(order, AskOrder)
        begun_s = time.monotonic()
        say(ModelAnswers(answering.answers(order.requests), time.monotonic() - begun_s))


if __name__ == "__main__":
    live(_answer)
