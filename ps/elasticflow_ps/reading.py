"""A worker reads rows of tables while it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import zmq

from elasticflow.frameworks import Interrupted
from elasticflow.layout import Layout
from elasticflow.messages import Read, RowsRead
from elasticflow.rows import Keys, Values, blocks, part_of
from elasticflow_ps.remote import Remote

_Asked: TypeAlias = dict[Remote, Values]
"""Whom an answer is still to come from, and where it goes."""


class Reading:
    """Asks the servers of one row of connections. What else comes meanwhile waits in ``Remote.early``."""

    def __init__(self, layout: Layout, remotes: Sequence[Remote], wake_fd: int) -> None:
        self._dims = [entry.shape[1] for entry in layout.tables]
        self._remotes, self._wake_fd = remotes, wake_fd
        self._number = 0

    def read(self, table: int, version: int, keys: Keys, urgent: Callable[[], bool]) -> Values:
        """Rows of a table at a version, (k, dim). keys: (k,), ascending. Else see ``Strategy.read``."""
        values = np.empty((len(keys), self._dims[table]), np.float32)
        self._number += 1
        asked: _Asked = {}
        for remote in self._remotes:
            if parcel := remote.tables.get(table):
                part = part_of(keys, parcel.buckets.start, parcel.buckets.stop)
                if part.start < part.stop:
                    question = Read(number=self._number, version=version, parcel=parcel.number)
                    mine, asked[remote] = keys[part], values[part]
                    remote.link.send(question, [mine[block] for block in blocks(*asked[remote].shape)])
        if len(keys) != sum(len(part) for part in asked.values()):
            raise Interrupted("the way to the servers is lost")
        self._await(asked, urgent)
        return values

    def _await(self, asked: _Asked, urgent: Callable[[], bool]) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_fd, zmq.POLLIN)
        for remote in asked:
            poller.register(remote.link.socket, zmq.POLLIN)
            poller.register(remote.link.monitor, zmq.POLLIN)
        while asked:
            if urgent():
                raise Interrupted("the master has something that cannot wait")
            poller.poll()
            for remote in list(asked):
                self._hear(remote, asked)
                if remote in asked and remote.link.is_closed():
                    raise Interrupted(f"the way to {remote.name} is lost")

    def _hear(self, remote: Remote, asked: _Asked) -> None:
        while remote in asked and (received := remote.link.receive()):
            message, frames = received
            if not isinstance(message, RowsRead):
                remote.early.append(received)
            elif message.number == self._number:  # else the answer to a question that was given up
                self._take(remote, message, frames, asked)

    def _take(self, remote: Remote, message: RowsRead, frames: list[memoryview], asked: _Asked) -> None:
        if message.gone:
            raise Interrupted("that version is past")
        target = asked.pop(remote)
        parts = [target[block] for block in blocks(*target.shape)]
        if [frame.nbytes for frame in frames] != [part.nbytes for part in parts]:
            raise Interrupted(f"{remote.name} sends other rows than it was asked for")
        for part, frame in zip(parts, frames, strict=True):
            np.copyto(part, np.frombuffer(frame, np.float32).reshape(part.shape))
