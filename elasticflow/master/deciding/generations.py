"""The row of servers from one generation to the next: gathered, given their chunks, served by, halted."""

from __future__ import annotations

from functools import partial

import msgspec

from elasticflow.master.actions import (
    Action,
    AssignAction,
    CutAction,
    FaultAction,
    HaltAction,
    KillAction,
    NoteAction,
    PauseAction,
    RegroupedAction,
)
from elasticflow.master.deciding import ending, moving, planning, relaying, staffing
from elasticflow.master.deciding.facts import Facts, Handlers
from elasticflow.master.fit import misfit
from elasticflow.master.members import Member, MemberState, RunState
from elasticflow.master.row import Phase, Start
from elasticflow.wire.messages import Assignment, Offer, Paused, ServerInfo

SNAPSHOT_EVERY = 4
"""Versions between two copies in memory, where workers carry the servers: so few are lost with a worker."""
HOMELESS_S = 5.0
"""So long a standby is waited for that still has no place. A cluster may have none for hours, or take it away
again and again: then the others go on without, and take it in when it comes."""
SEVERED = -1
"""Instead of the generation that a worker was told of: it has no way to the servers of any."""


def form(run: Facts, now_s: float) -> list[Action]:
    """Once the program is known, and every server has joined or offered, they are given their chunks."""
    if not run.spec or run.row.phase is not Phase.GATHERING or run.ended:
        return []
    if run.commits.final_under_way:  # nobody takes the place of those who are lost now
        return []
    servers = [run.members[name] for name in (*run.row.names, *run.row.leaving)]
    if any(s.state is MemberState.HALTED and s.name not in run.row.offers for s in servers):
        return []
    if run.commits.unsure:  # or the row might go back behind a commit, to what is pruned by now
        return []
    start = run.row.begin(run.committed_tick, partial(may_begin_with, run))
    if run.conclusion.closing and not ending.is_worth_writing(run, start):
        return ending.end_closed(run, ending.why_lost(run, start))
    servers = [server for server in servers if not _is_homeless(run, server, now_s)]
    if any(server.state is MemberState.STARTING for server in servers):
        return []
    found = misfit(run.needs, run.members) if run.row.generation == 0 else None
    if found and found.certain:
        return ending.end(run, RunState.FAILED, found.text)
    if not run.standings.know(start.tick):
        return ending.end_short(run, "the newest checkpoint could not be read by the master that took over")
    run.row.start = start
    actions = go_back_to(run, start, now_s) if run.row.generation else []
    actions += relaying.take_up(run)
    run.row.generation += 1
    run.row.phase = Phase.RESTORING
    run.row.offers.clear()
    servers += [run.members[name] for name in run.row.relaying]
    for server in servers:
        server.state, server.generation = MemberState.LOADING, run.row.generation
    run.agreed.assignment = assignment_from(run, start)
    if found:
        actions.append(NoteAction("warning", found.text))
    return actions + [assign(run, server) for server in servers]


def _is_homeless(run: Facts, server: Member, now_s: float) -> bool:
    """Whether it only stands by, and is not even about to come. (With ``all_reduce`` workers carry it.)"""
    waits = server.state is MemberState.STARTING and server.placed_s is None
    waits = waits and now_s >= server.since_s + HOMELESS_S and not run.config.all_reduce
    return waits and _stands_by(run, server)


def _stands_by(run: Facts, server: Member) -> bool:
    """Whether it is in the row, and holds no chunks."""
    pairs = zip(run.row.names, run.row.chunks, strict=True) if run.row.chunks else ()
    return any(name == server.name and not chunks for name, chunks in pairs)


def is_missing(run: Facts, server: Member) -> bool:
    """Whether the present generation does without it: it stands by, and was not there in time."""
    if run.row.phase is Phase.GATHERING or server.generation == run.row.generation:
        return False
    return _stands_by(run, server)


