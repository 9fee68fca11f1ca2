"""The master's decisions, case by case: what is heard, and what must follow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

from elasticflow.api import SGD
from elasticflow.checkpoint import Part
from elasticflow.config import Config
from elasticflow.layout import Entry, Rule
from elasticflow.master import state as ms
from elasticflow.master.state import MemberState, RunState
from elasticflow.messages import (
    Excluded,
    Failed,
    Faulty,
    Heartbeat,
    Join,
    Leaving,
    Lost,
    Progress,
    Ready,
    Spec,
    Written,
)

A = TypeVar("A")
SPEC = Spec(
    framework="torch",
    entries=(Entry("w", (40,), "float32", Rule.UPDATE), Entry("cost", (1,), "float32", Rule.REPORT)),
    optimizer=SGD(lr=1.0),
    metrics=(),
    num_records=64,
    num_test=0,
    data_signature="",
)
"""With the batches below: 8 steps an epoch."""
KILLED = "was killed by SIGKILL"


def only(kind: type[A], actions: Iterable[object]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def names(kind: type, actions: Iterable[Any]) -> list[str]:
    return [action.name for action in only(kind, actions)]


class Run:
    """A MasterState with members that answer, two workers and a server unless told otherwise."""

    def __init__(
        self, *, restored: tuple[int, int, tuple[Excluded, ...]] | None = None, **settings: Any
    ) -> None:
        values = {
            "workers": "2",
            "batch_size": 8,
            "slices": 8,
            "epochs": 1,
            "checkpoint_every": "1h",
            **settings,
        }
        self.state = ms.MasterState(Config(**values), restored=restored)
        self.now_s = 100.0
        self.started = self.state.start(self.now_s)

    def tell(self, event: ms.Event, after_s: float = 0.0) -> list[ms.Action]:
        self.now_s += after_s
        return self.state.handle(event, self.now_s)

    def pass_time(
        self, seconds: float, *, heard: Iterable[str] = (), servers: bool = True
    ) -> list[ms.Action]:
        """Time goes by, in which some workers are heard, and the servers."""
        if servers:
            heard = [*heard, *(f"server-{n}" for n in range(self.state.config.servers))]
        actions: list[ms.Action] = []
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + 0.5)
            for name in heard:
                actions += self.tell(Heartbeat(name=name, tick=0))
            actions += self.tell(ms.TimeEvent())
        return actions

    def join(self, name: str, *, spec: Spec | None = SPEC, **more: Any) -> list[ms.Action]:
        role, _, number = name.partition("-")
        join = Join(
            name=name,
            role=role,
            host="h",
            pid=1,
            endpoint=number,
            spec=spec if role == "worker" else None,
            **more,
        )
        return self.tell(join)

    def ready(self, *members: str) -> list[ms.Action]:
        """They join, and are ready."""
        actions: list[ms.Action] = []
        for name in members:
            actions += self.join(name) + self.tell(Ready(name=name), after_s=0.01)
        return actions

    def exited(self, name: str, *, killed: bool = True, text: str = KILLED) -> list[ms.Action]:
        return self.tell(ms.ExitedEvent(name, not killed, text))

    def written(
        self, tick: int, server: str = "server-0", *, last: bool = False, error: str = ""
    ) -> list[ms.Action]:
        part = None if error else Part(f"{server}.h5", 1, {})
        return self.tell(Written(name=server, tick=tick, last=last, part=part, error=error))

    def end(self, actions: Iterable[ms.Action]) -> ms.EndAction:
        """The run's end, of which all are told."""
        (end,) = only(ms.EndAction, actions)
        assert self.state.state is end.state and self.state.ended
        assert self.tell(ms.TimeEvent()) == []
        return end

    @property
    def shares(self) -> dict[str, int]:
        """Slices of each worker by the plan."""
        return {share.worker: share.stop - share.first for share in self.state.plan}

    def state_of(self, name: str) -> MemberState:
        return self.state.members[name].state


def running(**settings: Any) -> Run:
    """A run of which all members are ready."""
    run = Run(**settings)
    for number in range(run.state.config.servers):
        run.join(f"server-{number}")
    workers = [f"worker-{number + 1}" for number in range(run.state.config.worker_range[1])]
    run.join(workers[0])
    for number in range(run.state.config.servers):
        run.tell(Ready(name=f"server-{number}"))
    run.tell(Ready(name=workers[0]))
    run.ready(*workers[1:])
    assert run.state.state is RunState.RUNNING
    return run


# --- the start -----------------------------------------------------------------------------------


