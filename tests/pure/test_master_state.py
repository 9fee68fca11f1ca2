"""The master's decisions, case by case: what is heard, and what must follow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
import pytest

from elasticflow.api import SGD
from elasticflow.checkpoint import Part
from elasticflow.embedding import Embedding
from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master.deciding.departures import MOST_ANEW
from elasticflow.master.deciding.generations import HOMELESS_S
from elasticflow.master.deciding.takeover import Memory
from elasticflow.master.failures import MOST_EARLY, MOST_GONE, MOST_IN_VAIN
from elasticflow.master.members import MemberState, RunState
from elasticflow.master.quarantine import limit_of
from elasticflow.master.state import MasterState
from elasticflow.process.gpu_state import GpuState
from elasticflow.run.config import Config
from elasticflow.run.telling import TAKEN_OVER
from elasticflow.step.layout import Entry, Rule
from elasticflow.training.advice import Advice, go_on, stop
from elasticflow.training.standing import Watch, WatchRules, WatchStanding
from elasticflow.wire.messages import (
    Assignment,
    Diverged,
    Excluded,
    Failed,
    Faulty,
    Heartbeat,
    Join,
    Leaving,
    Lost,
    Offer,
    Paused,
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
        self,
        *,
        restored: tuple[int, int, tuple[Excluded, ...]] | None = None,
        made_with: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        values = {
            "workers": "2",
            "batch_size": 8,
            "slices": 8,
            "epochs": 1,
            "checkpoint_every": "1h",
            "snapshot_s": 0,
            **settings,
        }
        self.state = MasterState(Config(**values), restored=restored, made_with=made_with)
        self.now_s = 100.0
        self.started = self.state.start(self.now_s)

    def tell(self, event: ev.Event, after_s: float = 0.0) -> list[ac.Action]:
        self.now_s += after_s
        return self.state.handle(event, self.now_s)

    def pass_time(
        self, seconds: float, *, heard: Iterable[str] = (), servers: bool = True
    ) -> list[ac.Action]:
        """Time goes by, in which some workers are heard, and the servers."""
        if servers:
            heard = [*heard, *(f"server-{n}" for n in range(self.state.config.servers))]
        actions: list[ac.Action] = []
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + 0.5)
            for name in heard:
                actions += self.tell(Heartbeat(name=name, tick=0, generation=self.state.generation))
            actions += self.tell(ev.ClockEvent())
        return actions

    def join(self, name: str, *, spec: Spec | None = SPEC, **more: Any) -> list[ac.Action]:
        role, _, number = name.partition("-")
        join = Join(
            name=name,
            role=role,
            pid=1,
            endpoint=number,
            spec=spec if role == "worker" else None,
            **{"host": "h", **more},
        )
        return self.tell(join)

    def ready(self, *members: str) -> list[ac.Action]:
        """They join, and are ready."""
        actions: list[ac.Action] = []
        for name in members:
            actions += self.join(name) + self.tell(Ready(name=name, generation=1), after_s=0.01)
        return actions

    def exited(self, name: str, *, killed: bool = True, text: str = KILLED) -> list[ac.Action]:
        return self.tell(ev.ExitedEvent(name, not killed, text))

    def written(
        self, tick: int, server: str = "server-0", *, last: bool = False, error: str = ""
    ) -> list[ac.Action]:
        part = None if error else Part(f"{server}.h5", 1, {})
        return self.tell(
            Written(
                name=server, generation=self.state.generation, tick=tick, last=last, part=part, error=error
            )
        )

    def end(self, actions: Iterable[ac.Action]) -> ac.EndAction:
        """The run's end, of which all are told."""
        (end,) = only(ac.EndAction, actions)
        assert self.state.state is end.state and self.state.ended
        assert self.tell(ev.ClockEvent()) == []
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
        run.tell(Ready(name=f"server-{number}", generation=1))
    run.tell(Ready(name=workers[0], generation=1))
    run.ready(*workers[1:])
    assert run.state.state is RunState.RUNNING
    return run


# --- the start -----------------------------------------------------------------------------------


def test_a_run_begins_with_its_servers_and_workers() -> None:
    run = Run(servers=2)
    assert names(ac.StartAction, run.started) == ["server-0", "server-1", "worker-1", "worker-2"]
    assert run.state.state is RunState.STARTING


def test_servers_are_assigned_once_all_are_there_and_the_program_is_known() -> None:
    run = Run(servers=2)
    assert run.join("server-0") == run.join("worker-1") == []
    assigned = only(ac.AssignAction, run.join("server-1"))
    assert [action.name for action in assigned] == ["server-0", "server-1"]
    assert [server.endpoint for server in assigned[0].assignment.servers] == ["0", "1"]
    assert assigned[0].assignment.schedule.total_steps == 8


def test_workers_are_assigned_once_the_servers_serve() -> None:
    run = Run(servers=2)
    for name in ("server-0", "server-1", "worker-1"):
        run.join(name)
    assert run.tell(Ready(name="server-0", generation=1)) == []
    assert names(ac.AssignAction, run.tell(Ready(name="server-1", generation=1))) == ["worker-1"]
    assert names(ac.AssignAction, run.join("worker-2")) == ["worker-2"]


def test_the_first_worker_that_is_ready_gets_all_slices() -> None:
    run = Run()
    for name in ("server-0", "worker-1"):
        run.join(name)
    run.tell(Ready(name="server-0", generation=1))
    (plan,) = only(ac.PlanAction, run.tell(Ready(name="worker-1", generation=1)))
    assert run.shares == {"worker-1": 8} and plan.servers == ("server-0",)
    (plan,) = only(ac.PlanAction, run.ready("worker-2"))
    assert run.shares == {"worker-1": 4, "worker-2": 4} and plan.number == 2


def test_a_stranger_is_sent_away() -> None:
    run = running()
    assert names(ac.QuitAction, run.join("worker-9")) == ["worker-9"]
    assert names(ac.QuitAction, run.tell(Heartbeat(name="worker-9", tick=0))) == ["worker-9"]
    assert run.exited("worker-9") == run.tell(Leaving(name="worker-9")) == []


def test_of_a_gpu_what_goes_wrong_is_an_event_and_heat_is_none() -> None:
    """It may be slowed, and not, every few seconds."""
    run = running()

    def notes(**told: str) -> list[tuple[str, str]]:
        gpu = GpuState(name="H100", **told)  # type: ignore[arg-type]
        found = only(ac.NoteAction, run.tell(Heartbeat(name="worker-1", tick=0, gpu=gpu)))
        return [(note.kind, note.text.partition(": ")[2]) for note in found]

    assert [notes(slowed=slowed) for slowed in ("", "by heat", "", "by heat")] == [[]] * 4
    assert notes(trouble="Xid 79", slowed="by heat") == [("warning", "Xid 79")]
    assert notes(trouble="Xid 79") == []
    assert notes() == [("info", "well again")]


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
    run.tell(Ready(name="server-0", generation=1))
    actions = run.join("worker-2", fingerprint={"torch": "2.2"})
    (note,) = only(ac.FaultAction if setting == "strict" else ac.NoteAction, actions)
    assert "torch: 2.1 / 2.2" in note.text
    assert names(ac.AssignAction, actions) == ([] if setting == "strict" else ["worker-2"])
    assert names(ac.QuitAction, actions) == (["worker-2"] if setting == "strict" else [])


@pytest.mark.parametrize("setting", ["strict", "warn"])
def test_what_the_first_slice_gives_is_compared_within_a_run(setting: str) -> None:
    """Of a checkpoint of which no ElasticFlow tells it is not known what was hashed."""
    made_with = {"torch": "2.1", "first slice": "a1"}
    run = Run(fingerprint=setting, restored=(3, 3, ()), made_with=made_with)
    run.join("server-0")
    assert not only(ac.FaultAction, run.join("worker-1", fingerprint={"torch": "2.1", "first slice": "b2"}))
    run.tell(Ready(name="server-0", generation=1))
    actions = run.join("worker-2", fingerprint={"torch": "2.1", "first slice": "c3"})
    (note,) = only(ac.FaultAction if setting == "strict" else ac.NoteAction, actions)
    assert "of the first slice it gets c3, not b2" in note.text
    assert names(ac.AssignAction, actions) == ([] if setting == "strict" else ["worker-2"])


@pytest.mark.parametrize("setting", ["strict", "warn"])
def test_what_the_first_slice_gives_is_compared_when_a_run_goes_on(setting: str) -> None:
    """Data in memory, and what draws from a generator without a seed, are watched by nothing else."""
    made_with = {"elasticflow": "0.1.0 (1)", "first slice": "a1"}
    run = Run(fingerprint=setting, restored=(3, 3, ()), made_with=made_with)
    run.join("server-0")
    actions = run.join("worker-1", fingerprint={**made_with, "first slice": "b2"})
    (note,) = only(ac.FaultAction if setting == "strict" else ac.NoteAction, actions)
    assert "those who made the checkpoint: of the first slice it gets b2, not a1" in note.text
    assert names(ac.QuitAction, actions) == (["worker-1"] if setting == "strict" else [])
    if setting == "strict":
        assert not only(ac.AssignAction, actions)
        actions = run.join("worker-2", fingerprint=made_with)
    assert names(ac.AssignAction, actions) == ["server-0"]


