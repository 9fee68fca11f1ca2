"""What a change of a job's GPUs costs: seconds in which it holds its new GPUs and does no iteration."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

LARGE_CLUSTER_GPUS = 256


@dataclass(frozen=True)
class Overheads:
    """``same_s`` if all its GPUs were used by the job before; else ``base_s`` and ``step_s`` a doubling.

    failure_s: on top of that where a node was lost: until it is noticed, and work that must be done again.
    """

    same_s: float = 2.0
    base_s: float = 2.0
    step_s: float = 2.0
    failure_s: float = 30.0

    def move_s(self, num_gpus: int) -> float:
        """To GPUs that are not all its own."""
        return self.base_s + self.step_s * num_gpus.bit_length() if num_gpus else 0.0

    def resize_s(self, before: int, after: int) -> float:
        """From one number of GPUs to another: fewer are taken from those that it has."""
        if before == after or not after:
            return 0.0
        return self.same_s if after < before else self.move_s(after)

    def change_s(self, before: Set[int], after: Set[int]) -> float:
        """From one set of GPUs to another; ``before`` are those it had last, be it long ago."""
        return self.same_s if after and after <= before else self.move_s(len(after))


def published(num_gpus: int) -> Overheads:
    """Those of the published system, for a cluster of so many GPUs."""
    return Overheads(base_s=7.0 if num_gpus >= LARGE_CLUSTER_GPUS else 2.0)
