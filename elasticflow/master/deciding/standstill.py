"""When nothing moves: who is asked, who is replaced, and when the run ends for that."""

from __future__ import annotations

from collections.abc import Sequence

from elasticflow.master.actions import Action, KillAction, LookAction, NoteAction
from elasticflow.master.deciding import departures, ending, generations, relaying
from elasticflow.master.deciding.facts import Facts, Handlers
from elasticflow.master.members import ASKED, Member, MemberState, RunState
from elasticflow.master.patience import is_there
from elasticflow.master.row import Phase
from elasticflow.master.stall import Verdict
from elasticflow.wire.messages import Here, Stacks

TRY_LOST = 2.0
"""A try of a slice in another process may take ``lost_s``: it stands still after so many times that."""
MOST_ROUNDS = 2
"""So often those who hang are replaced before a step is made; then the run ends. A slice is tried apart
once two workers have hung at it, which a single worker's run has one after the other."""


ALONE_S = 10.0
"""So long a run that is to stop waits for a worker to come who could make its last step."""


def mark(run: Facts) -> tuple[tuple[object, ...], bool]:
    """What changes when something moves, and whether anything should: see ``Stall.see``.

    Where steps cannot be made yet, servers are waited for, or workers that load, also to carry servers. Who
    still has no place, or does anything at all while it loads, has its time.
    """
    if run.ended or run.divergence.pending:
        return ("ends",), False
    if run.steps:
        tries = tuple((member.name, member.tries) for member in run.of("worker") if member.tries)
        return ("steps", run.row.generation, run.version, tries), True
    row = [run.members[name] for name in run.row.names if name in run.members]
    servers = [server for server in row if not generations.is_missing(run, server)]
    homeless = run.config.all_reduce and not all(server.carrier for server in servers)
    if run.spec and not run.wants_workers and not homeless:
        awaited = servers
    else:
        loading = run.of("worker", MemberState.STARTING, MemberState.LOADING)
        awaited = [member for member in loading if is_there(member)]
    states = tuple((member.name, member.state, member.activity) for member in awaited)
    runs = bool(awaited) and all(is_there(member) for member in awaited)
    return ("waits", run.row.generation, run.row.phase, run.version, states), runs


def stall_limit_s(run: Facts) -> float:
    """How long nothing may move."""
    if not run.steps:
        return run.stall.limit_s()
    assert run.schedule
    evaluates = run.version < run.schedule.total_ticks and run.schedule.evaluates(run.version)
    size = run.schedule.num_test / run.schedule.batch_size if evaluates else 1.0
    limit_s = run.stall.limit_s(size, stopping=run.state is RunState.FINISHING)
    trying = any(member.tries % 2 for member in run.of("worker", MemberState.READY))
    return max(limit_s, TRY_LOST * run.config.lost_s) if trying else limit_s


def stall_due_s(run: Facts) -> float:
    """When to look again whether anything moves."""
    due_s = run.stall.due_s(stall_limit_s(run))
    return due_s if run.conclusion.close_by_s is None else min(due_s, run.conclusion.close_by_s)


def check_stall(run: Facts, now_s: float) -> list[Action]:
    """Asks who waits for whom once nothing has moved for too long, and acts on the answers."""
    if run.conclusion.close_by_s is not None and now_s >= run.conclusion.close_by_s:
        return ending.end_closed(run, f"no checkpoint of it was made within {ending.close_s(run):g} s")
    if now_s < run.stall.due_s(stall_limit_s(run)):
        return []
    if verdict := run.stall.verdict(now_s):
        return act_on(run, verdict, now_s)
    if run.steps and run.conclusion.stop_reason:
        state = RunState.DIVERGED if run.divergence.ends_run else RunState.STOPPED
        return close(run, state, run.conclusion.stop_reason, now_s)
    names = tuple(m.name for m in run.members.values() if is_there(m) and m.state in ASKED)
    return [LookAction(names, run.stall.ask(names, run.version, now_s))]


def see_alone(run: Facts, now_s: float) -> None:
    """Since when a run that is to stop has had nobody who could make the step that it waits for."""
    workers = [worker for worker in run.of("worker") if worker.state is not MemberState.LOST]
    waits = bool(run.conclusion.stop_reason) and run.spec is not None and run.wants_workers
    if run.ended or not waits or any(is_there(each) or each.placed_s is not None for each in workers):
        run.conclusion.alone_s = None
    elif run.conclusion.alone_s is None:
        run.conclusion.alone_s = now_s