def _standby_has_come(run: Facts) -> bool:
    """Whether one that was too late is to be taken in.

    Not where there are tables: it has no copies of rows, and all would go back to the last checkpoint.
    """
    ends = run.state is not RunState.RUNNING or run.conclusion.last_made or run.commits.final_under_way
    if ends or run.row.phase is not Phase.SERVING or (run.spec and run.spec.tables):
        return False
    # One that a new master heard of first was halted, as if it might hold chunks.
    there = run.of("server", MemberState.LOADING, MemberState.HALTED)
    return any(is_missing(run, server) for server in there)


def _is_for_standby(run: Facts) -> bool:
    """Whether the servers that hold chunks are those of before, and one that stands by is new."""
    row = [run.members[name] for name in run.row.names]
    stands_by = [each for each in row if _stands_by(run, each)]
    come = [each for each in stands_by if each.state is not MemberState.STARTING and not each.was_ready]
    return bool(come) and all(each.was_ready for each in row if each not in stands_by)


def may_begin_with(run: Facts, version: int) -> bool:
    """Whether servers may go on from a version that they have in memory.

    Where the best checkpoint is kept, an evaluation whose checkpoint is lost with a server is made again.
    """
    assert run.spec and run.schedule
    if not run.standings.know(version):
        return False
    evaluated = run.schedule.last_evaluation(version) + 1
    return run.spec.rules.best is None or run.commits.needs_no_more(evaluated)


def assign(run: Facts, member: Member) -> AssignAction:
    """Tells a member of the present generation."""
    assignment = run.agreed.assignment
    assert assignment
    if member.role == "worker":
        assignment = msgspec.structs.replace(assignment, excluded=run.excluded)
    return AssignAction(member.name, relaying.told(run, member, assignment))


def assignment_from(run: Facts, start: Start) -> Assignment:
    assert run.spec and run.schedule
    every_steps, _ = run.config.checkpoint_interval
    infos = [
        ServerInfo(
            name=name,
            endpoint=run.members[name].endpoint,
            chunks=chunks,
            holder="" if holder == name else holder,
            carrier=run.members[name].carrier,
        )
        for name, chunks, holder in zip(run.row.names, run.row.chunks, start.holders, strict=True)
        if not is_missing(run, run.members[name])
    ]
    infos += [
        ServerInfo(name=name, endpoint=run.members[name].endpoint, chunks=(), leaves=True)
        for name in run.row.leaving
    ]
    return Assignment(
        generation=run.row.generation,
        schedule=run.schedule,
        spec=run.spec,
        seed=run.config.seed,
        servers=tuple(infos),
        excluded=run.excluded,
        start_tick=start.tick,
        in_memory=start.source == "memory",
        restore_step=run.schedule.steps_before(start.tick) if start.source == "storage" else None,
        cut_every_steps=every_steps or 0,
        snapshot_s=run.snapshot_s,
        snapshot_every=SNAPSHOT_EVERY if run.config.all_reduce else 0,
        staleness_rule=run.config.staleness_rule,
        ends=run.conclusion.closing is not None,
        on_nan=run.config.on_nan,
        standing=run.standings.at(start.tick),
        careful_to=run.failures.careful_to,
        relays=relaying.infos(run),
    )


def go_back_to(run: Facts, start: Start, now_s: float) -> list[Action]:
    """Everything after this version has not happened."""
    reached, run.version = run.version, start.tick
    run.conclusion.last_made = run.conclusion.all_made = False
    run.cuts.go_back()
    if run.state is RunState.FINISHING and not run.conclusion.stop_reason:
        run.state = RunState.RUNNING
    run.commits.forget()
    run.divergence.go_back_to(start.tick)
    run.standings.go_back_to(start.tick)
    run.quarantine.clear()
    run.commits.troubles.clear()
    why = "places have moved" if run.row.leaving else "a standby has come" if _is_for_standby(run) else ""
    return [RegroupedAction(reached, start.tick, start.source, why), *staffing.size(run, now_s)]


