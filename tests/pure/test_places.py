"""The master's decisions where somebody else gives and takes places: workers', the servers', its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master.deciding.takeover import Memory
from elasticflow.master.failures import MOST_EARLY
from elasticflow.master.members import MemberState, RunState
from elasticflow.master.state import MasterState
from elasticflow.wire.messages import Departing, Heartbeat, Leaving, Lost, Offer, Progress, Ready

from .test_master_state import Run, names, only, running

PREEMPTED = "was preempted"
MOST_AT_ONCE = 3
"""So often may the clock matter at one instant, each time for another reason."""
BEAT_S = 1.0
HERE = (MemberState.STARTING, MemberState.LOADING, MemberState.READY, MemberState.SUSPECT)


def departing(run: Run, name: str) -> list[ac.Action]:
    return run.tell(Departing(name=name, reason="preempted"))


def taken(run: Run, name: str) -> list[ac.Action]:
    return run.tell(ev.ExitedEvent(name, False, PREEMPTED, taken=True))


def left(run: Run, name: str) -> list[ac.Action]:
    """A drained worker ends by itself."""
    return [*run.tell(Leaving(name=name)), *run.exited(name)]


def expire(run: Run, name: str, replace_s: float, leave_s: float) -> None:
    """From now on in so many seconds."""
    assert run.tell(ev.ExpiryEvent(name, run.now_s + replace_s, run.now_s + leave_s)) == []


def limit(run: Run, leave_s: float) -> list[ac.Action]:
    return run.tell(ev.LimitEvent(run.now_s + leave_s))


def wait(run: Run, seconds: float, *, silent: Iterable[str] = ()) -> list[ac.Action]:
    """Time passes as it does for a real master: it wakes when the state says so, and when members speak.

    What is due must not be due again at once: that would be a busy loop.
    """
    actions: list[ac.Action] = []
    end_s, beat_s, turns = run.now_s + seconds, run.now_s, 0
    while not run.state.ended:
        at_s = run.state.next_time_s()
        due_s = min(beat_s, end_s if at_s is None else at_s)
        if due_s >= end_s:
            break
        turns = turns + 1 if due_s <= run.now_s else 0
        assert turns <= MOST_AT_ONCE, f"due again and again, at {at_s}"
        run.now_s = max(run.now_s, due_s)
        if run.now_s >= beat_s:
            beat_s += BEAT_S
            for member in list(run.state.members.values()):
                if member.state not in (MemberState.STARTING, MemberState.LOST) and member.name not in silent:
                    beat = Heartbeat(name=member.name, tick=0, generation=run.state.generation)
                    actions += run.tell(beat)
        actions += run.tell(ev.ClockEvent())
    run.now_s = end_s
    return actions


def staying(run: Run) -> list[str]:
    return [member.name for member in run.state.of("worker", *HERE) if not member.expiring]


def next_master(run: Run, living: Iterable[str], *, servers: bool = False) -> list[ac.Action]:
    """Another master goes on, in another place unless the servers live."""
    memory = msgspec.json.decode(msgspec.json.encode(run.state.memory()), type=Memory)
    run.state = MasterState(run.state.config, memory=memory)
    mine = list(run.state.members)
    alive = [*living, *(run.state.row.names if servers else ())]
    actions = run.state.adopt(dict.fromkeys(alive, 7), run.now_s)
    for name in mine:
        if name not in alive:
            actions += run.tell(ev.ExitedEvent(name, False, "ended while there was no master"))
    return actions


def progress(run: Run, version: int, *, last: bool = False) -> None:
    leader, generation = run.state.row.leader, run.state.generation
    message = Progress(name=leader, generation=generation, version=version, last=last, loss=1.0)
    assert run.tell(message) == []


def committed(run: Run, tick: int, *, last: bool = False) -> list[ac.Action]:
    """The servers write their parts, and the master commits them."""
    (action,) = only(ac.CommitAction, run.written(tick, run.state.row.leader, last=last))
    assert action.tick == tick
    return run.tell(ev.CommittedEvent(tick))


def blame(run: Run) -> tuple[int, int]:
    memory = run.state.memory()
    return memory.failures, memory.early_deaths


# --- who is told to go ---------------------------------------------------------------------------


def test_who_departs_is_drained_at_once_and_another_is_asked_for() -> None:
    run = running(max_failures=0)
    actions = departing(run, "worker-1")
    assert names(ac.DrainAction, actions) == ["worker-1"] and run.shares == {"worker-2": 8}
    assert names(ac.StartAction, actions) == ["worker-3"]
    assert only(ac.NoteAction, actions) == [ac.NoteAction("info", "worker-1 is drained: preempted")]
    assert not only(ac.FaultAction, actions) and blame(run) == (0, 0)
    assert not only(ac.StartAction, left(run, "worker-1")) and run.state.state is RunState.RUNNING


def test_who_departs_and_does_not_make_it_is_no_failure() -> None:
    run = running(max_failures=0)
    departing(run, "worker-1")
    actions = taken(run, "worker-1")
    assert not only(ac.FaultAction, actions) and not only(ac.StartAction, actions)
    assert blame(run) == (0, 0) and not run.state.ended


@pytest.mark.parametrize("state", ["starting", "loading", "ready", "suspect"])
def test_departing_in_any_state(state: str) -> None:
    run = Run() if state in ("starting", "loading") else running()
    if state == "loading":
        run.join("worker-1")
    if state == "suspect":
        run.pass_time(run.state.config.suspect_s + 1, heard=["worker-2"])
    assert run.state_of("worker-1").value == state
    actions = departing(run, "worker-1")
    ends = {"starting": ac.KillAction, "loading": ac.QuitAction}.get(state, ac.DrainAction)
    assert names(ends, actions) == ["worker-1"] and names(ac.StartAction, actions) == ["worker-3"]
    assert not only(ac.FaultAction, actions) and len(staying(run)) == run.state.target


@pytest.mark.parametrize("state", ["draining", "lost"])
def test_departing_says_nothing_new_of_one_that_goes(state: str) -> None:
    run = running()
    if state == "draining":
        departing(run, "worker-1")
    else:
        run.tell(Lost(name="server-0", member="worker-1"))
    assert run.state_of("worker-1").value == state
    assert departing(run, "worker-1") == [] and run.state_of("worker-1").value == state


def test_strangers_and_servers_do_not_depart() -> None:
    run = running()
    assert departing(run, "worker-9") == departing(run, "server-0") == []
    assert run.state_of("server-0") is MemberState.READY


def test_the_only_worker_departs() -> None:
    run = running(workers="1")
    actions = departing(run, "worker-1")
    assert names(ac.StartAction, actions) == ["worker-2"] and run.state.plan == ()
    left(run, "worker-1")
    run.ready("worker-2")
    assert run.shares == {"worker-2": 8}


def test_all_depart_at_once() -> None:
    run = running(workers="4")
    for number in range(1, 5):
        departing(run, f"worker-{number}")
    assert staying(run) == ["worker-5", "worker-6", "worker-7", "worker-8"]


def test_departing_while_the_servers_regroup() -> None:
    run = running(snapshot_s=1, servers=2)
    run.exited("server-1")
    actions = departing(run, "worker-1")
    assert names(ac.DrainAction, actions) == ["worker-1"] and not only(ac.PlanAction, actions)
    assert staying(run) == ["worker-2", "worker-3"]


def test_departing_once_all_is_made_starts_nobody() -> None:
    run = running()
    progress(run, 8, last=True)
    left(run, "worker-1")
    assert not only(ac.StartAction, departing(run, "worker-2"))


# --- places that are taken away ------------------------------------------------------------------


def test_a_worker_whose_place_is_taken_is_replaced() -> None:
    run = running(max_failures=0)
    actions = taken(run, "worker-1")
    assert only(ac.FaultAction, actions) == [ac.FaultAction("worker-1", "worker", PREEMPTED)]
    assert names(ac.StartAction, actions) == ["worker-3"] and run.shares == {"worker-2": 8}


def test_places_taken_before_anybody_is_ready_never_end_the_run() -> None:
    run = Run(max_failures=0)
    for _ in range(3 * MOST_EARLY):
        assert names(ac.StartAction, taken(run, staying(run)[0]))
        (server,) = run.state.row.names
        assert names(ac.StartAction, taken(run, server))
    assert not run.state.ended and blame(run) == (0, 0)


def test_early_deaths_are_counted_through_places_that_are_taken() -> None:
    """That a place is taken does not show that the program is sound."""
    run = Run()
    for _ in range(MOST_EARLY):
        run.exited(staying(run)[0])
        taken(run, staying(run)[0])
    end = run.end(run.exited(staying(run)[0]))
    assert end.state is RunState.FAILED and "died before they were ready" in end.text


# --- places that end at a known time -------------------------------------------------------------


def test_another_is_asked_for_in_time() -> None:
    run = running()
    expire(run, "worker-1", 60.0, 90.0)
    assert not only(ac.StartAction, wait(run, 59.0))
    assert names(ac.StartAction, wait(run, 2.0)) == ["worker-3"]
    assert run.state_of("worker-1") is MemberState.READY and run.shares == {"worker-1": 4, "worker-2": 4}
    assert not only(ac.StartAction, wait(run, 20.0)), "one is enough"


def test_it_goes_when_the_other_has_come() -> None:
    run = running()
    expire(run, "worker-1", 60.0, 90.0)
    wait(run, 61.0)
    actions = run.ready("worker-3")
    assert names(ac.DrainAction, actions) == ["worker-1"]
    assert run.shares == {"worker-2": 4, "worker-3": 4}
    (note,) = [note.text for note in only(ac.NoteAction, actions) if "worker-1" in note.text]
    assert note == "worker-1 is drained: its time limit is near"
    assert not only(ac.StartAction, left(run, "worker-1"))


def test_it_goes_in_time_even_if_no_other_has_come() -> None:
    run = running()
    expire(run, "worker-1", 60.0, 90.0)
    assert not only(ac.DrainAction, wait(run, 89.9))
    assert names(ac.DrainAction, wait(run, 0.2)) == ["worker-1"] and run.shares == {"worker-2": 8}
    left(run, "worker-1")
    assert staying(run) == ["worker-2", "worker-3"]


def test_whoever_ends_first_goes_first() -> None:
    """And no more go than have come."""
    run = running(workers="3")
    for number, leave_s in enumerate((90.0, 70.0, 80.0), 1):
        expire(run, f"worker-{number}", 60.0, leave_s)
    assert names(ac.StartAction, wait(run, 61.0)) == ["worker-4", "worker-5", "worker-6"]
    gone = [names(ac.DrainAction, run.ready(f"worker-{number}")) for number in (4, 5, 6)]
    assert gone == [["worker-2"], ["worker-3"], ["worker-1"]]
    assert run.state.num_ready == 3


def test_all_end_at_once_and_nobody_comes() -> None:
    run = running(workers="3")
    for number in (1, 2, 3):
        expire(run, f"worker-{number}", 60.0, 90.0)
    assert sorted(names(ac.DrainAction, wait(run, 91.0))) == ["worker-1", "worker-2", "worker-3"]
    assert run.state.plan == () and staying(run) == ["worker-4", "worker-5", "worker-6"]


def test_the_time_to_leave_comes_before_that_to_be_replaced() -> None:
    """As where the end is known only when it is there."""
    run = running()
    expire(run, "worker-1", -10.0, -20.0)
    actions = wait(run, 0.1)
    assert names(ac.DrainAction, actions) == ["worker-1"] and names(ac.StartAction, actions) == ["worker-3"]


def test_a_place_is_prolonged() -> None:
    run = running()
    expire(run, "worker-1", 60.0, 90.0)
    wait(run, 30.0)
    expire(run, "worker-1", 160.0, 190.0)
    assert not only(ac.StartAction, wait(run, 150.0))
    assert names(ac.StartAction, wait(run, 20.0)) == ["worker-3"]


def test_a_place_is_told_of_again_and_again() -> None:
    run = running()
    end_s = run.now_s + 60.0
    started = []
    for _ in range(20):
        run.tell(ev.ExpiryEvent("worker-1", end_s, end_s + 30.0))
        started += names(ac.StartAction, wait(run, 4.0))
    assert started == ["worker-3"]


def test_the_end_of_a_place_that_nobody_has_any_more() -> None:
    run = running()
    assert run.tell(ev.ExpiryEvent("worker-9", 0.0, 0.0)) == []
    departing(run, "worker-1")
    expire(run, "worker-1", 1.0, 2.0)
    assert not only(ac.StartAction, wait(run, 5.0)) and run.state_of("worker-1") is MemberState.DRAINING


@pytest.mark.parametrize("joined", [False, True])
def test_a_place_ends_before_its_worker_is_ready(joined: bool) -> None:
    run = running()
    run.exited("worker-2")
    if joined:
        run.join("worker-3")
    expire(run, "worker-3", 10.0, 20.0)
    assert names(ac.StartAction, wait(run, 11.0)) == ["worker-4"]
    actions = wait(run, 10.0)
    assert names(ac.QuitAction if joined else ac.KillAction, actions) == ["worker-3"]
    assert blame(run) == (0, 0)


def test_the_one_that_should_replace_it_dies() -> None:
    run = running()
    expire(run, "worker-1", 60.0, 90.0)
    wait(run, 61.0)
    assert names(ac.StartAction, run.exited("worker-3")) == ["worker-4"]
    assert names(ac.DrainAction, run.ready("worker-4")) == ["worker-1"]


def test_it_dies_before_another_has_come() -> None:
    run = running()
    expire(run, "worker-1", 60.0, 90.0)
    wait(run, 61.0)
    assert not only(ac.StartAction, taken(run, "worker-1")), "the other is on its way"
    assert staying(run) == ["worker-2", "worker-3"]


@pytest.mark.parametrize("target", [1, 2, 4, 6])
def test_the_target_changes_meanwhile(target: int) -> None:
    run = running(workers="1..8")
    run.tell(ev.ScaleEvent(3))
    for name in [name for name, member in run.state.members.items() if member.state is MemberState.DRAINING]:
        left(run, name)
    first, *_ = staying(run)
    expire(run, first, 60.0, 90.0)
    (started,) = names(ac.StartAction, wait(run, 61.0))
    run.tell(ev.ScaleEvent(target))
    assert len(staying(run)) == target
    for name in staying(run):
        if run.state_of(name) is MemberState.STARTING:
            run.ready(name)
    assert run.state_of(first) is MemberState.DRAINING, "as many as are wanted have come"
    assert run.state.num_ready == target


def test_fewer_are_wanted_while_the_places_of_all_end() -> None:
    """Nobody waits for others that are not wanted any more."""
    run = running(workers="3")
    for number in (1, 2, 3):
        expire(run, f"worker-{number}", 60.0, 90.0 + number)
    wait(run, 61.0)
    assert sorted(names(ac.DrainAction, run.tell(ev.ScaleEvent(1)))) == ["worker-1", "worker-2"]
    assert len(staying(run)) == 1 and run.shares == {"worker-3": 8}


def test_the_next_master_does_not_ask_for_another_again() -> None:
    run = running()
    expire(run, "worker-1", 60.0, 90.0)
    wait(run, 61.0)
    actions = next_master(run, ["worker-1", "worker-2", "worker-3"], servers=True)
    assert not only(ac.StartAction, actions) and not only(ac.KillAction, actions)
    expire(run, "worker-1", -1.0, 29.0)
    assert not only(ac.StartAction, wait(run, 10.0))
    assert names(ac.DrainAction, run.ready("worker-3")) == ["worker-1"]


def test_the_next_master_has_it_leave_in_time() -> None:
    run = running()
    expire(run, "worker-1", 60.0, 90.0)
    next_master(run, ["worker-1", "worker-2"], servers=True)
    assert run.state.next_time_s() is not None
    assert not only(ac.StartAction, wait(run, 200.0)), "it has not been told yet"
    expire(run, "worker-1", -140.0, -110.0)
    actions = wait(run, 0.1)
    assert names(ac.StartAction, actions) == ["worker-3"] and names(ac.DrainAction, actions) == ["worker-1"]


# --- the place of master and servers -------------------------------------------------------------


def test_a_checkpoint_then_a_move() -> None:
    run = running()
    progress(run, 3)
    assert not only(ac.HandOverAction, limit(run, 100.0))
    assert only(ac.CutAction, wait(run, 0.1)) == [ac.CutAction("server-0", finish=False)]
    assert not only(ac.CutAction, wait(run, 10.0))
    assert only(ac.HandOverAction, committed(run, 4)) == [ac.HandOverAction()]


def test_it_moves_once() -> None:
    run = running()
    limit(run, 100.0)
    wait(run, 0.1)
    committed(run, 2)
    assert limit(run, 50.0) == []
    assert not only(ac.HandOverAction, [*committed(run, 4), *wait(run, 200.0), *committed(run, 6)])


def test_a_commit_of_before_is_not_enough() -> None:
    """It was under way when the move was asked for: what was done since then would be lost."""
    run = running()
    progress(run, 3)
    (commit,) = only(ac.CommitAction, run.written(2))
    limit(run, 100.0)
    wait(run, 0.1)
    assert not only(ac.HandOverAction, run.tell(ev.CommittedEvent(commit.tick)))
    assert only(ac.HandOverAction, committed(run, 4))


def test_no_commit_comes() -> None:
    run = running()
    limit(run, 100.0)
    assert not only(ac.HandOverAction, wait(run, 99.9))
    assert len(only(ac.HandOverAction, wait(run, 0.2))) == 1
    assert not only(ac.HandOverAction, wait(run, 100.0))


@pytest.mark.parametrize("where", ["written", "committed"])
def test_the_commit_fails(where: str) -> None:
    run = running()
    limit(run, 100.0)
    wait(run, 0.1)
    if where == "written":
        actions = run.written(1, error="no space left")
    else:
        run.written(1)
        actions = run.tell(ev.CommittedEvent(1, "no space left"))
    assert not only(ac.HandOverAction, actions)
    assert len(only(ac.HandOverAction, wait(run, 100.0))) == 1


def test_a_move_while_the_servers_regroup() -> None:
    run = running(servers=2, snapshot_s=1)
    run.exited("server-1")
    assert not only(ac.CutAction, [*limit(run, 100.0), *wait(run, 1.0)])
    run.tell(Offer(name="server-0", generation=2, held=((0, 5), (1, 5))))
    run.join("server-2")
    for name in ("server-0", "server-2"):
        run.tell(Ready(name=name, generation=2))
    assert names(ac.CutAction, wait(run, 0.1)) == ["server-0"]
    run.written(6, "server-0")
    run.written(6, "server-2")
    assert len(only(ac.HandOverAction, run.tell(ev.CommittedEvent(6)))) == 1


def test_the_servers_are_lost_before_the_commit() -> None:
    """They are told again to cut, since they go back."""
    run = running()
    limit(run, 100.0)
    assert only(ac.CutAction, wait(run, 0.1))
    run.exited("server-0")
    run.join("server-1")
    run.tell(Ready(name="server-1", generation=2))
    assert names(ac.CutAction, wait(run, 0.1)) == ["server-1"]
    assert only(ac.HandOverAction, committed(run, 1))


def test_the_servers_never_come_again() -> None:
    run = running(servers=2)
    run.exited("server-1")
    limit(run, 100.0)
    assert len(only(ac.HandOverAction, wait(run, 101.0))) == 1


def test_a_move_before_the_first_step() -> None:
    run = Run()
    assert only(ac.HandOverAction, limit(run, 100.0)) == [ac.HandOverAction()]
    assert not only(ac.HandOverAction, wait(run, 200.0))


def test_no_move_once_the_last_version_is_made() -> None:
    run = running()
    run.written(4)  # and is being committed
    progress(run, 8, last=True)
    limit(run, 100.0)
    assert not only(ac.HandOverAction, [*run.tell(ev.CommittedEvent(4)), *wait(run, 10.0)])
    run.written(8, last=True)
    actions = run.tell(ev.CommittedEvent(8))
    assert run.end(actions).state is RunState.FINISHED and not only(ac.HandOverAction, actions)


def test_a_move_if_the_last_commit_does_not_come() -> None:
    run = running()
    progress(run, 8, last=True)
    limit(run, 100.0)
    assert len(only(ac.HandOverAction, wait(run, 101.0))) == 1


def test_the_run_is_stopped_rather_than_moved() -> None:
    run = running()
    limit(run, 100.0)
    actions = run.tell(ev.StopEvent("asked to stop"))
    assert names(ac.CutAction, actions) == ["server-0"] and not only(ac.CutAction, wait(run, 1.0))
    run.written(3, last=True)
    actions = run.tell(ev.CommittedEvent(3))
    assert run.end(actions).state is RunState.STOPPED and not only(ac.HandOverAction, actions)


def test_a_stop_that_does_not_come_to_an_end_is_moved() -> None:
    run = running()
    run.tell(ev.StopEvent("asked to stop"))
    limit(run, 100.0)
    assert len(only(ac.HandOverAction, wait(run, 101.0))) == 1


def test_the_next_master_goes_on_from_the_commit() -> None:
    """Master and servers are in another place; workers live on."""
    run = running()
    progress(run, 3)
    limit(run, 100.0)
    wait(run, 0.1)
    assert only(ac.HandOverAction, committed(run, 4))
    actions = next_master(run, ["worker-1", "worker-2"])
    assert names(ac.StartAction, actions) == ["server-1"] and blame(run) == (0, 0)
    for name in ("worker-1", "worker-2"):
        run.tell(Heartbeat(name=name, tick=4, generation=1))
    (assigned,) = only(ac.AssignAction, run.join("server-1"))
    assert assigned.assignment.start_tick == 4 and assigned.assignment.restore_step == 4
    told = names(ac.AssignAction, run.tell(Ready(name="server-1", generation=2)))
    assert sorted(told) == ["worker-1", "worker-2"]
    assert run.shares == {"worker-1": 4, "worker-2": 4} and staying(run) == ["worker-1", "worker-2"]


def test_the_next_master_may_have_to_move_as_well() -> None:
    run = running()
    limit(run, 10.0)
    wait(run, 0.1)
    committed(run, 2)
    next_master(run, ["worker-1", "worker-2"])
    run.join("server-1")
    run.tell(Ready(name="server-1", generation=2))
    assert not only(ac.HandOverAction, wait(run, 50.0))
    limit(run, 100.0)
    assert names(ac.CutAction, wait(run, 0.1)) == ["server-1"]
    assert only(ac.HandOverAction, committed(run, 5))


# --- the clock -----------------------------------------------------------------------------------


def test_nothing_to_wait_for() -> None:
    run = Run(checkpoint_every="5 steps")
    assert run.state.next_time_s() is None


@pytest.mark.parametrize("seconds", [-5.0, 0.0, 0.5, 7.0])
@pytest.mark.parametrize("given", [{}, {"checkpoint_every": "1s"}, {"servers": 3}, {"workers": "1"}])
def test_whatever_is_due_is_done_with(seconds: float, given: dict[str, Any]) -> None:
    """``wait`` fails if the master would wake again and again for nothing."""
    run = running(**given)
    for name in [member.name for member in run.state.of("worker")]:
        expire(run, name, seconds, 2 * seconds)
    limit(run, seconds)
    wait(run, 40.0)
    wait(run, 60.0, silent=list(run.state.members))
    run = Run(**given)
    limit(run, seconds)
    for name in [member.name for member in run.state.of("worker")]:
        expire(run, name, seconds, 2 * seconds)
    wait(run, 40.0)
