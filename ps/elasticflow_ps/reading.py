"""A worker reads rows of tables while it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import zmq

from elasticflow.frameworks import Interrupted
from elasticflow.step.layout import Layout
from elasticflow.step.rows import Keys, Values, blocks, part_of
from elasticflow.wire.messages import Read, RowsRead
from elasticflow_ps.remote import Remote


class _OpenQuestion:
    """Rows that were asked for. asked: whom an answer is still to come from, and where it goes."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.asked: dict[Remote, Values] = {}
        self.in_vain = ""
        """Why they are not to be had."""


class RowReading:
    """Asks the servers of one row of connections. What else comes meanwhile waits in ``Remote.early``."""

    def __init__(
        self, layout: Layout, remotes: Sequence[Remote], wake_fd: int, numbers: Iterator[int]
    ) -> None:
        self._dims = [entry.shape[1] for entry in layout.tables]
        self._remotes, self._wake_fd = remotes, wake_fd
        self._numbers = numbers
        self._open: dict[int, _OpenQuestion] = {}
        """By number."""

    def ask(self, table: int, version: int, keys: Keys, urgent: Callable[[], bool]) -> Callable[[], Values]:
        """Asks for rows of a table at a version. keys: (k,), ascending. Else see ``Strategy.read``."""
        question = _OpenQuestion(np.empty((len(keys), self._dims[table]), np.float32))
        number = next(self._numbers)
        for remote in self._remotes:
            if parcel := remote.tables.get(table):
                part = part_of(keys, parcel.buckets.start, parcel.buckets.stop)
                if part.start < part.stop:
                    message = Read(number=number, version=version, parcel=parcel.number)
                    mine, values = keys[part], question.values[part]
                    question.asked[remote] = values
                    remote.link.put(message, [mine[block] for block in blocks(*values.shape)])
        if len(keys) != sum(len(part) for part in question.asked.values()):
            question.in_vain = "the way to the servers is lost"
        elif question.asked:
            self._open[number] = question
        return partial(self._await, question, urgent)

    def hurry(self) -> None:
        """What was asked by now leaves, to each server as one."""
        for remote in self._remotes:
            remote.link.flush()

    def _await(self, question: _OpenQuestion, urgent: Callable[[], bool]) -> Values:
        poller = zmq.Poller()
        poller.register(self._wake_fd, zmq.POLLIN)
        for remote in question.asked:
            poller.register(remote.link.socket, zmq.POLLIN)
            poller.register(remote.link.monitor, zmq.POLLIN)
        self.hurry()
        while question.asked and not question.in_vain:
            if urgent():
                raise Interrupted("the master has something that cannot wait")
            # What came with something else is there already.
            poller.poll(0 if any(remote.link.more for remote in question.asked) else None)
            for remote in list(question.asked):
                self._hear(remote, question)
                if remote not in question.asked:
                    poller.unregister(remote.link.socket)
                    poller.unregister(remote.link.monitor)
                elif remote.link.is_closed():
                    raise Interrupted(f"the way to {remote.name} is lost")
        if question.in_vain:
            raise Interrupted(question.in_vain)
        return question.values

    def _hear(self, remote: Remote, question: _OpenQuestion) -> None:
        while remote in question.asked and (received := remote.link.receive()):
            message, frames = received
            if isinstance(message, RowsRead):
                self.take(remote, message, frames)
            else:
                remote.early.append(received)

    def take(self, remote: Remote, message: RowsRead, frames: Sequence[memoryview]) -> None:
        """An answer has come; it may be to a question that nobody cares for any more."""
        question = self._open.get(message.number)
        target = question.asked.pop(remote, None) if question else None
        if question is None or target is None:
            return
        if not question.asked or message.gone:
            del self._open[message.number]
        if message.gone:
            question.in_vain = "that version is past"
            return
        parts = [target[block] for block in blocks(*target.shape)]
        if [frame.nbytes for frame in frames] != [part.nbytes for part in parts]:
            question.in_vain = f"{remote.name} sends other rows than it was asked for"
            return
        for part, frame in zip(parts, frames, strict=True):
            np.copyto(part, np.frombuffer(frame, np.float32).reshape(part.shape))
