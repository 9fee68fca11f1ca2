"""The slice tree: the same nesting of sums, however the parts come in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.step.slices import Node, SliceTree, cover, nodes_of

LEVELS = st.integers(0, 5)


def slices(node: Node) -> range:
    return range(node.first, node.stop)


def nodes(level: int) -> list[Node]:
    """All nodes of the tree whose root has this level."""
    return [Node(below, index) for below in range(level + 1) for index in range(1 << (level - below))]


def nested(node: Node) -> str:
    """The sum of a node's slices, with its brackets: ``((0+1)+(2+3))``."""
    if node.level == 0:
        return str(node.index)
    left = Node(node.level - 1, 2 * node.index)
    return f"({nested(left)}+{nested(left.sibling)})"


def tree(num_slices: int) -> SliceTree[str]:
    return SliceTree(num_slices, lambda left, right: f"({left}+{right})")


@given(LEVELS, st.data())
def test_a_node_covers_what_its_slices_say(level: int, data: st.DataObject) -> None:
    one, other = (data.draw(st.sampled_from(nodes(level))) for _ in range(2))
    assert one.covers(other) == (set(slices(other)) <= set(slices(one)))
    assert one.sibling.parent == one.parent
    assert one.parent.covers(one) and one.parent.covers(one.sibling)


@given(st.integers(0, 200), st.integers(0, 60))
def test_a_cover_is_exact_and_in_order(first: int, length: int) -> None:
    assert [number for node in cover(first, first + length) for number in slices(node)] == list(
        range(first, first + length)
    )


@pytest.mark.parametrize("num_slices", [1, 2, 4, 8, 16])
def test_a_cover_has_the_fewest_nodes(num_slices: int) -> None:
    """Against the shortest way from slice to slice, over all nodes there are."""
    for first in range(num_slices):
        fewest = {first: 0}
        for stop in range(first + 1, num_slices + 1):
            ending = [node for node in nodes(num_slices.bit_length() - 1) if node.stop == stop]
            fewest[stop] = min(1 + fewest[node.first] for node in ending if node.first in fewest)
            assert len(cover(first, stop)) == fewest[stop]


@given(st.sets(st.integers(0, 63)))
def test_nodes_of_scattered_slices(numbers: set[int]) -> None:
    found = nodes_of(tuple(sorted(numbers)))
    assert [number for node in found for number in slices(node)] == sorted(numbers)
    assert not any(node.sibling in found for node in found), "two siblings are one node"


@given(LEVELS, st.data())
def test_one_nesting_whatever_comes(level: int, data: st.DataObject) -> None:
    """Any order, any duplicates, parts before the whole and after it."""
    pushed = data.draw(st.lists(st.sampled_from(nodes(level)), max_size=20))
    leaves = data.draw(st.permutations(range(1 << level)))
    sums, there = tree(1 << level), set[int]()
    for node in [*pushed, *(Node(0, leaf) for leaf in leaves)]:
        assert sums.holds(node) == there.issuperset(slices(node))
        assert sums.add(node, nested(node)) != there.issuperset(slices(node))
        there.update(slices(node))
        assert sums.missing() == sorted(set(range(1 << level)) - there)
        assert sums.complete == (len(there) == 1 << level)
    assert sums.take_root() == nested(Node(level, 0))
    assert sums.missing() == list(range(1 << level)), "it is empty again"


@given(LEVELS, st.data())
def test_drain_gives_all_that_is_there(level: int, data: st.DataObject) -> None:
    sums = tree(1 << level)
    pushed = data.draw(st.lists(st.sampled_from(nodes(level)), max_size=10))
    for node in pushed:
        sums.add(node, nested(node))
    drained = list(sums.drain())
    assert [node for node, _ in drained] == nodes_of(
        tuple(sorted({n for node in pushed for n in slices(node)}))
    )
    assert all(value == nested(node) for node, value in drained)
    assert list(sums.drain()) == []


@pytest.mark.parametrize("num_slices", [0, 3, 6, -4])
def test_only_powers_of_two(num_slices: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        tree(num_slices)


@pytest.mark.parametrize("node", [Node(0, 4), Node(1, 2), Node(3, 0), Node(-1, 0), Node(0, -1)])
def test_no_room_for_strange_nodes(node: Node) -> None:
    sums = tree(4)
    assert not sums.fits(node)
    with pytest.raises(ValueError, match="not in a tree of 4 slices"):
        sums.add(node, "?")


def test_no_root_before_its_time() -> None:
    sums = tree(2)
    sums.add(Node(0, 0), "0")
    with pytest.raises(KeyError):
        sums.take_root()
