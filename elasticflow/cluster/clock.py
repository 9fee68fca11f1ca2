"""Wall time beside the monotonic clock: polls tell both, what is decided knows the latter alone."""

from __future__ import annotations

from datetime import datetime


class WallClock:
    """As of the last poll. ``at``: in seconds since 1970; None: there was none yet."""

    def __init__(self) -> None:
        self.at: float | None = None
        self._now_s = 0.0

    def set(self, at: float, now_s: float) -> None:
        self.at, self._now_s = at, now_s

    def time_s(self, at: float) -> float:
        """On the monotonic clock."""
        return at - (self.at or 0.0) + self._now_s

    def text(self, time_s: float) -> str:
        """For people, of a time on the monotonic clock."""
        return "its start" if self.at is None else clock(self.at + time_s - self._now_s, self.at)


def clock(time_at: float, at: float) -> str:
    """Local time, to the minute, and the date if that is not today's."""
    then, today = datetime.fromtimestamp(time_at), datetime.fromtimestamp(at).date()
    return then.strftime("%H:%M" if then.date() == today else "%Y-%m-%d %H:%M")
