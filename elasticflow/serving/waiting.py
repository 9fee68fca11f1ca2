"""Requests that wait for a process, and which of them one is given at once.

Nothing is waited for to make a batch larger: a process that is free takes all that have come while it, and
the others, were busy. So a lone request is computed at once, and batches are as large as there is need of.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from elasticflow.serving.orders import ModelAnswer, ModelRequest

MOST_TOGETHER, MOST_BYTES = 64, 8 << 20
"""Requests, and what is in them, that a process is given at once; always one."""
TRIES = 2
"""A request of which so many processes died is not tried again; the second time it is alone."""


class FullError(Exception):
    """So many wait that another one had better be sent elsewhere, or later."""


class DeadlyRequestError(Exception):
    """Processes have died of a request."""


class ModelAsk:
    """A request, and its answer to be, with the step of the model that gives it."""

    def __init__(self, request: ModelRequest) -> None:
        self.request, self.deaths = request, 0
        self.answered: asyncio.Future[tuple[ModelAnswer, int]] = asyncio.get_running_loop().create_future()

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.request.body)

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.answered.done()


class WaitingRequests:
    """most, most_bytes: that may wait; one always may."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._asks: deque[ModelAsk] = deque()
        self._idle: list[asyncio.Future[None]] = []
        """Of processes that have nothing to do; the last to have had something is the first to get it: the
        processor may still have its model at hand."""

    def __len__(self) -> int:
        return len(self._asks)

    def add(self, request: ModelRequest) -> ModelAsk:
        """Raises FullError."""
        if self._is_full(request):
            left = [ask for ask in self._asks if not ask.is_over]
            self._asks, self._bytes = deque(left), sum(ask.size for ask in left)
            if self._is_full(request):
                raise FullError
        ask = ModelAsk(request)
        self._asks.append(ask)
        self._bytes += ask.size
        self._wake()
        return ask

    def _is_full(self, request: ModelRequest) -> bool:
        too_large = self._bytes + len(request.body) > self._most_bytes
        return len(self._asks) >= self._most or bool(self._asks and too_large)

    def give_back(self, asks: Iterable[ModelAsk], how: str) -> None:
        """The process that had them has died. how: it ended."""
        for ask in reversed([ask for ask in asks if not ask.is_over]):
            ask.deaths += 1
            if ask.deaths < TRIES:
                self._asks.appendleft(ask)
                self._bytes += ask.size
            else:
                ask.answered.set_exception(DeadlyRequestError(how))
        self.tell()

    def tell(self) -> None:
        """All who wait for something to do are to look again."""
        while self._idle:
            self._wake()

    def _wake(self) -> None:
        while self._idle:
            if not (idle := self._idle.pop()).done():  # it may be on its way out
                return idle.set_result(None)

    async def take(self, leaves: Callable[[], bool]) -> list[ModelAsk]:
        """Waits for something to do; nothing if ``leaves`` is true."""
        while not leaves():
            if found := self._next():
                return found
            idle = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            try:
                await idle
            finally:
                if idle in self._idle:
                    self._idle.remove(idle)
        return []

    def _next(self) -> list[ModelAsk]:
        found: list[ModelAsk] = []
        num_bytes = 0
        while self._asks:
            ask = self._asks[0]
            num_bytes += ask.size
            full = len(found) == MOST_TOGETHER or num_bytes > MOST_BYTES or bool(ask.deaths)
            if not ask.is_over and found and full:
                break
            self._asks.popleft()
            self._bytes -= ask.size
            if not ask.is_over:
                found.append(ask)
                if ask.deaths:  # it may be what they died of
                    break
        return found
