"""Those who go, or seem to: exits, failures, silence, closed connections."""

from __future__ import annotations

from elasticflow.errors import BrokenError
from elasticflow.master.actions import (
    Action,
    DrainAction,
    FaultAction,
    HaltAction,
    KillAction,
    NoteAction,
)
from elasticflow.master.deciding import ending, generations, planning, records, staffing
from elasticflow.master.deciding.facts import Facts, Handlers
from elasticflow.master.events import DisconnectedEvent, ExitedEvent, OversleptEvent, ReconnectedEvent
from elasticflow.master.failures import untold_in
from elasticflow.master.members import Member, MemberState, RunState
from elasticflow.master.patience import is_there, patience_ends_s, silence_s
from elasticflow.master.row import Phase
from elasticflow.wire.messages import Failed, Leaving, Lost, ServerEnded

USERS_FAULTS = ("ProgramError", "LoopError", "DataError", "ConfigError", "CostError")
"""Errors that no other worker would be spared."""
LOGS_TELL = "Their logs may tell more"
BEREFT_S = 30.0
"""So long a worker that has failed stays for its servers, where nobody is there to take them over."""
MOST_ANEW = 20
"""So often a worker may lose a server that lives, and come no further."""


def on_leaving(run: Facts, event: Leaving, now_s: float) -> list[Action]:
    member = run.members.get(event.name)
    if member and event.usage:
        member.usage = event.usage
    if member and member.role == "worker":
        # Who leaves undrained has got the last version from all servers, or those of before this row.
        undrained = member.state is not MemberState.DRAINING and not event.failed
        run.conclusion.all_made |= run.conclusion.last_made and undrained
        if 0 < event.ended == run.row.generation and not run.ended:  # before the leading server's word
            run.state, run.conclusion.last_made, run.conclusion.all_made = RunState.FINISHING, True, True
        member.state, member.failed, member.left = MemberState.DRAINING, event.failed, True
        if run.config.all_reduce and not run.ended:
            # It lives on with the servers that it carries. If one of all is lost, somebody has to come.
            run.conclusion.all_made &= not run.regrouping
            return staffing.size(run, now_s)
    return []


def _let_go(worker: Member) -> None:
    """It lives, and has let go of all servers because of one, which may have been heard of first."""
    if worker.state is MemberState.LOST:
        worker.come_back()


def on_lost(run: Facts, event: Lost, now_s: float) -> list[Action]:
    """A connection in the data plane closed. A worker is dead then, or as good as; a server is asked."""
    member, teller = run.members.get(event.member), run.members.get(event.name)
    if teller is None:
        return []
    if member is None:
        _let_go(teller)
        return generations.assign_again(run, teller)  # its servers are not those of now
    if member.role == "server":
        member.doubted_by.add(event.name)
        _let_go(teller)
        doubt(member, now_s)
        return []
    if any(member.name in server.doubted_by for server in run.of("server")):
        return []  # it lives, and has said why
    if teller.name in run.row.relays and teller.name not in run.row.relaying:
        return []  # of a group that has lost another, and lets go of all
    here = (MemberState.READY, MemberState.SUSPECT, MemberState.LOADING)
    if member.state not in here or teller.role != "server" or run.regrouping:
        return []
    member.state, member.since_s = MemberState.LOST, now_s
    # At the end it may just have left, and a relay says so before the end is known; or it may be on its way
    # to the servers, since its group has lost another relay.
    may_live = run.conclusion.last_made or teller.name in run.row.relays
    anew = [] if may_live else staffing.size(run, now_s)
    return [*planning.replan(run), *anew, *records.judge(run, now_s)]


def on_disconnected(run: Facts, event: DisconnectedEvent, now_s: float) -> list[Action]:
    member = run.members.get(event.name)
    if member and member.role == "server":
        doubt(member, now_s)
    return []


