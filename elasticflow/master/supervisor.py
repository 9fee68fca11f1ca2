"""The parent of a run's master: when the master dies, it puts another one in its place.

The supervisor does as little as it can: it opens no socket and starts no thread, so each master is forked
from a clean process that has imported all it needs. What master and supervisor share is the run's lock. If
the supervisor is killed, the master goes on; then the next death is the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType

from elasticflow.master.log import say
from elasticflow.process.ending import how_it_ended, leave
from elasticflow.run.folder import EXIT_CODES

CRASHED = 70
"""Exit code of a master that met an error nobody expected."""
TERMINATED = 143
"""Exit code of a master that was asked to end at once, as shells count it."""
SUPERSEDED = 76
"""Exit code of a master in whose place there is another by now."""
IN_ORDER = (*EXIT_CODES.values(), SUPERSEDED, TERMINATED)
"""Exit codes of a master that has ended its run; see ``elasticflow.master.__main__``."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_PR_SET_CHILD_SUBREAPER = 36


class Budget:
    """How often a master may die: ``most`` times within ``within_s``. Who dies more often always will."""

    def __init__(self, most: int = 5, within_s: float = 60.0) -> None:
        self.most, self.within_s = most, within_s
        self._deaths_s: deque[float] = deque()

    def spend(self, now_s: float) -> bool:
        """Counts a death; False if it is one too many."""
        self._deaths_s.append(now_s)
        while now_s - self._deaths_s[0] > self.within_s:
            self._deaths_s.popleft()
        return len(self._deaths_s) <= self.most


class Supervisor:
    """Runs ``master(again)`` in a child, again and again until it ends in order; it returns its exit code.

    clear: ends all that the masters have left behind.
    """

    def __init__(
        self, master: Callable[[bool], int], clear: Callable[[], None], budget: Budget | None = None
    ) -> None:
        self._master, self._clear, self._budget = master, clear, budget or Budget()
        self._stopping = False

    def run(self, again: bool = False) -> int:
        """Returns the exit code of the last master; 1 if the supervisor gave up.

        again: the first of them goes on with what masters of another supervisor have left behind.
        """
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # whose parent has died comes here to be buried
        # Before the first fork: the end of a master that ends at once waits for ``sigwait`` then.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            if not again:
                self._clear()
            return self._supervise(again)
        finally:
            self._clear()
            for _ in _reaped():
                pass
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _supervise(self, again: bool) -> int:
        code = self._attend(self._fork(again))
        while code not in IN_ORDER:
            if self._stopping or code == -signal.SIGTERM:
                return TERMINATED
            if not self._budget.spend(time.monotonic()):
                most, within_s = self._budget.most, self._budget.within_s
                say(f"Error: the run is given up: its master died more than {most} times in {within_s:g} s")
                return 1
            say(f"warning: the master {_cause(code)}; another one takes its place")
            code = self._attend(self._fork(again=True))
        return code

    def _fork(self, again: bool) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = CRASHED
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, _leave)
            # Last: a signal that waits by now comes with this.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            code = self._master(again)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else CRASHED
        except BaseException:  # noqa: BLE001  (its log is all that is left of it)
            traceback.print_exc()
        finally:
            leave(code)

    def _attend(self, master: int) -> int:
        """Waits until the master has ended; returns its exit code, or minus the signal that killed it."""
        while True:
            if signal.sigwait(_SIGNALS) is not signal.SIGCHLD:
                self._stopping = True
                os.kill(master, signal.SIGTERM)
            for pid, code in _reaped():
                if pid == master:
                    return code


def _reaped() -> Iterator[tuple[int, int]]:
    """Children that have ended, with their exit codes: the master, and those it has left behind."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, os.waitstatus_to_exitcode(status)


def _leave(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGTERM, signal.SIGINT):  # once is enough: it ends the members now
        signal.signal(each, lambda *_: None)
    sys.exit(TERMINATED)


def _cause(code: int) -> str:
    return how_it_ended(code) if code < 0 else f"failed with exit code {code}"
