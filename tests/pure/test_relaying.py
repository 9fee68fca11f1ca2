"""Under ``strategy: all_reduce``, with many workers: relays come, go and die, by the master's decisions."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as some

from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master.deciding import relaying
from elasticflow.master.deciding.takeover import Memory
from elasticflow.master.groups import DIRECT
from elasticflow.master.members import MemberState
from elasticflow.master.row import Phase
from elasticflow.master.state import MasterState
from elasticflow.wire.messages import Assignment, Lost, ServerEnded

from .test_master_state import names, only
from .test_moving import CarriedRun

PLACES = 4


class RelayedRun(CarriedRun):
    """Nobody is to talk to more than two."""

    def __init__(self, workers: int = 4, **more: Any) -> None:
        super().__init__(workers=str(workers), peers=2, **more)
        self.come(*(f"worker-{number}" for number in range(1, workers + 1)))

    @property
    def groups(self) -> dict[str, int]:
        return self.state.row.groups

    def end(self, server: str) -> None:
        """A server, or a relay, ends alone."""
        self.killed.add(server)
        carrier = self.state.members[server].carrier
        self.answer(self.tell(ServerEnded(name=carrier, member=server, failed=False, text="was killed")))

    def told(self, name: str) -> Assignment:
        """Last."""
        mine = [each for each in only(ac.AssignAction, self.story) if each.name == name]
        return mine[-1].assignment

    def is_relayed(self) -> None:
        """All serve; who is in a group has a relay for each place, and nobody carries a relay for nothing."""
        state, row = self.state, self.state.row
        assert row.phase is Phase.SERVING and not row.coming and not row.leaving
        assert (
            {m.name for m in state.of("server")} == {*row.names, *row.relaying} == {*row.names, *row.relays}
        )
        seats = sorted(row.relays[name] for name in row.relaying)
        groups = {row.groups[m.name] for m in state.of("worker", MemberState.READY)} - {DIRECT}
        assert groups <= {group for group, _ in seats}
        assert seats == [
            (group, place) for group in sorted({group for group, _ in seats}) for place in range(PLACES)
        ]


def test_few_workers_have_none() -> None:
    run = RelayedRun(2)
    run.check()
    assert not run.state.row.relays


def test_groups_begin_once_all_their_relays_are_there_and_no_step_is_lost() -> None:
    run = RelayedRun()
    run.is_relayed()
    assert sorted(run.groups.values()) == [0, 0, 1, 1] and len(run.state.row.relaying) == 2 * PLACES
    assert {m.start for m in only(ac.RegroupedAction, run.story)} == {7}
    carriers = {run.state.members[name].carrier for name in run.state.row.relaying}
    assert carriers == {"worker-1", "worker-2", "worker-3"}, "who were there by then"
    for name in run.state.row.relaying:
        group, _ = run.state.row.relays[name]
        assert run.groups[run.state.members[name].carrier] == group, "beside those who talk to it"


def test_each_is_told_whom_it_talks_to() -> None:
    run = RelayedRun()
    row = run.state.row
    relays = {row.relays[name]: name for name in row.relaying}
    for worker, group in run.groups.items():
        told = run.told(worker)
        assert [info.name for info in told.servers[:PLACES]] == [
            relays[group, place] for place in range(PLACES)
        ]
        assert [info.chunks for info in told.servers[:PLACES]] == list(row.chunks) and not told.relays
    for place, server in enumerate(row.names):
        told = run.told(server)
        assert {each.name for each in told.relays} == {relays[0, place], relays[1, place]}
        assert [info.name for info in told.servers[:PLACES]] == row.names
    for seat, relay in relays.items():
        (info,) = run.told(relay).relays
        assert (info.name, info.group, info.place) == (relay, *seat)


def test_neighbours_in_the_plan_share_relays_and_servers_hear_which() -> None:
    run = RelayedRun()
    plans = [action.shares for action in only(ac.PlanAction, run.story)]
    assert [share.group for share in plans[-1]] == [0, 0, 1, 1]


def test_who_comes_takes_a_free_place_at_once() -> None:
    run = RelayedRun(3)
    generation = run.state.row.generation
    run.answer(run.tell(ev.ScaleEvent(4)))
    run.come("worker-4")
    assert run.state.row.generation >= generation and sorted(run.groups.values()) == [0, 0, 1, 1]


def test_a_relay_that_dies_costs_no_generation_but_another_one_brings_its_group_back() -> None:
    run = RelayedRun()
    relay = run.state.row.relaying[0]
    group, _ = run.state.row.relays[relay]
    lonely = [worker for worker, mine in run.groups.items() if mine == group]
    run.killed.add(relay)
    carrier, generation = run.state.members[relay].carrier, run.state.row.generation
    actions = run.tell(ServerEnded(name=carrier, member=relay, failed=False, text="was killed"))
    assert not only(ac.HaltAction, actions) and run.state.row.generation == generation
    assert {share.group for each in only(ac.PlanAction, actions) for share in each.shares} == {
        DIRECT,
        1 - group,
    }
    told = only(ac.AssignAction, run.tell(Lost(name=lonely[0], member=relay)))
    assert [info.name for info in told[0].assignment.servers[:PLACES]] == run.state.row.names
    run.answer(run.tell(ev.ClockEvent()))
    run.is_relayed()
    assert run.state.row.generation == generation + 1 and relay not in run.state.row.relays
    assert sorted(run.groups.values()) == [0, 0, 1, 1]


def test_who_had_doubted_a_relay_is_told_of_the_servers_once_it_is_given_up() -> None:
    run = RelayedRun()
    relay = run.state.row.relaying[0]
    worker = next(name for name, group in run.groups.items() if group == run.state.row.relays[relay][0])
    assert run.tell(Lost(name=worker, member=relay)) == []
    carrier = run.state.members[relay].carrier
    actions = run.tell(ServerEnded(name=carrier, member=relay, failed=False, text="was killed"))
    assert names(ac.AssignAction, actions) == [worker]


def test_a_worker_that_dies_takes_relays_along() -> None:
    run = RelayedRun()
    run.die("worker-2")
    run.is_relayed()
    run.come("worker-5")
    run.is_relayed()
    assert sorted(run.groups[name] for name in ("worker-1", "worker-3", "worker-4", "worker-5")) == [
        0,
        0,
        1,
        1,
    ]


def test_a_worker_that_leaves_stays_until_nobody_needs_its_relays() -> None:
    run = RelayedRun()
    run.answer(run.tell(ev.ScaleEvent(3)))
    (leaves,) = [m.name for m in run.state.of("worker", MemberState.DRAINING)]
    assert all(m.carrier != leaves for m in run.state.of("server"))
    run.is_relayed()


def test_the_last_groups_end_when_few_are_left() -> None:
    run = RelayedRun()
    run.answer(run.tell(ev.ScaleEvent(1)))
    for member in run.state.of("worker", MemberState.DRAINING):
        run.answer(run.exited(member.name))
    assert not run.state.row.relays and set(run.groups.values()) == {DIRECT}
    assert {m.name for m in run.state.of("server")} == set(run.state.row.names)


def test_the_next_master_knows_them() -> None:
    run = RelayedRun()
    memory = msgspec.json.decode(msgspec.json.encode(run.state.memory()), type=Memory)
    before = run.state.row
    run.state = MasterState(run.state.config, memory=memory)
    actions = run.state.adopt({name: 7 for name in run.state.members}, run.now_s)
    assert not only(ac.HaltAction, actions) and not only(ac.StartAction, actions)
    row, assignment = run.state.row, run.state.agreed.assignment
    assert (row.relays, row.groups, row.relaying) == (before.relays, before.groups, before.relaying)
    assert assignment and {each.name for each in assignment.relays} == set(row.relaying)
    server = run.state.members[row.names[0]]
    assert len(relaying.told(run.state, server, assignment).relays) == 2


@settings(max_examples=60, deadline=None)
@given(some.data())
def test_whoever_comes_and_goes(data: some.DataObject) -> None:
    run = RelayedRun(data.draw(some.integers(1, 8)))
    for _ in range(data.draw(some.integers(1, 6))):
        workers = run.state.of("worker")
        new = [m.name for m in workers if m.state is MemberState.STARTING]
        here = [m.name for m in workers if m.state is MemberState.READY]
        what = data.draw(some.sampled_from(["come", "die", "relay dies", "server dies", "scale"]))
        if what == "come" and new:
            run.come(new[0])
        elif what == "die" and here:
            run.die(*data.draw(some.lists(some.sampled_from(here), min_size=1, max_size=2, unique=True)))
        elif what == "relay dies" and run.state.row.relaying:
            run.end(data.draw(some.sampled_from(run.state.row.relaying)))
        elif what == "server dies" and here:
            run.end(data.draw(some.sampled_from(run.state.row.names)))
        elif what == "scale":
            run.answer(run.tell(ev.ScaleEvent(data.draw(some.integers(1, 8)))))
            for member in run.state.of("worker", MemberState.DRAINING):
                run.answer(run.exited(member.name))
        if run.state.ended:
            return
        if run.state.of("worker", MemberState.READY):
            run.is_relayed()


def test_a_new_group_never_gets_the_relays_of_one_that_is_given_up() -> None:
    """They live beside who leaves as well: each would be given up for the other, generation by generation."""
    run = RelayedRun()
    run.pauses = False
    for name in {run.state.members[name].carrier for name in run.state.row.relaying}:
        run.state.members[name].state = MemberState.DRAINING
    run.state.row.groups = {name: 0 for name in run.groups}
    wanted = {*relaying._wanted(run.state).values()}
    assert wanted and wanted.isdisjoint({group for group, _ in run.state.row.relays.values()})
