"""Under ``strategy: all_reduce``, with many workers: relays, and which workers share them.

A relay stands for one server to one group of workers, and lives beside one of them. Who is in which group is
fixed in a generation (``take_up``), but for those who come. Where it should be otherwise, relays are started
first; once they are there all servers pause, as where places move, and begin anew. A group that loses a relay
talks to the servers itself meanwhile (``lose``): what the relay had of the step in work is computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from elasticflow.master.actions import Action, KillAction, NoteAction
from elasticflow.master.deciding import planning, staffing
from elasticflow.master.deciding.facts import Facts
from elasticflow.master.groups import DIRECT, arrange, free_group
from elasticflow.master.members import Member, MemberState, RunState
from elasticflow.master.row import Phase
from elasticflow.wire.messages import Assignment, RelayInfo

CONNECTED = (MemberState.LOADING, MemberState.READY, MemberState.SUSPECT, MemberState.DRAINING)
"""States of workers that talk to servers, or soon will."""
UNSURE = (MemberState.SUSPECT, MemberState.LOST)
"""Of those of whom more will be known soon: until then groups stay as they are."""


def _can_be(run: Facts) -> bool:
    """Rows of tables are not summed up on the way; of sums of the largest values little would be left."""
    is_whole = run.spec is not None and not run.spec.tables and run.config.compression != "top-k"
    return run.config.all_reduce and is_whole


def _workers(run: Facts) -> list[str]:
    return [member.name for member in run.of("worker", *CONNECTED)]


def _wanted(run: Facts) -> dict[str, int]:
    """By worker, the group that it should be in. One with a relay beside somebody who leaves is given up, and
    its number is no other's, whose relays these would be, as long as it has some."""
    row, stay = run.row, {*run.carriers}
    leaves = {seat[0] for name, seat in row.relays.items() if run.members[name].carrier not in stay}
    current = {worker: group for worker, group in row.groups.items() if group not in leaves}
    return arrange(_workers(run), current, run.config.peers, {*row.groups.values()} | leaves)


def _is_there(run: Facts, group: int) -> bool:
    """Whether all relays of a group have joined."""
    relays = [name for name, seat in run.row.relays.items() if seat[0] == group]
    states = [run.members[name].state for name in relays]
    return len(relays) == len(run.row.names) and MemberState.STARTING not in states


def settle(run: Facts, now_s: float, tell_again: Callable[[Member], list[Action]]) -> list[Action]:
    """Starts relays that are wanted, and ends those that are not.

    tell_again: has a worker be told of the servers, that has let go of all of them because of such a relay.
    """
    row = run.row
    calm = row.phase is Phase.SERVING and run.state is RunState.RUNNING and not row.pausing
    if not _can_be(run) or not calm or run.of("worker", *UNSURE):
        return []
    wanted, in_force = _wanted(run), _in_force(run)
    groups = {*wanted.values()} - {DIRECT}
    useless = [name for name, (group, _) in row.relays.items() if group not in groups | in_force]
    actions: list[Action] = [KillAction(name) for name in useless]
    doubters = {worker for name in useless for worker in run.members[name].doubted_by}
    for name in useless:
        del row.relays[name], run.members[name]
    for name in sorted(doubters & run.members.keys()):
        actions += tell_again(run.members[name])
    carriers, load = run.carriers, Counter(server.carrier for server in run.of("server"))
    for group in sorted(groups) if carriers else ():
        mine = [name for name in carriers if wanted.get(name) == group] or carriers
        for place in range(len(row.names)):
            if (group, place) not in row.relays.values():
                carrier = min(mine, key=lambda name: load[name])
                load[carrier] += 1
                name = f"server-{run.staff.next_server}"
                run.staff.next_server += 1
                row.relays[name] = (group, place)
                actions += staffing.start(run, name, "server", now_s, carrier)
    return actions


def _in_force(run: Facts) -> set[int]:
    return {run.row.relays[name][0] for name in run.row.relaying}


