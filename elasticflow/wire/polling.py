"""Waits for sockets and descriptors."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from elasticflow.wire.sockets import Socket, poll_ms


class Polling:
    """Remembers whom it waits for: to register them costs more than to poll, and they seldom change."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._sources: list[Socket | int] = []

    def wait(self, sources: Sequence[Socket | int], timeout_s: float | None) -> set[object]:
        """Those that can be read, at the latest after ``timeout_s``; None: for ever."""
        if sources != self._sources:
            self._sources, self._poller = list(sources), zmq.Poller()
            for source in sources:
                self._poller.register(source, zmq.POLLIN)
        return {source for source, _ in self._poller.poll(poll_ms(timeout_s))}