@pytest.mark.parametrize("setting", ["strict", "warn"])
def test_records_in_memory_are_compared_where_the_first_slice_gives_the_same(setting: str) -> None:
    """A later one may have changed. Of a checkpoint that tells of none nothing is known."""
    alike = {"elasticflow": "0.1.0 (1)", "first slice": "a1"}
    run = Run(fingerprint=setting, restored=(3, 3, ()), made_with={**alike, "records in memory": "r1"})
    run.join("server-0")
    actions = run.join("worker-1", fingerprint={**alike, "records in memory": "r2"})
    (note,) = only(ac.FaultAction if setting == "strict" else ac.NoteAction, actions)
    assert (
        "than those who made the checkpoint: what data() keeps in memory has the hash r2, not r1" in note.text
    )

    run = Run(fingerprint=setting, restored=(3, 3, ()), made_with=alike)
    run.join("server-0")
    first = run.join("worker-1", fingerprint={**alike, "records in memory": "r1"})
    assert not only(ac.FaultAction, first)
    run.tell(Ready(name="server-0", generation=1))
    actions = run.join("worker-2", fingerprint={**alike, "records in memory": "r2"})
    (note,) = only(ac.FaultAction if setting == "strict" else ac.NoteAction, actions)
    told = "would train on other records than the first worker"
    if setting == "strict":
        assert note.name == "worker-2" and note.text.startswith(told), "the name stands before it"
    else:
        assert f"worker-2 {told}" in note.text
    assert names(ac.AssignAction, actions) == ([] if setting == "strict" else ["worker-2"])


@pytest.mark.parametrize("setting", ["strict", "warn"])
def test_a_checkpoint_of_another_fingerprint(setting: str) -> None:
    """Who would go on from it with other bits is refused, before anything is learnt from it."""
    run = Run(
        fingerprint=setting, restored=(3, 3, ()), made_with={"torch": "2.1", "elasticflow": "0.1.0 (1)"}
    )
    run.join("server-0")
    actions = run.join("worker-1", fingerprint={"torch": "2.2", "elasticflow": "0.1.0 (1)"})
    (note,) = only(ac.FaultAction if setting == "strict" else ac.NoteAction, actions)
    assert "than those who made the checkpoint (torch: 2.1 / 2.2)" in note.text
    assert names(ac.QuitAction, actions) == (["worker-1"] if setting == "strict" else [])
    if setting == "strict":
        assert not only(ac.AssignAction, actions)
        actions = run.join("worker-2", fingerprint={"torch": "2.1", "elasticflow": "0.1.0 (1)"})
    assert names(ac.AssignAction, actions) == ["server-0"]


def test_a_checkpoint_of_another_elasticflow_is_gone_on_from() -> None:
    """It keeps the bits; within one run it does not, as nobody knows which code has which."""
    run = Run(restored=(3, 3, ()), made_with={"elasticflow": "0.1.0 (1)"})
    run.join("server-0")
    (note,) = only(ac.NoteAction, run.join("worker-1", fingerprint={"elasticflow": "0.2.0 (2)"}))
    assert note.text == "the checkpoint was made by another ElasticFlow: 0.1.0 (1), now 0.2.0 (2)"
    (fault,) = only(ac.FaultAction, run.join("worker-2", fingerprint={"elasticflow": "0.2.0 (3)"}))
    assert "than the first member (elasticflow: 0.2.0 (2) / 0.2.0 (3))" in fault.text


def test_a_server_of_another_elasticflow_is_refused() -> None:
    """As when an environment that all share was upgraded, and then one is replaced."""
    run = Run(max_failures=3)
    run.join("server-0", fingerprint={"elasticflow": "0.1.0 (1)"})
    run.join("worker-1", fingerprint={"elasticflow": "0.1.0 (1)", "torch": "2.1"})
    run.tell(Ready(name="server-0", generation=1))
    assert names(ac.StartAction, run.exited("server-0")) == ["server-1"]
    actions = run.join("server-1", fingerprint={"elasticflow": "0.2.0 (2)"})
    assert names(ac.QuitAction, actions) == ["server-1"] and names(ac.StartAction, actions) == ["server-2"]
    (fault,) = only(ac.FaultAction, actions)
    assert "than the first member (elasticflow: 0.1.0 (1) / 0.2.0 (2))" in fault.text
    assert fault.text.startswith("would compute"), "the name stands before it"
    assert names(ac.AssignAction, run.join("server-2", fingerprint={"elasticflow": "0.1.0 (1)"}))


# --- those who go --------------------------------------------------------------------------------


def test_kills_never_use_up_the_failure_budget() -> None:
    run = running(max_failures=0)
    for number in range(2, 40):
        actions = run.exited(f"worker-{number}")
        assert names(ac.StartAction, actions) == [f"worker-{number + 1}"]
        assert run.shares == {"worker-1": 8}
        run.ready(f"worker-{number + 1}")
    assert run.state.state is RunState.RUNNING


def test_failures_do() -> None:
    run = running(max_failures=1)
    failed = Failed(name="worker-1", kind="MemoryError", text="no memory", traceback="Traceback ...")
    assert names(ac.StartAction, run.tell(failed)) == ["worker-3"]
    assert run.exited("worker-1", killed=False) == [], "it is counted once"
    end = run.end(run.exited("worker-2", killed=False, text="ended with exit code 3"))
    assert end.text == "worker-2 ended with exit code 3 (failure 2, max_failures is 1)"


def test_a_server_that_is_lost_before_all_are_in_order_has_nothing_to_go_back_to() -> None:
    run = Run(workers="1")
    assert [fault.early for fault in only(ac.FaultAction, run.exited("server-0"))] == [True]
    run = running()
    assert [fault.early for fault in only(ac.FaultAction, run.exited("server-0"))] == [False]


def growing(**settings: Any) -> Run:
    """A run of which one worker is ready, and no other has come yet."""
    run = Run(**settings)
    run.join("server-0")
    run.join("worker-1")
    run.tell(Ready(name="server-0", generation=1))
    run.tell(Ready(name="worker-1", generation=1))
    assert run.state.state is RunState.RUNNING
    return run


def test_all_who_fail_at_once_on_a_node_that_lacks_something_are_one_failure() -> None:
    """It has room for four, and no data: they end no run that goes well elsewhere, before it is left out."""
    run = growing(workers="8", max_failures=1)

    def fail_on(host: str, *numbers: int) -> list[ac.Action]:
        actions: list[ac.Action] = []
        for number in numbers:
            run.join(f"worker-{number}", host=host)
            failed = Failed(name=f"worker-{number}", kind="ProgramError", text="data() raised", traceback="")
            actions += run.tell(failed, after_s=1.0)
        return actions

    assert len(only(ac.FaultAction, fail_on("bad", 3, 4, 5, 6))) == 4
    end = run.end(fail_on("other", 7))
    assert end.text == "worker-7 failed: data() raised (failure 2, max_failures is 1)"


def test_servers_that_fail_all_count() -> None:
    """Where they are is no worker, as on YARN: one that fails as it begins would be begun for minutes."""
    run = growing(workers="8", max_failures=1)
    run.exited("server-0")
    for number in (1, 2):
        run.join(f"server-{number}", host="servers")
        actions = run.exited(f"server-{number}", killed=False, text="ended with exit code 1")
    assert run.end(actions).text == "server-2 ended with exit code 1 (failure 2, max_failures is 1)"


def test_failures_where_others_work_all_count() -> None:
    run = growing(workers="8", max_failures=1)
    for number in (3, 4):
        run.join(f"worker-{number}")
        failed = Failed(name=f"worker-{number}", kind="ProgramError", text="data() raised", traceback="")
        actions = run.tell(failed, after_s=1.0)
    assert run.end(actions).text.endswith("(failure 2, max_failures is 1)")


@pytest.mark.parametrize("connected", [False, True])
def test_processes_that_never_live_end_the_run(connected: bool) -> None:
    """Whether they die while they load, or as soon as they have reached the servers."""
    run = Run(workers="1")
    run.join("server-0")
    run.join("worker-1")
    run.tell(Ready(name="server-0", generation=1))
    for number in range(1, MOST_EARLY + 1):
        run.join(f"worker-{number}")
        if connected:
            run.tell(Lost(name="server-0", member=f"worker-{number}"))
        run.exited(f"worker-{number}")
        assert not run.state.ended
    assert "in a row died before they were ready" in run.end(run.exited(f"worker-{number + 1}")).text


def test_an_error_in_the_program_ends_a_run_that_has_not_begun() -> None:
    run = Run()
    end = run.end(run.tell(Failed(name="worker-1", kind="ProgramError", text="digits.py: no model()")))
    assert (end.state, end.text) == (RunState.FAILED, "digits.py: no model()")


def test_a_lost_connection_is_replaced_before_the_backend_speaks() -> None:
    run = running()
    actions = run.tell(Lost(name="server-0", member="worker-2"))
    assert names(ac.StartAction, actions) == ["worker-3"] and run.shares == {"worker-1": 8}
    assert names(ac.StartAction, run.exited("worker-2")) == [], "once"


def test_a_lost_worker_that_hangs_is_ended() -> None:
    """Though its heartbeats, from a thread of their own, go on."""
    run = running()
    run.tell(Lost(name="server-0", member="worker-2"))
    assert names(ac.KillAction, run.pass_time(3.0, heard=["worker-1", "worker-2"])) == ["worker-2"]


def test_a_worker_that_is_back_before_its_loss_is_told_stays() -> None:
    """It was told of the servers again by a server's heartbeat, and only then the leader's word came."""
    run = running()
    run.tell(Lost(name="server-0", member="worker-2"))
    run.tell(Ready(name="worker-2", generation=1), after_s=0.5)
    assert run.state_of("worker-2") is MemberState.SUSPECT
    run.tell(Heartbeat(name="worker-2", tick=0, generation=1), after_s=0.1)
    assert run.state_of("worker-2") is MemberState.READY and "worker-2" in run.shares
    run.tell(Lost(name="server-0", member="worker-2"))
    run.tell(Heartbeat(name="worker-2", tick=1, generation=1), after_s=0.2)
    assert run.state_of("worker-2") is MemberState.LOST, "that may be of before"
    run.tell(Heartbeat(name="worker-2", tick=2, generation=1), after_s=0.2)
    assert run.state_of("worker-2") is MemberState.READY, "it goes on, so it is back"