def test_a_run_begins_with_its_servers_and_workers() -> None:
    run = Run(servers=2)
    assert names(ms.StartAction, run.started) == ["server-0", "server-1", "worker-1", "worker-2"]
    assert run.state.state is RunState.STARTING


def test_servers_are_assigned_once_all_are_there_and_the_program_is_known() -> None:
    run = Run(servers=2)
    assert run.join("server-0") == run.join("worker-1") == []
    assigned = only(ms.AssignAction, run.join("server-1"))
    assert [action.name for action in assigned] == ["server-0", "server-1"]
    assert [server.endpoint for server in assigned[0].assignment.servers] == ["0", "1"]
    assert assigned[0].assignment.schedule.total_steps == 8


def test_workers_are_assigned_once_the_servers_serve() -> None:
    run = Run(servers=2)
    for name in ("server-0", "server-1", "worker-1"):
        run.join(name)
    assert run.tell(Ready(name="server-0")) == []
    assert names(ms.AssignAction, run.tell(Ready(name="server-1"))) == ["worker-1"]
    assert names(ms.AssignAction, run.join("worker-2")) == ["worker-2"]


def test_the_first_worker_that_is_ready_gets_all_slices() -> None:
    run = Run()
    for name in ("server-0", "worker-1"):
        run.join(name)
    run.tell(Ready(name="server-0"))
    (plan,) = only(ms.PlanAction, run.tell(Ready(name="worker-1")))
    assert run.shares == {"worker-1": 8} and plan.servers == ("server-0",)
    (plan,) = only(ms.PlanAction, run.ready("worker-2"))
    assert run.shares == {"worker-1": 4, "worker-2": 4} and plan.number == 2


def test_a_stranger_is_sent_away() -> None:
    run = running()
    assert names(ms.QuitAction, run.join("worker-9")) == ["worker-9"]
    assert names(ms.QuitAction, run.tell(Heartbeat(name="worker-9", tick=0))) == ["worker-9"]
    assert run.exited("worker-9") == run.tell(Leaving(name="worker-9")) == []


def test_another_program_ends_the_run() -> None:
    run = running(workers="3")
    run.exited("worker-3")
    other = Spec(**{name: getattr(SPEC, name) for name in SPEC.__struct_fields__} | {"num_records": 65})
    end = run.end(run.join("worker-4", spec=other))
    assert end.state is RunState.FAILED and "num_records is 65, not 64" in end.text


@pytest.mark.parametrize("setting", ["strict", "warn"])
def test_another_fingerprint(setting: str) -> None:
    run = Run(fingerprint=setting)
    run.join("server-0")
    run.join("worker-1", fingerprint={"torch": "2.1"})
    run.tell(Ready(name="server-0"))
    actions = run.join("worker-2", fingerprint={"torch": "2.2"})
    (note,) = only(ms.NoteAction, actions)
    assert "torch: 2.1 / 2.2" in note.text
    assert names(ms.AssignAction, actions) == ([] if setting == "strict" else ["worker-2"])
    assert names(ms.QuitAction, actions) == (["worker-2"] if setting == "strict" else [])


# --- those who go --------------------------------------------------------------------------------


def test_kills_never_use_up_the_failure_budget() -> None:
    run = running(max_failures=0)
    for number in range(2, 40):
        actions = run.exited(f"worker-{number}")
        assert names(ms.StartAction, actions) == [f"worker-{number + 1}"]
        assert run.shares == {"worker-1": 8}
        run.ready(f"worker-{number + 1}")
    assert run.state.state is RunState.RUNNING


def test_failures_do() -> None:
    run = running(max_failures=1)
    failed = Failed(name="worker-1", kind="MemoryError", text="no memory", traceback="Traceback ...")
    assert names(ms.StartAction, run.tell(failed)) == ["worker-3"]
    assert run.exited("worker-1", killed=False) == [], "it is counted once"
    end = run.end(run.exited("worker-2", killed=False, text="ended with exit code 3"))
    assert end.text == "worker-2 ended with exit code 3 (failure 2, max_failures is 1)"


@pytest.mark.parametrize("connected", [False, True])
def test_processes_that_never_live_end_the_run(connected: bool) -> None:
    """Whether they die while they load, or as soon as they have reached the servers."""
    run = Run(workers="1")
    run.join("server-0")
    run.join("worker-1")
    run.tell(Ready(name="server-0"))
    for number in range(1, ms.MOST_EARLY_DEATHS + 1):
        run.join(f"worker-{number}")
        if connected:
            run.tell(Lost(name="server-0", worker=f"worker-{number}"))
        run.exited(f"worker-{number}")
        assert not run.state.ended
    assert "in a row died before they were ready" in run.end(run.exited(f"worker-{number + 1}")).text


