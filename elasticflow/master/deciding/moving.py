"""Under ``strategy: all_reduce``: which worker carries which server, as workers come and go.

A place moves while its server lives like this: another server starts where it is to be (``Row.coming``); once
all of them have joined, all servers pause after the same step (``Row.pausing``); then those that have come
take the places (``hand_over``), and the row begins another generation, in which those of before
(``Row.leaving``) hand over their copies.
"""

from __future__ import annotations

from collections import Counter

from elasticflow.master.actions import Action, KillAction, NoteAction
from elasticflow.master.deciding import staffing
from elasticflow.master.deciding.facts import Facts
from elasticflow.master.members import Member, MemberState, RunState
from elasticflow.master.places import assign
from elasticflow.master.row import Phase


def house(run: Facts, now_s: float) -> list[Action]:
    """Starts servers that nobody carries yet where the fewest are."""
    homeless = [m for m in run.of("server", MemberState.STARTING) if not m.carrier]
    if not run.config.all_reduce or not homeless or run.ended:
        return []
    carriers = run.carriers or (run.leaving_carriers if run.conclusion.closing else [])
    if not carriers:
        return []
    load = Counter(server.carrier for server in run.of("server") if server.name not in run.row.leaving)
    actions: list[Action] = []
    for server in homeless:
        carrier = min(carriers, key=lambda name: load[name])
        load[carrier] += 1
        actions += staffing.start(run, server.name, "server", now_s, carrier)
    return actions


def settle(run: Facts, now_s: float, *, committed: bool = False) -> list[Action]:
    """Begins to move those servers that should be with other workers.

    committed: a checkpoint is, just now; where there are no copies in memory, all others would be too costly.
    """
    row = run.row
    busy = row.coming or row.leaving or row.phase is not Phase.SERVING or run.state is not RunState.RUNNING
    if not run.config.all_reduce or busy or not (run.snapshot_s or committed):
        return []
    carriers = run.carriers
    if not carriers or run.of("worker", MemberState.SUSPECT, MemberState.LOST):  # soon more is known
        return []
    current = [run.members[name].carrier for name in row.names]
    actions: list[Action] = []
    moved: Counter[str] = Counter()
    for old, here, there in zip(row.names[:], current, assign(carriers, current), strict=True):
        if here != there:
            name = row.coming[old] = f"server-{run.staff.next_server}"
            run.staff.next_server += 1
            moved[there] += 1
            actions += staffing.start(run, name, "server", now_s, there)
    for there, count in moved.items():
        actions.append(NoteAction("info", f"{count} place{'s' * (count > 1)} will move to {there}"))
    return actions


def have_come(run: Facts) -> bool:
    """Whether those that are to take places of others are there, and can."""
    coming = [run.members[name] for name in run.row.coming.values()]
    if not coming or run.row.phase is Phase.RESTORING or run.state is not RunState.RUNNING:
        return False
    return not any(server.state is MemberState.STARTING for server in coming)


def lose(run: Facts, server: Member) -> bool:
    """Of a server that is gone, whether it was only to come, or to leave, and had no place."""
    row, name = run.row, server.name
    row.offers.pop(name, None)
    if name in row.names:
        return False
    row.leaving = [other for other in row.leaving if other != name]
    row.coming = {old: new for old, new in row.coming.items() if new != name}
    return True


def dismiss(run: Facts) -> list[Action]:
    """All serve: nobody needs the copies of those who have handed over theirs."""
    actions: list[Action] = [KillAction(name) for name in run.row.leaving]
    for name in run.row.leaving:
        run.members.pop(name, None)
    run.row.leaving.clear()
    return actions
