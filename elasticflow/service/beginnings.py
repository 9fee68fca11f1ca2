"""How long runs take to begin, as they were seen to, for plans that must not count on less. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LAST = 20
"""So many beginnings are looked at."""
ENOUGH = 3
USUAL = 0.8
"""So large a part of them took no longer than what plans count on."""
NEWS = 0.25
"""What is counted on changes when it is off by this part."""


@dataclass
class Beginning:
    """Of one run: when it was granted workers and had none, as long as none is ready."""

    _granted: int | None = None
    """When it was looked at last; None: it was not."""
    _since_s: float | None = None

    def note(self, workers: int, has: int | None, is_new: bool, now_s: float) -> None:
        """It is granted so many. has: workers that it had; None: it does not run. is_new: it never did."""
        from_zero = is_new if self._granted is None else not self._granted
        if not workers:
            self._since_s = None
        elif from_zero and not has:
            self._since_s = now_s
        self._granted = workers

    def ready(self, now_s: float) -> float | None:
        """A worker is ready. Seconds that it took, the first time it is said."""
        since_s, self._since_s = self._since_s, None
        return None if since_s is None else now_s - since_s


def expected_s(seconds: Iterable[float], least_s: float, now_s: float) -> float:
    """What plans count on from now on.

    seconds: of the last beginnings. least_s: by the settings, of one that has the machine for itself.
    now_s: what is counted on so far.
    """
    last = sorted(list(seconds)[-LAST:])
    usual_s = last[min(int(USUAL * len(last)), len(last) - 1)] if len(last) >= ENOUGH else least_s
    found_s = max(least_s, usual_s)
    return found_s if abs(found_s - now_s) > NEWS * now_s else now_s