def on_reconnected(run: Facts, event: ReconnectedEvent, now_s: float) -> list[Action]:
    """Says again what may have got lost; the member does the same."""
    member = run.members.get(event.name)
    if member is None:
        return []
    if member.role == "worker":
        member.generation = 0  # it is told of the servers again, unless it says that it knows
        return [DrainAction(member.name)] if member.state is MemberState.DRAINING else []
    if member.state is MemberState.HALTED:
        return [HaltAction(member.name, run.row.generation + 1)]
    takes_part = member.name in (*run.row.names, *run.row.leaving, *run.row.relaying)
    told = takes_part and run.agreed.assignment and not generations.is_missing(run, member)
    if member.state is MemberState.LOADING and run.row.phase is Phase.RESTORING and told:
        return [generations.assign(run, member)]
    return generations.lead_on(run) if run.row.phase is Phase.SERVING else []


def doubt(server: Member, now_s: float) -> None:
    """It has a heartbeat's time to show that it lives."""
    if server.doubted_s is None:
        server.doubted_s = now_s


def settle_doubts(run: Facts, member: Member, now_s: float) -> list[Action]:
    """It lives. Workers that cannot reach it may try again, servers in another generation."""
    doubted_by = [run.members[name] for name in sorted(member.doubted_by) if name in run.members]
    member.doubted_by.clear()
    member.doubted_s = None
    severed = run.row.phase is not Phase.GATHERING and not run.commits.final_under_way
    if severed and any(each.role == "server" for each in doubted_by):
        return generations.halt_all(run, now_s)
    actions: list[Action] = []
    for worker in doubted_by if run.row.phase is Phase.SERVING else ():
        actions += connect_again(run, worker, member, now_s)
    return actions


def connect_again(run: Facts, worker: Member, server: Member, now_s: float) -> list[Action]:
    """A worker could not reach a server that lives. After too many times in one tick it is given up."""
    worker.anew += 1
    if worker.anew <= MOST_ANEW:
        return generations.assign_again(run, worker)
    where = f"{worker.host} and {server.host}" if worker.host != server.host else worker.host
    text = (
        f"lost its connection to {server.name}, which lives, {worker.anew} times, and came no further: see "
        f"what on {where} may cut it, such as a firewall or a limit on how much one may send"
    )
    end = count_early(run, worker, text, now_s)
    if worker.was_ready and run.failures.go(failed=False, members=len(run.members)):
        end += end_of_gone(run, text, now_s)
    return end if run.ended else [*end, KillAction(worker.name), *remove(run, worker, text, now_s)]


def on_exited(run: Facts, event: ExitedEvent, now_s: float) -> list[Action]:
    member = run.members.get(event.name)
    if member is None:
        return []
    if member.state is MemberState.DRAINING:
        del run.members[event.name]
        gone = [
            NoteAction("info", f"{event.name} has left"),
            *generations.lose_carried(run, event.name, now_s),
        ]
        if run.ended:
            return gone
        return [*gone, *planning.replan(run), *staffing.size(run, now_s), *records.judge(run, now_s)]
    actions: list[Action] = []
    if member.role == "worker" and member.was_ready and not event.taken:
        untold = untold_in(run.stall.pace.step_s) if run.config.all_reduce else 0
        if run.failures.go(event.failed, untold, len(run.members)):
            actions += end_of_gone(run, event.text, now_s)
    if not event.taken and run.failures.end_in_vain(len(run.members)):
        text = f"{run.failures.in_vain} processes ended, and no step was made meanwhile"
        text += f"; the last, {event.name}, {event.text}. {LOGS_TELL}."
        actions += cannot_go_on(run, member, text, now_s)
        return actions if run.ended else actions + lose(run, member, event.text, now_s)
    if run.ended:
        return actions
    if event.failed:
        return actions + fail(run, member, event.text, now_s)
    if member.role == "server":
        return actions + generations.lose_server(run, member, event.text, now_s, event.taken)
    if not event.taken:
        actions += count_early(run, member, event.text, now_s)
    return actions if run.ended else actions + remove(run, member, event.text, now_s)


