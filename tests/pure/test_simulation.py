"""Random histories of whole runs: whatever happens, the same answer, and an end.

What is checked at every event is in ``simulation``. A history that fails is played again with
``ELASTICFLOW_HISTORY=<seed> pytest tests/pure/test_simulation.py -k histories``;
``ELASTICFLOW_HISTORIES`` says how many are tried.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from elasticflow.master import actions as ac
from elasticflow.master.state import RunState
from elasticflow.step.schedule import Schedule

from .simulation.histories import FOR_GOOD, asynchronous, history
from .simulation.worker import SimWorker
from .simulation.world import KINDS, Fault, Shape, World

NUM_HISTORIES = int(os.environ.get("ELASTICFLOW_HISTORIES", "4000"))
CHOSEN = os.environ.get("ELASTICFLOW_HISTORY")
AT_ONCE = 400
"""Histories of one test."""
BACKUPS_AT_MOST = 1.25
"""Slices computed in a run without faults, in multiples of those there are: the first tick has no plan."""


def shape(**changes: object) -> Shape:
    """Two epochs of four steps and an evaluation; two servers, three workers."""
    schedule = Schedule(num_records=29, num_test=9, batch_size=8, num_slices=8, epochs=2)
    values = {"schedule": schedule, "parcels": (2, 1), "workers": 3, "slice_s": 0.05, "snapshot_s": 0.02}
    return Shape(**{**values, **changes})  # type: ignore[arg-type]


def finish(*faults: Fault, seed: int = 0, **changes: object) -> World:
    """A run that ends as it should."""
    world = World(shape(**changes), faults, seed)
    assert world.run().state is RunState.FINISHED
    return world


@pytest.mark.parametrize("first", [int(CHOSEN)] if CHOSEN else range(0, NUM_HISTORIES, AT_ONCE))
def test_random_histories(first: int) -> None:
    for seed in [first] if CHOSEN else range(first, min(first + AT_ONCE, NUM_HISTORIES)):
        world = history(seed)
        try:
            world.run()
        except Exception as error:
            faults = "\n".join(map(str, world.all_faults))
            raise AssertionError(f"history {seed}: {error}\n{world.shape}\n{faults}") from error


def test_a_history_is_the_same_each_time() -> None:
    for seed in range(20):
        one, other = history(seed), history(seed)
        assert one.run() == other.run()
        assert (one.num_events, one.clock.now_s) == (other.num_events, other.clock.now_s)


class AnyHistory(RuleBasedStateMachine):
    """Faults at the worst moments, found by Hypothesis, which then looks for the shortest such history."""

    world: World

    @initialize(
        parcels=some.sampled_from([(1,), (1, 1), (2, 1), (1, 1, 1)]),
        workers=some.integers(1, 3),
        clips=some.booleans(),
        checkpoint_every=some.sampled_from(["1 step", "3 steps", "60s"]),
        snapshot_s=some.sampled_from([0.02, 0.0]),
        delay_s=some.sampled_from([0.0001, 0.02]),
        kill_s=some.sampled_from([0.0, 5.0]),
        seed=some.integers(0, 1 << 16),
    )
    def begin(self, seed: int, **changes: object) -> None:
        schedule = Schedule(num_records=12, num_test=3, batch_size=4, num_slices=4, epochs=1)
        self.world = World(shape(schedule=schedule, slice_s=0.01, **changes), (), seed, journals=True)

    @rule(events=some.sampled_from([1, 2, 5, 10, 30, 100]))
    def go_on(self, events: int) -> None:
        for _ in range(events):
            if not self.world.over:
                self.world.step()

    @rule(
        kind=some.sampled_from([*dict.fromkeys(KINDS), "black out"]),
        pick=some.integers(0, 41),
        seconds=some.sampled_from([0.02, 0.5, 3.0, FOR_GOOD]),
    )
    def strike(self, kind: str, pick: int, seconds: float) -> None:
        if not self.world.over:
            self.world.step()
            self.world.strike(Fault(0, kind, pick, seconds))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.run()


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(
    max_examples=max(100, NUM_HISTORIES // 20),
    stateful_step_count=16,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


# --- without faults, and with one ----------------------------------------------------------------


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("parcels", [(1,), (2,), (1, 1), (2, 1, 2), (1, 0, 1, 1)])
def test_undisturbed(parcels: tuple[int, ...], clips: bool) -> None:
    world = finish(parcels=parcels, clips=clips, write_s=0.01)
    total = world.shape.schedule.total_ticks * world.shape.schedule.num_slices
    assert world.num_computed <= BACKUPS_AT_MOST * total
    ticks = [commit.tick for commit in world.storage.commits.values()]
    assert ticks == [2, 5, 7, 10], "each second step; none between a step and its evaluation"


@pytest.mark.parametrize("parcels", [(1,), (2, 1, 2), (1, 0, 1, 1)])
def test_undisturbed_and_asynchronous(parcels: tuple[int, ...]) -> None:
    """Somebody slow has given away what it has not begun, and next to nothing is computed twice."""
    for faults in ((), (Fault(100, "slow worker", 1, 1.0),)):
        world = World(asynchronous(shape(parcels=parcels)), faults)
        assert world.run().state is RunState.FINISHED
        total = world.shape.schedule.total_ticks * world.shape.schedule.num_slices
        assert world.num_computed <= BACKUPS_AT_MOST * total


@pytest.mark.parametrize(
    "kind", ["kill worker", "kill server", "kill servers", "kill master", "freeze worker"]
)
def test_anybody_is_lost_at_any_time_in_an_asynchronous_run(kind: str) -> None:
    """Each slice is applied once to each parcel all the same; see ``truth.py``."""
    for after in range(20, 500, 11):
        world = World(asynchronous(shape()), [Fault(after, kind, after, FOR_GOOD)], after)
        assert world.run().state is RunState.FINISHED


@pytest.mark.parametrize("after", range(60, 420, 12))
def test_the_only_worker_is_killed(after: int) -> None:
    """Between its pushes to one server and to the next, too; the last tick included."""
    for seed in range(3):
        finish(Fault(after, "kill worker"), seed=seed, workers=1, parcels=(2, 1, 1))


@pytest.mark.parametrize("parcels", [(2,), (2, 1), (1, 1, 1)])
@pytest.mark.parametrize("kind", ["kill leader", "kill last", "freeze leader", "kill servers", "kill pair"])
def test_servers_are_lost_at_any_time(kind: str, parcels: tuple[int, ...]) -> None:
    for after in range(1, 500, 17):
        finish(Fault(after, kind, after, FOR_GOOD), seed=after, parcels=parcels, workers=2)


@pytest.mark.parametrize("kind", ["kill master", "kill master and server", "freeze master"])
def test_the_master_is_lost_at_any_time(kind: str) -> None:
    for after in range(1, 500, 7):
        finish(Fault(after, kind, after, 3.0), seed=after)


@pytest.mark.parametrize("seconds", [0.1, 3.0])
@pytest.mark.parametrize("kind", ["near limit", "lose leader"])
def test_master_and_servers_move_at_any_time(kind: str, seconds: float) -> None:
    for after in range(1, 500, 13):
        finish(Fault(after, kind, after, seconds), seed=after)


def test_a_move_in_time_costs_no_worker() -> None:
    """Those of before go on with the next master, from a commit that was made for it."""
    for seed in range(10):
        world = finish(Fault(200, "near limit", 0, 3.0), seed=seed, checkpoint_every="60s", write_s=0.01)
        assert world.laws.num_handed_over == 1 and world.master.incarnation == 2
        assert [each.source for each in world.laws.regroupings] == ["storage"]
        workers = [world.members[f"worker-{number}"] for number in (1, 2, 3)]
        last = world.shape.schedule.total_ticks - 1
        assert [worker.tick for worker in workers if isinstance(worker, SimWorker)] == [last] * 3


@pytest.mark.parametrize("kind", ["take worker", "warn worker", "expire worker"])
def test_places_are_taken_away_at_any_time(kind: str) -> None:
    for after in range(30, 400, 7):
        finish(Fault(after, kind, after, 0.5), seed=after, workers=1 + after % 3)


def test_all_workers_are_warned_at_once() -> None:
    for seed in range(10):
        finish(*(Fault(150, "warn worker", pick, 0.5) for pick in range(3)), seed=seed)


def test_the_master_is_lost_when_all_is_done() -> None:
    for seed in range(20):
        finish(Fault(1, "kill master at the end"), seed=seed)


def test_a_dead_server_costs_no_more_than_since_the_last_snapshot() -> None:
    """Nor does it cost anybody else's process; see ``laws.py``."""
    world = finish(Fault(500, "kill server", 1), seed=1, checkpoint_every="60s")
    assert world.laws.regroupings[0].source == "memory" and world.laws.regroupings[0].start > 0
    assert [name for name in world.members if "worker" in name] == ["worker-1", "worker-2", "worker-3"]


