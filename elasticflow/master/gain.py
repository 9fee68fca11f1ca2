"""Whether the workers that a run has make it faster: measured, by having some of them rest for a few steps.

    waits ── nobody came or went for a while ──> all ──> fewer ──> again ──> Finding
      ^                                           │        │         │
      └──────── somebody comes or goes ───────────┴────────┴─────────┘

A worker that rests stays where it is, and follows the versions: only the plan gives its slices to others,
which changes no bit. So a question costs what fewer workers are slower in a few steps. What all achieve
is measured before and after, and the better counts: a hiccup lets workers stay, and sends none away.

Source of the idea to size a job by measured marginal throughput: ElasticFlow (Gu et al., ASPLOS 2023).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

SETTLED_S = 60.0
"""So long after somebody came or went all have found their pace."""
SKIPPED = 2
"""Steps after a change of the plan that are still made by the one before."""
STEPS, MEASURE_S = 5, 5.0
"""A pace is measured over as many steps at least, and for so long."""
COST = 0.02
"""Of the run's time, at most so much is spent on such questions."""
AGAIN_S, MOST_AGAIN_S = 600.0, 4 * 3600.0
"""Until the question is asked again of workers that stay, and twice as long each time."""
REGROW_S, MOST_REGROW_S = 1800.0, 8 * 3600.0
"""Until more workers are tried again where they brought nothing, and twice as long each time."""


class GainMode(str, Enum):
    """What is done about it."""

    WATCHES = "watches"
    CAPS = "caps"
    """Workers were given back."""
    OFF = "off"
    """People have said how many they want."""


class Pacing(str, Enum):
    """Where a question is."""

    WAITS = "waits"
    ALL = "all"
    FEWER = "fewer"
    AGAIN = "again"


class Finding(NamedTuple):
    """step_s: seconds that a step takes with all ``workers``, fewer_step_s: with ``fewer`` of them."""

    workers: int
    fewer: int
    step_s: float
    fewer_step_s: float

    @property
    def text(self) -> str:
        """For people."""
        fewer, all_ = (f"{1000 * each:.3g} ms" for each in (self.fewer_step_s, self.step_s))
        who = "1 worker is" if self.fewer == 1 else f"{self.fewer} workers are"
        return f"{who} as fast as {self.workers}: a step takes {fewer}, with all {all_}"


class Gain:
    """Of one run. least: all stay if they are faster than fewer by this part; 0: nothing is asked.

    fewest: workers that always stay. num_slices: of a step, which they share.
    """

    def __init__(self, least: float, fewest: int, num_slices: int) -> None:
        self._least, self._fewest, self._num_slices = least, fewest, num_slices
        self.mode = GainMode.WATCHES if least else GainMode.OFF
        self._pacing = Pacing.WAITS
        self._workers = 0
        self._from_s = 0.0
        """When the present question may begin."""
        self._not_before_s = 0.0
        """Else questions would cost too much of the run's time."""
        self.grow_s = float("inf")
        """When more workers are to be tried again, as there were before."""
        self._again_s, self._regrow_s = AGAIN_S, REGROW_S
        self._since: tuple[int, float] | None = None
        """Step and moment from which the present pace is measured."""
        self._skip_to = 0
        self._paces: dict[Pacing, float] = {}

    @property
    def working(self) -> int | None:
        """How many workers are to have slices now; None: all."""
        return self._fewer if self._pacing is Pacing.FEWER else None

    @property
    def _fewer(self) -> int:
        """The fewest of whom none has more slices than one of all has, or half of them."""
        most = -(-self._num_slices // max(1, self._workers))
        same = -(-self._num_slices // most)
        return max(same if same < self._workers else self._workers // 2, self._fewest)

    def settle(self, workers: int, now_s: float) -> bool:
        """So many are ready. Whether a question is given up for that, so that all have slices again."""
        if workers == self._workers:
            return False
        rested = self.working is not None
        self._workers, self._pacing, self._since = workers, Pacing.WAITS, None
        self._from_s = max(now_s + SETTLED_S, self._not_before_s)
        self._again_s = AGAIN_S
        return rested

    def give_up(self, now_s: float) -> bool:
        """Steps are not made as usual. Whether all are to have slices again."""
        workers, self._workers = self._workers, 0
        return self.settle(workers, now_s)

    def made(self, step: int, left: int, usual: bool, now_s: float) -> Finding | bool:
        """So many steps are done, and so many are left.

        usual: what was made since the last one takes as long as any. Returns whether the plan is to be made
        anew, by ``working``. A Finding: it is, and so many workers bring nothing.
        """
        if self.mode is GainMode.OFF or self._fewer >= self._workers:
            return False
        if self._pacing is Pacing.WAITS:
            if now_s < self._from_s:
                return False
            return self._begin(Pacing.ALL, step)
        if not usual or step < self._skip_to:
            self._since = None
        elif self._since is None:
            self._since = step, now_s
        elif step - self._since[0] >= STEPS and now_s - self._since[1] >= MEASURE_S:
            self._paces[self._pacing] = (now_s - self._since[1]) / (step - self._since[0])
            return self._go_on(step, left, now_s)
        return False

    def _begin(self, pacing: Pacing, step: int) -> bool:
        """Measures the next pace. Whether the plan is another for it."""
        changes = Pacing.FEWER in (pacing, self._pacing)
        self._pacing, self._since, self._skip_to = pacing, None, step + SKIPPED
        return changes

    def _go_on(self, step: int, left: int, now_s: float) -> Finding | bool:
        step_s = self._paces[self._pacing]
        if self._pacing is Pacing.ALL:
            if _lost_s(step_s, 2 * step_s) <= COST * left * step_s:
                return self._begin(Pacing.FEWER, step)
            self._pacing, self._from_s = Pacing.WAITS, float("inf")  # too little is left
            return False
        if self._pacing is Pacing.FEWER:
            return self._begin(Pacing.AGAIN, step)
        found = Finding(
            self._workers, self._fewer, min(self._paces[Pacing.ALL], step_s), self._paces[Pacing.FEWER]
        )
        lost_s = _lost_s(found.step_s, found.fewer_step_s)
        self._pacing, self._not_before_s = Pacing.WAITS, now_s + lost_s / COST
        self._from_s = max(now_s + self._again_s, self._not_before_s)
        self._again_s = min(2 * self._again_s, MOST_AGAIN_S)
        if found.fewer_step_s >= found.step_s * (1 + self._least):
            return False
        self.cap(now_s)
        self._regrow_s = min(2 * self._regrow_s, MOST_REGROW_S)
        return found

    def grow(self) -> None:
        """More workers are tried again."""
        self.mode, self.grow_s = GainMode.WATCHES, float("inf")

    def off(self) -> None:
        """Nothing is asked, or done, any more."""
        self.mode, self.grow_s, self._pacing = GainMode.OFF, float("inf"), Pacing.WAITS

    def cap(self, now_s: float) -> None:
        """Workers are given back, now or by the master before this one; more are tried after a while."""
        self.mode, self.grow_s = GainMode.CAPS, now_s + self._regrow_s


def _lost_s(step_s: float, fewer_step_s: float) -> float:
    """By how much a run is later for steps with fewer workers, as many as are measured."""
    return (SKIPPED * fewer_step_s + max(STEPS * fewer_step_s, MEASURE_S)) * max(
        0.0, 1 - step_s / fewer_step_s
    )
