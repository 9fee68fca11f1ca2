"""A loop of the program's own, driven from slice to slice: brought to whatever its worker is to compute.

The loop knows of steps that follow each other; a worker may be given any slice of any tick. So the loop runs
in a thread that waits at ``step.slices()``. It is given a slice, or told that the round is over; and if the
slice is of another place than the loop can come to in this way, the loop is begun anew, at that slice's step.
It can be: what it needs of the past is part of the version, totals of the step's rounds and what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from elasticflow.errors import LoopError
from elasticflow.frameworks.loop_plan import ArrayShape, Gave, LoopPlan, LoopRound, total_name
from elasticflow.frameworks.loop_slice import LoopSlice
from elasticflow.frameworks.loop_tensors import KeptThing, LoopTensors
from elasticflow.frameworks.loop_thread import LoopThread
from elasticflow.frameworks.session import Session, SlicePart
from elasticflow.program.loading import describe
from elasticflow.step.layout import MOST_ROUNDS, Array
from elasticflow.step.schedule import Kind, Work

FIRST = Work(tick=0, kind=Kind.TRAIN, epoch=0, step=1, first=0, last=1)
"""The first tick of all, which is gone through before there is a run."""


class _Wants(NamedTuple):
    """Where the loop waits. stage: that of the tick for whose slices it asks."""

    step: int
    stage: int


class Looping:
    """See the module's docstring.

    between: called before the program's code runs outside of slices, with step and stage: sets the random
    states.
    """

    def __init__(
        self,
        path: str,
        loop: Callable[[Session], object],
        params: Mapping[str, Any],
        tensors: LoopTensors,
        between: Callable[[int, int], None],
    ) -> None:
        self.path, self.epoch = path, 0
        self.plan: LoopPlan | None = None
        """None: it is still to be found out, by ``trace``."""
        self._loop, self._params, self._tensors = loop, params, tensors
        self._between = between
        self._read: Callable[[str], Array] = _nothing_yet
        self._thread: LoopThread | None = None
        self._at: _Wants | None = None
        self._first = 1
        """The step that the loop began with."""
        self._slice: LoopSlice | None = None
        """The one in work; None: none is."""
        self._kept: dict[str, KeptThing] = {}
        self._settled: dict[str, Array] = {}
        """What is kept, as it was at the end of the step that the loop has come to."""
        self._traced: list[Gave] = []

    # --- for the replica -------------------------------------------------------------------------

    def compute(
        self,
        work: Work,
        part: SlicePart,
        *,
        is_first: bool,
        begin: Callable[[], None],
        tell: Callable[[str, Any], None] | None,
    ) -> Gave:
        """Has the loop compute a slice. is_first: of the step's. begin: called right before.

        tell: called with each gradient as it is pushed, multiplied by the slice's share. Raises what the
        program raises on the slice; and LoopError, for what it does wrong whatever the records are.
        """
        assert self.plan
        self._reach(work)
        begin()
        self._tensors.begin()
        found = self._give(part, is_first=is_first, tell=tell)
        where = f"{self.path}: loop(), step {work.step}"
        self.plan.check(work.stage, found, where)
        if name := self._tensors.changed():
            raise LoopError(
                f"{where}: {name} was changed within the loop over slices. What one slice changes others do "
                "not see: push gradients, or change what the loop keeps after that loop."
            )
        return found

    def start_from(self, read: Callable[[str], Array]) -> None:
        """read: gives an entry's value in the version."""
        self._read = read

    def kept(self, work: Work) -> dict[str, Array]:
        """What the loop has made, at the end of a step, of what it keeps."""
        self._reach(work)
        return self._settled

    def stop(self) -> None:
        """The loop is not gone on with."""
        if self._thread:
            self._thread.unwind()
        self._thread, self._at, self._slice = None, None, None

    def trace(self, part: SlicePart) -> LoopPlan:
        """Goes through one step, with these records as its only slice. Raises LoopError for a bad loop."""
        self._begin(1)
        while self._at and self._at.stage >= 0:
            self._tensors.begin()
            self._traced.append(self._give(part, is_first=True, tell=None))
            if name := self._tensors.changed():
                raise LoopError(f"{self.path}: loop(): {name} was changed within the loop over slices.")
            self._go_on(None)
        arrays = {name: array for kept in self._kept.values() for name, array in kept.arrays().items()}
        of_model = frozenset(name for kept in self._kept.values() for name in kept.names)
        rounds = tuple(LoopRound(frozenset(found.gradients), dict(found.shapes)) for found in self._traced)
        self.stop()
        self._check_traced(rounds, of_model)
        shapes = {name: ArrayShape(array.shape, array.dtype.name) for name, array in arrays.items()}
        return LoopPlan(rounds, shapes, frozenset(shapes) - of_model)

    def _check_traced(self, rounds: tuple[LoopRound, ...], kept: frozenset[str]) -> None:
        if not rounds:
            raise LoopError(
                f"{self.path}: loop() went through a step without a loop over step.slices(): it sees none."
            )
        for number, each in enumerate(rounds):
            if not each.parameters and not each.totals:
                raise LoopError(
                    f"{self.path}: loop() gives nothing in round {number + 1} of a step: no step.push(), and "
                    "no step.all_reduce(), within the loop over step.slices()."
                )
            if both := sorted(each.parameters & kept):
                raise LoopError(f"{self.path}: loop() both pushes and keeps {both[0]}.")

    # --- going on --------------------------------------------------------------------------------

    def _reach(self, work: Work) -> None:
        """Has the loop ask for slices of this tick."""
        self.epoch = work.epoch
        to = _Wants(work.step, work.stage)
        if self._at and not _leads(self._at, to):
            self.stop()
        if self._at is None:
            self._begin(work.step)
        while self._at != to:
            self._go_on(None)

    def _begin(self, step: int) -> None:
        self._first, self._kept = step, {}
        session = Session(self, step, self._params)
        self._thread = LoopThread(lambda: self._loop(session))
        self._between(step, -1)
        self._go_on(None)

    def _give(self, part: SlicePart, *, is_first: bool, tell: Callable[[str, Any], None] | None) -> Gave:
        self._slice = now = LoopSlice(self.path, self._tensors, part.share, is_first=is_first, tell=tell)
        self._go_on(part)
        self._slice = None
        return now.gave

    def _go_on(self, order: SlicePart | None) -> None:
        """Up to the next place where the loop waits."""
        assert self._thread
        try:
            said = self._thread.go_on(order)
        except BaseException as error:
            self._thread, self._at, self._slice = None, None, None
            if order is not None or isinstance(error, LoopError) or not isinstance(error, Exception):
                raise
            raise LoopError(
                f"{self.path}: loop() raised, outside of the loop over step.slices(), "
                f"{describe(error, self.path)}"
            ) from error
        if self._thread.over:
            when = f"after step {self._at.step}" if self._at else "before its first step"
            self._thread, self._at = None, None
            raise LoopError(
                f"{self.path}: loop() returned {when}; it must go on as long as session.steps(). "
                "(A run ends after epochs or max_steps, or when on_epoch() returns ef.stop(why).)"
            )
        self._at = said

    # --- for the session, in the loop's thread ----------------------------------------------------

    def begin_round(self, step: int, number: int) -> None:
        most = len(self.plan.rounds) if self.plan else MOST_ROUNDS
        if number >= most:
            like = " All steps are like the first." if self.plan else ""
            raise LoopError(
                f"{self.path}: loop() goes through step.slices() more than {most} times in step {step}.{like}"
            )

    def next_part(self, step: int, number: int) -> SlicePart | None:
        """The next slice; None: the round is over."""
        part: SlicePart | None = self._hold(_Wants(step, number))
        if part is None:
            self._between(step, number)
        return part

    def _hold(self, wants: _Wants) -> Any:
        assert self._thread
        return self._thread.hold(wants)

    def end_step(self, step: int, rounds: int) -> None:
        if self.plan is None:
            self._hold(_Wants(step, -1))
            return
        if rounds != len(self.plan.rounds):
            raise LoopError(
                f"{self.path}: loop() went through step.slices() {rounds} times in step {step}, and "
                f"{len(self.plan.rounds)} times in the first: all steps are alike."
            )
        if not self.plan.kept:
            return
        self._settled = {}
        for name, kept in self._kept.items():
            for entry, array in kept.arrays().items():
                usual, now = self.plan.kept.get(entry), ArrayShape(array.shape, array.dtype.name)
                if usual != now:
                    raise LoopError(
                        f"{self.path}: session.keep({name}=...): {entry} is {now} after step {step}, and "
                        f"after the first it was {usual or 'not there'}: what is kept has one shape."
                    )
                self._settled[entry] = array
        if missing := sorted(self.plan.kept.keys() - self._settled.keys()):
            raise LoopError(
                f"{self.path}: {missing[0]} is not kept after step {step}, and after the first it was."
            )
        self._hold(_Wants(step, rounds))
        self._between(step, rounds)

    def push(self, target: Any, gradient: Any) -> None:
        self._of_slice("push").push(target, gradient)

    def reduce(self, name: str, value: Any, op: str) -> None:
        self._of_slice("all_reduce").reduce(name, value, op)

    def total(self, step: int, name: str, rounds: int) -> Any:
        """Of the last of so many rounds that had it."""
        if self._at and step < self._at.step:
            raise LoopError(
                f"{self.path}: step.total({name!r}) of step {step}, which is over: keep() what is needed."
            )
        if self.plan is None:
            found = next((each for each in reversed(self._traced) if name in each.totals), None)
            if found:
                return found.totals[name]
        for number in reversed(range(rounds if self.plan else 0)):
            if self.plan and name in self.plan.rounds[number].totals:
                return self._tensors.of_array(self._read(total_name(number, name)))
        raise LoopError(f"{self.path}: step.total({name!r}): no all_reduce of this step has that name.")

    def tell_cost(self, value: Any) -> None:
        self._of_slice("cost").tell_cost(value)

    def keep(self, name: str, thing: Any) -> None:
        kept = self._kept[name] = self._tensors.kept(name, thing)
        if self.plan:
            kept.load(self._read, own=self._first > 1)

    def _of_slice(self, what: str) -> LoopSlice:
        if self._slice is None:
            raise LoopError(
                f"{self.path}: step.{what}() outside of the loop over step.slices(): it is told of a slice."
            )
        return self._slice


def _nothing_yet(name: str) -> Array:
    raise LookupError(f"there is no version yet that has {name}")


def _leads(at: _Wants, to: _Wants) -> bool:
    """Whether a loop that waits at one place comes to the other by rounds that are over.

    Not by whole steps that others have done: it cannot know what came of these.
    """
    return (at.step == to.step and at.stage <= to.stage) or (at.step + 1 == to.step and to.stage == 0)
