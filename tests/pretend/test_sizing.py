"""What holds on any cluster, whatever happens there: random histories of each, and laws."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as some

from elasticflow.cluster.config import ClusterConfig
from elasticflow.cluster.contract import How
from elasticflow.cluster.news import taken
from tests.pretend.cluster import Pod, PretendCluster
from tests.pretend.played import KINDS, PLACES, Played
from tests.pretend.sizing import PretendSizing
from tests.pretend.world import World

NUM_HISTORIES = int(os.environ.get("ELASTICFLOW_HISTORIES", "200"))
STEPS = some.tuples(
    some.integers(0, 99), some.integers(0, 12), some.sampled_from([0.0, 0.15, 1.0, 7.0, 40.0, 400.0])
)
HISTORIES = some.lists(STEPS, max_size=20)
DELAYS = some.sampled_from([0.0, 0.1, 1.0])
clusters = pytest.mark.parametrize("kind", KINDS)
histories = settings(max_examples=NUM_HISTORIES, suppress_health_check=list(HealthCheck))


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
@example(history=[(48, 0, 0.0), (12, 0, 0.0)], num_min=1, delay_s=0.0)  # asked for by a master that is gone
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


# --- places in which nothing can be started ----------------------------------------------------------


def broken(num: int, *, good: int = 0) -> World:
    """A cluster whose first nodes start nothing."""
    cluster = PretendCluster({f"node-{number}": 2 for number in range(num + good)})
    cluster.broken = {f"node-{number}" for number in range(num)}
    return World(cluster)


def test_where_nothing_can_be_started_a_few_places_are_enough_to_know() -> None:
    world = broken(8)
    world.scale(4)
    world.run(3600.0)
    assert "nothing could be started in 5 places (nodes node-0, node-1, " in world.sizing.fatal
    assert len(world.cluster.pods) <= 10 and "node-4 lacks a volume" in world.sizing.fatal


def test_a_node_on_which_nothing_can_be_started_is_used_once() -> None:
    """However many there are; and those that are good get all."""
    world = broken(3, good=2)
    world.scale(4)
    world.run(600.0)
    assert not world.sizing.fatal and sorted(pod.node for pod in world.cluster.living("Running")) == [
        *("node-3",) * 2,
        *("node-4",) * 2,
    ]
    tries = [pod.node for pod in world.cluster.pods.values() if pod.state == "Unlaunched"]
    assert sorted(set(tries)) == ["node-0", "node-1", "node-2"] and len(tries) <= 6


def test_what_was_started_once_is_waited_for() -> None:
    """The nodes were good before, and may be again: the run is not ended."""
    world = broken(0, good=3)
    world.scale(4)
    world.run(60.0)
    world.cluster.broken = set(world.cluster.nodes)
    for pod in world.cluster.living("Running"):
        world.cluster.change(pod.id, "Evicted")
    world.run(1800.0)
    assert not world.sizing.fatal and len(world.cluster.pods) < 20


def test_who_is_on_a_node_that_is_drained_is_to_leave() -> None:
    """Told again until it has: one that still starts cannot hear it."""
    world = broken(0, good=3)
    world.scale(4)
    world.run(60.0)
    world.cluster.drained = {"node-0"}
    there = sorted(pod.name for pod in world.cluster.living("Running") if pod.node == "node-0")
    for _ in range(2):
        world.sizing.drained({"node-0", "node-9"})
        told = taken(world.sizing.news.returns)
        assert sorted(name for name, _ in told) == there and len(there) == 2
        assert {why for _, why in told} == {"leaves: its node node-0 is being drained"}
    assert world.sizing.leaves_drained
    world.scale(0)
    assert not world.sizing.leaves_drained, "nobody runs"


def test_that_may_be_switched_off() -> None:
    sizing = PretendSizing(ClusterConfig(leave_drained=False), 1)
    sizing.want("worker-1", 0.0, "pod-1")
    sizing.observed([Pod("pod-1", "worker-1", "Running", "node-0")], 1.0, 1.0)
    assert sizing.num_places == 1 and not sizing.leaves_drained


@pytest.mark.parametrize("kind", ["pretend", "slurm"])
@settings(histories, max_examples=1 + NUM_HISTORIES // 10)
@given(history=HISTORIES, num_min=some.integers(1, 3), delay_s=DELAYS)
def test_no_more_places_are_asked_for_than_a_service_grants_also_not_while_others_are_left(
    kind: str, history: list[tuple[int, int, float]], num_min: int, delay_s: float
) -> None:
    """Whoever has left holds a place until the cluster says otherwise. What it hides counts as gone.

    A new master is told its grant before it asks for anything, which these worlds know nothing of.
    """
    played = KINDS[kind](num_min, delay_s)
    names = sorted(played.happens.keys() - {"replace_master"})
    scale = played.world.scale

    def granted(target: int) -> None:
        played.sizing.limit_workers(target)
        scale(target)

    played.world.scale = granted
    granted(4)
    for number, which, seconds in history:
        before = max(len(played.living()), played.sizing.num_worker_places)
        played.happens[names[number % len(names)]](played.world, which)
        played.sizing.limit_workers(played.world.target)
        played.world.run(seconds)
        hidden = len(getattr(played.world.cluster, "was_hidden", ()))
        assert len(played.living()) <= max(before, played.world.target) + played.num_late + hidden
    recover(played)
