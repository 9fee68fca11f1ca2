"""A run that fails: what its servers have made since the last checkpoint is kept, where that can be."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master.deciding.departures import BEREFT_S
from elasticflow.master.deciding.takeover import Memory
from elasticflow.master.failures import MOST_GONE
from elasticflow.master.members import RunState
from elasticflow.master.state import MasterState
from elasticflow.wire.messages import Failed, Leaving, Offer, Ready

from .test_master_stall import made
from .test_master_state import SPEC, Run, faulty, names, offer, only, running
from .test_moving import CarriedRun

BAD = dict(kind="ValueError", text="ValueError: no", traceback="Traceback ...")


def raised(run: Run) -> list[ac.Action]:
    return run.tell(faulty("worker-1", 17, tick=3))


def failed(run: Run) -> list[ac.Action]:
    return run.tell(Failed(name="worker-1", **BAD))


def failed_for_all(run: Run) -> list[ac.Action]:
    return run.tell(Failed(name="worker-1", for_all=True, **BAD))


def gone(run: Run) -> list[ac.Action]:
    actions: list[ac.Action] = []
    for number in range(1, MOST_GONE + 2):
        actions = run.exited(f"worker-{number}")
        if run.state.state is RunState.RUNNING:
            run.ready(f"worker-{number + 1}")
    return actions


@pytest.mark.parametrize("fails", [raised, failed, failed_for_all, gone])
def test_what_is_new_is_written_before_the_run_ends(fails: Callable[[Run], list[ac.Action]]) -> None:
    run = running(workers="1", max_failures=0)
    made(run, 3)
    actions = fails(run)
    assert names(ac.HaltAction, actions) == ["server-0"] and run.state.state is RunState.FINISHING
    assert not only(ac.StartAction, actions), "nobody is needed any more"
    assert only(ac.NoteAction, actions)[-1].text.endswith(": a last checkpoint, then the end")
    generation = run.state.generation + 1
    (assigned,) = only(ac.AssignAction, offer(run, "server-0", (0, 3)))
    assert assigned.assignment.ends and assigned.assignment.start_tick == 3
    assert run.tell(Ready(name="server-0", generation=generation)) == []
    (commit,) = only(ac.CommitAction, run.written(3, last=True))
    end = run.end(run.tell(ev.CommittedEvent(commit.tick)))
    assert end.state is RunState.FAILED and "are missing" not in end.text, "that is told with the way back"
    assert end.detail == ("" if fails is gone else "Traceback ...")


@pytest.mark.parametrize("fails", [raised, failed, failed_for_all, gone])
def test_where_nothing_is_new_it_ends_at_once(fails: Callable[[Run], list[ac.Action]]) -> None:
    run = running(workers="1", max_failures=0)
    if fails is not raised:
        made(run, 3)
        run.written(3)
        run.tell(ev.CommittedEvent(3))
    run.tell(faulty("worker-1", 17)) if fails is raised else fails(run)
    assert run.state.state is RunState.FAILED


def test_who_fails_as_well_meanwhile_changes_nothing() -> None:
    """Neither is another asked for, nor the reason another."""
    run = running(max_failures=0)
    made(run, 3)
    failed(run)
    actions = run.exited("worker-2", killed=False)
    assert not only(ac.StartAction, actions) and not only(ac.HaltAction, actions)
    assert run.tell(faulty("worker-2", 17, tick=3)) == []
    offer(run, "server-0", (0, 3))
    run.tell(Ready(name="server-0", generation=run.state.generation))
    run.written(3, last=True)
    end = run.end(run.tell(ev.CommittedEvent(3)))
    assert end.text == "worker-1 failed: ValueError: no (failure 1, max_failures is 0)"


def test_it_ends_at_once_where_no_server_is_left_that_has_it() -> None:
    run = running(workers="1", max_failures=0)
    made(run, 3)
    end = run.end(run.exited("server-0", killed=False))
    assert end.state is RunState.FAILED and end.text.endswith("; no server is left that has what is new")
    assert "max_failures is 0" in end.text


def test_a_server_that_fails_again_and_again_ends_it_at_once() -> None:
    """Another one holds its copy; who takes its place would fail for ever."""
    run = running(workers="1", servers=2, max_failures=0, snapshot_s=1)
    made(run, 3)
    actions = run.exited("server-1", killed=False)
    (successor,) = names(ac.StartAction, actions)
    assert names(ac.HaltAction, actions) == ["server-0"] and not run.state.ended
    run.join(successor)
    run.tell(Offer(name="server-0", generation=run.state.generation + 1, held=((0, 3), (1, 3))))
    end = run.end(run.exited(successor, killed=False))
    assert end.state is RunState.FAILED
    assert "failure 1, max_failures is 0" in end.text and "failure 2, max_failures is 0" in end.text


def test_a_server_whose_copies_nobody_has_is_not_waited_for() -> None:
    """Another in its place may wait for a place of the cluster for long, and would have nothing."""
    run = running(workers="1", servers=2, max_failures=0)
    made(run, 3)
    assert not only(ac.EndAction, run.exited("server-1", killed=False))
    end = run.end(offer(run, "server-0", (0, 3)))
    assert end.state is RunState.FAILED and end.text.endswith("; no server is left that has what is new")


def test_in_the_middle_of_an_evaluation_it_says_why_no_checkpoint_is_made() -> None:
    run = Run(workers="1", max_failures=0)
    run.join("server-0")
    run.join("worker-1", spec=msgspec.structs.replace(SPEC, num_test=8))
    run.tell(Ready(name="server-0", generation=1))
    run.tell(Ready(name="worker-1", generation=1))
    made(run, 8)
    failed(run)
    end = run.end(offer(run, "server-0", (0, 8)))
    assert end.text.endswith("; it ends in the middle of an evaluation, of which there is no checkpoint")


def test_the_next_master_ends_it_as_well_with_what_the_program_said() -> None:
    run = running(workers="1", max_failures=0)
    made(run, 3)
    failed(run)
    memory = msgspec.json.decode(msgspec.json.encode(run.state.memory()), type=Memory)
    run.state = MasterState(run.state.config, memory=memory)
    run.state.adopt({"server-0": 1}, run.now_s)
    offer(run, "server-0", (0, 3))
    run.tell(Ready(name="server-0", generation=run.state.generation))
    run.written(3, last=True)
    end = run.end(run.tell(ev.CommittedEvent(3)))
    assert (end.state, end.detail) == (RunState.FAILED, "Traceback ...")


def test_the_only_worker_takes_its_servers_along() -> None:
    """Nobody is left who could carry others."""
    run = CarriedRun(workers="1", max_failures=0)
    run.come("worker-1")
    made(run, 7)
    end = run.end(run.exited("worker-1", killed=False))
    assert end.state is RunState.FAILED and "no server is left" in end.text


def test_servers_move_to_another_worker_to_write_what_is_new() -> None:
    run = CarriedRun(workers="2", max_failures=0)
    run.come("worker-1", "worker-2")
    made(run, 7)
    run.story.clear()
    run.killed.update(m.name for m in run.state.of("server") if m.carrier == "worker-1")
    run.answer(run.exited("worker-1", killed=False))
    assert set(run.load) == {"worker-2"}
    ends = [action.assignment for action in only(ac.AssignAction, run.story) if action.assignment.ends]
    assert ends and {each.start_tick for each in ends} == {7}
    for name in run.state.row.holders:
        run.written(7, name, last=True)
    assert run.end(run.tell(ev.CommittedEvent(7))).state is RunState.FAILED


def carried_by(run: CarriedRun, worker: str) -> list[str]:
    return [server.name for server in run.state.of("server") if server.carrier == worker]


def test_who_fails_stays_until_its_servers_have_moved() -> None:
    run = CarriedRun(workers="2")
    run.come("worker-1", "worker-2")
    made(run, 7)
    assert carried_by(run, "worker-1")
    run.story.clear()
    run.answer(failed(run))
    assert [fault.name for fault in only(ac.FaultAction, run.story)] == ["worker-1"]
    assert "worker-1" not in names(ac.KillAction, run.story) and set(run.load) == {"worker-2"}
    assert not carried_by(run, "worker-1"), "which tells it to go"
    assert {each.assignment.start_tick for each in only(ac.AssignAction, run.story)} == {7}
    assert only(ac.NoteAction, run.exited("worker-1", killed=False))[0].text == "worker-1 has left"
    assert run.state.state is RunState.RUNNING and run.state.failures.own == 1


def test_the_only_one_that_fails_waits_for_the_next_one() -> None:
    run = CarriedRun(workers="1")
    run.come("worker-1")
    made(run, 7)
    assert names(ac.StartAction, failed(run)) == ["worker-2"]
    run.pass_time(BEREFT_S - 1, heard=list(run.state.members))
    run.come("worker-2")
    assert set(run.load) == {"worker-2"}
    assert run.state.version == 7


@pytest.mark.parametrize("masters", [1, 2])
def test_the_only_one_that_fails_makes_room_where_nobody_comes(masters: int) -> None:
    """Which may be since it keeps the place, or the GPU; it is ended, since it would stay."""
    run = CarriedRun(workers="1")
    run.come("worker-1")
    made(run, 7)
    failed(run)
    if masters > 1:
        memory = msgspec.json.decode(msgspec.json.encode(run.state.memory()), type=Memory)
        run.state = MasterState(run.state.config, memory=memory)
        run.state.adopt({name: 1 for name in ("worker-1", *carried_by(run, "worker-1"))}, run.now_s)
        run.tell(Leaving(name="worker-1", failed=True))
    due_s = run.state.next_time_s()
    assert due_s is not None and due_s <= run.now_s + BEREFT_S
    actions = run.pass_time(BEREFT_S + 1, heard=list(run.state.members))
    assert "worker-1" in names(ac.KillAction, actions) and not carried_by(run, "worker-1")
    assert "nobody came in 30 s" in only(ac.FaultAction, actions)[0].text


def test_who_has_failed_has_not_got_the_last_version() -> None:
    """As who leaves undrained has: told to a master that knows of no failure."""
    run = CarriedRun(workers="2")
    run.come("worker-1", "worker-2")
    made(run, 7)
    run.state.conclusion.last_made = True
    run.tell(Leaving(name="worker-1", failed=True))
    assert not run.state.conclusion.all_made
    run.tell(Leaving(name="worker-2"))
    assert run.state.conclusion.all_made


@pytest.mark.parametrize("workers", ["1", "2"])
def test_whose_failure_ends_the_run_stays_until_all_is_written(workers: str) -> None:
    run = CarriedRun(workers=workers, max_failures=0)
    run.come("worker-1", "worker-2")
    made(run, 7)
    run.story.clear()
    run.answer(failed(run))
    assert run.state.state is RunState.FINISHING and carried_by(run, "worker-1")
    ends = [action.assignment for action in only(ac.AssignAction, run.story) if action.assignment.ends]
    assert ends and {each.start_tick for each in ends} == {7}
    for name in run.state.row.holders:
        run.written(7, name, last=True)
    assert run.end(run.tell(ev.CommittedEvent(7))).state is RunState.FAILED


def test_who_stays_carries_another_server_where_nobody_else_can() -> None:
    """The run is about to end, and no worker comes any more."""
    run = CarriedRun(workers="2", max_failures=0)
    run.come("worker-1", "worker-2")
    made(run, 7)
    run.answer(failed(run))
    run.killed.update(carried_by(run, "worker-2"))
    run.answer(run.exited("worker-2"))
    assert set(run.load) == {"worker-1"} and not run.state.ended


def test_the_last_checkpoint_under_way_is_the_end() -> None:
    """All is done, and whoever fails then is nobody's loss."""
    run = running(workers="1", max_failures=0)
    made(run, 8)
    run.written(8, last=True)
    assert not only(ac.EndAction, failed(run))
    assert run.end(run.tell(ev.CommittedEvent(8))).state is RunState.FINISHED
