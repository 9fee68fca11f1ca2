"""What ``loop(session)`` of a program is given: steps, their records, and ways to tell what came of these.

    def loop(session):
        net = session.params["net"]
        for step in session.steps():
            for part in step.slices():
                torch.nn.functional.cross_entropy(net(part.x), part.y).backward()
                step.push(net)

The loop over slices ends when those of all workers are in, and the parameters are those of the next version.
A worker may be given any slice, or none, and may begin the loop anew at any step: see docs/session.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from elasticflow.errors import LoopError

if TYPE_CHECKING:
    from elasticflow.frameworks.looping import Looping

Op = Literal["sum", "mean", "first"]


class SlicePart:
    """Some of a step's records: columns by name, in the framework's tensors, and in their order.

    share: of the step's records. len() is the number of its records.
    """

    def __init__(self, columns: Mapping[str, Any], share: float) -> None:
        self._columns, self.share = columns, share

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._columns:
            raise AttributeError(f"records have no column {name!r}; there are {', '.join(self._columns)}")
        return self._columns[name]

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._columns.values())

    def __len__(self) -> int:
        return int(next(iter(self._columns.values())).shape[0])


class SessionStep:
    """One step. number: from 1. epoch: from 0."""

    def __init__(self, looping: Looping, number: int) -> None:
        self._looping, self.number = looping, number
        self._rounds = 0
        self._open = False
        """Whether a loop over slices has begun, and not come to its end."""

    @property
    def epoch(self) -> int:
        return self._looping.epoch

    def slices(self) -> Iterator[SlicePart]:
        """The slices of this step that this worker is to compute, maybe none; then it waits for the others.

        Called again in the same step, it gives the same records once more, with what the parameters are now:
        another round.
        """
        number = self._rounds
        self._begin(number)
        while True:
            part = self._looping.next_part(self.number, number)
            if part is None:
                break
            yield part
        self._open = False

    def _begin(self, number: int) -> None:
        if self._open:
            raise LoopError(
                f"{self._looping.path}: loop() left the loop over step.slices() of step {self.number} before "
                "its end, such as by break: the records of slices that are not computed would be missing."
            )
        self._looping.begin_round(self.number, number)
        self._open, self._rounds = True, number + 1

    def push(self, target: Any, gradient: Any = None) -> None:
        """Tells the gradient, over this slice's records, of parameters: the step's is their mean over slices.

        target: a module, whose parameters' ``.grad`` are taken, and None from then on; a parameter, or its
        name, with its ``gradient``; or, without one, the same as of a module. To be called once for each
        parameter in a round; what is pushed leaves at once, so last layers come first.
        """
        self._looping.push(target, gradient)

    def all_reduce(self, name: str, value: Any, op: Op = "sum") -> None:
        """Adds ``value``, a tensor or number, to what other slices of the round give under this name.

        op: "mean" is over records, if ``value`` is the mean over those of the slice; of "first", the value of
        the first slice is that of all. The ``total`` is there when the loop over slices has ended.
        """
        self._looping.reduce(name, value, op)

    def broadcast(self, name: str, value: Any) -> None:
        """``all_reduce`` by "first"."""
        self._looping.reduce(name, value, "first")

    def total(self, name: str) -> Any:
        """What ``all_reduce`` came to, in the last round that had this name: a copy, as a tensor."""
        if self._open:
            raise LoopError(
                f"{self._looping.path}: step.total({name!r}) within the loop over step.slices() that gives "
                "it; it is there after that loop."
            )
        return self._looping.total(self.number, name, self._rounds)

    def cost(self, value: Any) -> None:
        """For people: the mean over this slice's records of what is minimised."""
        self._looping.tell_cost(value)

    def end(self) -> None:
        """Called when the loop goes on to the next step."""
        if self._open:
            self._begin(self._rounds)
        self._looping.end_step(self.number, self._rounds)


class Session:
    """params: what ``model()`` returned."""

    def __init__(self, looping: Looping, first: int, params: Mapping[str, Any]) -> None:
        self._looping, self._first, self.params = looping, first, params
        self._begun = False

    def keep(self, **things: Any) -> None:
        """Says what the loop itself changes from step to step, outside of slices; before ``steps()``.

        Each is a tensor, a module of ``model()``, or has a ``state_dict``, as optimizers and schedulers do.
        It is given the values that it has in the present step, and is part of checkpoints.
        """
        if self._begun:
            raise LoopError(f"{self._looping.path}: session.keep() is to be called before session.steps().")
        for name, thing in things.items():
            self._looping.keep(name, thing)

    def steps(self) -> Iterator[SessionStep]:
        """The present step, and all that follow, without an end: that of the run is not its affair."""
        if self._begun:
            raise LoopError(
                f"{self._looping.path}: loop() calls session.steps() twice; it has one such loop."
            )
        self._begun = True
        number = self._first
        while True:
            step = SessionStep(self._looping, number)
            yield step
            step.end()
            number += 1
