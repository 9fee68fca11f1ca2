"""Work on the storage that may be slow, fail for a while, or hang: in a thread, and tried again."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from elasticflow.errors import ElasticFlowError
from elasticflow.process.fd_event import FdEvent
from elasticflow.process.guard import guarded_thread
from elasticflow.process.retry import Backoff, is_curable
from elasticflow.process.texts import sendable

T = TypeVar("T")


@dataclass(frozen=True)
class _Job:
    run: Callable[[], Any]
    done: Callable[[Any, str], None]
    trouble: Callable[[str], None]


class Background:
    """Does jobs one after the other in one thread; what they come to is told in the caller's thread.

    ``fd`` becomes readable when there is news, and ``turn`` tells it. Nobody ever waits for the
    thread: a job that hangs holds up those behind it, but neither ``close`` nor the end of the process.
    Methods are for one thread.

    patience_s: how long a job that fails is tried again. first_s: until the second try.
    """

    def __init__(self, patience_s: float, first_s: float = 0.5) -> None:
        self._backoff = Backoff(first_s=first_s, patience_s=patience_s)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._news: deque[Callable[[], None]] = deque()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        """Between ``close`` and the thread: a closed ``fd`` may be another file's number already."""
        self._wake = FdEvent()
        self.fd = self._wake.fd
        self.busy = 0
        """Number of jobs whose ``done`` has not been called."""

    def submit(
        self, job: Callable[[], T], done: Callable[[T | None, str], None], trouble: Callable[[str], None]
    ) -> None:
        """Runs ``job`` in the thread, again and again while it fails and the patience lasts.

        done: told the result and "", or None and the error's text. trouble: told the error's text when
        the job fails the first time or otherwise than before, and is tried again; "" when a job works
        again. An error that no second try cures (see ``is_curable``) goes to ``done`` at once.
        """
        if self._closed.is_set():
            raise RuntimeError("no jobs after close")
        self.busy += 1
        self._jobs.put(_Job(job, done, trouble))
        if self._thread is None:
            self._thread = guarded_thread(self._work, "storage")
            self._thread.start()

    def turn(self) -> None:
        """Calls what is due of ``done`` and ``trouble``. Returns at once."""
        self._wake.clear()
        while self._news and not self._closed.is_set():
            self._news.popleft()()

    def close(self) -> None:
        """Tells nothing any more, and tries nothing again. A job in work is left to itself."""
        with self._lock:
            if not self._closed.is_set():
                self._closed.set()
                self._wake.close()
        self._jobs.put(None)

    # --- in the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        troubled = False
        while not self._closed.is_set():
            troubled = self._do(self._jobs.get(), troubled)

    def _do(self, job: _Job | None, troubled: bool) -> bool:
        """One job to its end. ``troubled``, and what is returned: trouble was told and not taken back.

        Nothing of a job outlives this frame but its result: a job may hold a model's worth of arrays.
        """
        first_s, failures, told = 0.0, 0, ""
        while job is not None and not self._closed.is_set():
            try:
                result = job.run()
            except Exception as error:  # noqa: BLE001  (whoever asked for it is told)
                known = isinstance(error, ElasticFlowError)
                text = sendable(str(error) if known else f"{type(error).__name__}: {error}")
                failures, first_s = failures + 1, first_s or time.monotonic()
                delay_s = self._backoff.delay_s(time.monotonic() - first_s, failures)
                if delay_s is None or not is_curable(error):
                    self._tell(partial(self._finish, job.done, None, text))
                    break
                if text != told:
                    self._tell(partial(job.trouble, text))
                troubled, told = True, text
            else:
                if troubled:
                    self._tell(partial(job.trouble, ""))
                self._tell(partial(self._finish, job.done, result, ""))
                return False
            self._closed.wait(delay_s)
        return troubled

    def _finish(self, done: Callable[[Any, str], None], result: Any, text: str) -> None:
        self.busy -= 1
        done(result, text)

    def _tell(self, news: Callable[[], None]) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._news.append(news)
                self._wake.set()