def test_an_error_in_the_program_ends_a_run_that_has_not_begun() -> None:
    run = Run()
    end = run.end(run.tell(Failed(name="worker-1", kind="ProgramError", text="digits.py: no model()")))
    assert (end.state, end.text) == (RunState.FAILED, "digits.py: no model()")


def test_a_lost_connection_is_replaced_before_the_backend_speaks() -> None:
    run = running()
    actions = run.tell(Lost(name="server-0", worker="worker-2"))
    assert names(ms.StartAction, actions) == ["worker-3"] and run.shares == {"worker-1": 8}
    assert names(ms.StartAction, run.exited("worker-2")) == [], "once"


def test_a_lost_worker_that_hangs_is_ended() -> None:
    """Though its heartbeats, from a thread of their own, go on."""
    run = running()
    run.tell(Lost(name="server-0", worker="worker-2"))
    assert names(ms.KillAction, run.pass_time(3.0, heard=["worker-1", "worker-2"])) == ["worker-2"]


def test_a_silent_worker_is_suspected_and_comes_back() -> None:
    run = running()
    run.pass_time(2.5, heard=["worker-1"])
    assert run.state_of("worker-2") is MemberState.SUSPECT and run.shares == {"worker-1": 8}
    run.tell(Heartbeat(name="worker-2", tick=0))
    assert run.state_of("worker-2") is MemberState.READY and run.shares == {"worker-1": 4, "worker-2": 4}


@pytest.mark.parametrize("loading", [False, True])
def test_a_worker_that_stays_silent_is_given_up(loading: bool) -> None:
    run = running(lost_s=20.0)
    if loading:
        run.exited("worker-2")
        run.join("worker-3")
    silent = "worker-3" if loading else "worker-2"
    run.pass_time(19.0, heard=["worker-1"])
    actions = run.pass_time(1.5, heard=["worker-1"])
    assert names(ms.KillAction, actions) == [silent]
    assert len(names(ms.StartAction, actions)) == 1


def test_a_hung_server_ends_the_run() -> None:
    run = running(lost_s=20.0)
    workers = ["worker-1", "worker-2"]
    assert only(ms.EndAction, run.pass_time(19.0, heard=workers, servers=False)) == []
    end = run.end(run.pass_time(2.0, heard=workers, servers=False))
    assert end.state is ms.RunState.FAILED
    assert "server-0 was silent for 20 s" in end.text and "--resume" in end.text


def test_the_timer_says_when_a_decision_is_due() -> None:
    """Neither too early, which would spin, nor too late."""
    run = running(suspect_s=0.3, heartbeat_s=0.1)
    for name, heard_s in [("worker-1", 100.0), ("worker-2", 100.01)]:
        due_s = run.state.next_time_s()
        assert due_s == pytest.approx(heard_s + 0.3)
        assert run.state_of(name) is MemberState.READY
        run.tell(ms.TimeEvent(), after_s=due_s - run.now_s)
        assert run.state_of(name) is MemberState.SUSPECT


def test_a_servers_death_ends_the_run_and_names_where_to_go_on() -> None:
    for commits, named in [((), "nothing is committed yet"), ((3,), "step 3")]:
        run = running()
        for tick in commits:
            run.tell(ms.CommittedEvent(tick, last=False))
        end = run.end(run.exited("server-0"))
        assert end.state is RunState.FAILED and "--resume" in end.text and named in end.text


# --- more and fewer ------------------------------------------------------------------------------


def test_scale_up() -> None:
    run = running()
    actions = run.tell(ms.ScaleEvent(4))
    assert names(ms.StartAction, actions) == ["worker-3", "worker-4"]
    run.ready("worker-3", "worker-4")
    assert run.shares == {f"worker-{number}": 2 for number in range(1, 5)}
    assert run.tell(ms.ScaleEvent(4)) == []


def test_scale_down_drains_the_newest() -> None:
    run = running(workers="3")
    actions = run.tell(ms.ScaleEvent(2))
    assert names(ms.DrainAction, actions) == ["worker-3"] and run.shares == {"worker-1": 4, "worker-2": 4}
    assert run.tell(Lost(name="server-0", worker="worker-3")) == run.tell(Leaving(name="worker-3")) == []
    assert names(ms.StartAction, run.exited("worker-3", killed=False)) == []
    assert "worker-3" not in run.state.members


