"""When to try again what failed: pure, the clock is the caller's."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from elasticflow.errors import CheckpointError, RunError


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Delays that grow by ``factor`` from ``first_s`` to ``most_s``, until ``patience_s`` have passed."""

    first_s: float = 0.5
    factor: float = 2.0
    most_s: float = 30.0
    patience_s: float

    def delay_s(self, passed_s: float, failures: int) -> float | None:
        """Seconds to wait before the next try; None: give up.

        passed_s: since the first failure. failures: so far, 1 or more. The last try of all comes when
        the patience ends, never earlier; with a patience of 0 there is none after the first.
        """
        if passed_s >= self.patience_s:
            return None
        grown_s = self.first_s * self.factor ** min(failures - 1, 64)  # 64: far beyond most_s, no overflow
        return min(grown_s, self.most_s, self.patience_s - passed_s)


class RemovedError(OSError):
    """What was worked in was removed, or renamed, by somebody: it is not away, and will not come back."""


_AWAY = frozenset(
    {
        errno.EAGAIN,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EREMOTEIO,
        errno.ESTALE,
    }
)


def is_away(error: BaseException | None) -> bool:
    """Whether a medium did not answer, so that nothing is known of what lies there."""
    is_line = isinstance(error, (ConnectionError, TimeoutError)) and not isinstance(error, BrokenPipeError)
    return is_line or (isinstance(error, OSError) and error.errno in _AWAY)


def is_full(error: OSError) -> bool:
    """Whether there is no room, on the medium or by a quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_curable(error: BaseException) -> bool:
    """Whether the same act may go well later: the medium refused it, or there was no memory.

    Not so for a name that is taken, a folder that was removed, a value that is wrong, or a bug.
    """
    if isinstance(error, (CheckpointError, RunError)):
        return error.__cause__ is None or is_curable(error.__cause__)
    return isinstance(error, (OSError, MemoryError)) and not isinstance(
        error, (FileExistsError, RemovedError)
    )
