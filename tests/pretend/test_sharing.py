"""Two runs on one cluster, which know of one another by its list alone."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from elasticflow.cluster.news import taken
from tests.pretend.cluster import PretendCluster
from tests.pretend.world import World

PLACES = 6


class Sharing:
    """Runs by their names, turned in step. Whoever is told to leave has left a second later."""

    def __init__(self) -> None:
        self.cluster = PretendCluster({f"n{number}": 2 for number in range(PLACES // 2)})
        self.worlds: dict[str, World] = {}
        self.left: list[str] = []

    def begin(self, run: str, target: int) -> World:
        world = World(self.cluster, run=run)
        world.now_s = max([each.now_s for each in self.worlds.values()], default=1000.0)
        self.worlds[run] = world
        world.scale(target)
        return world

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            for run, world in self.worlds.items():
                world.run(1.0)
                for name, why in taken(world.sizing.news.returns):
                    self.left.append(f"{run} {name} {why}")
                    if name in world.wanted:
                        world.wanted.remove(name)
                        world.sizing.unwant(name, world.now_s)
                        world.scale(world.target)

    def running(self) -> dict[str, int]:
        pods = self.cluster.living("Running")
        return {run: sum(pod.run == run for pod in pods) for run in self.worlds}


def test_the_second_gets_half_of_what_the_first_had_and_says_why() -> None:
    sharing = Sharing()
    first = sharing.begin("first", 6)
    sharing.pass_time(60)
    assert sharing.running() == {"first": 6}
    second = sharing.begin("second", 6)
    sharing.pass_time(25)
    assert sharing.running() == {"first": 6, "second": 0}, "it may be about to start"
    sharing.pass_time(200)
    assert sharing.running() == {"first": 3, "second": 3}
    assert "first worker-6 leaves: run second waits for workers, and has 0" in sharing.left
    assert first.sizing.reason and second.sizing.reason
    num_left = len(sharing.left)
    sharing.pass_time(600)
    assert sharing.running() == {"first": 3, "second": 3} and len(sharing.left) == num_left, "nobody moves"
    second.scale(0)
    sharing.pass_time(120)
    assert sharing.running()["first"] == 6, "nobody waits any more"


def test_who_wants_less_than_its_share_leaves_the_rest_to_others() -> None:
    sharing = Sharing()
    sharing.begin("first", 6)
    sharing.pass_time(60)
    sharing.begin("second", 1)
    sharing.pass_time(240)
    assert sharing.running() == {"first": 5, "second": 1}


def test_a_run_does_not_grow_past_one_that_waits() -> None:
    sharing = Sharing()
    sharing.cluster.others = 4
    sharing.begin("first", 6)
    sharing.begin("second", 6)
    sharing.pass_time(60)
    assert sum(sharing.running().values()) == 2
    sharing.cluster.others = 2
    sharing.pass_time(120)
    assert sharing.running() == {"first": 2, "second": 2}
    words = sharing.worlds["first"].sizing.reason
    assert words == "2 of 6: run second waits for workers, and has 2"


def test_who_gains_nothing_by_it_holds_up_nobody_for_long() -> None:
    """Others take what was given back."""
    sharing = Sharing()
    first = sharing.begin("first", 6)
    sharing.pass_time(60)
    sharing.cluster.others = PLACES
    sharing.begin("second", 6)
    sharing.pass_time(250)
    assert len(sharing.left) == 3 and sharing.running() == {"first": 3, "second": 0}
    sharing.pass_time(120)
    assert first.sizing._growth.fair.may_have(first.now_s) is None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6), st.integers(1, 90)), min_size=1, max_size=6)
)
@example([("a", 1, 1), ("b", 4, 1), ("c", 2, 1), ("a", 2, 1)])  # the place given back went to c, not to a
def test_in_the_end_nothing_is_idle_and_nobody_has_two_more_than_one_who_waits(
    moves: Sequence[tuple[str, int, int]],
) -> None:
    sharing = Sharing()
    for run in "abc":
        sharing.begin(run, 0)
    for run, target, seconds in moves:
        sharing.worlds[run].scale(target)
        sharing.pass_time(seconds)
    sharing.pass_time(900)
    running = sharing.running()
    wants = {run: world.target for run, world in sharing.worlds.items()}
    assert sum(running.values()) == min(PLACES, sum(wants.values())), (running, wants)
    poor = [running[run] for run in running if running[run] < wants[run]]
    assert not poor or max(running.values()) <= min(poor) + 1, (running, wants)