def test_scale_down_ends_first_who_is_of_least_use() -> None:
    run = running(workers="2")
    run.tell(ms.ScaleEvent(4))
    run.join("worker-3")
    actions = run.tell(ms.ScaleEvent(1))
    assert names(ms.KillAction, actions) == ["worker-4"], "it has not begun"
    assert names(ms.QuitAction, actions) == ["worker-3"], "it loads, and does not listen for Drain"
    assert names(ms.DrainAction, actions) == ["worker-2"]
    assert run.shares == {"worker-1": 8}


def test_a_drained_worker_that_dies_is_not_replaced() -> None:
    run = running()
    run.tell(ms.ScaleEvent(1))
    assert only(ms.StartAction, run.exited("worker-2")) == []


# --- records on which the program raises ---------------------------------------------------------


def faulty(name: str, *rows: int, tick: int = 0) -> Faulty:
    return Faulty(name=name, tick=tick, slice=3, rows=rows, text="ValueError: row", traceback="Traceback ...")


def test_a_record_is_left_out_only_when_it_fails_everywhere() -> None:
    run = running(workers="3", max_quarantined=1)
    (attempt,) = run.tell(faulty("worker-1", 17))
    assert attempt == ms.AttemptAction(("worker-2", "worker-3"), 0, 3)
    assert run.tell(faulty("worker-2", 17)) == []
    (quarantine,) = only(ms.QuarantineAction, run.tell(faulty("worker-3", 17)))
    assert quarantine.excluded == (Excluded(17, 0),) and len(quarantine.names) == 3


def test_who_can_compute_the_slice_keeps_the_record() -> None:
    run = running()
    run.tell(faulty("worker-1", 17))
    run.tell(Progress(name="server-0", version=1))
    assert only(ms.QuarantineAction, run.exited("worker-2")) == [], "worker-2 has done it meanwhile"
    assert run.state.excluded == ()


@pytest.mark.parametrize("goes", ["is killed", "is silent", "is drained"])
def test_whoever_goes_is_not_waited_for(goes: str) -> None:
    run = running(max_quarantined=1)
    if goes == "is drained":
        run.tell(ms.ScaleEvent(1))
    run.tell(faulty("worker-1", 17))
    if goes == "is killed":
        actions = run.exited("worker-2")
    elif goes == "is silent":
        actions = run.pass_time(3.0, heard=["worker-1"])
    else:
        actions = run.exited("worker-2", killed=False)
    assert [action.excluded for action in only(ms.QuarantineAction, actions)] == [(Excluded(17, 0),)]


def test_whoever_comes_tries_too() -> None:
    run = running(max_quarantined=1)
    run.exited("worker-2")
    run.tell(ms.ScaleEvent(3))
    run.ready("worker-3")
    run.tell(faulty("worker-1", 17))
    assert only(ms.AttemptAction, run.ready("worker-4")) == [ms.AttemptAction(("worker-4",), 0, 3)]
    run.pass_time(3.0, heard=["worker-1", "worker-4"])
    run.tell(faulty("worker-4", 17))
    assert run.state.excluded == (Excluded(17, 0),), "worker-3 is silent"


def test_the_only_worker_is_heard_again() -> None:
    run = running(workers="1", max_quarantined=1)
    run.pass_time(3.0)
    assert run.tell(faulty("worker-1", 17)) == [], "nobody is there to decide by"
    assert only(ms.QuarantineAction, run.tell(Heartbeat(name="worker-1", tick=0)))


def test_who_has_not_heard_of_the_quarantine_starts_no_new_case() -> None:
    run = running(max_quarantined=1)
    run.pass_time(3.0, heard=["worker-1"])
    run.tell(faulty("worker-1", 17))
    run.tell(Heartbeat(name="worker-2", tick=0))
    assert run.tell(faulty("worker-2", 17)) == []
    assert run.exited("worker-1") and not run.state.ended


def test_one_record_too_many_ends_the_run() -> None:
    run = running(workers="1", max_quarantined=1)
    run.tell(faulty("worker-1", 17))
    end = run.end(run.tell(faulty("worker-1", 18, tick=5)))
    assert end.state is RunState.FAILED and end.detail == "Traceback ..."
    assert "raises on row 18" in end.text and "max_quarantined is 1" in end.text


def test_a_slice_without_a_guilty_record_ends_the_run() -> None:
    run = running(workers="1", max_quarantined=9)
    end = run.end(run.tell(faulty("worker-1")))
    assert "though on none of its records alone" in end.text


def test_old_news_of_a_fault_is_ignored() -> None:
    run = running(workers="1")
    run.tell(Progress(name="server-0", version=5))
    assert run.tell(faulty("worker-1", 17, tick=4)) == []


# --- checkpoints and the end ---------------------------------------------------------------------