def test_without_snapshots_it_goes_back_to_storage() -> None:
    world = finish(Fault(500, "kill server", 1), seed=1, snapshot_s=0.0)
    assert [each.source for each in world.laws.regroupings] == ["storage"]


def test_before_anything_is_kept_it_begins_anew() -> None:
    world = finish(Fault(80, "kill server"), snapshot_s=0.0)
    assert [each.source for each in world.laws.regroupings] == ["beginning"]


def test_all_is_lost_but_the_storage() -> None:
    for seed in range(10):
        finish(Fault(300 + 20 * seed, "black out"), Fault(600, "black out"), seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_everybody_is_killed_at_once(seed: int) -> None:
    finish(*(Fault(150, "kill worker", pick) for pick in range(3)), Fault(150, "kill servers"), seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_everybody_is_frozen_for_a_while(seed: int) -> None:
    finish(*(Fault(120, "freeze member", pick, 1.0) for pick in range(5)), seed=seed)


@pytest.mark.parametrize("after", range(30, 400, 10))
def test_one_is_frozen_for_good(after: int) -> None:
    """From the first tick on, when nobody knows yet how long slices take, the others carry on."""
    for seed in range(3):
        world = finish(Fault(after, "freeze worker", seed, FOR_GOOD), seed=seed, workers=2, slice_s=0.01)
        assert world.clock.now_s < 5.0, "nobody waits until it is given up"


@pytest.mark.parametrize("seed", range(10))
def test_a_record_on_which_the_program_raises(seed: int) -> None:
    """Left out for all, though workers come, go, and freeze meanwhile."""
    faults = Fault(100 + 5 * seed, "kill worker"), Fault(140, "freeze worker", 1, 0.5), Fault(160, "scale", 4)
    world = finish(*faults, Fault(200, "kill server"), seed=seed, bad=((1, 3), (2, 0)))
    assert len(world.master.state.excluded) == 2


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("parcels", [(1,), (2, 1)])
@pytest.mark.parametrize("asynchronously", [False, True])
def test_a_record_on_which_workers_die(workers: int, parcels: tuple[int, ...], asynchronously: bool) -> None:
    """Two do: from then on it is handed out to be tried with care, and then left out. Each server goes by
    what it has seen itself, so with several it may be two for each; and whoever has the slice by the plan is
    handed nothing, so it may be one more, if that one comes late to the step."""
    for seed in range(5):
        some = shape(workers=workers, parcels=parcels, deadly=((1, 3), (2, 0)))
        world = World(asynchronous(some) if asynchronously else some, (), seed)
        assert world.run().state is RunState.FINISHED
        assert len(world.master.state.excluded) == 2
        assert max(world.laws.deaths.values()) <= 2 * len(parcels) + (workers > 1)


@pytest.mark.parametrize("seed", range(10))
def test_a_record_on_which_workers_die_among_other_faults(seed: int) -> None:
    faults = Fault(100 + 5 * seed, "kill worker"), Fault(140, "freeze worker", 1, 0.5), Fault(160, "scale", 4)
    world = finish(*faults, Fault(200, "kill server"), seed=seed, deadly=((1, 3), (2, 0)))
    assert len(world.master.state.excluded) == 2


@pytest.mark.parametrize("seed", range(10))
def test_workers_that_are_killed_at_a_slice_are_no_records_fault(seed: int) -> None:
    """However many: care is taken, and nothing is found."""
    faults = [Fault(60 + 15 * number, "kill worker", number) for number in range(8)]
    world = finish(*faults, seed=seed, slice_s=0.1)
    assert world.master.state.excluded == ()


@pytest.mark.parametrize("seed", range(10))
def test_stopped_as_asked(seed: int) -> None:
    end: ac.EndAction = World(shape(), [Fault(150, "stop"), Fault(170, "kill server")], seed).run()
    assert end.state is RunState.STOPPED and "steps are missing, go on with --resume" in end.text


@pytest.mark.parametrize("limit_s", [0.3, 0.6, 0.9, 1.2, 1.5])
@pytest.mark.parametrize("seed", range(4))
def test_stopped_by_its_time_limit(seed: int, limit_s: float) -> None:
    """Whichever master it is over for, and whether there is one then."""
    faults = Fault(90, "kill master"), Fault(140, "kill server"), Fault(170, "kill master")
    world = World(shape(limit_s=limit_s), faults, seed)
    end: ac.EndAction = world.run()
    assert end.state is RunState.STOPPED and world.clock.now_s >= limit_s
    assert end.text.startswith(f"its time limit of {limit_s:.3f}s is over")


@pytest.mark.parametrize("tick", [tick for tick in range(10) if not shape().schedule.evaluates(tick)])
def test_gone_on_from_any_commit(tick: int) -> None:
    schedule = shape().schedule
    finish(Fault(90, "kill worker"), Fault(120, "kill server"), start=(schedule.steps_before(tick), tick))


# --- main threads that hang while their hearts beat -----------------------------------------------


@pytest.mark.parametrize("kind", ["hang worker", "hang workers", "hang server", "hang leader"])
def test_whoever_hangs_is_replaced(kind: str) -> None:
    """At any time; nobody else is to blame, and no record either."""
    for after in range(20, 500, 23):
        world = World(shape(), [Fault(after, kind, after, FOR_GOOD)], after)
        end = world.run()
        assert end.state is RunState.FINISHED, end
        assert world.master.state.memory().failures == 0


def test_a_slice_that_hangs_for_everybody_ends_the_run_with_all_that_was_done() -> None:
    """Workers hang again and again at one slice: those who come anew are given it, too."""
    for tick in (0, 1, 5, 8):
        world = World(shape(hangs_at=tick))
        end = world.run()
        assert end.state is RunState.STALLED, end
        newest = world.storage.newest
        schedule = world.shape.schedule
        expected = None if tick == 0 else tick
        assert (newest[1].tick if newest else None) == expected, (tick, end)
        assert f"{schedule.total_steps - schedule.steps_before(tick)} of" in end.text
        resumed = World(shape(start=(schedule.steps_before(tick), tick) if tick else None))
        assert resumed.run().state is RunState.FINISHED


def test_a_worker_that_hangs_alone_is_replaced() -> None:
    """Nobody waits for it, and no step is late; but it has a place that another could use."""
    schedule = Schedule(num_records=29, num_test=9, batch_size=8, num_slices=8, epochs=80)
    world = World(shape(schedule=schedule, stall_s=2.0), [Fault(300, "hang worker", 1, FOR_GOOD)])
    assert world.run().state is RunState.FINISHED
    assert any(name == "worker-4" for name in world.members), world.master.notes


def test_a_stop_ends_though_no_step_does() -> None:
    for after in (100, 150, 200):
        faults = [Fault(after, "hang workers", 0, FOR_GOOD), Fault(after + 1, "stop")]
        world = World(shape(stall_s=100.0), faults)
        assert world.run().state is RunState.STOPPED
        assert world.clock.now_s < 100.0, "who waits for the end of a run is not kept for its whole patience"


def test_a_worker_that_is_only_slow_is_waited_for() -> None:
    """Twenty times the usual step, whatever the setting says."""
    world = World(shape(stall_s=0.2), [Fault(300, "slow worker", pick, 0.5) for pick in range(3)])
    assert world.run().state is RunState.FINISHED
    assert not [note for note in world.master.notes if "hangs" in note]
