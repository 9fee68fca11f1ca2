"""What a server tells the master while it serves: how far it is, what was measured, what went wrong."""

from __future__ import annotations

import time
from collections.abc import Callable

from elasticflow.errors import BrokenError
from elasticflow.step.schedule import Kind, Work
from elasticflow.training.advice import Advice
from elasticflow.training.objects import computed
from elasticflow.training.standing import WatchStanding
from elasticflow.wire.messages import Assignment, Diverged, Paused, Progress, Skipped, ToMaster
from elasticflow_ps.decisions import Decisions
from elasticflow_ps.measured import Measured
from elasticflow_ps.metric_process import process_for
from elasticflow_ps.stalls import Stalls
from elasticflow_ps.store import Sum

PROGRESS_S = 0.1
"""The leading server tells the master how far it is at most this often."""


class Reports:
    """Of one generation of one server. leads: this is server 0, which tells of progress for all.

    decisions: all that this process knows of; more are added. send: takes messages to the master.
    """

    def __init__(
        self,
        name: str,
        assignment: Assignment,
        decisions: Decisions,
        send: Callable[[ToMaster], None],
        *,
        version: int,
        leads: bool,
    ) -> None:
        self.diverged: Diverged | None = None
        """From then on no version is made any more; the one before is still served."""
        self._name, self._generation = name, assignment.generation
        objects = tuple(measure.of for measure in assignment.spec.measures if measure.of)
        compute = process_for(objects).value if leads and objects else computed
        self._measured = Measured(assignment, decisions.evaluations, compute)
        self._first_said: tuple[int, str, Advice] | None = None
        """What ``on_epoch`` has said last: of which tick, and who was the first to say so."""
        self._decisions, self._send, self._leads = decisions, send, leads
        self._first_version = version
        self._skipped: list[Skipped] = []
        """What the master was told of."""
        self._untold = sorted(decisions.evaluations)
        self._told_s, self._told_version = 0.0, -1
        self._stalls = Stalls(time.monotonic())

    # --- what happens ----------------------------------------------------------------------------

    def measured(self, tick: int, kind: Kind, root: Sum, lr: float | None) -> None:
        """Takes what slices have reported of a tick. lr: its learning rate; None: the optimizer's own."""
        if self._measured.take(tick, kind, root, lr):
            self._untold.append(tick)

    @property
    def standing(self) -> WatchStanding | None:
        """The newest; None: there are no rules, or another server leads."""
        return self._decisions.newest if self._leads else None

    def made(self, work: Work) -> WatchStanding | None:
        """A tick is done. What follows from it if it was an evaluation, which the master is told at once.

        None as long as ``on_epoch`` is to be asked.
        """
        if self._leads:
            self._stalls.done(work.tick, work.kind, time.monotonic())
        standing = self.standing
        if standing is None or work.kind is not Kind.EVALUATE:
            return None
        standing = standing.after(work.tick, work.step, self._measured.values(work.tick))
        self._decisions.learn(standing)
        self._told_s = 0.0
        return None if standing.asks else standing

    @property
    def asks(self) -> bool:
        """Whether ``on_epoch`` is to be asked of the last evaluation: until then the master hears nothing."""
        return self.standing is not None and self.standing.asks

    def advise(self, worker: str, tick: int, advice: Advice) -> WatchStanding | None:
        """A worker has asked the program. What follows from that, if it is the first to say so.

        Raises BrokenError if the program has said something else before.
        """
        standing = self.standing
        if standing is None or not standing.asks or standing.tick != tick:
            if self._first_said and tick == self._first_said[0]:
                _compare(self._first_said[1], self._first_said[2], worker, advice)
            return None
        self._first_said = tick, worker, advice
        standing = standing.given(advice)
        self._decisions.learn(standing)
        self._untold = sorted({*self._untold, tick})
        self._told_s, self._told_version = 0.0, min(self._told_version, tick)
        return standing

    def skips(self, tick: int) -> None:
        """A step is left out."""
        self._skipped.append(Skipped(name=self._name, generation=self._generation, tick=tick))
        self._send(self._skipped[-1])

    def diverges(self, tick: int, parameter: str, *, made: bool = False, number: int = -1) -> None:
        """There are numbers in a tick that are none. See ``Diverged``."""
        if self._leads and self._told_version < tick:  # nothing is told of progress from now on
            self._send(Progress(name=self._name, generation=self._generation, version=tick))
        self.diverged = Diverged(
            name=self._name,
            generation=self._generation,
            tick=tick,
            parameter=parameter,
            made=made,
            slice=number,
        )
        self._send(self.diverged)

    def paused(self, version: int) -> None:
        """Nothing is made of this version, for all are to begin anew from there."""
        self._send(Paused(name=self._name, generation=self._generation, version=version))

    # --- progress --------------------------------------------------------------------------------

    def turn(self, version: int, *, finished: bool) -> None:
        """To be called when ``due_s`` has passed, and after anything else. version: the newest."""
        due_s = self.due_s(version)
        if due_s is not None and (finished or time.monotonic() >= due_s):
            self._tell(version, self._untold, finished=finished)

    def tell_now(self, version: int) -> None:
        """What there is to tell, for it is to be gone on from."""
        if self.due_s(version) is not None:
            self._tell(version, self._untold, finished=False)

    def due_s(self, version: int) -> float | None:
        """When to call ``turn`` at the latest; None if there is nothing to tell."""
        news = self._leads and not self.diverged and not self.asks and self._told_version < version
        return self._told_s + PROGRESS_S if news else None

    def repeat(self, version: int, *, finished: bool) -> None:
        """Tells a new master what the one before knew."""
        for message in (self.diverged, *self._skipped):
            if message:
                self._send(message)
        if self._leads and not self.diverged and not self.asks:
            self._tell(
                version, sorted({*self._measured.evaluations, *self._decisions.ticks}), finished=finished
            )

    def _tell(self, version: int, ticks: list[int], *, finished: bool) -> None:
        self._untold, evaluations = [], self._measured.evaluations
        # The first version that is made is news that does not wait: the run may end soon after.
        self._told_s = time.monotonic() if version > self._first_version else 0.0
        self._told_version = version
        self._send(
            Progress(
                name=self._name,
                generation=self._generation,
                version=version,
                last=finished,
                loss=self._measured.loss(),
                evaluations=tuple((t, evaluations[t]) for t in ticks if t in evaluations),
                stalls=self._stalls.take(),
                standings=self._decisions.after(ticks),
                lr=self._measured.lr,
            )
        )


def _compare(first: str, advice: Advice, worker: str, other: Advice) -> None:
    """Raises BrokenError if a program says one thing here and another there."""
    if advice == other or advice.error or other.error:
        return
    raise BrokenError(
        f"on_epoch() said {advice} in {first} and {other} in {worker}, of the same evaluation: what it says "
        "has to follow from what it is told alone, not from the time, random numbers, or calls before."
    )
