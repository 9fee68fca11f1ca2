"""What holds on any cluster, whatever happens there: random histories of each, and laws."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from elasticflow.cluster.contract import How
from tests.pretend.played import KINDS, PLACES, Played

NUM_HISTORIES = int(os.environ.get("ELASTICFLOW_HISTORIES", "200"))
STEPS = some.tuples(
    some.integers(0, 99), some.integers(0, 12), some.sampled_from([0.0, 0.15, 1.0, 7.0, 40.0, 400.0])
)
HISTORIES = some.lists(STEPS, max_size=20)
DELAYS = some.sampled_from([0.0, 0.1, 1.0])
clusters = pytest.mark.parametrize("kind", KINDS)
histories = settings(max_examples=NUM_HISTORIES, deadline=None, suppress_health_check=list(HealthCheck))


def play(kind: str, num_min: int, delay_s: float, history: list[tuple[int, int, float]]) -> Played:
    played = KINDS[kind](num_min, delay_s)
    played.world.scale(4)
    names = sorted(played.happens)
    for number, which, seconds in history:
        played.happens[names[number % len(names)]](played.world, which)
        played.world.run(seconds)
        check(played)
    return played


def check(played: Played) -> None:
    """What holds at any moment."""
    living, wanted = played.living(), set(played.world.wanted)
    assert len(living) <= len(set(living)) + played.num_late, "two have one name"
    assert len([name for name in living if name in wanted]) <= played.world.target + played.num_late
    told = [ended.name for ended in played.told]
    assert len(told) == len(set(told)), "an end is told twice"
    assert not wanted.intersection(told), "a name is used again"
    waits = wanted and (played.sizing.reason or set(living) - wanted)
    assert not waits or played.sizing.next_time_s() is not None or played.sizing._polls.is_asking, "it sleeps"


def recover(played: Played) -> None:
    """Until all is well, which must not take for ever."""
    played.calm()
    end_s = played.world.now_s + played.recovers_s
    while played.world.now_s < end_s and not (is_well(played) or played.sizing.fatal):
        played.world.run(20.0)
    assert is_well(played) or played.sizing.fatal, (played.sizing.reason, played.living())


def is_well(played: Played) -> bool:
    """All who are wanted run, and nobody else."""
    names = sorted(played.world.wanted)
    return (
        played.sizing.reason == ""
        and sorted(played.running()) == sorted(played.living()) == names
        and played.sizing.num_places == len(names)
    )


@clusters
@histories
@given(history=HISTORIES, num_min=some.integers(1, 3), delay_s=DELAYS)
def test_whatever_happens_all_run_in_the_end_and_every_place_is_given_back(
    kind: str, history: list[tuple[int, int, float]], num_min: int, delay_s: float
) -> None:
    played = play(kind, num_min, delay_s, history)
    recover(played)
    played.world.run(60.0)  # what was seen before may have been decided on after
    recover(played)
    before = played.orders()
    played.world.run(60.0)
    if not played.sizing.fatal:
        assert is_well(played) and played.orders() <= before + 2
    played.world.scale(0)
    played.world.run(120.0)
    assert played.living() == [] and played.sizing.num_places == 0
    assert played.sizing.next_time_s() is None, "there is nothing to wait for"


@clusters
@settings(histories, max_examples=1 + NUM_HISTORIES // 20)
@given(idle=some.integers(0, 5), num_min=some.integers(1, 3), delay_s=DELAYS)
def test_a_full_cluster_is_left_in_peace_and_the_bell_rings(
    kind: str, idle: int, num_min: int, delay_s: float
) -> None:
    played = KINDS[kind](num_min, delay_s)
    played.fill(idle)
    played.world.scale(PLACES)
    played.world.run(300.0)
    assert len(played.running()) >= idle
    orders, ended = played.orders(), list(played.told)
    played.world.run(1800.0)
    assert played.orders() <= orders + 4 and played.told == ended
    assert len(played.living()) - len(played.running()) <= played.most_waiting(num_min)
    assert (played.sizing.reason == "") == (len(played.running()) == PLACES)
    played.fill(2 * PLACES)
    played.world.run(played.recovers_s)
    assert is_well(played), played.sizing.reason


@clusters
def test_a_node_on_which_workers_fail_is_not_used(kind: str) -> None:
    played = KINDS[kind](1, 0.1)
    played.world.scale(PLACES)
    played.world.run(60.0)
    played.calm()  # there is room elsewhere
    for _ in range(2):
        played.fail_on("n0")
        played.world.run(played.recovers_s)
    assert [ended.how for ended in played.told][:2] == [How.FAILED] * 2
    if "n0" in played.running().values():  # who was there already stays
        played.fail_on("n0")
        played.world.run(60.0)
    assert is_well(played) and "n0" not in played.running().values()


@clusters
def test_whoever_is_not_wanted_any_more_ends_and_nobody_is_told(kind: str) -> None:
    played = KINDS[kind](1, 0.1)
    played.world.scale(PLACES)
    played.world.run(60.0)
    assert is_well(played) and len(played.running()) == PLACES
    played.world.scale(1)
    played.world.run(60.0)
    assert is_well(played) and len(played.running()) == 1 and played.told == []


@clusters
def test_who_is_not_wanted_before_it_was_asked_for_never_is(kind: str) -> None:
    played = KINDS[kind](1, 0.1)
    played.sizing.want("worker-99", played.world.now_s)
    played.sizing.unwant("worker-99", played.world.now_s)
    played.world.run(60.0)
    assert played.living() == [] and played.orders() == 0


@clusters
def test_while_the_cluster_takes_a_place_for_somebody_nothing_more_is_asked_for(kind: str) -> None:
    played = KINDS[kind](1, 0.1)
    played.world.scale(1)
    played.world.run(30.0)
    orders = played.orders()
    played.sizing.give_way(played.world.now_s)
    played.world.scale(3)
    played.world.run(4.0)
    assert played.orders() == orders and "makes way" in played.sizing.reason
    played.world.run(30.0)
    assert is_well(played) and len(played.running()) == 3


@clusters
def test_who_does_not_answer_is_asked_again_and_nobody_is_given_up(kind: str) -> None:
    played = KINDS[kind](1, 0.1)
    played.world.scale(2)
    played.world.run(30.0)
    played.be_silent()
    before = played.polls()
    played.world.run(120.0)
    assert 3 < played.polls() - before <= 120.0 / 0.5 + 1
    played.calm()
    played.world.run(60.0)
    assert is_well(played) and played.told == []


@clusters
def test_an_order_to_end_that_nobody_heard_is_given_again(kind: str) -> None:
    played = KINDS[kind](1, 0.1)
    played.world.scale(3)
    played.world.run(30.0)
    played.be_silent()
    played.world.scale(1)
    played.world.run(5.0)
    assert len(played.living()) == 3
    played.calm()
    played.world.run(120.0)
    assert is_well(played) and len(played.living()) == 1
