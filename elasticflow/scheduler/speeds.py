"""What is believed of a job's speed: its profile until it is measured, with care; then the measurement.

A promise counts on the *safe* ladder: what was measured, else the profile less what profiles have been
wrong by so far. A job that can only be in time by its bare profile is tried out first, and promised its
deadline once it was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticflow.scheduler.curves import Curve, curve
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.ladder import Ladder, ladder
from elasticflow.scheduler.overheads import Overheads

ENOUGH_MEASUREMENTS = 10
"""From so many on they tell, more and more, how far profiles are to be trusted."""
MOST_DISTRUST = 0.5


@dataclass(frozen=True)
class Ladders:
    """Of one job: what is safe to count on, and what is to be expected."""

    safe: Ladder
    expected: Ladder


@dataclass
class Speeds:
    """Measurements by profile and size. distrust: of a profile's rate, what may be missing, at first."""

    max_gpus: int
    overheads: Overheads
    first_distrust: float = 0.2
    measured: dict[tuple[Curve, int], float] = field(default_factory=dict)
    _known: dict[tuple[Curve, float], Ladders] = field(default_factory=dict)
    _distrust: float | None = None

    @property
    def distrust(self) -> float:
        """The largest part that was missing so far and a quarter more; the first guess fades."""
        if self._distrust is None:
            self._distrust = self._distrust_now()
        return self._distrust

    def _distrust_now(self) -> float:
        missing = (1 - rate / profile.rate(size) for (profile, size), rate in self.measured.items())
        first = self.first_distrust * ENOUGH_MEASUREMENTS / max(len(self.measured), ENOUGH_MEASUREMENTS)
        return min(max(first, 1.25 * max(missing, default=0.0)), MOST_DISTRUST)

    def learn(self, job: Job, num_gpus: int, rate: float) -> bool:
        """A job of this profile was so fast; returns whether that was news."""
        if self.measured.get((job.curve, num_gpus)) == rate:
            return False
        self.measured[job.curve, num_gpus] = rate
        self._forget()
        return True

    def count_on(self, overheads: Overheads) -> None:
        """Changes cost that from now on."""
        self.overheads = overheads
        self._forget()

    def _forget(self) -> None:
        """What follows from measurements and overheads as they were."""
        self._known.clear()
        self._distrust = None

    def ladders(self, job: Job, slowness: float = 1.0) -> Ladders:
        """For a job that has ``slowness`` times the speed of its kind."""
        key = (job.curve, slowness)
        if key not in self._known:
            self._known[key] = self._ladders(job.curve, slowness)
        return self._known[key]

    def _ladders(self, profile: Curve, slowness: float) -> Ladders:
        expected = self._ladder(profile, slowness, 0.0)
        if self.distrust <= 0.001 or all((profile, size) in self.measured for size in profile.sizes):
            return Ladders(expected, expected)
        return Ladders(self._ladder(profile, slowness, self.distrust), expected)

    def _ladder(self, profile: Curve, slowness: float, distrust: float) -> Ladder:
        rates = {
            size: slowness * self.measured.get((profile, size), profile.rate(size) * (1 - distrust))
            for size in profile.sizes
        }
        return ladder(curve(rates), self.max_gpus, self.overheads)
