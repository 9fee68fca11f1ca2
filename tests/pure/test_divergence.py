"""Steps with NaN or infinite numbers, as the master sees them."""

from __future__ import annotations

import msgspec
import pytest

from elasticflow.master import actions as ac
from elasticflow.master.deciding.takeover import Memory
from elasticflow.master.divergence import INSPECT_S
from elasticflow.master.events import CommittedEvent
from elasticflow.master.members import RunState
from elasticflow.master.state import MasterState
from elasticflow.wire.messages import Diverged, Inspected, Leaving, Offer, Progress, Skipped

from .test_master_state import Run, only, running


def diverged(run: Run, tick: int = 3, name: str = "server-0", **more: object) -> list[ac.Action]:
    fields = {"parameter": "w", **more}
    return run.tell(Diverged(name=name, generation=run.state.generation, tick=tick, **fields))


def inspected(
    run: Run, worker: str, number: int = -1, parameter: str = "w", row: int = -1
) -> list[ac.Action]:
    found = {"slice": number, "parameter": parameter, "cost": "nan", "row": row} if number >= 0 else {}
    return run.tell(Inspected(name=worker, tick=3, **found))


def skipped(run: Run, tick: int, **more: object) -> list[ac.Action]:
    fields = {"name": "server-0", "generation": run.state.generation, **more}
    return run.tell(Skipped(tick=tick, **fields))


# --- the step that ends the run -------------------------------------------------------------------


def test_each_worker_looks_at_its_slices_and_the_first_that_began_it_is_named() -> None:
    run = running(servers=2)
    asked = only(ac.InspectAction, diverged(run))
    assert [(each.name, each.tick, each.slices) for each in asked] == [
        ("worker-1", 3, (0, 1, 2, 3)),
        ("worker-2", 3, (4, 5, 6, 7)),
    ]
    assert diverged(run, name="server-1") == [], "of the same step"
    assert inspected(run, "worker-2", 6) == []
    end = run.end(inspected(run, "worker-1", 2, "b"))
    assert end.state is RunState.DIVERGED
    for said in (
        "step 4 (epoch 1) is not made",
        "gradient of b",
        "slice 2, whose cost is nan",
        "on_nan: skip",
    ):
        assert said in end.text
    assert "there is no checkpoint yet" in end.text


def test_a_record_is_named_with_which_it_began() -> None:
    run = running()
    diverged(run)
    told = [inspected(run, worker, number, row=57) for worker, number in (("worker-1", 2), ("worker-2", 6))]
    assert (
        "beginning in slice 2, whose cost is nan, first with record 57; there is no" in run.end(told[-1]).text
    )


def test_a_slice_is_told_though_the_search_for_its_record_takes_too_long() -> None:
    run = running()
    diverged(run)
    assert inspected(run, "worker-2") == []
    found = Inspected(name="worker-1", tick=3, slice=2, parameter="w", cost="nan", searches=True)
    assert run.tell(found) == [], "its record is still to come"
    end = run.end(run.pass_time(INSPECT_S + 1, heard=("worker-1", "worker-2")))
    assert "beginning in slice 2, whose cost is nan; there is no" in end.text


def test_nobody_waits_for_long_for_who_does_not_answer() -> None:
    run = running()
    diverged(run)
    inspected(run, "worker-1")
    assert run.state.next_time_s() is not None
    end = run.end(run.pass_time(INSPECT_S + 1, heard=("worker-1", "worker-2")))
    assert end.state is RunState.DIVERGED and "gradient of w" in end.text and "slice" not in end.text


def test_who_is_gone_is_not_waited_for() -> None:
    run = running()
    diverged(run)
    assert not only(ac.EndAction, run.exited("worker-2"))
    assert run.end(inspected(run, "worker-1", 0)).state is RunState.DIVERGED


def test_what_is_being_committed_is_waited_for() -> None:
    run = running()
    run.written(3)
    diverged(run)
    assert inspected(run, "worker-1", 0) == inspected(run, "worker-2") == []
    end = run.end(run.tell(CommittedEvent(3)))
    assert end.state is RunState.DIVERGED and "the last checkpoint is that of step 3" in end.text


def test_where_a_slice_is_known_or_the_norm_is_to_blame_nobody_is_asked() -> None:
    assert "in slice 5" in (run := running()).end(diverged(run, slice=5)).text
    assert (
        "the norm of all gradients is not finite" in (run := running()).end(diverged(run, parameter="")).text
    )
    assert "the update of w" in (run := running()).end([*diverged(run, made=True, slice=1)]).text


def test_what_is_said_of_another_generation_or_by_strangers_counts_for_nothing() -> None:
    run = running()
    assert run.tell(Diverged(name="server-0", generation=7, tick=0, parameter="w")) == []
    assert diverged(run, name="worker-1") == diverged(run, name="server-9") == []
    assert inspected(run, "worker-1", 0) == []
    assert run.state.state is RunState.RUNNING


# --- steps that are left out ----------------------------------------------------------------------


def test_steps_that_are_left_out_are_counted_once_and_one_too_many_ends_the_run() -> None:
    run = running(on_nan="skip", max_skipped_steps=2)
    (note,) = only(ac.NoteAction, skipped(run, 0))
    assert "step 1 (epoch 1) is left out" in note.text
    assert skipped(run, 0) == []
    skipped(run, 1)
    assert run.state.state is RunState.RUNNING and len(run.state.divergence.skipped) == 2
    (cut,) = only(ac.CutAction, skipped(run, 5))
    assert cut.finish and run.state.state is RunState.FINISHING
    run.written(6, last=True)
    end = run.end(run.tell(CommittedEvent(6)))
    assert end.state is RunState.DIVERGED and "more than 2 steps had to be left out" in end.text


@pytest.mark.parametrize("first", ["nothing", "the leading server", "a worker"])
def test_one_too_many_in_the_last_step_is_one_too_many(first: str) -> None:
    """Also of a run whose steps are all made by the time that the master hears of it."""
    run = running(on_nan="skip", max_skipped_steps=0)
    if first == "the leading server":
        run.tell(Progress(name="server-0", generation=1, version=8, last=True))
    elif first == "a worker":
        run.tell(Leaving(name="worker-1", ended=1))
    assert (run.state.state is RunState.FINISHING) == (first != "nothing")
    skipped(run, 7)
    run.written(8, last=True)
    assert run.end(run.tell(CommittedEvent(8))).state is RunState.DIVERGED


def test_what_is_undone_is_not_counted_and_the_next_master_knows_the_rest() -> None:
    run = running(on_nan="skip", servers=2)
    skipped(run, 0)
    skipped(run, 3)
    skipped(run, 5, name="worker-1", slice=2)
    data = msgspec.json.encode(run.state.memory())
    memory = msgspec.json.decode(data, type=Memory)
    after = MasterState(run.state.config, memory=memory)
    assert after.divergence.skipped == {(0, -1), (3, -1), (5, 2)}
    run.exited("server-1")
    run.join("server-2")
    run.tell(Offer(name="server-0", generation=2, held=((0, 2), (1, 2))))
    assert run.state.generation == 2 and run.state.version == 2
    assert run.state.divergence.skipped == {(0, -1)}