def test_a_connection_that_closes_again_and_again_ends_the_run() -> None:
    """As behind a firewall that cuts what is long: all live, and nobody comes any further."""
    run = Run(workers="1")
    run.join("server-0")
    run.join("worker-1")
    run.tell(Ready(name="server-0", generation=1))
    begun, ends, worker = ["worker-1"], list[ac.EndAction](), "worker-1"
    while not ends:
        actions = run.tell(Lost(name="server-0", member=worker))
        actions += run.tell(Lost(name=worker, member="server-0"), after_s=0.01)
        for name in ("server-0", worker):
            actions += run.tell(Heartbeat(name=name, tick=0, generation=1), after_s=0.1)
        begun += names(ac.StartAction, actions)
        ends += only(ac.EndAction, actions)
        assert len(run.state.of("worker")) <= 2 and len(begun) <= 2 * MOST_EARLY + 2
        if worker not in run.state.members:
            worker = begun[-1]
            run.join(worker)
    assert f"lost its connection to server-0, which lives, {MOST_ANEW + 1} times" in ends[0].text


def test_who_was_ready_and_cannot_reach_a_server_is_replaced() -> None:
    run = running(workers="1")
    begun = list[str]()
    run.tell(Heartbeat(name="worker-1", tick=0, generation=1))
    for _ in range(MOST_ANEW + 1):
        run.tell(Lost(name="worker-1", member="server-0"))
        actions = run.tell(Lost(name="server-0", member="worker-1"), after_s=0.01)
        for name in ("server-0", "worker-1"):
            actions += run.tell(Heartbeat(name=name, tick=0, generation=1), after_s=0.1)
        begun += names(ac.StartAction, actions)
    assert names(ac.KillAction, actions) == ["worker-1"] and begun == ["worker-2"]


def test_whoever_comes_further_may_connect_as_often_as_it_has_to() -> None:
    run = running(workers="1")
    for number in range(3 * MOST_ANEW):
        run.tell(Lost(name="worker-1", member="server-0"))
        actions = run.tell(Heartbeat(name="server-0", tick=number, generation=1), after_s=0.1)
        assert names(ac.AssignAction, actions) == ["worker-1"]
        run.tell(Heartbeat(name="worker-1", tick=number + 1, generation=1), after_s=0.1)


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
    assert names(ac.KillAction, actions) == [silent]
    assert len(names(ac.StartAction, actions)) == 1


def test_the_timer_says_when_a_decision_is_due() -> None:
    """Neither too early, which would spin, nor too late."""
    run = running(suspect_s=0.3, heartbeat_s=0.1)
    for name, heard_s in [("worker-1", 100.0), ("worker-2", 100.01)]:
        due_s = run.state.next_time_s()
        assert due_s == pytest.approx(heard_s + 0.3)
        assert run.state_of(name) is MemberState.READY
        run.tell(ev.ClockEvent(), after_s=due_s - run.now_s)
        assert run.state_of(name) is MemberState.SUSPECT


# --- more and fewer ------------------------------------------------------------------------------


def test_scale_up() -> None:
    run = running()
    actions = run.tell(ev.ScaleEvent(4))
    assert names(ac.StartAction, actions) == ["worker-3", "worker-4"]
    run.ready("worker-3", "worker-4")
    assert run.shares == {f"worker-{number}": 2 for number in range(1, 5)}
    assert run.tell(ev.ScaleEvent(4)) == []


def test_a_grant_is_remembered_by_the_next_master() -> None:
    run = running()
    run.tell(ev.ScaleEvent(4, "granted: no deadline needs them", 7))
    memory = run.state.memory()
    assert (memory.target, memory.reason, memory.grant) == (4, "granted: no deadline needs them", 7)
    assert run.tell(ev.ScaleEvent(1, "granted: others need them", 7)) == [], "of an older service"
    assert (run.state.target, run.state.memory().grant) == (4, 7)
    assert run.tell(ev.ScaleEvent(1, "granted: others need them", 8))
    assert (run.state.target, run.state.memory().grant) == (1, 8)


def test_scale_down_drains_the_newest() -> None:
    run = running(workers="3")
    actions = run.tell(ev.ScaleEvent(2))
    assert names(ac.DrainAction, actions) == ["worker-3"] and run.shares == {"worker-1": 4, "worker-2": 4}
    assert run.tell(Lost(name="server-0", member="worker-3")) == run.tell(Leaving(name="worker-3")) == []
    assert names(ac.StartAction, run.exited("worker-3", killed=False)) == []
    assert "worker-3" not in run.state.members


def test_scale_down_ends_first_who_is_of_least_use() -> None:
    run = running(workers="2")
    run.tell(ev.ScaleEvent(4))
    run.join("worker-3")
    actions = run.tell(ev.ScaleEvent(1))
    assert names(ac.KillAction, actions) == ["worker-4"], "it has not begun"
    assert names(ac.QuitAction, actions) == ["worker-3"], "it loads, and does not listen for Drain"
    assert names(ac.DrainAction, actions) == ["worker-2"]
    assert run.shares == {"worker-1": 8}


def test_a_drained_worker_that_dies_is_not_replaced() -> None:
    run = running()
    run.tell(ev.ScaleEvent(1))
    assert only(ac.StartAction, run.exited("worker-2")) == []


def test_that_nobody_tells_of_the_end_of_one_that_left_is_no_fault() -> None:
    """As while a cluster's controller is away; its place is given back in any case."""
    run = running(lost_s=5.0)
    run.tell(ev.ScaleEvent(1))
    run.tell(Leaving(name="worker-2"))
    actions = run.pass_time(6, heard=["worker-1"])
    assert names(ac.KillAction, actions) == ["worker-2"] and "worker-2" not in run.state.members
    assert not only(ac.FaultAction, actions) and not only(ac.StartAction, actions)
    assert [note.text for note in only(ac.NoteAction, actions)] == ["worker-2 has left"]


# --- records on which the program raises ---------------------------------------------------------


def faulty(name: str, *rows: int, tick: int = 0) -> Faulty:
    return Faulty(name=name, tick=tick, slice=3, rows=rows, text="ValueError: row", traceback="Traceback ...")


def test_a_record_is_left_out_only_when_it_fails_everywhere() -> None:
    run = running(workers="3", max_quarantined=1)
    (attempt,) = run.tell(faulty("worker-1", 17))
    assert attempt == ac.AttemptAction(("worker-2", "worker-3"), 0, 3)
    assert run.tell(faulty("worker-2", 17)) == []
    (quarantine,) = only(ac.QuarantineAction, run.tell(faulty("worker-3", 17)))
    assert quarantine.excluded == (Excluded(17, 0),) and len(quarantine.names) == 3


def test_who_can_compute_the_slice_keeps_the_record() -> None:
    run = running()
    run.tell(faulty("worker-1", 17))
    run.tell(Progress(name="server-0", generation=1, version=1))
    assert only(ac.QuarantineAction, run.exited("worker-2")) == [], "worker-2 has done it meanwhile"
    assert run.state.excluded == ()


@pytest.mark.parametrize("goes", ["is killed", "is silent", "is drained"])
def test_whoever_goes_is_not_waited_for(goes: str) -> None:
    run = running(max_quarantined=1)
    if goes == "is drained":
        run.tell(ev.ScaleEvent(1))
    run.tell(faulty("worker-1", 17))
    if goes == "is killed":
        actions = run.exited("worker-2")
    elif goes == "is silent":
        actions = run.pass_time(3.0, heard=["worker-1"])
    else:
        actions = run.exited("worker-2", killed=False)
    assert [action.excluded for action in only(ac.QuarantineAction, actions)] == [(Excluded(17, 0),)]


def test_whoever_comes_tries_too() -> None:
    run = running(max_quarantined=1)
    run.exited("worker-2")
    run.tell(ev.ScaleEvent(3))
    run.ready("worker-3")
    run.tell(faulty("worker-1", 17))
    assert only(ac.AttemptAction, run.ready("worker-4")) == [ac.AttemptAction(("worker-4",), 0, 3)]
    run.pass_time(3.0, heard=["worker-1", "worker-4"])
    run.tell(faulty("worker-4", 17))
    assert run.state.excluded == (Excluded(17, 0),), "worker-3 is silent"


def test_the_only_worker_is_heard_again() -> None:
    run = running(workers="1", max_quarantined=1)
    run.pass_time(3.0)
    assert run.tell(faulty("worker-1", 17)) == [], "nobody is there to decide by"
    assert only(ac.QuarantineAction, run.tell(Heartbeat(name="worker-1", tick=0)))


def test_who_has_not_heard_of_the_quarantine_starts_no_new_case() -> None:
    run = running(max_quarantined=1)
    run.pass_time(3.0, heard=["worker-1"])
    run.tell(faulty("worker-1", 17))
    run.tell(Heartbeat(name="worker-2", tick=0))
    told = ac.QuarantineAction(("worker-2",), (Excluded(17, 0),))
    assert run.tell(faulty("worker-2", 17)) == [told]
    assert run.exited("worker-1") and not run.state.ended


def test_one_record_too_many_ends_the_run() -> None:
    run = running(workers="1", max_quarantined=1)
    run.tell(faulty("worker-1", 17))
    end = run.end(run.tell(faulty("worker-1", 18, tick=5)))
    assert end.state is RunState.FAILED and end.detail == "Traceback ..."
    assert "raises on row 18" in end.text and "max_quarantined is 1" in end.text


def deadly(name: str, *rows: int, tick: int = 0, **more: Any) -> Faulty:
    text = "a process that computed it was killed by SIGSEGV"
    return Faulty(name=name, tick=tick, slice=3, rows=rows, text=text, traceback="", dies=True, **more)


