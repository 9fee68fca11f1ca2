"""What the master does when nothing moves: asks, replaces who hangs, and ends where the run stands."""

from __future__ import annotations

import msgspec

from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master.deciding.ending import CLOSE_S
from elasticflow.master.deciding.standstill import ALONE_S, MOST_ROUNDS
from elasticflow.master.deciding.takeover import Memory
from elasticflow.master.members import MemberState, RunState
from elasticflow.master.state import MasterState
from elasticflow.wire.messages import Heartbeat, Here, Join, Offer, Progress, Ready, Stacks

from .test_master_state import SPEC, Run, names, only, running

STALL_S = 60.0


def still(run: Run, *workers: str) -> ac.LookAction:
    """All hearts beat, and nothing moves, until the master asks."""
    since_s = run.now_s
    while run.now_s < since_s + STALL_S + 1:
        if looks := only(ac.LookAction, beat(run, 0.5, *workers)):
            return looks[0]
    raise AssertionError("nobody is asked")


def beat(run: Run, seconds: float, *workers: str) -> list[ac.Action]:
    """Time goes by, in which these are heard, and the servers; they are where the run is."""
    actions: list[ac.Action] = []
    end_s = run.now_s + seconds
    while run.now_s < end_s:
        run.now_s = min(end_s, run.now_s + 0.5)
        for name in (*workers, *(n for n in run.state.row.names if n in run.state.members)):
            beat = Heartbeat(name=name, tick=run.state.version, generation=run.state.generation)
            actions += run.tell(beat)
        actions += run.tell(ev.ClockEvent())
    return actions


def answered(run: Run, look: ac.LookAction, *hung: str) -> list[ac.Action]:
    """Each link answers, and all main threads but some; what comes of it."""
    actions: list[ac.Action] = []
    for name in look.names:
        actions += run.tell(
            Stacks(name=name, number=look.number, doing="does something", where="line 7", stack="the stack")
        )
        if name not in hung:
            actions += run.tell(Here(name=name, number=look.number))
    return actions + beat(run, 11.0, *(name for name in look.names if name.startswith("worker")))


def made(run: Run, version: int) -> None:
    run.tell(Progress(name=run.state.row.leader, generation=run.state.generation, version=version))


def test_waiting_for_workers_is_no_steps_time() -> None:
    """Servers serve long before the first worker can compute; then it hangs in the second step."""
    run = Run(stall_s=STALL_S, workers="1")
    run.join("server-0")
    run.join("worker-1")
    run.tell(Ready(name="server-0", generation=1))
    made(run, 0)
    run.now_s += 3600.0
    run.ready("worker-1")
    run.now_s += 1.0
    made(run, 1)
    assert still(run, "worker-1").names == ("server-0", "worker-1")


def stalled_again() -> tuple[Run, list[ac.Action]]:
    """At version 3, and its workers have hung again, however often they were replaced."""
    run = running(stall_s=STALL_S)
    made(run, 3)
    actions = answered(run, still(run, "worker-1", "worker-2"), "worker-1", "worker-2")
    for turn in range(MOST_ROUNDS):
        fresh = [f"worker-{2 * turn + 3}", f"worker-{2 * turn + 4}"]
        assert names(ac.StartAction, actions) == fresh
        for name in fresh:
            run.join(name)
            run.tell(Ready(name=name, generation=run.state.generation))
        actions = answered(run, still(run, *fresh), *fresh)
    return run, actions


def test_who_hangs_is_replaced_and_it_is_no_failure() -> None:
    run = running(stall_s=STALL_S)
    look = still(run, "worker-1", "worker-2")
    assert set(look.names) == {"server-0", "worker-1", "worker-2"}
    actions = answered(run, look, "worker-2")
    assert names(ac.KillAction, actions) == ["worker-2"]
    assert names(ac.StartAction, actions) == ["worker-3"]
    text = only(ac.NoteAction, actions)[0].text
    assert text.startswith("no step was made for 60 s: worker-2 does something, and hangs at line 7; "), text
    memory = run.state.memory()
    assert memory.failures == memory.early_deaths == 0


