"""Which of the places that a run may use gets the next job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from elasticflow.cluster.cooldown import NEVER_S, Cooldown
from elasticflow_slurm.client import SlurmJob
from elasticflow_slurm.config import PlaceConfig

STRUCK_S = 600.0
"""A place that has refused a job gets none for so long."""
FULL_PATIENCES = 10
"""A place is thought to be full for so many times the patience since it was last found so."""
REST_FIRST_S, REST_MOST_S = 5.0, 300.0
"""After a limit was reached, or a place was found closed, the first pause and the longest."""


class PlaceStanding(msgspec.Struct):
    """What is known of a place."""

    place: PlaceConfig
    struck_until_s: float = NEVER_S
    refusal: str = ""
    """SLURM's words, while it is struck out."""
    full_until_s: float = NEVER_S
    rest: Cooldown = msgspec.field(default_factory=lambda: Cooldown(REST_FIRST_S, REST_MOST_S))
    estimate_after_s: float = NEVER_S

    @property
    def trouble(self) -> str:
        """Why there are no more jobs in this place; "" if it is not known to refuse any."""
        if self.rest.failures:
            return self.rest.text
        return f"refused in {self.place}: {self.refusal}" if self.refusal else ""


class Places:
    """The places of a run's workers, the best first."""

    def __init__(self, places: Iterable[PlaceConfig], patience_s: float) -> None:
        self._patience_s = patience_s
        self._standings = {place: PlaceStanding(place) for place in places}

    def __getitem__(self, place: PlaceConfig) -> PlaceStanding:
        return self._standings[place]

    def __iter__(self) -> Iterator[PlaceStanding]:
        return iter(self._standings.values())

    def choose(self, now_s: float, goal: PlaceConfig | None = None) -> PlaceConfig | None:
        """The goal, the first that is not full, or just the first; None: none takes jobs."""
        takes = self._taking(now_s)
        goals = [each for each in takes if each.place == goal]
        roomy = [each for each in takes if now_s >= each.full_until_s]
        return next((each.place for each in [*goals, *roomy, *takes]), None)

    def _taking(self, now_s: float) -> list[PlaceStanding]:
        return [each for each in self if now_s >= max(each.struck_until_s, each.rest.until_s)]

    def of(self, job: SlurmJob) -> PlaceConfig:
        """Where a job is that a master before this one has submitted, as well as its partition tells."""
        named = [place for place in self._standings if place.partition in ("", job.partition)]
        return named[0] if named else next(iter(self._standings))

    # --- what becomes known ----------------------------------------------------------------------

    def strike(self, place: PlaceConfig, words: str, now_s: float) -> None:
        """It refused a job, which it would do again."""
        standing = self._standings[place]
        standing.struck_until_s, standing.refusal = now_s + STRUCK_S, words

    def accepted(self, place: PlaceConfig) -> None:
        """It took a job."""
        standing = self._standings[place]
        standing.rest.clear()
        standing.struck_until_s, standing.refusal = NEVER_S, ""

    def fill(self, place: PlaceConfig, now_s: float) -> None:
        """A job waits there, or would."""
        self._standings[place].full_until_s = now_s + FULL_PATIENCES * self._patience_s

    def started(self, place: PlaceConfig) -> None:
        """A job has started there: there is room, and reason to ask for more."""
        standing = self._standings[place]
        standing.full_until_s = standing.estimate_after_s = NEVER_S

    def job_ended(self) -> None:
        """One job less: limits may allow another."""
        for each in self:
            each.rest.end()

    def refused_by_all(self, now_s: float) -> bool:
        return all(now_s < each.struck_until_s for each in self)

    # --- estimates -------------------------------------------------------------------------------

    def to_estimate(self, crowded: set[PlaceConfig], now_s: float) -> list[PlaceConfig]:
        """Places to ask when a job would start there, for jobs that wait in ``crowded``.

        Each is told once in ``patience_s``, unless a job has started there meanwhile.
        """
        chosen = [
            each for each in self._taking(now_s) if now_s >= each.estimate_after_s and crowded - {each.place}
        ]
        for each in chosen:
            each.estimate_after_s = now_s + self._patience_s
        return [each.place for each in chosen]