def test_a_deadly_record_is_tried_with_care_by_the_others_and_by_whoever_comes() -> None:
    run = running(workers="3", max_quarantined=1)
    run.exited("worker-3")
    (attempt,) = run.tell(deadly("worker-1", 17))
    assert attempt == ac.AttemptAction(("worker-2",), 0, 3, careful=True)
    (late,) = only(ac.AttemptAction, run.ready("worker-4"))
    assert late == ac.AttemptAction(("worker-4",), 0, 3, careful=True)
    assert run.tell(deadly("worker-2", 17)) == []
    assert only(ac.QuarantineAction, run.tell(deadly("worker-4", 17)))
    assert run.state.excluded == (Excluded(17, 0),)


def test_a_deadly_record_too_many_ends_the_run_by_its_name() -> None:
    run = running(workers="1")
    end = run.end(run.tell(deadly("worker-1", 17)))
    said = "does not come back from row 17 of the training data: a process that computed it was killed"
    assert end.state is RunState.FAILED and said in end.text and "max_quarantined is 0" in end.text


def test_a_deadly_record_of_the_test_data_ends_the_run() -> None:
    """Though there is a record of training of the same number that is left out already."""
    run = running(workers="1", max_quarantined=1)
    run.tell(faulty("worker-1", 5))
    end = run.end(run.tell(deadly("worker-1", test_rows=(5, 6), tick=4)))
    assert "does not come back from row 5, 6 of the test data" in end.text


def test_a_deadly_slice_without_a_deadly_record_ends_the_run() -> None:
    run = running(workers="1", max_quarantined=1)
    end = run.end(run.tell(deadly("worker-1")))
    assert "does not come back from a slice of tick 0, though from each of its records alone" in end.text


def test_workers_that_a_record_has_ended_are_no_failures_once_that_is_known() -> None:
    """Neither those that have said a word are forgiven, nor those that ended before there was a step."""
    run = running(workers="1", max_quarantined=1, max_failures=3)
    assert not run.state.ended
    run.exited("worker-1", killed=False)
    run.ready("worker-2")
    run.tell(Progress(name="server-0", generation=1, version=1))
    for number in (2, 3):
        run.exited(f"worker-{number}", killed=False)
        run.ready(f"worker-{number + 1}")
    assert run.state.memory().failures == 3
    run.tell(deadly("worker-4", 17, tick=1))
    assert run.state.memory().failures == 1


def test_a_step_that_ends_one_worker_after_another_ends_the_run() -> None:
    run = running(workers="1")
    for number in range(1, MOST_GONE + 1):
        run.exited(f"worker-{number}")
        run.ready(f"worker-{number + 1}")
        assert not run.state.ended
    end = run.end(run.exited(f"worker-{number + 1}"))
    assert "workers ended while step 1 was made; the last was killed by SIGKILL" in end.text


@pytest.mark.parametrize("takes_workers_along", [False, True])
def test_servers_that_end_as_soon_as_they_have_begun_end_the_run(takes_workers_along: bool) -> None:
    """None of them died before it was ready; and of the workers none was ready, or none ends."""
    run = running(workers="1")
    workers, servers, ended = 1, 0, 0
    while not run.state.ended and ended <= MOST_IN_VAIN:
        run.exited(f"server-{servers}", text="was killed by SIGABRT")
        ended, servers = ended + 1, servers + 1
        if takes_workers_along and not run.state.ended:
            run.exited(f"worker-{workers}", text="was killed by SIGABRT")
            ended, workers = ended + 1, workers + 1
            run.join(f"worker-{workers}")
        run.join(f"server-{servers}")
        run.tell(Ready(name=f"server-{servers}", generation=run.state.generation))
    assert run.state.state is RunState.FAILED and ended == MOST_IN_VAIN + 1
    told = run.state.memory().end_text
    assert told.startswith(f"{ended} processes ended, and no step was made meanwhile; the last, "), told


def test_all_of_a_large_run_may_be_lost_at_once() -> None:
    """As with a switch of a cluster. They are more than may go one after the other."""
    many = 256
    assert many > 2 * MOST_GONE
    run = running(workers=str(many), slices=many, batch_size=many)
    for number in range(2, many + 1):
        run.exited(f"worker-{number}")
    assert not run.state.ended
    for _ in range(MOST_ANEW + 1):  # nor does one more that is given up, though it lives
        run.tell(Lost(name="worker-1", member="server-0"), after_s=0.01)
        run.tell(Heartbeat(name="server-0", tick=0, generation=1), after_s=0.1)
    assert "worker-1" not in run.state.members and not run.state.ended


def test_workers_that_go_while_steps_are_made_end_nothing() -> None:
    run = running(workers="1")
    for number in range(1, 2 * MOST_GONE):
        run.exited(f"worker-{number}")
        run.ready(f"worker-{number + 1}")
        if number % MOST_GONE == 0:
            run.tell(Progress(name="server-0", generation=1, version=1))
    assert not run.state.ended


def test_workers_that_fall_silent_before_they_are_ready_end_the_run() -> None:
    run = Run(workers="1")
    run.join("server-0")
    for number in range(1, MOST_EARLY + 2):
        assert not run.state.ended
        run.join(f"worker-{number}")
        run.tell(Ready(name="server-0", generation=1))
        actions = run.pass_time(61.0, heard=["server-0"])
    assert "in a row died before they were ready" in run.end(actions).text


def test_who_was_asked_to_try_a_record_before_it_had_the_version_is_asked_again() -> None:
    """Servers have begun anew, and a worker that was ready before waits for theirs: it can try nothing."""
    run = running(servers=2, max_quarantined=1)
    lose(run, "server-1", "server-2")
    for name in ("server-0", "server-2"):
        offer(run, name)
    for name in ("server-0", "server-2", "worker-1"):
        run.tell(Ready(name=name, generation=2))
    (asked,) = only(ac.AttemptAction, run.tell(faulty("worker-1", 17)))
    assert asked.names == ("worker-2",) and not run.state.excluded
    (again,) = only(ac.AttemptAction, run.tell(Ready(name="worker-2", generation=2)))
    assert again == asked
    run.tell(faulty("worker-2", 17))
    assert run.state.excluded == (Excluded(17, 0),)
    assert not only(ac.AttemptAction, run.tell(Ready(name="worker-2", generation=2)))


def test_who_was_asked_to_try_a_record_a_version_too_early_is_asked_again() -> None:
    """Its connection lags: the next version came to it after the question."""
    run = running(max_quarantined=1)
    run.tell(Progress(name="server-0", generation=1, version=1))
    beat = Heartbeat(name="worker-2", tick=0, generation=1)
    run.tell(beat)
    (asked,) = only(ac.AttemptAction, run.tell(faulty("worker-1", 17, tick=1)))
    assert not only(ac.AttemptAction, run.tell(beat))
    beat = msgspec.structs.replace(beat, tick=1)
    assert only(ac.AttemptAction, run.tell(beat)) == [asked] and asked.names == ("worker-2",)
    assert not only(ac.AttemptAction, run.tell(beat)), "once"


def test_more_than_one_percent_are_hardly_to_blame() -> None:
    """Of the 64 records that there are one may be left out, of fewer too, unless it is forced."""
    run = running(workers="1", max_quarantined=5)
    run.tell(faulty("worker-1", 17))
    assert run.state.excluded == (Excluded(17, 0),)
    end = run.end(run.tell(faulty("worker-1", 18, tick=5)))
    for said in ("raises on row 18", "max_quarantined is 5", "1 % of", "not to blame", "force_quarantine"):
        assert said in end.text
    forced = running(workers="1", max_quarantined=5, force_quarantine=True)
    for row in range(5):
        forced.tell(faulty("worker-1", row, tick=row))
    assert len(forced.state.excluded) == 5 and not forced.state.ended
    assert "max_quarantined is 5)" in forced.end(forced.tell(faulty("worker-1", 9, tick=5))).text


@pytest.mark.parametrize("num_records, most", [(1, 1), (99, 1), (100, 1), (199, 1), (200, 2), (100_000, 20)])
def test_one_percent_one_at_least_and_never_more_than_is_allowed(num_records: int, most: int) -> None:
    assert limit_of(Config(max_quarantined=20), num_records).most == most
    assert limit_of(Config(max_quarantined=20, force_quarantine=True), num_records).most == 20
    assert limit_of(Config(), num_records).most == 0


def test_what_no_other_worker_would_be_spared_ends_the_run_at_once() -> None:
    run = running(max_failures=3)
    failed = Failed(name="worker-1", kind="OutsideError", text="ImportError: no ujson", traceback="T")
    assert not run.state.ended and not only(ac.EndAction, run.tell(failed))
    failed = Failed(name="worker-2", kind="OutsideError", text="ImportError: no ujson", for_all=True)
    end = run.end(run.tell(failed))
    assert end.state is RunState.FAILED and end.text == "ImportError: no ujson"


def test_a_slice_without_a_guilty_record_ends_the_run() -> None:
    run = running(workers="1", max_quarantined=9)
    end = run.end(run.tell(faulty("worker-1")))
    assert "though on none of its records alone" in end.text


def test_old_news_of_a_fault_is_ignored() -> None:
    run = running(workers="1")
    run.tell(Progress(name="server-0", generation=1, version=5))
    assert run.tell(faulty("worker-1", 17, tick=4)) == []


# --- speeds --------------------------------------------------------------------------------------


def hear(run: Run, seconds: float, **slice_s: float) -> list[ac.PlanAction]:
    """So long these workers tell how long their slices take, and the servers live; the plans that come."""
    actions: list[ac.Action] = []
    for _ in range(round(seconds / 0.5)):
        run.now_s += 0.5
        for name in (f"server-{number}" for number in range(run.state.config.servers)):
            actions += run.tell(Heartbeat(name=name, tick=0, generation=1))
        for number, each in slice_s.items():
            name = number.replace("worker", "worker-")
            actions += run.tell(Heartbeat(name=name, tick=0, generation=1, slice_s=each))
        actions += run.tell(ev.ClockEvent())
    return only(ac.PlanAction, actions)


