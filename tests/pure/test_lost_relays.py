"""Relays that are lost, silent, doubted or behind: what becomes of those who wait for them."""

from __future__ import annotations

import pytest

from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master.members import MemberState
from elasticflow.master.row import Phase
from elasticflow.wire.messages import Heartbeat, Lost, Offer, ServerEnded

from .test_master_state import names, only
from .test_relay_state import Relay, given
from .test_relaying import PLACES, RelayedRun


def killed(run: RelayedRun, relay: str) -> list[ac.Action]:
    run.killed.add(relay)
    carrier = run.state.members[relay].carrier
    return run.tell(ServerEnded(name=carrier, member=relay, failed=False, text="was killed"))


def seats(run: RelayedRun) -> dict[tuple[int, int], str]:
    return {run.state.row.relays[name]: name for name in run.state.row.relaying}


@pytest.mark.parametrize("relay_first", [False, True])
def test_who_lets_go_of_the_relays_of_a_group_that_has_none_is_not_lost(relay_first: bool) -> None:
    """It tells of the relay that is gone; the relay that stands for the leading server tells of it."""
    run = RelayedRun()
    at = seats(run)
    worker = next(name for name, group in run.groups.items() if group == 0)
    killed(run, at[0, 1])
    told = [Lost(name=worker, member=at[0, 1]), Lost(name=at[0, 0], member=worker)]
    actions = [action for each in (told[::-1] if relay_first else told) for action in run.tell(each)]
    assert worker in names(ac.AssignAction, actions), "it waits to be told of the servers"
    assert not only(ac.StartAction, actions), "nobody is to come in its stead"
    assert run.state.members[worker].state is MemberState.READY


def test_a_relay_of_no_group_in_force_is_not_given_a_part_in_a_generation() -> None:
    """It joins, its connection to the master is made anew while servers get their chunks: of an assignment
    that does not name it, it makes itself one of the row, and fails."""
    run = RelayedRun()
    at = seats(run)
    killed(run, at[0, 0])
    started = [action for action in run.tell(ev.ClockEvent()) if isinstance(action, ac.StartAction)]
    (relay,) = [action.name for action in started if action.name in run.state.row.relays]
    server = run.state.row.names[1]
    carrier = run.state.members[server].carrier
    # A server dies; the next generation is being restored while the relay comes.
    run.killed.add(server)
    waiting = run.tell(ServerEnded(name=carrier, member=server, failed=False, text="was killed"))
    waiting += run.tell(ev.ClockEvent())
    for action in list(waiting):
        if isinstance(action, ac.StartAction) and action.role == "server":
            waiting += run.join(action.name)
        if isinstance(action, ac.HaltAction):
            held = tuple((place, 7) for place in range(PLACES))
            waiting += run.tell(Offer(name=action.name, generation=action.generation, held=held))
    assert run.state.row.phase is Phase.RESTORING
    run.join(relay)
    assert relay not in run.state.row.relaying and run.state.members[relay].state is MemberState.LOADING
    actions = run.tell(ev.ReconnectedEvent(relay))
    for action in only(ac.AssignAction, actions):
        told = action.assignment
        assert relay in {info.name for info in (*told.servers, *told.relays)}, "it has no part in it"


def test_who_doubts_a_relay_that_is_of_no_use_any_more_is_told_of_the_servers() -> None:
    run = RelayedRun(3)
    at = seats(run)
    (group,) = [group for group in {*run.groups.values()} if [*run.groups.values()].count(group) == 1]
    (worker,) = [name for name, mine in run.groups.items() if mine == group]
    told = [*run.tell(Lost(name=worker, member=at[group, 2]))]  # that one was cut, or has died, too
    told += killed(run, at[group, 1])
    told += run.tell(ev.ClockEvent())
    told += run.tell(Heartbeat(name=at[group, 2], tick=7, generation=run.state.row.generation))
    carrier = "worker-1"
    told += run.tell(ServerEnded(name=carrier, member=at[group, 2], failed=False, text="was killed"))
    for _ in range(20):
        run.now_s += 0.5
        for name in ("worker-1", "worker-2", "worker-3", *run.state.row.names, *run.state.row.relays):
            told += run.tell(Heartbeat(name=name, tick=7, generation=run.state.row.generation))
        told += run.tell(ev.ClockEvent())
    assert worker in names(ac.AssignAction, told), f"{worker} has let go of all, and waits"


def test_the_group_of_a_relay_that_is_given_up_for_its_silence_is_told() -> None:
    """Its host has lost power: no connection is closed by that, and workers do not hear of it."""
    run = RelayedRun()
    at = seats(run)
    mine = [name for name, group in run.groups.items() if group == 0]
    told: list[ac.Action] = []
    for _ in range(200):
        run.now_s += 0.5
        for member in list(run.state.members.values()):
            if member.name != at[0, 1]:
                told += run.tell(Heartbeat(name=member.name, tick=7, generation=run.state.row.generation))
        told += run.tell(ev.ClockEvent())
        if at[0, 1] not in run.state.members:
            break
    assert at[0, 1] not in run.state.members
    halted = names(ac.HaltAction, told)
    assert halted or set(mine) <= set(names(ac.AssignAction, told)), "they wait for a relay that is gone"


def test_a_carrier_that_is_silent_for_a_moment_costs_no_generation() -> None:
    """It has a relay beside it; nothing is begun for its silence, but a group is given up."""
    run = RelayedRun(3)
    at = seats(run)
    (group,) = [group for group in {*run.groups.values()} if [*run.groups.values()].count(group) == 1]
    carrier = next(run.state.members[name].carrier for seat, name in at.items() if seat[0] == group)
    told: list[ac.Action] = []
    for _ in range(12):
        run.now_s += 0.25
        for name in list(run.state.members):
            if name != carrier:
                told += run.tell(Heartbeat(name=name, tick=7, generation=run.state.row.generation))
        told += run.tell(ev.ClockEvent())
    assert run.state.members[carrier].state is MemberState.SUSPECT
    assert not only(ac.PauseAction, told) and not only(ac.HaltAction, told)


def test_who_was_given_a_version_by_a_relay_that_had_fallen_behind_is_given_the_newest() -> None:
    """It had asked for the latest: another relay has told it that this one is past. Nobody asks twice."""
    relay = Relay(workers="a")
    relay.push("a", (0, 1))
    relay.version(1)
    assert given(relay.ask("a", -1, -1), "a")[0][0] == 1
    relay.do(relay.state.gone(9))
    relay.version(9)
    assert given(relay.version(8), "a"), "it waits for ever"
