"""Whether a run is going to keep its deadline, and when to say so: pure, times are seconds."""

from __future__ import annotations

import msgspec

HOLD_S = 30.0
"""An ETA must be on the other side of the deadline for so long before that is told."""


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What people were told last. late: that it will be late. over: that the deadline is over.

    other_s: since when it looks otherwise.
    """

    late: bool = False
    over: bool = False
    other_s: float | None = None


def look(before: Outlook, *, left_s: float, eta_s: float | None, now_s: float) -> Outlook:
    """What to tell now: that of ``before``, unless it looks otherwise for a while, or the deadline is over.

    left_s: until the deadline. eta_s: until the run's end; None: nobody knows.
    """
    if left_s <= 0:
        return Outlook(late=True, over=True)
    late = before.late if eta_s is None else eta_s > left_s
    if late == before.late:
        return Outlook(late=late)
    other_s = now_s if before.other_s is None else before.other_s
    if now_s - other_s < HOLD_S:
        return Outlook(late=before.late, other_s=other_s)
    return Outlook(late=late)