def test_slices_follow_the_speeds_of_those_who_stay() -> None:
    run = running()
    assert run.shares == {"worker-1": 4, "worker-2": 4}
    assert hear(run, 10.0, worker1=0.1, worker2=0.11) == []
    assert len(hear(run, 10.0, worker1=0.1, worker2=0.3)) == 1
    assert run.shares == {"worker-1": 6, "worker-2": 2}
    assert hear(run, 10.0, worker1=0.1, worker2=0.3) == []
    assert len(hear(run, 10.0, worker1=0.1, worker2=0.1)) == 1
    assert run.shares == {"worker-1": 4, "worker-2": 4}


def test_a_moment_of_slowness_moves_nothing() -> None:
    run = running()
    for _ in range(5):
        assert hear(run, 2.0, worker1=0.1, worker2=0.9) == []
        assert hear(run, 1.0, worker1=0.1, worker2=0.1) == []


def test_who_is_too_slow_for_any_slice_tries_again() -> None:
    run = running()
    hear(run, 5.0, worker1=0.1, worker2=100.0)
    assert run.shares == {"worker-1": 8}
    plans = hear(run, 60.0, worker1=0.1, worker2=100.0)
    assert [len(plan.shares) for plan in plans] == [2, 1], "tried once, and it still was"
    hear(run, 40.0, worker1=0.1, worker2=0.1)
    assert run.shares == {"worker-1": 4, "worker-2": 4}


# --- checkpoints and the end ---------------------------------------------------------------------


def test_a_checkpoint_is_committed_once_all_parts_are_there() -> None:
    run = running(servers=2)
    assert run.written(3, "server-1") == []
    (commit,) = run.written(3, "server-0")
    assert isinstance(commit, ac.CommitAction)
    assert (commit.tick, [part.file for part in commit.parts]) == (3, ["server-0.h5", "server-1.h5"])
    assert run.tell(ev.CommittedEvent(3)) == [
        ac.PruneAction(3),
        ac.SettledAction(("server-0", "server-1"), 3),
    ]
    assert run.state.committed_tick == 3


def test_nothing_is_pruned_while_servers_restore_an_older_checkpoint() -> None:
    run = running(servers=2)
    run.written(3, "server-0"), run.written(3, "server-1")
    run.tell(ev.CommittedEvent(3))
    run.written(5, "server-0"), run.written(5, "server-1")
    lose(run, "server-1", "server-2")
    assert assigned(offer(run, "server-0", (0, 6))).start_tick == 3, "that 5 is committed was not heard"
    assert not only(ac.PruneAction, run.tell(ev.CommittedEvent(5)))
    run.tell(Ready(name="server-0", generation=2))
    run.tell(Ready(name="server-2", generation=2))
    run.written(7, "server-0"), run.written(7, "server-2")
    assert only(ac.PruneAction, run.tell(ev.CommittedEvent(7))) == [ac.PruneAction(7)]


def test_a_checkpoint_that_fails_is_noted_and_the_run_goes_on() -> None:
    run = running(servers=2)
    note, settled = run.written(3, "server-1", error="the disk is full")
    assert isinstance(note, ac.NoteAction) and "the disk is full" in note.text
    assert settled == ac.SettledAction(("server-0", "server-1"), 3)
    assert run.written(3, "server-0") == [], "the other part is of no use"
    run.written(5, "server-0")
    run.written(5, "server-1")
    assert only(ac.SettledAction, run.tell(ev.CommittedEvent(5, error="no space")))
    assert run.state.committed_tick is None and run.state.state is RunState.RUNNING


def test_the_final_checkpoint_must_not_fail() -> None:
    for at in ("part", "commit"):
        run = running()
        run.tell(Progress(name="server-0", generation=1, version=8, last=True))
        if at == "part":
            end = run.end(run.written(8, last=True, error="the disk is full"))
        else:
            run.written(8, last=True)
            end = run.end(run.tell(ev.CommittedEvent(8, error="the disk is full")))
        assert end.state is RunState.STOPPED, "it goes on from the last one that there is"
        assert "final checkpoint is missing" in end.text and "the disk is full" in end.text
        assert end.text.endswith("8 of 8 steps are missing, go on with --resume")


@pytest.mark.parametrize("last", [False, True])
def test_a_run_whose_checkpoints_another_has_ends_and_is_not_to_be_resumed(last: bool) -> None:
    run = running()
    if last:
        run.tell(Progress(name="server-0", generation=1, version=8, last=True))
    run.written(8 if last else 3, last=last)
    story = f"s3://bucket/runs/a: /b/a (begun on h) {TAKEN_OVER}"
    end = run.end(run.tell(ev.CommittedEvent(8 if last else 3, error=f"RemovedError: {story}")))
    assert (end.state, end.text) == (RunState.FAILED, story)


def test_checkpoints_by_the_clock() -> None:
    run = running(checkpoint_every="10s")
    everybody = ["worker-1", "worker-2"]
    assert only(ac.CutAction, run.pass_time(9.5, heard=everybody)) == []
    assert only(ac.CutAction, run.pass_time(1.0, heard=everybody)) == [ac.CutAction("server-0", finish=False)]
    assert len(only(ac.CutAction, run.pass_time(20.0, heard=everybody))) == 2


def test_the_end() -> None:
    run = running()
    run.tell(Progress(name="server-0", generation=1, version=8, last=True))
    assert run.state.state is RunState.FINISHING
    for name in ("worker-1", "worker-2"):
        assert only(ac.StartAction, run.tell(Lost(name="server-0", member=name))) == []
        assert run.tell(Leaving(name=name)) == []
        assert only(ac.StartAction, run.exited(name, killed=False)) == [], "who leaves now is not replaced"
    run.written(8, last=True)
    end = run.end(run.tell(ev.CommittedEvent(8)))
    assert (end.state, end.text) == (RunState.FINISHED, "all 8 steps are done")


def test_a_worker_killed_at_the_very_end_is_replaced() -> None:
    """The leader has the last version, but another server may lack a slice of it."""
    run = running(workers="1", servers=2)
    run.tell(Progress(name="server-0", generation=1, version=8, last=True))
    run.tell(Lost(name="server-0", member="worker-1"))
    assert names(ac.StartAction, run.exited("worker-1")) == ["worker-2"]


def test_a_stop_ends_with_a_checkpoint() -> None:
    run = running()
    assert ac.CutAction("server-0", finish=True) in run.tell(ev.StopEvent("preempted"))
    assert run.tell(ev.StopEvent("again")) == []
    run.tell(Progress(name="server-0", generation=1, version=3, last=True))
    run.written(3, last=True)
    end = run.end(run.tell(ev.CommittedEvent(3)))
    assert end.state is RunState.STOPPED
    assert end.text == "preempted: 5 of 8 steps are missing, go on with --resume"


def limited(run: Run, stop_at_s: float, **limits: str) -> Run:
    """The same run, with a time limit, of another master."""
    config = msgspec.structs.replace(run.state.config, **(limits or {"time_limit": "8h"}))
    data = msgspec.json.encode(run.state.memory())
    after = Run.__new__(Run)
    after.state = MasterState(
        config, memory=msgspec.json.decode(data, type=Memory), stop_at_s=run.now_s + stop_at_s
    )
    after.now_s = run.now_s
    after.state.adopt(dict.fromkeys(run.state.members, 1), run.now_s)
    return after


def test_a_time_limit_ends_with_a_checkpoint() -> None:
    run = limited(running(), 60.0)
    beats = ("worker-1", "worker-2")
    early = run.pass_time(59.5, heard=beats)
    assert run.state.next_time_s() == run.now_s + 0.5
    assert not any(cut.finish for cut in only(ac.CutAction, early))
    assert run.state.state is RunState.RUNNING
    assert ac.CutAction("server-0", finish=True) in run.pass_time(0.5, heard=beats)
    assert run.state.state is RunState.FINISHING
    assert only(ac.CutAction, run.pass_time(1.0, heard=beats)) == [], "once"
    run.tell(Progress(name="server-0", generation=1, version=3, last=True))
    run.written(3, last=True)
    end = run.end(run.tell(ev.CommittedEvent(3)))
    assert end.state is RunState.STOPPED
    assert end.text == "its time limit of 8h is over: 5 of 8 steps are missing, go on with --resume"


def test_max_time_is_an_end_as_it_was_asked_for() -> None:
    """Also by the word of the next master. The last step depends on the time, and can be gone on from."""
    run = limited(running(), 60.0, time_limit="9h", max_time="8h")
    run.pass_time(59.5, heard=("worker-1", "worker-2"))
    run.tell(Progress(name="server-0", generation=1, version=2))
    assert ac.CutAction("server-0", finish=True) in run.pass_time(0.5, heard=("worker-1", "worker-2"))
    run = limited(run, 60.0, time_limit="9h", max_time="8h")
    run.tell(Progress(name="server-0", generation=1, version=3, last=True))
    run.written(3, last=True)
    end = run.end(run.tell(ev.CommittedEvent(3)))
    assert (end.state, end.text) == (RunState.FINISHED, "max_time of 8h is over: 3 of 8 steps are done")


def test_a_time_limit_wakes_a_master_that_hears_nobody() -> None:
    run = Run(time_limit="1m")
    run.state = MasterState(run.state.config, stop_at_s=160.0)
    run.state.start(100.0)
    assert run.state.next_time_s() == 160.0, "nobody has a place yet"
    run.now_s = 160.0
    end = run.end(run.tell(ev.ClockEvent()))
    assert (end.state, end.text) == (RunState.STOPPED, "its time limit of 1m is over, before the first step")


def test_a_time_limit_is_over_while_servers_regroup() -> None:
    run = limited(running(servers=2), 1.0)
    run.exited("server-1")
    assert run.state.regrouping
    assert only(ac.CutAction, run.pass_time(1.5, heard=("server-0",), servers=False)) == []
    assert run.state.stop_reason and run.state.next_time_s() != run.now_s


