"""Who carries which places: evenly, and only those move that must."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as some

from elasticflow.master.places import assign

CARRIERS = some.lists(some.sampled_from([f"worker-{n}" for n in range(40)]), unique=True, max_size=40)
PLACES = some.lists(some.sampled_from(["", *(f"worker-{n}" for n in range(40))]), max_size=32)


def moves(before: tuple[str, ...], after: tuple[str, ...]) -> set[int]:
    return {place for place, (old, new) in enumerate(zip(before, after, strict=True)) if old != new}


@given(CARRIERS, PLACES)
def test_as_even_as_can_be(carriers: list[str], current: list[str]) -> None:
    found = assign(carriers, current)
    assert len(found) == len(current)
    if not carriers:
        assert set(found) <= {""}
        return
    counts = Counter(found)
    each = [counts[name] for name in carriers]
    assert set(found) <= set(carriers) and max(each) - min(each) <= 1


@given(CARRIERS, PLACES)
def test_nobody_moves_once_it_is_even(carriers: list[str], current: list[str]) -> None:
    found = assign(carriers, current)
    assert assign(carriers, found) == found


@given(CARRIERS.filter(bool), PLACES)
def test_no_fewer_could_move(carriers: list[str], current: list[str]) -> None:
    """Of those that have a carrier, as many stay as any even distribution allows."""
    held = sorted((Counter(current)[name] for name in carriers), reverse=True)
    least, more = divmod(len(current), len(carriers))
    most_that_stay = sum(min(count, least + (rank < more)) for rank, count in enumerate(held))
    assert len(current) - len(moves(tuple(current), assign(carriers, current))) == most_that_stay


@given(CARRIERS.filter(lambda names: len(names) > 1), some.integers(1, 32), some.data())
def test_a_carrier_that_goes_moves_its_places_alone(
    carriers: list[str], count: int, data: some.DataObject
) -> None:
    before = assign(carriers, [""] * count)
    lost = data.draw(some.sampled_from(carriers))
    after = assign([name for name in carriers if name != lost], before)
    assert moves(before, after) == {place for place, name in enumerate(before) if name == lost}


@given(CARRIERS.filter(bool), some.integers(1, 32))
def test_places_move_to_a_newcomer_alone(carriers: list[str], count: int) -> None:
    before = assign(carriers, [""] * count)
    after = assign([*carriers, "worker-99"], before)
    moved = moves(before, after)
    assert {after[place] for place in moved} <= {"worker-99"}
    assert len(moved) == count // (len(carriers) + 1)


def test_neighbours_are_dealt_out_in_order() -> None:
    assert assign(["a", "b"], [""] * 4) == ("a", "a", "b", "b")
    assert assign(["a", "b"], ["a"] * 5) == ("a", "a", "a", "b", "b"), "the leading one stays"
    assert assign(["a", "b", "c"], ["a", "a", "b", "b"]) == ("a", "a", "b", "c")