def test_a_checkpoint_is_committed_once_all_parts_are_there() -> None:
    run = running(servers=2)
    assert run.written(3, "server-1") == []
    (commit,) = run.written(3, "server-0")
    assert isinstance(commit, ms.CommitAction)
    assert (commit.tick, [part.file for part in commit.parts]) == (3, ["server-0.h5", "server-1.h5"])
    assert run.tell(ms.CommittedEvent(3, last=False)) == [ms.SettledAction("server-0", 3)]
    assert run.state.committed_tick == 3


def test_a_checkpoint_that_fails_is_noted_and_the_run_goes_on() -> None:
    run = running(servers=2)
    note, settled = run.written(3, "server-1", error="the disk is full")
    assert isinstance(note, ms.NoteAction) and "the disk is full" in note.text
    assert settled == ms.SettledAction("server-0", 3)
    assert run.written(3, "server-0") == [], "the other part is of no use"
    run.written(5, "server-0")
    run.written(5, "server-1")
    assert only(ms.SettledAction, run.tell(ms.CommittedEvent(5, last=False, error="no space")))
    assert run.state.committed_tick is None and run.state.state is RunState.RUNNING


def test_the_final_checkpoint_must_not_fail() -> None:
    for at in ("part", "commit"):
        run = running()
        run.tell(Progress(name="server-0", version=8, last=True))
        if at == "part":
            end = run.end(run.written(8, last=True, error="the disk is full"))
        else:
            run.written(8, last=True)
            end = run.end(run.tell(ms.CommittedEvent(8, last=True, error="the disk is full")))
        assert end.state is RunState.FAILED
        assert "final checkpoint is missing" in end.text and "the disk is full" in end.text


def test_checkpoints_by_the_clock() -> None:
    run = running(checkpoint_every="10s")
    everybody = ["worker-1", "worker-2"]
    assert only(ms.CutAction, run.pass_time(9.5, heard=everybody)) == []
    assert only(ms.CutAction, run.pass_time(1.0, heard=everybody)) == [ms.CutAction("server-0", finish=False)]
    assert len(only(ms.CutAction, run.pass_time(20.0, heard=everybody))) == 2


def test_the_end() -> None:
    run = running()
    run.tell(Progress(name="server-0", version=8, last=True))
    assert run.state.state is RunState.FINISHING
    for name in ("worker-1", "worker-2"):
        assert only(ms.StartAction, run.tell(Lost(name="server-0", worker=name))) == []
        assert run.tell(Leaving(name=name)) == []
        assert only(ms.StartAction, run.exited(name, killed=False)) == [], "who leaves now is not replaced"
    run.written(8, last=True)
    end = run.end(run.tell(ms.CommittedEvent(8, last=True)))
    assert (end.state, end.text) == (RunState.FINISHED, "all 8 steps are done")


def test_a_worker_killed_at_the_very_end_is_replaced() -> None:
    """The leader has the last version, but another server may lack a slice of it."""
    run = running(workers="1", servers=2)
    run.tell(Progress(name="server-0", version=8, last=True))
    run.tell(Lost(name="server-0", worker="worker-1"))
    assert names(ms.StartAction, run.exited("worker-1")) == ["worker-2"]


def test_a_stop_ends_with_a_checkpoint() -> None:
    run = running()
    assert ms.CutAction("server-0", finish=True) in run.tell(ms.StopEvent("preempted"))
    assert run.tell(ms.StopEvent("again")) == []
    run.tell(Progress(name="server-0", version=3, last=True))
    run.written(3, last=True)
    end = run.end(run.tell(ms.CommittedEvent(3, last=True)))
    assert end.state is RunState.STOPPED
    assert end.text == "preempted: 5 of 8 steps are missing, go on with --resume"


def test_a_stop_before_the_first_step() -> None:
    run = Run()
    assert run.end(run.tell(ms.StopEvent("asked to stop"))).state is RunState.STOPPED


def test_a_run_that_goes_on() -> None:
    run = Run(restored=(3, 3, (Excluded(17, 2),)))
    run.join("worker-1")
    assigned = only(ms.AssignAction, run.join("server-0"))[0].assignment
    assert (assigned.start_tick, assigned.restore_step, assigned.excluded) == (3, 3, (Excluded(17, 2),))


def test_a_run_that_was_done_already() -> None:
    run = Run(restored=(8, 8, ()))
    assert run.end(run.join("worker-1")).state is RunState.FINISHED


def test_all_members_are_told_of_the_end() -> None:
    run = running(servers=2)
    actions = run.exited("server-1")
    assert names(ms.QuitAction, actions) == ["worker-1", "worker-2", "server-0", "server-1"]