def test_a_stop_before_the_first_step() -> None:
    run = Run()
    assert run.end(run.tell(ev.StopEvent("asked to stop"))).state is RunState.STOPPED


def test_a_run_that_goes_on() -> None:
    run = Run(restored=(3, 3, (Excluded(17, 2),)))
    run.join("worker-1")
    assigned = only(ac.AssignAction, run.join("server-0"))[0].assignment
    assert (assigned.start_tick, assigned.restore_step, assigned.excluded) == (3, 3, (Excluded(17, 2),))


def test_a_run_that_was_done_already() -> None:
    run = Run(restored=(8, 8, ()))
    assert run.end(run.join("worker-1")).state is RunState.FINISHED


def test_all_members_are_told_of_the_end() -> None:
    run = running(servers=2, max_failures=0)
    actions = run.exited("server-1", killed=False)
    assert names(ac.QuitAction, actions) == ["worker-1", "worker-2", "server-0", "server-1"]


# --- a server is lost ------------------------------------------------------------------------------


def offer(run: Run, name: str, *held: tuple[int, int]) -> list[ac.Action]:
    return run.tell(Offer(name=name, generation=run.state.generation + 1, held=held))


def lose(run: Run, name: str, new: str) -> list[ac.Action]:
    """A server is killed, and the one in its place joins."""
    return run.exited(name) + run.join(new)


def assigned(actions: Iterable[ac.Action]) -> Assignment:
    """What all servers are told, the same."""
    assignment, *others = [action.assignment for action in only(ac.AssignAction, actions)]
    assert all(other == assignment for other in others)
    return assignment


def test_a_lost_server_is_replaced_and_the_others_halt() -> None:
    run = running(servers=3)
    actions = run.exited("server-1")
    assert names(ac.StartAction, actions) == ["server-3"]
    assert only(ac.HaltAction, actions) == [ac.HaltAction("server-0", 2), ac.HaltAction("server-2", 2)]
    assert run.state.regrouping and run.state_of("server-0") is MemberState.HALTED
    assert only(ac.StartAction, run.exited("server-1")) == [], "once"


def test_they_go_on_from_the_newest_version_they_have_in_common() -> None:
    run = running(servers=3)
    run.tell(Progress(name="server-0", generation=1, version=7))
    lose(run, "server-1", "server-3")
    assert offer(run, "server-0", (0, 7), (0, 5), (0, 3), (2, 5), (2, 3)) == []
    actions = offer(run, "server-2", (2, 6), (2, 5), (1, 5), (1, 3))
    assignment = assigned(actions)
    assert (assignment.generation, assignment.start_tick, assignment.in_memory) == (2, 5, True)
    assert [(s.name, s.holder) for s in assignment.servers] == [
        ("server-0", ""), ("server-3", "server-2"), ("server-2", "")
    ]  # fmt: skip
    assert ac.RegroupedAction(7, 5, "memory") in actions and run.state.version == 5


def test_workers_are_told_once_all_servers_serve_again_and_the_plan_stays() -> None:
    run = running(servers=2)
    lose(run, "server-1", "server-2")
    offer(run, "server-0", (0, 4), (1, 4))
    run.tell(Ready(name="server-0", generation=2))
    assert run.tell(Ready(name="server-2", generation=1)) == [], "that was the generation before"
    actions = run.tell(Ready(name="server-2", generation=2))
    assert names(ac.AssignAction, actions) == ["worker-1", "worker-2"]
    assert only(ac.PlanAction, actions), "which is numbered anew; see FollowEvent"


@pytest.mark.parametrize(("epochs", "advice"), [(1, go_on()), (1, stop("enough")), (2, stop("enough"))])
def test_servers_that_learn_later_that_they_began_with_the_last_version_begin_anew(
    epochs: int, advice: Advice
) -> None:
    """``on_epoch`` is asked once more about the version that they have gone on from. What it says only the
    leading server hears, and only others had known that it is the last one, or nobody: it was not written."""
    spec = msgspec.structs.replace(SPEC, num_test=4, rules=WatchRules(consults="its hash"))
    asked = WatchStanding(rules=spec.rules).after(8, 8, {"cost": 1.0})
    run = Run(servers=2, epochs=epochs)
    for name in ("server-0", "server-1", "worker-1", "worker-2"):
        run.join(name, spec=spec)
    for name in ("server-0", "server-1", "worker-1", "worker-2"):
        run.tell(Ready(name=name, generation=1))
    assert lose(run, "server-1", "server-2")
    held = Offer(name="server-0", generation=2, held=((0, 9), (1, 9)), standings=(asked,))
    begun = assigned(run.tell(held))
    assert begun.start_tick == 9 and begun.standing == asked and asked.asks
    for name in ("server-0", "server-2", "worker-1", "worker-2"):
        run.tell(Ready(name=name, generation=2))
    told = asked.given(advice)
    last = Progress(name="server-0", generation=2, version=9, last=True, standings=(told,))
    halted = only(ac.HaltAction, run.tell(last))
    assert halted == [ac.HaltAction("server-0", 3), ac.HaltAction("server-2", 3)]
    offer(run, "server-0", (0, 9), (1, 9))
    again = assigned(offer(run, "server-2", (1, 9)))
    assert again.start_tick == 9 and again.standing == told
    for name in ("server-0", "server-2"):
        run.tell(Ready(name=name, generation=3))
    run.tell(msgspec.structs.replace(last, generation=3))
    for name in ("server-0", "server-2"):
        run.written(9, name, last=True)
    assert run.end(run.tell(ev.CommittedEvent(9))).state is RunState.FINISHED


@pytest.mark.parametrize(("committed", "source", "start"), [(None, "beginning", 0), (6, "storage", 6)])
def test_without_a_common_snapshot_storage_is_the_last_resort(
    committed: int | None, source: str, start: int
) -> None:
    run = running(servers=2)
    if committed:
        run.tell(ev.CommittedEvent(committed))
    lose(run, "server-1", "server-2")
    assignment = assigned(actions := offer(run, "server-0", (0, 7), (0, 5)))
    assert (assignment.start_tick, assignment.in_memory, assignment.restore_step) == (start, False, committed)
    assert only(ac.RegroupedAction, actions)[0].source == source


def test_a_commit_beats_an_older_snapshot() -> None:
    run = running(servers=2)
    run.tell(ev.CommittedEvent(6))
    lose(run, "server-1", "server-2")
    assert assigned(offer(run, "server-0", (0, 5), (1, 5))).restore_step == 6


def test_one_server_has_a_standby_that_keeps_its_snapshots() -> None:
    run = Run(snapshot_s=1.0)
    assert names(ac.StartAction, run.started)[:2] == ["server-0", "server-1"]
    for name in ("server-0", "server-1", "worker-1"):
        actions = run.join(name)
    assert [bool(server.chunks) for server in assigned(actions).servers] == [True, False]
    for name in ("server-0", "server-1"):
        run.tell(Ready(name=name, generation=1))
    (plan,) = only(ac.PlanAction, run.tell(Ready(name="worker-1", generation=1)))
    assert plan.servers == ("server-0",), "a standby is not told"
    lose(run, "server-1", "server-2")
    assignment = assigned(offer(run, "server-0", (0, 4), (0, 3)))
    assert assignment.start_tick == 4, "no step is lost with the standby"
    run.tell(Ready(name="server-0", generation=2))
    run.tell(Ready(name="server-2", generation=2))
    lose(run, "server-0", "server-3")
    assignment = assigned(offer(run, "server-2", (0, 3)))
    assert [(s.name, s.holder) for s in assignment.servers] == [("server-3", "server-2"), ("server-2", "")]


def test_a_run_goes_on_without_a_standby_for_which_there_is_no_place() -> None:
    """In a full queue it may wait for hours, or be preempted again and again, and it holds no chunk."""
    run = Run(snapshot_s=1.0)
    run.join("server-0"), run.join("worker-1")
    assert not only(ac.AssignAction, run.pass_time(0.5)), "it may come soon"
    actions = run.pass_time(HOMELESS_S)
    assert [server.name for server in assigned(actions).servers] == ["server-0"]
    assert names(ac.AssignAction, run.tell(Ready(name="server-0", generation=1))) == ["worker-1"]
    run.tell(Ready(name="worker-1", generation=1))
    actions = run.exited("server-1", text="had no place yet, and its request was taken back")
    assert names(ac.StartAction, actions) == ["server-2"]
    assert not only(ac.HaltAction, actions) and not only(ac.FaultAction, actions)
    run.tell(Progress(name="server-0", generation=1, version=4))
    run.tell(ev.PlacedEvent("server-2"))
    assert run.join("server-2") == []
    assert names(ac.PauseAction, run.tell(ev.ClockEvent())) == ["server-0"], "no step is lost by it"
    halted = names(ac.HaltAction, run.tell(Paused(name="server-0", generation=1, version=4)))
    assert halted == ["server-0", "server-2"], "it is taken in"
    offer(run, "server-2")
    actions = offer(run, "server-0", (0, 4))
    assert only(ac.RegroupedAction, actions)[0].why == "a standby has come", "which is no fault"
    assignment = assigned(actions)
    assert [server.name for server in assignment.servers] == ["server-0", "server-2"]
    assert assignment.start_tick == 4 and assignment.in_memory
    run.tell(Ready(name="server-0", generation=2))
    run.tell(Ready(name="server-2", generation=2))
    assert names(ac.HaltAction, run.exited("server-2")) == ["server-0"], "lost again"
    assert offer(run, "server-0", (0, 5)) == []
    actions = run.pass_time(HOMELESS_S)
    assert [server.name for server in assigned(actions).servers] == ["server-0"]
    assert only(ac.RegroupedAction, actions) == [ac.RegroupedAction(4, 5, "memory")]