def serve(run: Facts, now_s: float) -> list[Action]:
    """Once all servers have their chunks, the workers are told of them."""
    servers = [run.members[name] for name in (*run.row.names, *run.row.leaving, *run.row.relaying)]
    servers = [server for server in servers if not is_missing(run, server)]
    if run.row.phase is not Phase.RESTORING or any(s.state is not MemberState.READY for s in servers):
        return []
    run.row.phase = Phase.SERVING
    actions = moving.dismiss(run)
    if run.conclusion.closing:
        return actions  # the servers write what they have, and nobody else is needed
    actions += lead_on(run)
    for worker in run.of("worker"):
        actions += assign_worker(run, worker)
    return actions


def lead_on(run: Facts) -> list[Action]:
    """What a leading server that is new to its task, or to this master, has to know."""
    actions = planning.tell_plan(run, run.plan) if run.plan else []
    actions += [PauseAction(run.row.leader)] if run.row.pausing else []
    return [*actions, CutAction(run.row.leader, finish=True)] if run.conclusion.stop_reason else actions


def assign_worker(run: Facts, worker: Member) -> list[Action]:
    """Tells a worker of the servers, once for each generation."""
    here = worker.state not in (MemberState.STARTING, MemberState.LOST) and not run.conclusion.closing
    if not here or run.row.phase is not Phase.SERVING or worker.generation == run.row.generation:
        return []
    worker.generation = run.row.generation
    return [assign(run, worker)]


def assign_again(run: Facts, member: Member) -> list[Action]:
    """Tells a worker that has no way to the servers once more, as soon as there is something to tell."""
    if member.role != "worker":
        return []
    member.generation = SEVERED
    return assign_worker(run, member)


def halt_all(run: Facts, now_s: float) -> list[Action]:
    """Stops the servers that are left, to find out from where all of them can go on."""
    run.row.phase = Phase.GATHERING
    run.conclusion.halts = False
    run.stall.pace.end_pause()
    run.row.go_on()
    run.row.offers.clear()
    actions: list[Action] = []
    for server in run.of("server"):
        if server.state is not MemberState.STARTING:
            server.state, server.since_s = MemberState.HALTED, now_s
            actions.append(HaltAction(server.name, run.row.generation + 1))
    for worker in run.of("worker", MemberState.LOST):
        worker.come_back()  # its connection may have closed because of the server
    return actions + form(run, now_s)


def go_on_closing(run: Facts, now_s: float) -> list[Action]:
    """Of a run that is to end with the version that there is: the servers are halted for that, once."""
    if run.commits.final_under_way:  # all there is to know is written
        return []
    if not any(run.members[name].was_ready for name in (*run.row.names, *run.row.leaving)):
        return ending.end_closed(run, "no server is left that has what is new")
    return halt_all(run, now_s) if run.conclusion.halts else []


def on_offer(run: Facts, event: Offer, now_s: float) -> list[Action]:
    server, total, row = run.members.get(event.name), run.total_ticks, run.row
    known = event.name in (*row.names, *row.leaving, *row.coming.values())
    if not server or not known or event.generation <= row.generation:
        return []
    server.heard_s = now_s
    actions: list[Action] = []
    if server.state is not MemberState.HALTED or event.generation != run.row.generation + 1:
        # A master before this one had halted it, and died before that was written down.
        run.row.generation, server.generation = event.generation - 1, event.generation - 1
        actions = halt_all(run, now_s)
    possible = ((place, v) for place, v in event.held if 0 <= v and (total is None or v <= total))
    hands_over = event.name in row.leaving and run.spec is not None and run.spec.tables
    run.row.offers[event.name] = () if hands_over else tuple(possible)  # rows of tables are not copied
    for standing in event.standings:
        run.standings.hear(standing)
    return actions + form(run, now_s)