def test_where_nobody_hangs_all_connect_anew() -> None:
    run = running(stall_s=STALL_S, servers=2)
    actions = answered(run, still(run, "worker-1", "worker-2"))
    assert names(ac.HaltAction, actions) == ["server-0", "server-1"] and not only(ac.KillAction, actions)


def test_a_server_that_hangs_is_replaced() -> None:
    run = running(stall_s=STALL_S, servers=2)
    actions = answered(run, still(run, "worker-1", "worker-2"), "server-1")
    assert names(ac.KillAction, actions) == ["server-1"] and names(ac.HaltAction, actions) == ["server-0"]


def test_a_run_that_hangs_again_ends_with_what_it_has() -> None:
    run, actions = stalled_again()
    assert names(ac.HaltAction, actions) == ["server-0"] and run.state.state is RunState.FINISHING
    assert not only(ac.StartAction, actions), "nobody is needed any more"
    generation = run.state.generation + 1
    actions = run.tell(Offer(name="server-0", generation=generation, held=((0, 3),)))
    (assigned,) = only(ac.AssignAction, actions)
    assert assigned.assignment.ends and assigned.assignment.start_tick == 3
    assert run.tell(Ready(name="server-0", generation=generation)) == []
    (commit,) = only(ac.CommitAction, run.written(3, last=True))
    end = run.end(run.tell(ev.CommittedEvent(commit.tick)))
    assert end.state is RunState.STALLED and end.detail == "the stack"
    assert end.text.endswith(": 5 of 8 steps are missing, go on with --resume"), end.text


def test_if_that_cannot_be_written_the_run_ends_all_the_same() -> None:
    run, _ = stalled_again()
    generation = run.state.generation + 1
    run.tell(Offer(name="server-0", generation=generation, held=((0, 3),)))
    run.tell(Ready(name="server-0", generation=generation))
    end = run.end(run.written(3, last=True, error="the disk is full"))
    assert end.state is RunState.STALLED and "the disk is full" in end.text
    run, _ = stalled_again()
    end = run.end(run.pass_time(run.state.config.storage_patience_s + CLOSE_S))
    assert end.state is RunState.STALLED and "no checkpoint of it was made within 360 s" in end.text


def test_the_next_master_ends_the_run_as_well() -> None:
    run, _ = stalled_again()
    memory = msgspec.json.decode(msgspec.json.encode(run.state.memory()), type=Memory)
    run.state = MasterState(run.state.config, memory=memory)
    halted = run.state.adopt({"server-0": 1, "worker-3": 1, "worker-4": 1}, run.now_s)
    assert names(ac.HaltAction, halted) == ["server-0"]
    generation = run.state.generation + 1
    (assigned,) = only(
        ac.AssignAction, run.tell(Offer(name="server-0", generation=generation, held=((0, 3),)))
    )
    assert assigned.assignment.ends


def test_who_has_no_place_yet_is_waited_for() -> None:
    """However long: a cluster may be full."""
    run = Run(stall_s=STALL_S)
    run.join("server-0")
    actions = run.pass_time(50 * STALL_S)
    assert not only(ac.LookAction, actions) and run.state.state is RunState.STARTING


def test_who_loads_is_waited_for_as_long_as_it_does_anything() -> None:
    run = Run(stall_s=STALL_S)
    run.join("server-0")
    for activity in range(20):
        assert not run.tell(Heartbeat(name="worker-1", tick=-1, activity=activity))
        assert not only(ac.LookAction, run.pass_time(STALL_S / 2))
    look = still(run, "worker-1")
    actions = answered(run, look, "worker-1")
    assert names(ac.KillAction, actions) == ["worker-1"], "after that it had done nothing any more"


def test_loading_that_hangs_again_ends_the_run() -> None:
    run = Run(stall_s=STALL_S, workers="1")
    run.join("server-0")
    for turn in range(MOST_ROUNDS + 1):
        worker = f"worker-{turn + 1}"
        run.tell(Heartbeat(name=worker, tick=-1))
        actions = answered(run, still(run, worker), worker)
    end = run.end(actions)
    assert end.state is RunState.STALLED and f"nothing has moved for 60 s: {worker}" in end.text