def test_a_standby_that_has_its_place_is_waited_for() -> None:
    run = Run(snapshot_s=1.0)
    run.join("server-0"), run.join("worker-1")
    run.tell(ev.PlacedEvent("server-1"))
    assert not only(ac.AssignAction, run.pass_time(2 * HOMELESS_S))
    assert [server.name for server in assigned(run.join("server-1")).servers] == ["server-0", "server-1"]


@pytest.mark.parametrize("gone", [(), ("server-1",)], ids=["it waits", "nobody knows of it"])
def test_the_next_master_goes_on_without_a_standby_as_well(gone: tuple[str, ...]) -> None:
    run = Run(snapshot_s=1.0)
    run.join("server-0"), run.join("worker-1")
    run.pass_time(HOMELESS_S)
    run.tell(Ready(name="server-0", generation=1)), run.tell(Ready(name="worker-1", generation=1))
    after, actions = adopted(run, *gone)
    assert not only(ac.HaltAction, actions)
    told = assigned(after.tell(Heartbeat(name="worker-1", tick=0, generation=0)))
    assert [server.name for server in told.servers] == ["server-0"]
    after.tell(ev.PlacedEvent("server-1"))
    after.join("server-1")
    if not gone:
        assert offer(after, "server-1") == [], "it was halted: it might have held something"
    assert names(ac.PauseAction, after.tell(ev.ClockEvent())) == ["server-0"]
    told = after.tell(Paused(name="server-0", generation=1, version=0))
    assert names(ac.HaltAction, told) == ["server-0", "server-1"]


def test_a_standby_that_comes_late_is_not_worth_going_back_for() -> None:
    """Copies of rows there are none."""
    run = Run(snapshot_s=1.0)
    rows = Entry("t", (0, 4), "float32", Rule.ROWS)
    spec = msgspec.structs.replace(SPEC, entries=(rows, *SPEC.entries), tables=(Embedding(9, 4).spec,))
    run.join("server-0"), run.join("worker-1", spec=spec)
    run.pass_time(HOMELESS_S)
    run.tell(Ready(name="server-0", generation=1)), run.tell(Ready(name="worker-1", generation=1))
    run.tell(Progress(name="server-0", generation=1, version=4))
    run.tell(ev.PlacedEvent("server-1")), run.join("server-1")
    actions = run.tell(ev.ClockEvent())
    assert not only(ac.PauseAction, actions) and not only(ac.HaltAction, actions)
    assert names(ac.HaltAction, run.exited("server-0")) == ["server-1"], "from here on it takes part"


@pytest.mark.parametrize("phase", ["gathering", "restoring"])
def test_a_second_one_is_lost_on_the_way(phase: str) -> None:
    run = running(servers=3)
    lose(run, "server-1", "server-3")
    if phase == "restoring":
        offer(run, "server-0", (0, 4), (2, 3))
        offer(run, "server-2", (2, 4), (1, 4))
        assert run.state.generation == 2
    actions = lose(run, "server-2", "server-4")
    again = [ac.HaltAction("server-0", 3), ac.HaltAction("server-3", 3)] if phase == "restoring" else []
    assert only(ac.HaltAction, actions) == again
    if phase == "restoring":
        offer(run, "server-3")
    assignment = assigned(offer(run, "server-0", (0, 4), (2, 3)))
    assert assignment.generation == run.state.generation and assignment.start_tick == 0


def test_a_frozen_server_is_given_up_after_suspect_s() -> None:
    run = running(servers=2)
    everybody = ["worker-1", "worker-2", "server-0"]
    actions = run.pass_time(2.5, heard=everybody, servers=False)
    assert names(ac.KillAction, actions) == ["server-1"] and names(ac.StartAction, actions) == ["server-2"]
    assert names(ac.QuitAction, run.tell(Heartbeat(name="server-1", tick=3, generation=1))) == ["server-1"]


def test_servers_of_a_busy_machine_are_not_given_up_for_ever() -> None:
    """One after the other imports something for 5 s, in which it says nothing, before any step is made."""
    run, given_up = running(servers=1), 0
    while given_up < 5:
        actions = run.pass_time(5.0, heard=["worker-1", "worker-2"], servers=False)
        if not names(ac.KillAction, actions):
            break
        given_up += 1
        (after,) = names(ac.StartAction, actions)
        run.join(after)
        offer(run, after)
        run.tell(Ready(name=after, generation=run.state.generation))
    assert given_up == 2


def test_whoever_has_its_place_must_come_and_whoever_waits_for_one_need_not() -> None:
    """Clusters give places now and then whose processes never begin."""
    run = Run(workers="2", servers=2, start_s=60, lost_s=5)
    run.pass_time(1000.0, servers=False)
    for name in ("server-1", "worker-2"):
        run.tell(ev.PlacedEvent(name))
    run.tell(ev.PlacedEvent("worker-2"), after_s=30.0)  # again, as another poll shows it
    assert run.pass_time(29.0, servers=False) == []
    actions = run.pass_time(1.5, servers=False)
    never_came = {action.name for action in only(ac.KillAction, actions) if action.never_came}
    assert never_came == set(names(ac.KillAction, actions)) == {"server-1", "worker-2"}
    assert sorted(names(ac.StartAction, actions)) == ["server-2", "worker-3"]
    texts = [action.text for action in only(ac.FaultAction, actions)]
    assert texts == ["did not come within 60 s of getting its place, and is given up"] * 2


def test_whoever_has_come_is_not_judged_by_when_it_got_its_place() -> None:
    run = Run(workers="1", start_s=60, lost_s=5)
    run.tell(ev.PlacedEvent("worker-1"))
    run.tell(ev.PlacedEvent("nobody"))
    run.tell(Heartbeat(name="worker-1", tick=-1), after_s=50.0)
    assert run.pass_time(4.0, servers=False) == []
    assert names(ac.KillAction, run.pass_time(2.0, servers=False)) == ["worker-1"]


def test_places_that_give_no_process_are_no_failures_and_a_masters_sleep_is_none_of_their_time() -> None:
    run = Run(workers="1", servers=13, start_s=60)
    for number in range(13):
        run.tell(ev.PlacedEvent(f"server-{number}"))
    run.tell(ev.OversleptEvent(50.0), after_s=50.0)
    assert run.pass_time(59.0, servers=False) == []
    actions = run.pass_time(1.5, servers=False)
    assert len(names(ac.StartAction, actions)) == 13 and run.state.state is RunState.STARTING


def test_another_master_is_told_anew_who_has_its_place() -> None:
    run = Run(workers="1", start_s=60)
    run.tell(ev.PlacedEvent("worker-1"))
    run.state.adopt({"server-0": 0, "worker-1": 0}, run.now_s)
    assert run.pass_time(100.0, servers=False) == []
    run.tell(ev.PlacedEvent("worker-1"))
    assert names(ac.KillAction, run.pass_time(61.0, servers=False)) == ["worker-1"]


def test_a_server_that_a_worker_cannot_reach_has_a_heartbeat_to_show_itself() -> None:
    run = running(servers=2)
    lost = Lost(name="worker-1", member="server-1")
    assert run.tell(lost) == []
    actions = run.tell(Heartbeat(name="server-1", tick=0, generation=1), after_s=0.3)
    assert names(ac.AssignAction, actions) == ["worker-1"], "it may try again"
    run.tell(lost)
    run.tell(ev.ClockEvent(), after_s=0.5)
    assert not run.state.regrouping
    assert names(ac.KillAction, run.tell(ev.ClockEvent(), after_s=0.3)) == ["server-1"]


def test_what_an_older_generation_says_is_ignored() -> None:
    run = running(servers=2)
    run.written(3, "server-0")
    lose(run, "server-1", "server-2")
    offer(run, "server-0", (0, 2), (1, 2))
    run.tell(Ready(name="server-0", generation=2))
    run.tell(Ready(name="server-2", generation=2))
    part = Part("server-1.h5", 1, {})
    for name in ("server-1", "server-2"):
        assert run.tell(Written(name=name, generation=1, tick=3, last=False, part=part)) == []
    run.tell(Progress(name="server-0", generation=1, version=8, last=True))
    assert run.state.version == 2 and run.state.state is RunState.RUNNING
    assert only(ac.CommitAction, run.written(3, "server-0")) == []
    assert only(ac.CommitAction, run.written(3, "server-2")), "both parts are of this generation"


def test_who_has_got_the_last_version_needs_no_successor() -> None:
    """Its word may come before that of the leading server, and its end too."""
    run = running(servers=2, workers="1")
    run.tell(Leaving(name="worker-1", ended=1))
    assert only(ac.StartAction, run.exited("worker-1", killed=False)) == []
    run = running(servers=2, workers="1")
    run.tell(Leaving(name="worker-1"))
    assert names(ac.StartAction, run.exited("worker-1", killed=False)) == ["worker-2"]


def test_the_last_version_of_a_generation_before_is_none_of_this() -> None:
    run = running(servers=2, workers="1..2")
    lose(run, "server-1", "server-2")
    offer(run, "server-0", (0, 4))
    assert run.state.generation == 2
    run.tell(Leaving(name="worker-1", ended=1))
    assert run.state.state is not RunState.FINISHING


@pytest.mark.parametrize("ended", [0, 1])
def test_a_server_lost_at_the_very_end_needs_workers_again(ended: int) -> None:
    run = running(servers=2, workers="1")
    run.tell(Progress(name="server-0", generation=1, version=8, last=True))
    run.tell(Leaving(name="worker-1", ended=ended))
    run.exited("worker-1", killed=False)
    lose(run, "server-1", "server-2")
    actions = offer(run, "server-0", (0, 8), (0, 6), (1, 6))
    assert names(ac.StartAction, actions) == ["worker-2"] and run.state.state is RunState.RUNNING


def test_once_all_parts_are_written_no_server_is_needed() -> None:
    run = running()
    run.tell(Progress(name="server-0", generation=1, version=8, last=True))
    run.written(8, last=True)
    assert only(ac.StartAction, run.exited("server-0")) == []
    assert run.end(run.tell(ev.CommittedEvent(8))).state is RunState.FINISHED


