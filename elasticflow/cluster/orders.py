"""Orders to end something: told once, and once more if it still lives a good while later."""

from __future__ import annotations

from typing import Generic, TypeVar

from elasticflow.cluster.cooldown import NEVER_S

I = TypeVar("I", int, str)  # noqa: E741  (an id of the cluster's)


class EndOrders(Generic[I]):
    """again_s: after so long the order was not heard."""

    def __init__(self, again_s: float) -> None:
        self._again_s = again_s
        self._untold: list[I] = []
        self._given_s: dict[I, float] = {}

    def end(self, id: I, now_s: float, born_s: float = NEVER_S) -> bool:
        """Returns whether this was not ordered before, or long ago.

        born_s: since when it is there: an id may be another's since the last order.
        """
        given_s = self._given_s.get(id, NEVER_S)
        if born_s <= given_s and now_s - given_s < self._again_s:
            return False
        self._given_s[id] = now_s
        self._untold.append(id)
        return True

    def take(self, now_s: float) -> list[I]:
        """Those to give now."""
        self._given_s = {id: at_s for id, at_s in self._given_s.items() if now_s - at_s < self._again_s}
        untold, self._untold = self._untold, []
        return untold
