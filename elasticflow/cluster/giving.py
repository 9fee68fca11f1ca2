"""Who gives its place back before the cluster takes it: others wait for what is theirs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from elasticflow.cluster.cooldown import NEVER_S

RETURN_S = 15.0
"""Workers that were told to give their places back count as on their way for so long."""
REST_S = 30.0
"""So long after others have waited for what is theirs, nothing is asked for beyond the least number."""


class Pressure(NamedTuple):
    """Others wait. lacking: for how many of our places. excess: how many we have beyond our share."""

    lacking: int
    excess: int
    text: str


class GivingBack:
    """Never below the least number of workers, nor below our share; the newest first."""

    def __init__(self, num_min: int) -> None:
        self.why = ""
        """What was last known of those who wait."""
        self.rest_until_s = NEVER_S
        self._num_min = num_min
        self._told_s: dict[str, float] = {}

    def press(self, pressure: Pressure, running: Sequence[str], num_leaving: int, now_s: float) -> list[str]:
        """Who is to go now. running: by number. num_leaving: how many go already, and are not among them."""
        self.why, self.rest_until_s = pressure.text, now_s + REST_S
        going = {name: at_s for name, at_s in self._told_s.items() if now_s - at_s < RETURN_S}
        staying = [name for name in running if name not in going]
        under_way = len(running) - len(staying) + num_leaving
        num = min(pressure.lacking, pressure.excess) - under_way
        chosen = staying[self._num_min :][-num:] if num > 0 else []
        self._told_s = {**going, **dict.fromkeys(chosen, now_s)}
        return chosen[::-1]

    def is_pressed(self, now_s: float) -> bool:
        """Whether others wait, or did a moment ago."""
        return now_s < self.rest_until_s
