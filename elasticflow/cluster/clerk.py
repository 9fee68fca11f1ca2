"""Asks a cluster in a thread of its own: answers may take seconds, and a master must not wait for them."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from elasticflow.process.fd_event import FdEvent
from elasticflow.process.guard import guarded_thread

T = TypeVar("T")
E = TypeVar("E", bound=Exception)
CLOSE_S = 30.0
"""What a cluster has not taken by then it is not going to: whoever ends must not hang with it."""


class Clerk(Generic[E]):
    """Does one thing after the other. ``fd`` is readable when ``turn`` has answers to give.

    errors: those that are answers too. Any other is a bug.
    """

    def __init__(self, errors: type[E]) -> None:
        self._errors = errors
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._answers: deque[Callable[[], None]] = deque()
        self._answered = FdEvent()
        self.fd = self._answered.fd
        self._thread = guarded_thread(self._run, "clerk")
        self._thread.start()

    def order(self, act: Callable[[], T], answer: Callable[[T | E], None]) -> None:
        """Has ``act`` done in the thread, and ``answer`` called in ``turn`` with what it gave or raised.

        A bug is raised in ``turn``.
        """
        self._orders.put(partial(self._do, act, answer))

    def turn(self) -> None:
        """Gives the answers that have come."""
        self._answered.clear()
        while self._answers:
            self._answers.popleft()()

    def close(self, wait_s: float | None = None) -> None:
        """Does what was ordered, and nothing more; waits for that, but not for a cluster that hangs.

        wait_s: for so long; None: ``CLOSE_S``.
        """
        self._orders.put(None)
        self._thread.join(CLOSE_S if wait_s is None else wait_s)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            order()

    def _do(self, act: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        try:
            answers = partial(answer, act())
        except self._errors as error:
            answers = partial(answer, error)
        except BaseException as error:  # noqa: BLE001  (a thread that dies unseen would be the end of all)
            answers = partial(_fail, error)
        self._answers.append(answers)
        self._answered.set()


def _fail(error: BaseException) -> None:
    raise error
