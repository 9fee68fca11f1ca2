"""A function of the program's that is held up, and gone on with, as often as one likes.

It runs in a thread of its own, but never at the same time as whoever goes on with it: so it is an ordinary
function, with loops and calls of its own, and nothing need be locked.
"""

from __future__ import annotations

import contextvars
import queue
from collections.abc import Callable
from typing import Any, NamedTuple

from elasticflow.process.guard import guarded_thread


class Unwound(BaseException):
    """Raised in a function that is not gone on with: no error, which it need not, and must not, handle."""


class _News(NamedTuple):
    said: Any = None
    error: BaseException | None = None
    over: bool = False


class _Unwind(NamedTuple):
    pass


class LoopThread:
    """See the module's docstring. over: it has returned, raised, or was unwound."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._unwinding = False
        self.over = False
        context = contextvars.copy_context()  # in which settings of PyTorch's compiler are
        self._thread = guarded_thread(self._run, "loop", lambda: context.run(run))

    def _run(self, run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001  (raised where it is gone on with)
            self._news.put(_News(error=error, over=True))
        else:
            self._news.put(_News(over=True))

    def go_on(self, order: Any = None) -> Any:
        """Has it run until it holds, or is ``over``. Returns what it says; raises what it raised."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._orders.put(order)
        news = self._news.get()
        self.over = news.over
        if news.error is not None:
            raise news.error
        return news.said

    def hold(self, said: Any) -> Any:
        """In the function: waits for the next order. Raises Unwound if there will be none."""
        if not self._unwinding:
            self._news.put(_News(said=said))
            self._unwinding = isinstance(order := self._orders.get(), _Unwind)
        if self._unwinding:
            raise Unwound
        return order

    def unwind(self) -> None:
        """Ends it, wherever it holds."""
        if self.over or self._thread.ident is None:
            return
        self._orders.put(_Unwind())
        self._news.get()
        self.over = True