def on_server_ended(run: Facts, event: ServerEnded, now_s: float) -> list[Action]:
    server = run.members.get(event.member)
    if server is None or server.carrier != event.name:
        return []
    return on_exited(run, ExitedEvent(event.member, event.failed, event.text), now_s)


def count_early(run: Facts, member: Member, why: str, now_s: float) -> list[Action]:
    """A worker is gone by no order of ours. The end of the run, if too many never were ready."""
    if member.was_ready or not run.failures.die_early():
        return []
    text = f"{run.failures.early} workers in a row died before they were ready; the last {why}"
    program = run.config.program or "PROGRAM"
    advice = f"'elasticflow check {program}' tries its first slice, and the records of that one by one"
    return ending.fail(run, f"{text}. {advice}.", now_s)


def end_of_gone(run: Facts, last: str, now_s: float) -> list[Action]:
    text = f"{run.failures.gone} workers ended while step {run.step_in_work} was made; the last {last}"
    known = "No record is known that ends a process every time"
    return ending.fail(run, f"{text}. {known}. {LOGS_TELL}.", now_s)


def remove(run: Facts, member: Member, why: str, now_s: float) -> list[Action]:
    """Goes on without a worker, and starts another in its place."""
    run.members.pop(member.name, None)
    fault: list[Action] = [FaultAction(member.name, "worker", why)]
    fault += generations.lose_carried(run, member.name, now_s)
    if run.ended:
        return fault
    return [*fault, *planning.replan(run), *staffing.size(run, now_s), *records.judge(run, now_s)]


def on_failed(run: Facts, event: Failed, now_s: float) -> list[Action]:
    member = run.members.get(event.name)
    if member is None:
        return []
    if event.kind in USERS_FAULTS and run.state is RunState.STARTING:
        return ending.end(run, RunState.FAILED, event.text)
    if event.kind == BrokenError.__name__:
        return ending.end(run, RunState.BROKEN, event.text)
    why = f"failed: {event.text}"
    if event.for_all:
        end = cannot_go_on(run, member, event.text, now_s, event.traceback)
    else:
        end = count_failure(run, member, why, now_s, event.traceback)
    if run.ended:
        return end
    if any(server.carrier == member.name for server in run.of("server")):
        return end + stay(run, member, why, now_s)
    return end + lose(run, member, why, now_s)


def stay(run: Facts, worker: Member, why: str, now_s: float) -> list[Action]:
    """It has failed, but lives: its servers do, too, until they have moved or written what they have."""
    worker.state, worker.failed = MemberState.DRAINING, True
    fault = FaultAction(worker.name, "worker", why)
    return [fault, *planning.replan(run), *staffing.size(run, now_s), *records.judge(run, now_s)]


def see_bereft(run: Facts, now_s: float) -> None:
    """Since when workers that have failed stay for servers that nobody could take over."""
    staying = any(member.failed for member in run.of("worker")) and not run.conclusion.closing
    if not staying or run.carriers:
        run.staff.bereft_s = None
    elif run.staff.bereft_s is None:
        run.staff.bereft_s = now_s


def check_bereft(run: Facts, now_s: float) -> list[Action]:
    """Whoever is to come may need the place, or the GPU, that one of these keeps."""
    if run.staff.bereft_s is None or now_s < run.staff.bereft_s + BEREFT_S or run.ended:
        return []
    actions: list[Action] = []
    for worker in [member for member in run.of("worker") if member.failed]:
        if not run.ended:
            why = f"had failed, and nobody came in {BEREFT_S:g} s who could take over its servers"
            actions += [KillAction(worker.name), *remove(run, worker, why, now_s)]
    return actions


def fail(run: Facts, member: Member, why: str, now_s: float) -> list[Action]:
    """A failure of the member's own, which is gone."""
    end = count_failure(run, member, why, now_s)
    return end if run.ended else end + lose(run, member, why, now_s)


