"""A process that makes records for a worker ahead of time: see ``elasticflow.worker.readers``.

``python -m elasticflow.worker.reading PARENT QUEUE SOCKET TASK``: the number of the worker's process, and
descriptors.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import socket as sockets
import sys

import msgspec
import numpy as np

from elasticflow.hashing import mix
from elasticflow.process.decoding import from_json, from_msgpack
from elasticflow.process.parent import die_with_parent
from elasticflow.process.stamps import stamp_output
from elasticflow.step.layout import Array
from elasticflow.storage.file_ids import first_change
from elasticflow.worker.loaded import files_of, load_sources, records_of
from elasticflow.worker.readers import (
    PACKET,
    DataChanged,
    FromReader,
    PlainArray,
    ReadBegun,
    ReadDone,
    ReadOrder,
    ReadTask,
)

ALIGN = 64


class _Reading:
    """Does orders until the worker closes the queue."""

    def __init__(self, task: ReadTask, queue: sockets.socket, says: sockets.socket) -> None:
        _, sources = load_sources(task.settings)
        self._source, self._queue, self._says = sources.train, queue, says
        self._change = first_change(task.files, files_of(sources))
        if not self._change and task.records != records_of(sources):
            self._change = "a process that reads ahead has other records in memory than the worker"

    def run(self) -> None:
        if self._change:
            self._say(DataChanged(self._change))
            return
        while packet := self._queue.recv(PACKET):
            order = from_msgpack(packet, ReadOrder)
            self._say(ReadBegun(order.number))
            rows = np.frombuffer(order.rows, np.int64)
            try:
                columns = self._source.finish(
                    self._source.drawn(rows, order.seed), mix(order.seed, int(rows[0]))
                )
                arrays = {name: np.ascontiguousarray(array) for name, array in columns.items()}
            except (Exception, SystemExit):  # noqa: BLE001  (the worker finds out what of it to tell)
                self._say(ReadDone(order.number, None))
            else:
                self._give(order.number, arrays)

    def _give(self, number: int, arrays: dict[str, Array]) -> None:
        told, size = [], 0
        for name, array in arrays.items():
            told.append(PlainArray(name, array.dtype.str, array.shape, size))
            size += -(-array.nbytes // ALIGN) * ALIGN
        descriptor = os.memfd_create("elasticflow-records", os.MFD_CLOEXEC)
        try:
            # Nothing cannot be mapped.
            os.ftruncate(descriptor, max(size, mmap.PAGESIZE))
            with mmap.mmap(descriptor, max(size, mmap.PAGESIZE)) as memory:
                for each, array in zip(told, arrays.values(), strict=True):
                    memory[each.start : each.start + array.nbytes] = array.tobytes()
            self._say(ReadDone(number, tuple(told)), descriptor)
        finally:
            os.close(descriptor)

    def _say(self, message: FromReader, *descriptors: int) -> None:
        sockets.send_fds(self._says, [msgspec.msgpack.encode(message)], descriptors)


def main() -> None:
    """See the module's docstring."""
    parent, queue_fd, says_fd, task_fd = map(int, sys.argv[1:])
    die_with_parent(parent)
    faulthandler.enable()
    stamp_output()
    with os.fdopen(task_fd, "rb") as file:
        # Whoever has written it shares the position in it, which is at its end.
        file.seek(0)
        task = from_json(file.read(), ReadTask)
    _Reading(task, sockets.socket(fileno=queue_fd), sockets.socket(fileno=says_fd)).run()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