def test_a_stop_is_repeated_to_the_next_leader() -> None:
    run = running(servers=1)
    run.tell(ev.StopEvent("preempted"))
    lose(run, "server-0", "server-1")
    actions = run.tell(Ready(name="server-1", generation=2))
    assert ac.CutAction("server-1", finish=True) in actions


def test_a_master_that_overslept_blames_nobody() -> None:
    run = running(servers=2)
    run.now_s += 60
    run.tell(ev.OversleptEvent(60.0))
    assert run.tell(ev.ClockEvent()) == []


def test_worker_connections_that_close_with_a_server_are_no_deaths() -> None:
    """The leader may tell of them before the server's death is known."""
    run = running(servers=2)
    run.tell(Lost(name="server-0", member="worker-2"))
    lose(run, "server-1", "server-2")
    assert run.state_of("worker-2") is MemberState.SUSPECT
    run.tell(Lost(name="server-0", member="worker-1"))
    assert run.state_of("worker-1") is MemberState.READY


# --- another master --------------------------------------------------------------------------------


def adopted(run: Run, *gone: str, unread: bool = False) -> tuple[Run, list[ac.Action]]:
    """The master dies, and another goes on with what it had written down."""
    data = msgspec.json.encode(run.state.memory())
    after = Run.__new__(Run)
    after.state = MasterState(run.state.config, memory=msgspec.json.decode(data, type=Memory))
    after.now_s = run.now_s + 1
    living = {name: 1 for name in run.state.members if name not in gone}
    return after, after.state.adopt(living, after.now_s, unread=unread)


def test_another_master_adopts_the_living() -> None:
    run, actions = adopted(running(servers=2))
    assert only(ac.StartAction, actions) == only(ac.KillAction, actions) == []
    assert only(ac.PlanAction, actions), "which is numbered anew; see FollowEvent"
    beat = Heartbeat(name="worker-1", tick=5, generation=1)
    assert run.tell(beat) == [], "it knows the servers"
    assert names(ac.AssignAction, run.tell(Heartbeat(name="worker-2", tick=-1))) == ["worker-2"]
    assert run.exited("worker-1") and not run.state.ended


@pytest.mark.parametrize(
    "told",
    [
        Diverged(name="server-0", generation=0, tick=0, parameter="w"),
        Paused(name="server-0", generation=0, version=0),
    ],
    ids=lambda told: type(told).__name__,
)
def test_what_servers_say_to_a_master_that_does_not_know_the_program_is_no_end_of_it(told: Any) -> None:
    """The one before died before it had written down what the first worker had told it of the program."""
    before = Run()
    before.join("server-0")
    run, _ = adopted(before)
    assert run.tell(told) == [] and run.state.row.holders == [] and not run.state.ended


def test_who_was_started_and_not_written_down_is_ended() -> None:
    before = running()
    memory = before.state.memory()
    data = msgspec.json.encode(memory)
    state = MasterState(before.state.config, memory=msgspec.json.decode(data, type=Memory))
    actions = state.adopt({**dict.fromkeys(before.state.members, 1), "worker-7": 1}, 200.0)
    assert names(ac.KillAction, actions) == ["worker-7"]
    assert names(ac.StartAction, state.handle(ev.ExitedEvent("worker-1", False, KILLED), 200.0)) == [
        "worker-8"
    ]


def test_a_server_that_died_with_the_master() -> None:
    run, _ = adopted(running(servers=2), "server-1")
    actions = run.exited("server-1")
    assert only(ac.HaltAction, actions) == [ac.HaltAction("server-0", 2)]


def test_a_master_that_died_while_servers_gathered() -> None:
    before = running(servers=2)
    lose(before, "server-1", "server-2")
    run, actions = adopted(before)
    everybody = [ac.HaltAction("server-0", 2), ac.HaltAction("server-2", 2)]
    assert only(ac.HaltAction, actions) == everybody, "it may have been assigned, and not written down"
    offer(run, "server-2")
    assert assigned(offer(run, "server-0", (0, 4), (1, 4))).start_tick == 4


def test_a_generation_that_was_not_written_down() -> None:
    """The master died after it had assigned it: a heartbeat tells, and there is another one."""
    run, _ = adopted(running(servers=2))
    actions = run.tell(Heartbeat(name="server-0", tick=3, generation=2))
    assert only(ac.HaltAction, actions) == [ac.HaltAction("server-0", 3), ac.HaltAction("server-1", 3)]


@pytest.mark.parametrize("found", [3, None])
def test_servers_that_gather_wait_for_a_master_that_could_not_read_what_is_committed(
    found: int | None,
) -> None:
    """The one before may have committed more than it came to write down, and removed what was older."""
    run, _ = adopted(running(servers=2), "server-1", unread=True)
    run.exited("server-1")
    run.join("server-2")
    assert not only(ac.AssignAction, offer(run, "server-0", (0, 2))) and run.state.commits.unsure
    actions = run.tell(ev.FoundEvent(found))
    assert run.state.committed_tick == found and not run.state.commits.unsure
    assert assigned(actions).start_tick == (found or 0)


def test_a_master_that_finds_the_last_checkpoint_ends_the_run() -> None:
    run, _ = adopted(running(), unread=True)
    assert run.end(run.tell(ev.FoundEvent(8))).state is RunState.FINISHED


def test_a_master_that_begins_after_the_last_checkpoint_removes_what_that_made_superfluous() -> None:
    """The one before may have died before it did, and nobody comes after this one."""
    before = running()
    before.tell(ev.CommittedEvent(7))
    run, actions = adopted(before)
    assert not only(ac.PruneAction, actions), "the next checkpoint does"
    assert before.end(before.tell(ev.CommittedEvent(8))).state is RunState.FINISHED
    _, actions = adopted(before)
    assert only(ac.PruneAction, actions) == [ac.PruneAction(8)] and only(ac.EndAction, actions)


def test_nothing_is_removed_while_it_is_not_known_which_checkpoint_is_the_best() -> None:
    before = running()
    before.tell(ev.CommittedEvent(8))
    data = msgspec.json.encode(before.state.memory())
    state = MasterState(before.state.config, memory=msgspec.json.decode(data, type=Memory))
    assert state.schedule
    state.standings.go_by(WatchRules(best=Watch(metric="cost", mode="min")), state.schedule)
    assert not only(ac.PruneAction, state.adopt({}, 200.0))


def test_a_run_that_was_about_to_end_is_stopped_by_nobody() -> None:
    """The last version was made, and the master and a server were lost with it: it is asked who hangs."""
    before = running(stall_s=30.0)
    before.tell(Leaving(name="worker-2", ended=1))
    assert before.state.state is RunState.FINISHING
    run, _ = adopted(before)
    actions = run.pass_time(62.0, heard=["worker-1"])
    assert only(ac.LookAction, actions) and run.state.memory().closing is None


def test_it_knows_which_checkpoints_were_given_up() -> None:
    """Or it would have an evaluation made again whose checkpoint the storage has refused already."""
    rules = WatchRules(best=Watch(metric="cost", mode="min"))
    before = Run(servers=2, workers="1", evaluate_every=4)
    before.join("server-0"), before.join("server-1")
    before.join("worker-1", spec=msgspec.structs.replace(SPEC, rules=rules, num_test=8, metrics=("cost",)))
    for name in ("server-0", "server-1", "worker-1"):
        before.tell(Ready(name=name, generation=1))
    assert before.state.schedule and (evaluated := before.state.schedule.last_evaluation(6) + 1) < 6
    standing = WatchStanding(rules=rules, tick=evaluated - 1)
    before.tell(Progress(name="server-0", generation=1, version=6, standings=(standing,)))
    assert before.written(evaluated, error="no space left on device")
    run, _ = adopted(before)
    lose(run, "server-1", "server-2")
    offer(run, "server-2")
    assert assigned(offer(run, "server-0", (0, 6), (1, 6))).start_tick == 6


def test_a_run_that_was_over_stays_over() -> None:
    before = running()
    before.tell(Progress(name="server-0", generation=1, version=8, last=True))
    before.written(8, last=True)
    before.tell(ev.CommittedEvent(8))
    run, actions = adopted(before)
    assert only(ac.EndAction, actions) == [ac.EndAction(RunState.FINISHED, "all 8 steps are done")]


def test_the_first_worker_chooses_the_slices_and_who_chose_others_is_replaced() -> None:
    run = Run(slices=0, batch_size=64)
    run.join("server-0")
    actions = run.join("worker-1", num_slices=16, slices_why="there is too little memory for 8")
    (fixed,) = only(ac.FixAction, actions)
    assert fixed.config.slices == run.state.config.num_slices == 16 and not fixed.config.free_slices
    assert run.state.schedule and run.state.schedule.num_slices == 16
    assert [action.text for action in only(ac.NoteAction, actions)] == [
        "a batch has 16 slices: there is too little memory for 8"
    ]
    late = run.join("worker-2", num_slices=8)
    assert names(ac.QuitAction, late) == ["worker-2"] and names(ac.StartAction, late) == ["worker-3"]
    assert only(ac.FaultAction, run.exited("worker-2", killed=False, text="done")) == []
    run.ready("server-0", "worker-1")
    assert run.join("worker-3", num_slices=16) and run.state.failures.own == 0


@pytest.mark.parametrize("settings", [{"slices": 8}, {"slices": 0, "restored": (3, 3, ())}])
def test_slices_that_are_fixed_stay_so(settings: dict[str, Any]) -> None:
    run = Run(**{"batch_size": 64, **settings})
    assert not run.state.config.free_slices
    run.join("server-0")
    actions = run.join("worker-1", num_slices=16, slices_why="there is too little memory for 8")
    assert only(ac.FixAction, actions) == [] and names(ac.QuitAction, actions) == ["worker-1"]
