"""Which workers share relays."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as some

from elasticflow.master.groups import DIRECT, arrange, free_group

MOST = 8


def workers(count: int) -> list[str]:
    return [f"worker-{number}" for number in range(count)]


def sizes(found: dict[str, int]) -> list[int]:
    counts = Counter(found.values())
    return sorted(count for group, count in counts.items() if group != DIRECT)


def test_few_talk_to_the_servers_themselves() -> None:
    assert set(arrange(workers(MOST), {}, MOST, set()).values()) == {DIRECT}


def test_more_make_groups_as_even_as_can_be() -> None:
    assert sizes(arrange(workers(9), {}, MOST, set())) == [4, 5]
    assert sizes(arrange(workers(60), {}, MOST, set())) == [7, 7, 7, 7, 8, 8, 8, 8]


def test_who_comes_takes_a_free_place_and_nobody_else_moves() -> None:
    nine = arrange(workers(9), {}, MOST, set())
    ten = arrange(workers(10), nine, MOST, {0, 1})
    assert {name: ten[name] for name in nine} == nine and sizes(ten) == [5, 5]


def test_where_no_place_is_free_some_are_direct_until_there_are_enough_for_a_group() -> None:
    full = arrange(workers(16), {}, MOST, set())
    assert sizes(full) == [8, 8]
    found = full
    for count in range(17, 23):
        found = arrange(workers(count), found, MOST, {0, 1})
        assert sizes(found) == [8, 8] and list(found.values()).count(DIRECT) == count - 16
    found = arrange(workers(23), found, MOST, {0, 1})
    assert sizes(found) == [7, 8, 8] and DIRECT not in found.values()


def test_groups_end_when_few_are_left() -> None:
    found = arrange(workers(16), {}, MOST, set())
    assert sizes(arrange(workers(5), found, MOST, {0, 1})) == [5], "they are not dissolved at once"
    assert set(arrange(workers(4), found, MOST, {0, 1}).values()) == {DIRECT}
    many = arrange(workers(64), {}, MOST, set())
    left = {name: group for name, group in many.items() if int(name[7:]) % 8 < 3}
    again = arrange(list(left), left, MOST, set(range(8)))
    assert sizes(again) == [8, 8, 8] and min(again.values()) == 8, "others, in new groups"


def test_the_smallest_group_has_room() -> None:
    assert free_group({1, 2}, [1, 1, 2], MOST) == 2
    assert free_group({1}, [1] * MOST, MOST) == DIRECT
    assert free_group(set(), [], MOST) == DIRECT


@given(some.lists(some.integers(0, 80), min_size=1, max_size=12), some.integers(2, 9))
def test_nobody_ever_has_too_many(counts: list[int], most: int) -> None:
    """As workers come and go: no group is too large, and a server hears of ``most``, or of groups alone."""
    current: dict[str, int] = {}
    for count in counts:
        found = arrange(workers(count), current, most, set(current.values()))
        assert set(found) == set(workers(count))
        assert all(size <= most for size in sizes(found))
        direct = list(found.values()).count(DIRECT)
        assert not direct or len(sizes(found)) + direct <= most
        assert arrange(workers(count), found, most, set(found.values())) == found, "it stays"
        current = {name: group for name, group in found.items() if group != DIRECT}
