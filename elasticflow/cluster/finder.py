"""How a member finds its master again, and when it stops looking."""

from __future__ import annotations

import contextlib
import random
import time
from abc import abstractmethod

import msgspec

from elasticflow.errors import ElasticFlowError
from elasticflow.process.decoding import from_json
from elasticflow.run.folder import Address, RunDir, RunPath

ASK_LAST_S = 60.0
"""How often a member that hears nothing asks its cluster in the end; each is a little different."""


class Orphaned(Exception):
    """No master will come any more."""


class Finder:
    """The master as the run's folder tells of it. patience_s: so long a silence is the end of a member."""

    def __init__(self, run_dir: str, patience_s: float) -> None:
        self._run = RunDir(run_dir)
        self._address: RunPath = self._run.address
        self.patience_s = patience_s

    def find(self) -> str | None:
        """The endpoint at which a master listens now, None if it is not known. Raises Orphaned."""
        try:
            return from_json(self._address.read_bytes(), Address).endpoint
        except (OSError, msgspec.MsgspecError):
            return None


class AskingFinder(Finder):
    """Asks the cluster, in a long silence, whether a master will come."""

    def __init__(
        self,
        run_dir: str,
        patience_s: float,
        apart_s: float,
        first_s: tuple[float, float],
        again_s: float,
    ) -> None:
        """first_s: a silence is asked about after so long, at least and at most. again_s: and then again.

        apart_s: so far apart two looks in one silence may be, beside the pauses.
        """
        super().__init__(run_dir, patience_s)
        self._first_s, self._next_s = first_s, again_s
        self._silence_s = again_s + apart_s
        """Looks that are further apart than this are of two silences."""
        self._looked_s, self._ask_s, self._again_s = float("-inf"), 0.0, again_s

    def find(self) -> str | None:
        now_s = time.monotonic()
        if now_s - self._looked_s > self._silence_s:  # this silence has just begun
            self._ask_s = now_s + random.uniform(*self._first_s)
            self._again_s = self._next_s
        if now_s >= self._ask_s:
            self._ask_s = now_s + self._again_s * random.uniform(1, 1.5)
            self._again_s = min(2 * self._again_s, ASK_LAST_S)
            with contextlib.suppress(ElasticFlowError, ValueError):  # unknown; patience ends in any case
                self.ask()
        found = super().find()
        self._looked_s = time.monotonic()
        return found

    @abstractmethod
    def ask(self) -> None:
        """Raises Orphaned if no master will come for this member; ElasticFlowError, ValueError: unknown."""
