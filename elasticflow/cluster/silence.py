"""For how long nothing was heard of a master. Pure."""

from __future__ import annotations


class Silence:
    """For how long a process has waited for a word of its master, while it was itself running."""

    def __init__(self, now_s: float, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._since_s = self._woken_s = now_s
        self._asked_s = float("inf")

    def sleep(self, seconds: float) -> None:
        """The process goes to sleep for so long at most."""
        self._asked_s = seconds

    def wake(self, now_s: float) -> None:
        """It woke; if that is much later, it was stopped, and what was said to it is still unread."""
        if now_s - self._woken_s > self._asked_s + self._heartbeat_s:
            self._since_s = now_s
        self._woken_s = now_s

    def stay_awake(self, now_s: float) -> None:
        """It was awake until now, busy with something that took long."""
        self._woken_s = now_s

    def end(self) -> None:
        """A word has come."""
        self._since_s = self._woken_s

    @property
    def seconds(self) -> float:
        return self._woken_s - self._since_s
