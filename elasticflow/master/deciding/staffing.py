"""How many workers there are: asked for, drained, and replaced in time where their places end."""

from __future__ import annotations

from elasticflow.master.actions import (
    Action,
    DrainAction,
    KillAction,
    NoteAction,
    QuitAction,
    ResizedAction,
    StartAction,
)
from elasticflow.master.deciding import planning, records
from elasticflow.master.deciding.facts import Facts, Handlers
from elasticflow.master.events import ExpiryEvent, PlacedEvent, ScaleEvent
from elasticflow.master.members import HERE, Member, MemberState
from elasticflow.master.patience import leave_s, replace_s
from elasticflow.wire.messages import Departing


def start(run: Facts, name: str, role: str, now_s: float, carrier: str = "") -> list[Action]:
    """A server that is to be carried waits for a worker that can: see ``moving``."""
    member = Member(name, role, MemberState.STARTING, now_s, heard_s=now_s, carrier=carrier)
    member.placed_s = now_s if carrier else None  # it waits for no place of its own
    run.members[name] = member
    waits = role == "server" and run.config.all_reduce and not carrier
    return [] if waits else [StartAction(name, role, carrier)]


def size(run: Facts, now_s: float) -> list[Action]:
    """Starts or drains workers until there are as many as the target says."""
    if run.conclusion.all_made and run.spec or run.conclusion.closing:
        return []
    actions: list[Action] = []
    staying = [m for m in run.of("worker") if not m.expiring and not _is_going(m)]
    for _ in range(run.staff.target - len(staying)):
        actions += start(run, f"worker-{run.staff.next_worker}", "worker", now_s)
        run.staff.next_worker += 1
    surplus = len(staying) - run.staff.target
    if surplus > 0:
        for member in sorted(staying, key=_use)[:surplus]:
            actions += drain(run, member, run.staff.reason)
        actions += planning.replan(run)
    return actions


def drain(run: Facts, member: Member, reason: str) -> list[Action]:
    if member.state is MemberState.STARTING:
        del run.members[member.name]
        return [KillAction(member.name)]
    # One that is loading has no slices to end, and may not listen for Drain yet.
    loading, member.state = member.state is MemberState.LOADING, MemberState.DRAINING
    leave = QuitAction(member.name, reason) if loading else DrainAction(member.name)
    return [leave, NoteAction("info", f"{member.name} is drained: {reason}")]


def on_departing(run: Facts, event: Departing, now_s: float) -> list[Action]:
    """It has to go: the others do its slices, and another is asked for. That is nobody's fault."""
    member = run.members.get(event.name)
    if member is None or member.role != "worker" or member.state not in HERE:
        return []
    return [
        *drain(run, member, event.reason),
        *planning.replan(run),
        *size(run, now_s),
        *records.judge(run, now_s),
    ]


def on_placed(run: Facts, event: PlacedEvent, now_s: float) -> list[Action]:
    member = run.members.get(event.name)
    if member is not None and member.placed_s is None:
        member.placed_s = now_s
    return []


def on_expiry(run: Facts, event: ExpiryEvent, now_s: float) -> list[Action]:
    member = run.members.get(event.name)
    if member is not None:
        member.replace_s, member.leave_s = event.replace_s, event.leave_s
    return []


def relieve(run: Facts, now_s: float) -> list[Action]:
    """Drains workers whose places end soon: when others have come in their stead, or it is time."""
    expiring = [m for m in run.of("worker", *HERE) if m.expiring]
    num_fresh = sum(not m.expiring for m in run.of("worker", MemberState.READY))
    actions: list[Action] = []
    for left, member in zip(range(len(expiring), 0, -1), sorted(expiring, key=leave_s), strict=True):
        if num_fresh + left > run.staff.target or now_s >= leave_s(member):
            actions += drain(run, member, "its time limit is near")
    return [*actions, *planning.replan(run), *records.judge(run, now_s)] if actions else []


def check_expiries(run: Facts, now_s: float) -> list[Action]:
    """Asks for others in time, and has those leave whose places end."""
    due = [m for m in run.of("worker", *HERE) if now_s >= replace_s(m) and not m.expiring]
    for member in due:
        member.expiring = True
    overdue = any(m.expiring and now_s >= leave_s(m) for m in run.of("worker", *HERE))
    return [*(size(run, now_s) if due else []), *(relieve(run, now_s) if due or overdue else [])]


def on_scale(run: Facts, event: ScaleEvent, now_s: float) -> list[Action]:
    if event.grant and event.grant <= run.staff.grant:
        return []  # told again, or by a service that another one has followed
    run.staff.gain.off()
    run.staff.grant = event.grant or run.staff.grant
    if event.workers == run.staff.target:
        return planning.replan(run)
    old, run.staff.target, run.staff.reason = run.staff.target, event.workers, event.reason
    resized = ResizedAction(old, event.workers, run.staff.reason)
    return [resized, *planning.replan(run), *size(run, now_s), *relieve(run, now_s)]


HANDLERS: Handlers = {
    Departing: on_departing,
    ScaleEvent: on_scale,
    PlacedEvent: on_placed,
    ExpiryEvent: on_expiry,
}


def _is_going(member: Member) -> bool:
    """Who has lost its connection, and had come back from that before, is waited for: it may do so again."""
    return member.state is MemberState.DRAINING or (member.state is MemberState.LOST and not member.anew)


def _use(member: Member) -> tuple[int, float]:
    """Who is of least use comes first: who is not ready yet, then the newest."""
    order = (
        MemberState.STARTING,
        MemberState.LOADING,
        MemberState.LOST,
        MemberState.SUSPECT,
        MemberState.READY,
    )
    return order.index(member.state), -member.since_s