def lose_server(run: Facts, server: Member, why: str, now_s: float, taken: bool = False) -> list[Action]:
    """Another one takes its place, and all go on from what they have in common."""
    early = run.row.generation == 0
    missing = is_missing(run, server)
    gone: list[Action] = [
        KillAction(server.name),
        # The steps go on: nothing that comes of one who took no part yet would end this fault.
        NoteAction("info", f"{server.name} {why}")
        if missing
        else FaultAction(server.name, "server", why, early),
    ]
    run.commits.troubles.pop(server.name, None)
    if run.commits.final_under_way:  # all there is to know is written
        server.state, server.since_s = MemberState.LOST, now_s
        return gone
    del run.members[server.name]
    if not server.was_ready and not taken and not missing:
        if run.failures.die_early():
            text = f"{run.failures.early} processes in a row died before they were ready"
            return gone + ending.end(run, RunState.FAILED, f"{text}; the last, {server.name}, {why}")
    if server.name in run.row.relays:
        gone += [*relaying.lose(run, server), *serve(run, now_s)]
        severed = [run.members[name] for name in sorted(server.doubted_by) if name in run.members]
        return gone + [action for member in severed for action in assign_again(run, member)]
    if moving.lose(run, server):
        if run.row.phase is Phase.SERVING:
            return gone
    else:
        gone += replace(run, server.name, now_s)
    if missing:
        return gone
    halted = run.row.generation == 0 or run.row.phase is Phase.GATHERING
    return gone + (form(run, now_s) if halted else halt_all(run, now_s))


def lose_carried(run: Facts, carrier: str, now_s: float) -> list[Action]:
    """A worker is gone, and with it the servers that it carried."""
    actions: list[Action] = []
    for server in run.of("server"):
        if server.carrier == carrier and server.state is not MemberState.LOST and not run.ended:
            actions += lose_server(run, server, f"is lost with {carrier}", now_s, taken=True)
    return actions


def move(run: Facts, now_s: float) -> list[Action]:
    """Servers that are to live with other workers, or a standby that comes late: begins with it, or ends it.

    While steps are made all have to come to the same version first, so that none is lost. Where none is made
    for long there is little to lose; where there are tables, whose rows are not copied, they begin anew from
    the checkpoint that there is just now.
    """
    row = run.row
    actions = [*moving.house(run, now_s), *moving.settle(run, now_s)]
    actions += relaying.settle(run, now_s, lambda worker: assign_again(run, worker))
    come = moving.have_come(run) if row.coming else relaying.have_come(run) or _standby_has_come(run)
    if not come:
        run.stall.pace.end_pause()
        # Somebody who stands by need not be waited for any longer.
        return actions + (form(run, now_s) if row.phase is Phase.GATHERING else [])
    if row.phase is Phase.SERVING and run.steps and not (run.spec and run.spec.tables):
        if not row.pausing:
            row.pausing = True
            actions.append(PauseAction(row.leader))
        if run.stall.pace.may_pause(now_s):
            return actions
    row.hand_over()
    return actions + (form(run, now_s) if row.phase is Phase.GATHERING else halt_all(run, now_s))


def on_paused(run: Facts, event: Paused, now_s: float) -> list[Action]:
    row = run.row
    known = event.name in row.holders and event.generation == row.generation
    if not known or row.phase is not Phase.SERVING or not row.pause(event.name):
        return []
    if moving.have_come(run):
        row.hand_over()
    return halt_all(run, now_s)  # also if nobody comes any more: they do not go on by themselves


def replace(run: Facts, lost: str, now_s: float) -> list[Action]:
    """Starts another server in the place of one, unless one is on its way there."""
    if successor := run.row.coming.pop(lost, ""):
        run.row.replace(lost, successor)
        return []
    actions: list[Action] = []
    if run.config.all_reduce and run.conclusion.all_made:  # who could carry another may have left
        run.conclusion.all_made = False
        actions = staffing.size(run, now_s)
    name = f"server-{run.staff.next_server}"
    run.staff.next_server += 1
    run.row.replace(lost, name)
    return [*actions, *staffing.start(run, name, "server", now_s)]


HANDLERS: Handlers = {
    Offer: on_offer,
    Paused: on_paused,
}