def count_failure(run: Facts, member: Member, why: str, now_s: float, detail: str = "") -> list[Action]:
    """Ends the run once there are too many."""
    if not run.failures.fail(run.config.max_failures, bad_host(run, member), now_s):
        return []
    many = f"failure {run.failures.own}, max_failures is {run.config.max_failures}"
    return cannot_go_on(run, member, f"{member.name} {why} ({many})", now_s, detail)


def bad_host(run: Facts, member: Member) -> str:
    """Where a worker is that never was ready, nor anybody there, while others are elsewhere; else ""."""
    good = {worker.host for worker in run.of("worker") if worker.was_ready}
    never = member.role == "worker" and not member.was_ready
    return member.host if good and never and member.host not in good else ""


def cannot_go_on(run: Facts, member: Member, text: str, now_s: float, detail: str = "") -> list[Action]:
    """The run has failed, by one member too many. A server that fails as it ends may do so for ever."""
    if run.conclusion.closing and member.role == "server":
        return ending.end_closed(run, text)
    return ending.fail(run, text, now_s, detail)


def lose(run: Facts, member: Member, why: str, now_s: float) -> list[Action]:
    gone = generations.lose_server if member.role == "server" else remove
    return gone(run, member, why, now_s)


def check_alive(run: Facts, member: Member, now_s: float) -> list[Action]:
    ends_s = patience_ends_s(member, run.config, run.failures.patience)
    if ends_s is None or now_s < ends_s:
        return []
    if member.state is MemberState.STARTING and not is_there(member):
        return give_up(run, member, now_s)
    if member.left:  # and nobody tells of its end, such as where the cluster's controller is away
        return [KillAction(member.name), *on_exited(run, ExitedEvent(member.name, False, ""), now_s)]
    silent = f"was silent for {now_s - member.heard_s:.1f} s, and is given up"
    if member.role == "server":
        silent_s = member.heard_s + silence_s(run.config, run.failures.patience)
        doubted = member.doubted_s is not None and now_s < silent_s
        run.failures.fall_silent(now_s, run.config.suspect_s)
        relays = member.name in run.row.relaying
        actions = generations.lose_server(run, member, "lost its connections" if doubted else silent, now_s)
        if relays and run.row.phase is Phase.SERVING and not run.ended and not run.commits.final_under_way:
            # Its group may not hear of it: where its host is gone no connection closes.
            actions += generations.halt_all(run, now_s)
        return actions
    if member.state is MemberState.READY:
        member.state = MemberState.SUSPECT
        fault = FaultAction(member.name, "worker", "is silent; the others do its slices")
        return [fault, *planning.replan(run), *records.judge(run, now_s)]
    text = "lost its connection" if member.state is MemberState.LOST else silent
    end = count_early(run, member, text, now_s)
    return end if run.ended else [*end, KillAction(member.name), *remove(run, member, text, now_s)]


def give_up(run: Facts, member: Member, now_s: float) -> list[Action]:
    """One whose process never came. No failure of its own."""
    end = KillAction(member.name, never_came=True)
    text = f"did not come within {run.config.start_s:g} s of getting its place, and is given up"
    if member.role == "server":
        return [end, *generations.lose_server(run, member, text, now_s, taken=True)]
    return [end, *remove(run, member, text, now_s)]


def on_overslept(run: Facts, event: OversleptEvent, now_s: float) -> list[Action]:
    run.stall.excuse(event.seconds)
    if run.conclusion.close_by_s is not None:
        run.conclusion.close_by_s += event.seconds
    for member in run.members.values():
        member.heard_s += event.seconds
        member.moved_s += event.seconds
        if member.doubted_s is not None:
            member.doubted_s += event.seconds
        if member.placed_s is not None:
            member.placed_s += event.seconds
        if member.state in (MemberState.LOST, MemberState.STARTING):
            member.since_s += event.seconds
    return []


HANDLERS: Handlers = {
    Leaving: on_leaving,
    Failed: on_failed,
    Lost: on_lost,
    ServerEnded: on_server_ended,
    ExitedEvent: on_exited,
    DisconnectedEvent: on_disconnected,
    ReconnectedEvent: on_reconnected,
    OversleptEvent: on_overslept,
}
