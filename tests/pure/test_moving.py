"""Under ``strategy: all_reduce``: which worker carries which server, as workers come, go and die."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from elasticflow.errors import ConfigError
from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master.deciding.takeover import Memory
from elasticflow.master.members import MemberState
from elasticflow.master.row import Phase
from elasticflow.master.state import MasterState
from elasticflow.run.config import Config
from elasticflow.step.layout import Entry, Rule
from elasticflow.wire.messages import Excluded, Faulty, Offer, Paused, Ready, ServerEnded

from .test_master_state import SPEC, Run, names, only

LARGE = msgspec.structs.replace(
    SPEC,
    entries=(
        *(Entry(f"w{number}", (1 << 20,), "float32", Rule.UPDATE) for number in range(8)),
        Entry("cost", (1,), "float32", Rule.REPORT),
    ),
)
"""So that there is something for each place."""


class CarriedRun(Run):
    """Servers and workers that answer at once what they are told. pauses: the next step is made at once."""

    pauses = True

    def __init__(self, **more: Any) -> None:
        values = {"workers": "4", "places": 4, "snapshot_s": 1.0, "strategy": "all_reduce", **more}
        super().__init__(**values)
        self.story: list[ac.Action] = []
        self.killed: set[str] = set()
        self.answer(self.started)

    def answer(self, actions: Iterable[ac.Action]) -> None:
        """Servers that are started join; all who are assigned are ready; who is halted offers version 7."""
        waiting = [*actions, *self.tell(ev.ClockEvent())]
        while waiting:
            action = waiting.pop(0)
            self.story.append(action)
            if isinstance(action, ac.StartAction) and action.role == "server":
                waiting += self.join(action.name)
            elif isinstance(action, ac.KillAction):
                self.killed.add(action.name)
            elif isinstance(action, ac.HaltAction) and action.name not in self.killed:
                held = tuple((place, 7) for place in range(4))
                if (server := self.state.members.get(action.name)) and server.was_ready:
                    waiting += self.tell(Offer(name=action.name, generation=action.generation, held=held))
                elif server:
                    waiting += self.tell(Offer(name=action.name, generation=action.generation, held=()))
            elif isinstance(action, ac.PauseAction) and self.pauses:
                waiting += self.pause(*self.state.row.holders)
            elif isinstance(action, ac.AssignAction) and action.name not in self.killed:
                generation = action.assignment.generation
                waiting += self.tell(Ready(name=action.name, generation=generation))
            if not waiting:
                waiting += self.tell(ev.ClockEvent())

    def pause(self, *servers: str) -> list[ac.Action]:
        """These have the version after which nobody goes on."""
        generation = self.state.row.generation
        told = [self.tell(Paused(name=name, generation=generation, version=7)) for name in servers]
        return [action for actions in told for action in actions]

    def come(self, *workers: str) -> None:
        for worker in workers:
            self.answer(self.join(worker, spec=LARGE))

    def die(self, *workers: str) -> None:
        """Killed at once; nobody answers any more for what they carried."""
        self.killed.update(m.name for m in self.state.of("server") if m.carrier in workers)
        for worker in workers:
            self.answer(self.exited(worker))

    @property
    def load(self) -> dict[str, int]:
        """By worker, so many places."""
        carriers = [self.state.members[name].carrier for name in self.state.row.names]
        return {name: carriers.count(name) for name in carriers}

    def check(self) -> None:
        """All serve, each place once, as evenly as can be; nobody is left over."""
        state = self.state
        carriers = {m.name for m in state.of("worker", MemberState.READY, MemberState.LOADING)}
        assert state.row.phase is Phase.SERVING and not state.row.coming and not state.row.leaving
        assert {m.name for m in state.of("server")} == set(state.row.names)
        assert set(self.load) <= carriers
        counts = [self.load.get(name, 0) for name in carriers]
        assert max(counts) - min(counts) <= 1


def test_no_server_is_started_before_there_is_a_worker_that_carries_it() -> None:
    run = CarriedRun()
    assert names(ac.StartAction, run.started) == ["worker-1", "worker-2", "worker-3", "worker-4"]
    started = only(ac.StartAction, [*run.join("worker-1", spec=LARGE), *run.tell(ev.ClockEvent())])
    assert [(action.name, action.carrier) for action in started] == [
        (f"server-{n}", "worker-1") for n in range(4)
    ]


def test_who_drains_with_servers_that_it_carries_is_not_waited_for_to_try_a_record() -> None:
    """It has computed what it had to, and waits for the step, after which they move: both would wait."""
    run = CarriedRun(workers="2", max_quarantined=1)
    run.come("worker-1", "worker-2")
    run.pauses = False
    run.answer(run.tell(ev.ScaleEvent(1)))
    (drains,) = run.state.of("worker", MemberState.DRAINING)
    (stays,) = run.state.of("worker", MemberState.READY)
    assert drains.name in run.load
    now = run.state.version
    told = Faulty(name=stays.name, tick=now, slice=3, rows=(17,), text="a bad record", traceback="")
    (quarantine,) = only(ac.QuarantineAction, run.tell(told))
    assert quarantine.excluded == (Excluded(17, now),)


def test_a_carried_server_that_never_comes_is_given_up() -> None:
    """It hangs before it has joined: its carrier lives, and everybody else waits for it."""
    run = CarriedRun(start_s=60, workers="1")
    started = only(ac.StartAction, [*run.join("worker-1", spec=LARGE), *run.tell(ev.ClockEvent())])
    hangs, *others = [action.name for action in started]
    for name in others:
        run.join(name)
    heard = ["worker-1", *others]
    assert not only(ac.KillAction, run.pass_time(59, heard=heard, servers=False))
    actions = run.pass_time(2, heard=heard, servers=False)
    assert {*names(ac.KillAction, actions)} == {hangs}
    (again,) = only(ac.StartAction, actions)
    assert again.role == "server" and again.carrier == "worker-1"


def test_there_are_no_more_places_than_chunks_and_a_copy_of_a_single_one() -> None:
    run = CarriedRun(workers="8", places=16)
    run.come("worker-1")
    assert len(run.state.row.names) == len(LARGE.entries), "a chunk each"
    small = CarriedRun(places=1)
    small.come("worker-1")
    assert small.state.row.names == ["server-0", "server-1"] and small.state.row.holders == ["server-0"]


def test_places_follow_workers_that_come() -> None:
    run = CarriedRun()
    run.come("worker-1")
    assert run.load == {"worker-1": 4}
    run.come("worker-2")
    run.check()
    assert run.load == {"worker-1": 2, "worker-2": 2}
    assert run.state.row.names[:2] == ["server-0", "server-1"], "only those move that must"
    run.come("worker-3", "worker-4")
    run.check()
    assert set(run.load.values()) == {1} and run.state.row.leader == "server-0"
    assert {m.start for m in only(ac.RegroupedAction, run.story)} == {7}, "from what all hold in memory"


def test_a_server_that_moves_serves_until_the_other_has_joined() -> None:
    run = CarriedRun()
    run.come("worker-1")
    actions = run.join("worker-2", spec=LARGE)
    started = only(ac.StartAction, [*actions, *run.tell(ev.ClockEvent())])
    assert {action.carrier for action in started} == {"worker-2"} and len(started) == 2
    assert run.state.row.phase is Phase.SERVING and not only(ac.HaltAction, actions)
    first, second = (action.name for action in started)
    assert not only(ac.HaltAction, [*run.join(first), *run.tell(ev.ClockEvent())])
    joined = [*run.join(second), *run.tell(ev.ClockEvent())]
    assert names(ac.PauseAction, joined) == ["server-0"] and not only(ac.HaltAction, joined)
    assert not only(ac.PauseAction, run.tell(ev.ClockEvent())), "once"
    assert not run.pause("server-3", "server-0", "server-3", "server-1"), "not before all have come so far"
    halted = names(ac.HaltAction, run.pause("server-2"))
    assert set(halted) == {f"server-{n}" for n in range(6)}, "those that leave offer their copies, too"


def test_a_death_ends_a_pause_before_all_have_come_so_far() -> None:
    run = CarriedRun()
    run.pauses = False
    run.come("worker-1", "worker-2", "worker-3")
    assert run.state.row.pausing and run.state.row.coming
    run.pause("server-0")
    run.pauses = True
    run.die("worker-1")
    run.check()
    assert not run.state.row.pausing and run.state.row.paused == []


def test_where_no_step_is_made_places_move_all_the_same() -> None:
    run = CarriedRun(suspect_s=30.0)
    run.pauses = False
    run.come("worker-1", "worker-2")
    assert run.state.row.pausing and run.state.row.coming
    due_s = run.state.next_time_s()
    assert due_s is not None and due_s <= run.now_s + 5.0
    assert not only(ac.HaltAction, run.tell(ev.ClockEvent(), after_s=4.0))
    run.answer(run.tell(ev.ClockEvent(), after_s=1.5))
    run.check()
    assert run.load == {"worker-1": 2, "worker-2": 2}


def test_servers_that_paused_go_on_though_nobody_takes_a_place_any_more() -> None:
    """A worker that came has died again, and nobody was lost but who was to come."""
    run = CarriedRun()
    run.come("worker-1")
    run.pauses = False
    run.come("worker-2")
    assert run.state.row.pausing
    generation = run.state.row.generation
    run.die("worker-2")
    assert run.state.row.coming == {} and run.state.row.generation == generation
    run.answer(run.pause(*run.state.row.holders))
    run.check()
    assert run.state.row.generation == generation + 1 and run.load == {"worker-1": 4}


def test_the_assignment_names_carriers_and_who_leaves() -> None:
    run = CarriedRun()
    run.come("worker-1", "worker-2")
    moved = next(a.assignment for a in only(ac.AssignAction, run.story) if a.assignment.generation == 2)
    assert [info.carrier for info in moved.servers] == [
        "worker-1",
        "worker-1",
        "worker-2",
        "worker-2",
        "",
        "",
    ]
    assert [info.leaves for info in moved.servers] == [False] * 4 + [True] * 2
    assert [bool(info.chunks) for info in moved.servers] == [True] * 4 + [False] * 2
    assert {info.holder for info in moved.servers[2:4]} <= {f"server-{n}" for n in range(4)}


def test_what_a_worker_carried_is_lost_with_it_and_lives_with_the_others() -> None:
    run = CarriedRun()
    run.come("worker-1", "worker-2", "worker-3", "worker-4")
    (place,) = (
        n for n, name in enumerate(run.state.row.names) if run.state.members[name].carrier == "worker-3"
    )
    before = list(run.state.row.names)
    run.die("worker-3")
    run.check()
    changed = [n for n, name in enumerate(run.state.row.names) if name != before[n]]
    assert changed == [place]


def test_a_server_that_alone_dies_comes_back() -> None:
    run = CarriedRun()
    run.come("worker-1", "worker-2")
    run.killed.add("server-0")
    run.answer(run.tell(ServerEnded(name="worker-1", member="server-0", failed=False, text="was killed")))
    run.check()
    assert "server-0" not in run.state.row.names
    assert run.tell(ServerEnded(name="worker-1", member="server-0", failed=False, text="again")) == []


def test_nobody_ends_the_server_of_another() -> None:
    run = CarriedRun()
    run.come("worker-1", "worker-2")
    assert run.tell(ServerEnded(name="worker-2", member="server-0", failed=True, text="")) == []
    assert "server-0" in run.state.members


def test_all_wait_for_a_worker_once_the_last_is_gone() -> None:
    run = CarriedRun(workers="1")
    run.come("worker-1")
    run.die("worker-1")
    assert run.state.row.phase is Phase.GATHERING and not any(run.load.get(n) for n in ("worker-1",))
    run.come("worker-2")
    run.check()
    assert run.load == {"worker-2": 4}


def test_a_worker_that_leaves_gives_its_places_away() -> None:
    run = CarriedRun()
    run.come("worker-1", "worker-2")
    run.answer(run.tell(ev.ScaleEvent(1)))
    run.check()
    (stays,) = run.load
    (leaves,) = {"worker-1", "worker-2"} - {stays}
    assert run.state_of(leaves) is MemberState.DRAINING, "it stays until nobody needs it any more"


def test_without_copies_in_memory_places_move_once_a_checkpoint_is_there() -> None:
    run = CarriedRun(snapshot_s=0)
    run.come("worker-1", "worker-2")
    assert run.load == {"worker-1": 4}, "all since the last checkpoint would be lost"
    run.answer(run.tell(ev.CommittedEvent(3, "")))
    assert run.load == {"worker-1": 2, "worker-2": 2}


@settings(max_examples=60, deadline=None)
@given(some.data())
def test_whoever_comes_and_goes(data: some.DataObject) -> None:
    """After each change all places are carried, evenly, by those who are there."""
    run = CarriedRun()
    run.come("worker-1")
    for _ in range(data.draw(some.integers(1, 8))):
        workers = run.state.of("worker")
        new = [m.name for m in workers if m.state is MemberState.STARTING]
        here = [m.name for m in workers if m.state is MemberState.READY]
        what = data.draw(some.sampled_from(["come", "die", "server dies"]))
        if what == "come" and new:
            run.come(new[0])
        elif what == "die" and here:
            run.die(*data.draw(some.lists(some.sampled_from(here), min_size=1, max_size=2, unique=True)))
        elif what == "server dies" and here:
            name = data.draw(some.sampled_from(run.state.row.names))
            run.killed.add(name)
            carrier = run.state.members[name].carrier
            run.answer(run.tell(ServerEnded(name=carrier, member=name, failed=False, text="was killed")))
        if run.state.ended:
            return
        if run.state.of("worker", MemberState.READY, MemberState.LOADING):
            run.check()


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ({"strategy": "ring"}, "allowed are parameter_server, all_reduce, auto"),
        ({"strategy": "all_reduce", "servers": 2}, "--servers 1"),
        ({"places": 4}, "--places 0"),
        ({"strategy": "all_reduce", "mode": "async"}, "mode: sync"),
    ],
)
def test_what_cannot_be_asked_for(given_: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Config(**given_)


@pytest.mark.parametrize(("workers", "places", "count"), [("1..4", 0, 4), ("2", 0, 2), ("1", 3, 3)])
def test_as_many_places_as_workers_unless_told_otherwise(workers: str, places: int, count: int) -> None:
    assert Config(strategy="all_reduce", workers=workers, places=places).num_places == count
    assert Config(strategy="all_reduce", workers="1..64", slices=64, batch_size=64).num_places == 8


def test_servers_that_waited_to_be_carried_have_other_names_for_the_next_master() -> None:
    """The one before may have told a worker to carry them, and died before it wrote that down: they live."""
    run = CarriedRun(workers="2")
    run.come("worker-1")
    run.die("worker-1")
    before = list(run.state.row.names)
    assert all(not run.state.members[name].carrier for name in before)
    memory = msgspec.json.decode(msgspec.json.encode(run.state.memory()), type=Memory)
    run.join("worker-2", spec=LARGE)
    told = only(ac.StartAction, run.tell(ev.ClockEvent()))
    assert {action.name for action in told} == set(before), "which is not written down"

    run.state = MasterState(run.state.config, memory=memory)
    run.answer(run.state.adopt({"worker-2": 1}, run.now_s))
    text = "not a member of this run (any more)"
    for name in before:
        assert only(ac.QuitAction, run.join(name)) == [ac.QuitAction(name, text)]
    run.come("worker-2")
    run.check()
    assert set(run.load) == {"worker-2"} and not set(run.state.row.names) & set(before)


def test_the_first_servers_that_a_master_died_of_are_no_members_of_the_next_one() -> None:
    """It had learnt of the program from a worker, told it to carry them, and written down none of that."""
    run = CarriedRun(workers="1")
    memory = msgspec.json.decode(msgspec.json.encode(run.state.memory()), type=Memory)
    run.join("worker-1", spec=LARGE)
    before = names(ac.StartAction, run.tell(ev.ClockEvent()))
    assert len(before) == 4
    run.state = MasterState(run.state.config, memory=memory)
    run.answer(run.state.adopt({"worker-1": 1}, run.now_s))
    for name in before:
        (quit,) = only(ac.QuitAction, run.join(name))
        assert quit.name == name
    run.come("worker-1")
    run.check()
    assert not set(run.state.row.names) & set(before)


def test_a_generation_that_a_master_died_of_is_not_begun_by_another_one() -> None:
    """A relay has it from the one before, and would take no other by that number: all begin the next."""
    run = CarriedRun(workers="2")
    run.come("worker-1", "worker-2")
    generation = run.state.row.generation
    name = run.state.row.names[-1]
    run.state.members[name].state = MemberState.HALTED
    halts = only(ac.HaltAction, run.tell(Ready(name=name, generation=generation + 1)))
    assert {halt.name for halt in halts} == set(run.state.row.names)
    assert {halt.generation for halt in halts} == {generation + 2}
