from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.scheduler.nodes import block_of, largest_block
from elasticflow.scheduler.placement import Placement


def same(_):
    return 1.0


def test_a_block_is_taken_from_the_smallest_hole():
    assert block_of(0b1111_0111, 1, 8) == 2
    assert block_of(0b1111_0111, 2, 8) == 0
    assert block_of(0b0110_0110, 2, 8) is None
    assert largest_block(0b1111_0111, 8) == 4


def test_whole_nodes_need_not_be_neighbours():
    placement = Placement(ClusterShape(3, 4))
    placement.arrange({"small": 1, "large": 4}, same)
    placement.release("large")
    placement.arrange({"small": 1, "wide": 8}, same)
    assert {gpu // 4 for gpu in placement.held["wide"]} == {0, 1, 2} - {placement.held["small"][0] // 4}


def test_what_fits_by_number_fits_and_the_cheapest_is_moved():
    placement = Placement(ClusterShape(2, 4))
    placement.arrange({"a": 2, "b": 2, "c": 2, "d": 2}, same)
    for gone in ("b", "d"):
        placement.release(gone)
    moved = placement.arrange({"a": 2, "c": 2, "large": 4}, {"a": 1.0, "c": 9.0}.get)
    assert set(moved) == {"a", "large"}
    placement.check_invariants()


def test_fewer_gpus_are_some_of_those_it_had():
    placement = Placement(ClusterShape(2, 4))
    before = placement.arrange({"a": 8}, same)["a"]
    after = placement.arrange({"a": 2}, same)["a"]
    assert set(after) < set(before)


def test_a_lost_node_takes_its_jobs_gpus():
    placement = Placement(ClusterShape(2, 4))
    placement.arrange({"wide": 8}, same)
    assert placement.lose(1) == ["wide"]
    assert placement.num_up == 4
    assert placement.arrange({"wide": 4}, same)["wide"] == (0, 1, 2, 3)
    placement.back(1)
    placement.check_invariants()
    assert placement.num_up == 8


def test_a_copy_is_apart():
    placement = Placement(ClusterShape(1, 4))
    other = placement.copy()
    other.arrange({"a": 4}, same)
    assert placement.held == {}
    placement.check_invariants()
    other.check_invariants()


@settings(max_examples=100)
@given(
    shape=st.sampled_from((ClusterShape(1, 8), ClusterShape(3, 4), ClusterShape(4, 8))),
    rounds=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.sampled_from((1, 2, 4, 8, 16, 32))), max_size=10), max_size=8
    ),
)
def test_whatever_fits_by_number_is_placed(shape, rounds):
    placement = Placement(shape)
    for wanted in rounds:
        sizes, left = {}, shape.num_gpus
        for name, size in dict(wanted).items():
            if size <= left and (size <= shape.gpus_per_node or size % shape.gpus_per_node == 0):
                sizes[f"j{name}"] = size
                left -= size
        before = dict(placement.held)
        changed = placement.arrange(sizes, same)
        assert {name: len(gpus) for name, gpus in placement.held.items()} == sizes
        assert all(placement.held[name] == before[name] for name in sizes if name not in changed)
        placement.check_invariants()
