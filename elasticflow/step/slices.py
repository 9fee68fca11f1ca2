"""The binary tree over the slices of a step, along which all sums are made.

A node ``(level, index)`` stands for slices ``index * 2**level`` up to ``(index + 1) * 2**level``.
A sum of gradients is always the sum of the left child plus that of the right one, so its bits do
not depend on who added what: a worker may push one node for a whole range, or leaves one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Node(NamedTuple):
    """A node of the tree; level 0 are the slices themselves."""

    level: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here

    @property
    def first(self) -> int:
        return self.index << self.level

    @property
    def stop(self) -> int:
        return (self.index + 1) << self.level

    @property
    def sibling(self) -> Node:
        return Node(self.level, self.index ^ 1)

    @property
    def parent(self) -> Node:
        return Node(self.level + 1, self.index >> 1)

    def covers(self, other: Node) -> bool:
        """Whether ``other`` is this node or lies below it."""
        return other.level <= self.level and other.index >> (self.level - other.level) == self.index


def cover(first: int, stop: int) -> list[Node]:
    """The fewest nodes that together are slices ``first..stop``, from left to right."""
    nodes = []
    while first < stop:
        level = (first & -first).bit_length() - 1 if first else stop.bit_length() - 1
        while first + (1 << level) > stop:
            level -= 1
        nodes.append(Node(level, first >> level))
        first += 1 << level
    return nodes


def nodes_of(slices: tuple[int, ...]) -> list[Node]:
    """The fewest nodes that make up these slices, given in ascending order."""
    nodes: list[Node] = []
    start = 0
    for place in range(1, len(slices) + 1):
        if place == len(slices) or slices[place] != slices[place - 1] + 1:
            nodes += cover(slices[start], slices[place - 1] + 1)
            start = place
    return nodes


class SliceTree(Generic[T]):
    """Collects values for nodes until the root's is known.

    combine(left, right) is the value of a parent; it may use up its arguments. A value that comes
    a second time, or below one that is there, is the same bits and is dropped; one that comes above
    some that are there takes their place.
    """

    def __init__(self, num_slices: int, combine: Callable[[T, T], T]) -> None:
        if num_slices < 1 or num_slices & (num_slices - 1):
            raise ValueError(f"number of slices must be a power of two, not {num_slices}")
        self._top = Node(num_slices.bit_length() - 1, 0)
        self._combine = combine
        self._values: dict[Node, T] = {}

    def holds(self, node: Node) -> bool:
        """Whether the node's slices are all in already."""
        while node.level <= self._top.level:
            if node in self._values:
                return True
            node = node.parent
        return False

    def fits(self, node: Node) -> bool:
        """Whether there is such a node in this tree."""
        return node.level >= 0 and self._top.covers(node)

    def add(self, node: Node, value: T) -> bool:
        """Takes a node's value; False if it was dropped as known already."""
        if not self.fits(node):
            raise ValueError(f"{node} is not in a tree of {1 << self._top.level} slices")
        if self.holds(node):
            return False
        for below in [known for known in self._values if node.covers(known)]:
            del self._values[below]
        while node != self._top and node.sibling in self._values:
            other = self._values.pop(node.sibling)
            value = self._combine(other, value) if node.index & 1 else self._combine(value, other)
            node = node.parent
        self._values[node] = value
        return True

    @property
    def complete(self) -> bool:
        return self._top in self._values

    def take_root(self) -> T:
        """The root's value; the tree is empty afterwards. Raises KeyError if it is not complete."""
        return self._values.pop(self._top)

    def drain(self) -> Iterator[tuple[Node, T]]:
        """Takes out all values, from left to right."""
        for node in sorted(self._values, key=lambda node: node.first):
            yield node, self._values.pop(node)

    def missing(self) -> list[int]:
        """Slices that are not in yet, in order."""
        gaps: list[int] = []
        after = 0
        for node in sorted(self._values, key=lambda node: node.first):
            gaps.extend(range(after, node.first))
            after = node.stop
        gaps.extend(range(after, self._top.stop))
        return gaps
