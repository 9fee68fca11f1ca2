"""Random histories of whole runs: whatever happens, the same answer, and an end.

What is checked at every event is in ``simulator.py``. A history that fails is played again with
``ELASTICFLOW_HISTORY=<seed> pytest tests/pure/test_simulation.py``; ``ELASTICFLOW_HISTORIES`` says how
many are tried.
"""

from __future__ import annotations

import os

import pytest

from elasticflow.master.state import RunState
from elasticflow.schedule import Schedule

from .histories import history
from .simulator import Fault, Shape, World

NUM_HISTORIES = int(os.environ.get("ELASTICFLOW_HISTORIES", "2500"))
CHOSEN = os.environ.get("ELASTICFLOW_HISTORY")
NUM_PARTS = 10
BACKUPS_AT_MOST = 1.25
"""Slices computed in a run without faults, in multiples of those there are: the first tick has no plan."""


def shape(**changes: object) -> Shape:
    """Two epochs of four steps and an evaluation; two servers, three workers."""
    schedule = Schedule(num_records=29, num_test=9, batch_size=8, num_slices=8, epochs=2)
    values = {"parcels": (2, 1), "workers": 3, "clips": False, "checkpoint_every": "2 steps", "slice_s": 0.05}
    return Shape(schedule=schedule, **{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_random_histories(part: int) -> None:
    seeds = [int(CHOSEN)] if CHOSEN else range(part, NUM_HISTORIES, NUM_PARTS)
    for seed in seeds:
        world = history(seed)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"history {seed}: {error}\n{world.shape}\n{world.all_faults}") from error
        assert world.most_asked <= 1, f"history {seed}: a worker is asked again for the same slice"


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("parcels", [(1,), (2,), (1, 1), (2, 1, 2)])
def test_undisturbed(parcels: tuple[int, ...], clips: bool) -> None:
    world = World(shape(parcels=parcels, clips=clips))
    assert world.run().state is RunState.FINISHED
    total = world.shape.schedule.total_ticks * world.shape.schedule.num_slices
    assert world.num_computed <= BACKUPS_AT_MOST * total
    assert set(world.committed) == {2, 5, 7, 10}, "each second step; none between a step and its evaluation"


@pytest.mark.parametrize("after", range(60, 420, 12))
def test_the_only_worker_is_killed(after: int) -> None:
    """Between its pushes to one server and to the next, too; the last tick included."""
    for seed in range(3):
        world = World(shape(workers=1, parcels=(2, 1, 1)), [Fault(after, "kill")], seed)
        assert world.run().state is RunState.FINISHED


@pytest.mark.parametrize("seed", range(10))
def test_everybody_is_killed_at_once(seed: int) -> None:
    faults = [Fault(150, "kill", pick) for pick in range(3)]
    assert World(shape(), faults, seed).run().state is RunState.FINISHED


@pytest.mark.parametrize("seed", range(10))
def test_everybody_is_frozen_for_a_while(seed: int) -> None:
    faults = [Fault(120, "freeze", pick, 1.0) for pick in range(3)]
    assert World(shape(), faults, seed).run().state is RunState.FINISHED


@pytest.mark.parametrize("after", range(30, 400, 10))
def test_one_is_frozen_for_good(after: int) -> None:
    """From the first tick on, when nobody knows yet how long slices take, the others carry on."""
    for seed in range(3):
        world = World(shape(workers=2, slice_s=0.01), [Fault(after, "freeze", seed, 1000.0)], seed)
        assert world.run().state is RunState.FINISHED
        assert world.now_s < 5.0, "nobody waits until it is given up"


@pytest.mark.parametrize("seed", range(10))
def test_a_record_on_which_the_program_raises(seed: int) -> None:
    """Left out for all, though workers come, go, and freeze meanwhile."""
    faults = [Fault(100 + 5 * seed, "kill"), Fault(140, "freeze", 1, 0.5), Fault(160, "scale", 4)]
    world = World(shape(bad=((1, 3), (2, 0))), faults, seed)
    assert world.run().state is RunState.FINISHED
    assert len(world.master.state.excluded) == 2


@pytest.mark.parametrize("seed", range(10))
def test_stopped_as_asked(seed: int) -> None:
    end = World(shape(), [Fault(150, "stop")], seed).run()
    assert end.state is RunState.STOPPED and "steps are missing, go on with --resume" in end.text


@pytest.mark.parametrize("tick", range(10))
def test_gone_on_from_any_commit(tick: int) -> None:
    schedule = shape().schedule
    world = World(shape(start=(schedule.steps_before(tick), tick)), [Fault(90, "kill")])
    assert world.run().state is RunState.FINISHED