def test_servers_that_read_for_long_are_waited_for() -> None:
    run = Run(stall_s=STALL_S, restored=(3, 3, ()))
    for name in ("server-0", "worker-1", "worker-2"):
        run.join(name)
    for _ in range(5):
        actions = answered(run, still(run, "worker-1", "worker-2"))
        assert only(ac.NoteAction, actions)[0].kind == "info"
        assert not only(ac.KillAction, actions) and not only(ac.HaltAction, actions)
    run.tell(Ready(name="server-0", generation=1))
    assert run.state.state is RunState.STARTING and not run.state.ended


def test_a_stop_waits_for_a_step_but_not_for_ever() -> None:
    run = running(stall_s=STALL_S)
    made(run, 3)
    run.tell(ev.StopEvent("asked to stop"))
    actions = beat(run, 31.0, "worker-1", "worker-2")
    assert names(ac.HaltAction, actions) == ["server-0"] and not only(ac.LookAction, actions)
    generation = run.state.generation + 1
    run.tell(Offer(name="server-0", generation=generation, held=((0, 3),)))
    run.tell(Ready(name="server-0", generation=generation))
    run.written(3, last=True)
    end = run.end(run.tell(ev.CommittedEvent(3)))
    assert end.state is RunState.STOPPED
    assert end.text == "asked to stop: 5 of 8 steps are missing, go on with --resume"


def test_a_stop_does_not_wait_for_a_place_that_may_never_come() -> None:
    run = running(stall_s=STALL_S)
    made(run, 3)
    run.tell(ev.StopEvent("asked to stop"))
    for name in ("worker-1", "worker-2"):
        run.tell(ev.ExitedEvent(name, False, "its node is drained", taken=True))
    assert not only(ac.HaltAction, run.pass_time(ALONE_S - 1, heard=["server-0"]))
    actions = run.pass_time(2.0, heard=["server-0"])
    assert names(ac.HaltAction, actions) == ["server-0"]
    generation = run.state.generation + 1
    run.tell(Offer(name="server-0", generation=generation, held=((0, 3),)))
    run.tell(Ready(name="server-0", generation=generation))
    run.written(3, last=True)
    end = run.end(run.tell(ev.CommittedEvent(3)))
    assert end.text == "asked to stop: 5 of 8 steps are missing, go on with --resume"


def test_a_step_as_long_as_others_is_waited_for() -> None:
    """Of the first one it is only known how long the first slice took."""
    run = Run(stall_s=STALL_S)
    run.join("server-0")
    run.tell(Join(name="worker-1", role="worker", host="h", pid=1, spec=SPEC, rehearsed_s=1.0))
    run.tell(Ready(name="server-0", generation=1))
    run.tell(Ready(name="worker-1", generation=1))
    assert not only(ac.LookAction, run.pass_time(20 * 8 * 1.0 - 1, heard=["worker-1"]))
    assert only(ac.LookAction, run.pass_time(3.0, heard=["worker-1"]))


def test_time_in_which_everything_slept_does_not_count() -> None:
    run = running(stall_s=STALL_S)
    run.pass_time(STALL_S - 1, heard=("worker-1", "worker-2"))
    run.now_s += 9 * STALL_S
    run.tell(ev.OversleptEvent(9 * STALL_S))
    assert not only(ac.LookAction, run.tell(ev.ClockEvent()))
    assert run.state_of("worker-1") is MemberState.READY
    assert only(ac.LookAction, run.pass_time(2.0, heard=("worker-1", "worker-2")))


def test_a_worker_that_stays_behind_is_replaced() -> None:
    run = running(stall_s=STALL_S, epochs=20)
    actions: list[ac.Action] = []
    for version in range(1, 81):  # the other one does all slices
        run.now_s += 1.0
        made(run, version)
        for name, tick in (("server-0", version), ("worker-1", version), ("worker-2", 0)):
            actions += run.tell(Heartbeat(name=name, tick=tick, generation=1))
        actions += run.tell(ev.ClockEvent())
    assert [look.names for look in only(ac.LookAction, actions)] == [("worker-2",)]
    assert names(ac.KillAction, actions) == ["worker-2"]
