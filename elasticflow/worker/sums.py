"""Slices summed along the tree, on the worker."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from elasticflow.layout import Rule, Vector
from elasticflow.schedule import Kind
from elasticflow.slices import Node

Total = tuple[Node, Vector | None]
"""A node and the sum over its slices; None if those hold no records."""


def add(left: Vector, right: Vector, kind: Kind) -> None:
    """left := the sum of two sibling nodes, in what is pushed for a tick of this kind."""
    for group, mine, other in zip(left.layout.groups, left.groups, right.groups, strict=True):
        pushed = kind is Kind.TRAIN or group.rule is Rule.REPORT
        if pushed and group.rule is not Rule.FIRST:
            np.add(mine, other, out=mine)


def total_of(
    node: Node,
    kind: Kind,
    leaf: Callable[[int, Vector | None], Total | None],
    release: Callable[[Vector], None],
) -> list[Total]:
    """The node's sum; or those of the parts that could be computed, where ``leaf`` gives None.

    leaf(number, onto): computes one slice; with ``onto``, its left sibling's, adds it to that.
    release: takes back a vector that is no longer needed.
    """
    if node.level == 0:
        total = leaf(node.index, None)
        return [total] if total else []
    left_node = Node(node.level - 1, node.index * 2)
    left = total_of(left_node, kind, leaf, release)
    if node.level == 1 and left and left[0][1] is not None:  # a copy less, and a pass less
        added = leaf(left_node.sibling.index, left[0][1])
        return [(node, left[0][1])] if added else left
    right = total_of(left_node.sibling, kind, leaf, release)
    if [n for n, _ in left] != [left_node] or [n for n, _ in right] != [left_node.sibling]:
        return left + right
    (_, first), (_, second) = left[0], right[0]
    if first is None or second is None:
        return [(node, first or second)]
    add(first, second, kind)
    release(second)
    return [(node, first)]
