"""What an undisturbed run computes, in symbols: the answer that every disturbed run must give as well.

A value is a hash of what it was made from: a leaf of (tick, slice, parcel, the whole model it was
computed on), a sum of its two halves in order, a version of (the one before, the root, the learning
rate, the norm). So equal values mean the same additions in the same order, the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from elasticflow.schedule import Kind, Schedule
from elasticflow.slices import Node


def combine(left: int, right: int) -> int:
    """The sum of two sibling nodes."""
    return hash((left, right))


def learning_rate(schedule: Schedule, tick: int) -> float | None:
    """The program's learning rate: another one each step."""
    work = schedule.at(tick)
    return None if work.kind is Kind.EVALUATE else work.step / 8


def norm_of(roots: list[tuple[int, int | None]]) -> int:
    """The global norm, from (parcel, root) of all servers."""
    return hash(tuple(sorted(roots)))


def updated(value: int, root: int, lr: float | None, norm: int | None) -> int:
    """A parcel's next value."""
    return hash((value, root, lr, norm))


@dataclass(frozen=True)
class Truth:
    """Parcels are numbered through all servers: server 0 holds the first ``parcels[0]``, and so on."""

    schedule: Schedule
    parcels: tuple[int, ...]
    clips: bool

    def __hash__(self) -> int:
        return id(self)

    def of_server(self, server: int) -> range:
        """Numbers of a server's parcels."""
        first = sum(self.parcels[:server])
        return range(first, first + self.parcels[server])

    @cache  # noqa: B019  (a Truth lives as long as the tests)
    def model(self, version: int) -> tuple[int, ...]:
        """The value of every parcel in a version."""
        if version == 0:
            return tuple(hash(("initial", number)) for number in range(sum(self.parcels)))
        before, tick = self.model(version - 1), version - 1
        roots = [self.total(tick, self.top, number) for number in range(len(before))]
        if self.schedule.evaluates(tick):
            return before
        lr = learning_rate(self.schedule, tick)
        norm = norm_of(list(enumerate(roots))) if self.clips else None
        return tuple(
            value if root is None else updated(value, root, lr, norm)
            for value, root in zip(before, roots, strict=True)
        )

    @property
    def top(self) -> Node:
        return Node(self.schedule.num_slices.bit_length() - 1, 0)

    @cache  # noqa: B019
    def total(self, tick: int, node: Node, parcel: int) -> int | None:
        """The sum over a node's slices; None if they hold no records."""
        if node.level == 0:
            first, stop = self.schedule.slice_of(self.schedule.at(tick), node.index)
            return hash((tick, node.index, parcel, self.model(tick))) if first < stop else None
        left = self.total(tick, Node(node.level - 1, 2 * node.index), parcel)
        right = self.total(tick, Node(node.level - 1, 2 * node.index + 1), parcel)
        if left is None or right is None:
            return right if left is None else left
        return combine(left, right)


@cache
def truth_of(schedule: Schedule, parcels: tuple[int, ...], clips: bool) -> Truth:
    """One for all histories of a shape, since it remembers what it has computed."""
    return Truth(schedule, parcels, clips)