def check_alone(run: Facts, now_s: float) -> list[Action]:
    """A place for another worker may never come: no longer than a while does a stop wait for one."""
    if run.conclusion.alone_s is None or now_s < run.conclusion.alone_s + ALONE_S or run.ended:
        return []
    state = RunState.DIVERGED if run.divergence.ends_run else RunState.STOPPED
    return close(run, state, run.conclusion.stop_reason, now_s)


def stray_due_s(run: Facts, member: Member) -> float:
    """When a worker that stays where it is, while the others go on, is to be asked, or replaced."""
    if not run.steps or member.tick + 1 >= run.version:
        return float("inf")
    if member.asked_s is not None:
        return member.asked_s + run.stall.answer_s
    return member.moved_s + stall_limit_s(run)


def check_strays(run: Facts, now_s: float) -> list[Action]:
    """Nobody waits for these: the others do their slices. But they keep places that others could use."""
    actions: list[Action] = []
    for member in [] if run.ended else run.of("worker", MemberState.READY):
        if now_s < stray_due_s(run, member):
            continue
        if member.asked_s is None:  # so that its log says where it hangs
            member.asked_s = now_s
            actions.append(LookAction((member.name,), 0))
        elif behind := relaying.behind(run, member):  # it waits for these, as its group does
            for waits in relaying.group_of(run, member):
                waits.asked_s, waits.moved_s = None, now_s
            for relay in behind:
                actions += replace_hung(run, relay, now_s)
        else:
            actions += replace_hung(run, member, now_s)
    return actions


def on_stacks(run: Facts, event: Stacks, now_s: float) -> list[Action]:
    run.stall.stacks(event)
    return []


def on_here(run: Facts, event: Here, now_s: float) -> list[Action]:
    run.stall.here(event.name, event.number)
    verdict = run.stall.verdict(now_s)
    return act_on(run, verdict, now_s) if verdict else []


def act_on(run: Facts, verdict: Verdict, now_s: float) -> list[Action]:
    """Replaces those who hang; where nobody does, all connect anew. If that was done, ends the run."""
    steps, limit_s = run.steps, stall_limit_s(run)
    what = "no step was made" if steps else "nothing has moved"
    text = f"{what} for {limit_s:.0f} s: {verdict.text}"
    hung = [run.members[name] for name in verdict.hung if name in run.members]
    if not hung and (run.conclusion.closing or run.conclusion.last_made or run.row.phase is Phase.RESTORING):
        return [NoteAction("info", text)]  # they read or write: the storage has a patience of its own
    actions: list[Action] = [NoteAction("fault", text)]
    if not hung and verdict.silent:
        return actions  # the question, or its answer, was lost: it is asked again
    run.stall.rounds += 1
    if run.stall.rounds > MOST_ROUNDS and not run.conclusion.closing:
        return actions + close(run, RunState.STALLED, text, now_s, verdict.stack, hung)
    for member in hung:
        actions += replace_hung(run, member, now_s) if not run.ended else []
    if not hung:
        actions += [NoteAction("info", "all connect anew"), *generations.halt_all(run, now_s)]
    return actions


def replace_hung(run: Facts, member: Member, now_s: float) -> list[Action]:
    """That counts as no failure: what it was killed for may be another's fault."""
    text = "hangs, and is replaced; what its threads did is in its log"
    if member.name not in run.members:
        return []
    if member.role == "server":
        return generations.lose_server(run, member, text, now_s, taken=True)
    return [KillAction(member.name), *departures.remove(run, member, text, now_s)]


def close(
    run: Facts,
    state: RunState,
    text: str,
    now_s: float,
    detail: str = "",
    hung: Sequence[Member] = (),
) -> list[Action]:
    """Ends the run with the version that there is, without the step that is not made, and those who hang."""
    actions = ending.close(run, state, text, now_s, detail)
    if run.ended:
        return actions
    actions += [KillAction(member.name) for member in hung if member.role == "worker"]
    for member in hung:
        if member.role == "server" and member.name in run.members:
            actions += generations.lose_server(run, member, "hangs", now_s, taken=True)
    return actions


HANDLERS: Handlers = {
    Stacks: on_stacks,
    Here: on_here,
}
