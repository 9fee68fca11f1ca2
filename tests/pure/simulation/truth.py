"""What an undisturbed run computes, in symbols: the answer that every disturbed run must give as well.

A value is a number made from what it was made of: a leaf of (tick, slice, parcel, the whole model it was
computed on), a sum of its two halves in order, a version of (the one before, its slots, the root, the
learning rate, the norm). So equal values mean the same additions in the same order, the same bits.

Asynchronously the root is the set of the leaves, whatever their order and what they were computed on: equal
values mean that each slice was applied once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from elasticflow.step.schedule import Kind, Schedule
from elasticflow.step.slices import Node

Root = int | None
"""A sum of gradients; None where there are no records."""
Parcel = tuple[int, int]
"""Value and slots of a parcel."""


def combine(left: int, right: int) -> int:
    """The sum of two sibling nodes."""
    return hash((left, right))


@cache
def learning_rate(schedule: Schedule, tick: int) -> float | None:
    """The program's learning rate: another one each step."""
    work = schedule.at(tick)
    return None if work.kind is Kind.EVALUATE else work.step / 8


def norm_of(roots: Sequence[tuple[int, int]]) -> float:
    """The global norm, from (parcel, norm of its root) of all servers."""
    return float(hash(tuple(sorted(roots))) & 0xFFFFFFFF)


def square(root: Root) -> int:
    """The norm of one root."""
    return 0 if root is None else hash((root, 2)) & 0xFFFFFFFF


def updated(before: Parcel, root: int, lr: float | None, norm: float | None) -> Parcel:
    """A parcel after a step."""
    value, slots = before
    after = hash((slots, root))
    return hash((value, after, root, lr or 0.0, -1.0 if norm is None else norm)), after


def together(leaves: Iterable[int]) -> Root:
    """What stands for some slices that were applied one by one."""
    return hash(tuple(sorted(leaves))) if leaves else None


class Truth:
    """Parcels are numbered through all servers: place 0 holds the first ``parcels[0]``, and so on.

    skipped: ticks that are left out.
    """

    def __init__(
        self, schedule: Schedule, parcels: tuple[int, ...], clips: bool, skipped: frozenset[int]
    ) -> None:
        self.schedule, self.parcels, self.clips, self.skipped = schedule, parcels, clips, skipped
        self.top = Node(schedule.num_slices.bit_length() - 1, 0)
        starts = [sum(parcels[:place]) for place in range(len(parcels) + 1)]
        self._places = [range(*pair) for pair in zip(starts, starts[1:], strict=False)]
        self._totals: dict[tuple[int, Node, int], Root] = {}
        self._states = [tuple((hash((1, number)), hash((2, number))) for number in range(starts[-1]))]
        self._models = [tuple(value for value, _ in self._states[0])]

    def of_place(self, place: int) -> range:
        """Numbers of a server's parcels."""
        return self._places[place]

    def state(self, version: int) -> tuple[Parcel, ...]:
        """Value and slots of every parcel in a version."""
        while len(self._states) <= version:
            self._states.append(self._following(self._states[-1], len(self._states) - 1))
            self._models.append(tuple(value for value, _ in self._states[-1]))
        return self._states[version]

    def model(self, version: int) -> tuple[int, ...]:
        """The value of every parcel in a version."""
        self.state(version)
        return self._models[version]

    def copy(self, place: int, version: int) -> list[Parcel]:
        """What a server holds of its place at a version."""
        numbers = self._places[place]
        return list(self.state(version)[numbers.start : numbers.stop])

    def _following(self, before: tuple[Parcel, ...], tick: int) -> tuple[Parcel, ...]:
        if self.schedule.evaluates(tick) or tick in self.skipped:
            return before
        roots = [self._root(tick, number) for number in range(len(before))]
        lr = learning_rate(self.schedule, tick)
        norm = norm_of([(n, square(root)) for n, root in enumerate(roots)]) if self.clips else None
        return tuple(
            state if root is None else updated(state, root, lr, norm)
            for state, root in zip(before, roots, strict=True)
        )

    def _root(self, tick: int, parcel: int) -> Root:
        if not self.schedule.asynchronous:
            return self.total(tick, self.top, parcel)
        return together(self.leaves(tick, parcel))

    def leaves(self, tick: int, parcel: int) -> list[int]:
        """Of all slices that hold records."""
        found = [self.total(tick, Node(0, n), parcel) for n in range(self.schedule.num_slices)]
        return [leaf for leaf in found if leaf is not None]

    def total(self, tick: int, node: Node, parcel: int) -> Root:
        """The sum over a node's slices; None if they hold no records."""
        key = (tick, node, parcel)
        if key not in self._totals:
            self._totals[key] = self._total(*key)
        return self._totals[key]

    def _total(self, tick: int, node: Node, parcel: int) -> Root:
        if node.level == 0:
            first, stop = self.schedule.slice_of(self.schedule.at(tick), node.index)
            return hash((tick, node.index, parcel, self.model(tick))) if first < stop else None
        left = self.total(tick, Node(node.level - 1, 2 * node.index), parcel)
        right = self.total(tick, Node(node.level - 1, 2 * node.index + 1), parcel)
        if left is None or right is None:
            return right if left is None else left
        return combine(left, right)


@cache
def truth_of(schedule: Schedule, parcels: tuple[int, ...], clips: bool, skipped: frozenset[int]) -> Truth:
    """One for all histories of a shape, since it remembers what it has computed."""
    return Truth(schedule, parcels, clips, skipped)
