"""Asks SLURM in a thread of its own: its answers may take seconds, and a master must not wait for them."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from elasticflow_slurm.client import SlurmError

T = TypeVar("T")
CLOSE_S = 30.0


class Clerk:
    """Does one thing after the other. ``fd`` is readable when ``turn`` has answers to give."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._answers: deque[Callable[[], None]] = deque()
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, daemon=True, name="clerk")
        self._thread.start()

    def order(self, act: Callable[[], T], answer: Callable[[T | SlurmError], None]) -> None:
        """Has ``act`` done in the thread, and ``answer`` called in ``turn`` with what it gave or raised.

        Any error but SLURM's is a bug, and is raised in ``turn``.
        """
        self._orders.put(partial(self._do, act, answer))

    def turn(self) -> None:
        """Gives the answers that have come."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        while self._answers:
            self._answers.popleft()()

    def close(self) -> None:
        """Does what was ordered, and nothing more; waits for that, unless SLURM hangs."""
        self._orders.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            order()

    def _do(self, act: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        try:
            answers = partial(answer, act())
        except SlurmError as error:
            answers = partial(answer, error)
        except BaseException as error:  # noqa: BLE001  (a thread that dies unseen would be the end of all)
            answers = partial(_fail, error)
        self._answers.append(answers)
        os.eventfd_write(self.fd, 1)


def _fail(error: BaseException) -> None:
    raise error