def have_come(run: Facts) -> bool:
    """Whether there should be other groups, and all relays that takes are there."""
    if not _can_be(run) or run.row.phase is not Phase.SERVING or run.state is not RunState.RUNNING:
        return False
    if run.of("worker", *UNSURE):
        return False
    wanted = {*_wanted(run).values()} - {DIRECT}
    return wanted != _in_force(run) and all(_is_there(run, group) for group in wanted)


def take_up(run: Facts) -> list[Action]:
    """Another generation begins: who is in which group, as far as there are relays for it."""
    row, before = run.row, dict(run.row.groups)
    if not _can_be(run):
        return []
    wanted, here = _wanted(run), {group for group, _ in row.relays.values()}
    usable = {group for group in here if _is_there(run, group)} | {DIRECT}
    row.groups = {
        worker: next(each for each in (group, before.get(worker, DIRECT), DIRECT) if each in usable)
        for worker, group in wanted.items()
    }
    groups = {*row.groups.values()} - {DIRECT}
    row.relaying = [name for name, (group, _) in row.relays.items() if group in groups]
    if row.groups == {worker: before.get(worker, DIRECT) for worker in row.groups}:
        return []
    run.balance.take(planning.anew(run))
    if not groups:
        return [NoteAction("info", "workers talk to the servers themselves")]
    return [
        NoteAction(
            "info", f"{len(row.groups)} workers talk to the servers by relays, in {len(groups)} groups"
        )
    ]


def infos(run: Facts) -> tuple[RelayInfo, ...]:
    """The relays of this generation."""
    seats = ((name, run.members[name].endpoint, *run.row.relays[name]) for name in run.row.relaying)
    return tuple(
        RelayInfo(name=name, endpoint=endpoint, group=group, place=place)
        for name, endpoint, group, place in seats
    )


def told(run: Facts, member: Member, assignment: Assignment) -> Assignment:
    """What of an assignment a member is told: each only has to know whom it talks to."""
    relays, row = assignment.relays, run.row
    if not relays:
        return assignment
    if member.name in row.relays:
        return replace(assignment, relays=tuple(each for each in relays if each.name == member.name))
    if member.role == "server":
        place = row.names.index(member.name) if member.name in row.names else -1
        return replace(assignment, relays=tuple(each for each in relays if each.place == place))
    mine = {each.place: each for each in relays if each.group == _group_of(run, member.name)}
    servers = tuple(
        replace(info, name=mine[place].name, endpoint=mine[place].endpoint) if place in mine else info
        for place, info in enumerate(assignment.servers)
    )
    return replace(assignment, servers=servers, relays=())


def _group_of(run: Facts, worker: str) -> int:
    """That of this generation; who comes takes a free place."""
    groups = run.row.groups
    if worker not in groups:
        taken = [groups[name] for name in _workers(run) if name in groups]
        groups[worker] = free_group(_in_force(run), taken, run.config.peers)
    return groups[worker]


def behind(run: Facts, worker: Member) -> list[Member]:
    """Of the relays that a worker waits for, those that have stayed where they are, as it has."""
    row, group = run.row, run.row.groups.get(worker.name, DIRECT)
    mine = [run.members[name] for name in row.relaying if row.relays[name][0] == group]
    return [relay for relay in mine if relay.tick + 1 < run.version]


def group_of(run: Facts, worker: Member) -> list[Member]:
    """Those who share its relays, itself among them."""
    groups = run.row.groups
    return [each for each in run.of("worker") if groups.get(each.name) == groups.get(worker.name)]


def lose(run: Facts, relay: Member) -> list[Action]:
    """A relay is gone. Its group goes on without any; whose way to the servers it was asks for another."""
    row = run.row
    group, _ = row.relays.pop(relay.name)
    if relay.name not in row.relaying:
        return []
    row.relaying = [name for name in row.relaying if row.relays.get(name, (group,))[0] != group]
    row.groups = {worker: DIRECT if mine == group else mine for worker, mine in row.groups.items()}
    if run.agreed.assignment:
        run.agreed.assignment = replace(run.agreed.assignment, relays=infos(run))
    return planning.tell_plan(run, run.plan)
