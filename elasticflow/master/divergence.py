"""Steps with NaN or infinite numbers: the one that ends the run, and those that are left out.

Before a run ends its workers are asked in which slice it began: each computes those of its share once more.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticflow.master.commits import Commits
from elasticflow.step.schedule import Schedule
from elasticflow.wire.messages import Diverged, Inspected, Share, Skipped

INSPECT_S = 10.0
"""The run ends after so long, whoever has not found out by then."""


class Divergence:
    """skipped: ticks that are left out, and slices of them; slice -1: the whole tick.

    ends_run: the run is being stopped because those are too many.
    odd_cost: people were told of a cost that is none.
    """

    def __init__(self, skipped: Iterable[tuple[int, int]] = ()) -> None:
        self.skipped = set(skipped)
        self.ends_run = self.odd_cost = False
        self._told: Diverged | None = None
        self._asked: dict[str, range] = {}
        self._found: list[Inspected] = []
        self._ends_s = float("inf")

    # --- the step that ends the run ------------------------------------------------------------------

    def told(self, event: Diverged, shares: Iterable[Share], now_s: float) -> dict[str, range]:
        """A server tells of the step. By worker, the slices to look at; none if that was asked before."""
        if self._told:
            return {}
        self._told, self._ends_s = event, now_s + INSPECT_S
        looks = event.slice < 0 and bool(event.parameter)
        self._asked = {share.worker: range(share.first, share.stop) for share in shares if looks}
        return dict(self._asked)

    @property
    def pending(self) -> bool:
        """Whether the run is about to end because of a step."""
        return self._told is not None

    def answered(self, event: Inspected) -> None:
        """A worker has looked at its slices."""
        if not self._told or event.tick != self._told.tick or event.name not in self._asked:
            return
        if not event.searches:
            del self._asked[event.name]
        self._found = [each for each in self._found if each.name != event.name]
        self._found += [event] if event.slice >= 0 else []

    def ends_s(self, here: Iterable[str], commits: Commits) -> float:
        """When the run is to end: at once if nobody ``here`` is still to answer, and all is committed."""
        if self._told and not self._asked.keys() & set(here) and not commits.under_way(self._told.tick):
            return float("-inf")
        return self._ends_s

    def text(self, schedule: Schedule, committed_tick: int | None) -> str:
        """Which step it is, and where it began, as far as that is known."""
        assert self._told
        first = min(self._found, key=lambda each: each.slice, default=None)
        parameter = first.parameter if first else self._told.parameter
        if self._told.made:
            where = f"the update of {parameter} makes NaN or infinite numbers of a gradient "
            where += "that is finite"
        elif parameter:
            where = f"the gradient of {parameter} is not finite (NaN or infinite)"
        else:
            where = "the norm of all gradients is not finite"
        number = first.slice if first else self._told.slice
        began = f", beginning in slice {number}" if number >= 0 else ""
        cost = f", whose cost is {first.cost}" if first else ""
        cost += f", first with record {first.row}" if first and first.row >= 0 else ""
        kept = "there is no checkpoint yet"
        if committed_tick is not None:
            kept = f"the last checkpoint is that of step {schedule.steps_before(committed_tick)}"
        return (
            f"{step_of(schedule, self._told.tick)} is not made: {where}{began}{cost}; {kept}. Lower the "
            "learning rate, clip gradients (clip_norm), or leave such steps out (on_nan: skip) in a new run."
        )

    # --- steps that are left out ---------------------------------------------------------------------

    def skip(self, event: Skipped) -> bool:
        """Whether this is news."""
        known = len(self.skipped)
        self.skipped.add((event.tick, event.slice))
        return len(self.skipped) > known

    def go_back_to(self, tick: int) -> None:
        """Everything from this tick on has not happened."""
        self.skipped = {each for each in self.skipped if each[0] < tick}


def step_of(schedule: Schedule, tick: int) -> str:
    """A tick's step, for people."""
    work = schedule.at(tick)
    return f"step {work.step} (epoch {work.epoch + 1})"
