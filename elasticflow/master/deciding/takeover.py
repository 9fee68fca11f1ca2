"""From one master to the next: what is written down, and how another goes on with it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from elasticflow.master.actions import Action, EndAction, KillAction, PruneAction
from elasticflow.master.audits import Audits
from elasticflow.master.commits import Commits
from elasticflow.master.deciding import checkpoints, ending, generations, planning, staffing
from elasticflow.master.deciding.facts import Facts, Handlers
from elasticflow.master.divergence import Divergence
from elasticflow.master.events import CommittedEvent, FoundEvent
from elasticflow.master.failures import Failures
from elasticflow.master.gain import GainMode
from elasticflow.master.members import Member, RunState, number_of
from elasticflow.master.quarantine import QuarantineRules
from elasticflow.master.row import Phase, Row
from elasticflow.master.standings import Standings
from elasticflow.training.standing import WatchStanding
from elasticflow.wire.messages import Excluded, Spec

MOST_UNWRITTEN = 10_000
"""So many servers and relays, at most, were to be carried by one of the masters before, and are not written
down."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What the next master has to know, should this one die."""

    state: RunState
    members: tuple[Member, ...]
    row: Row
    target: int
    reason: str
    spec: Spec | None
    fingerprint: dict[str, str]
    excluded: tuple[Excluded, ...]
    committed_tick: int | None
    version: int
    stop_reason: str
    end_text: str
    next_worker: int
    next_server: int
    failures: int
    early_deaths: int
    closing: tuple[RunState, str] | None = None
    skipped: tuple[tuple[int, int], ...] = ()
    diverging: bool = False
    gain: GainMode = GainMode.WATCHES
    standings: tuple[WatchStanding, ...] = ()
    grant: int = 0
    audited: int = 0
    last_given_up: int = 0
    detail: str = ""


def memory(run: Facts) -> Memory:
    """What the next master needs, should this one die. Holds what goes on changing: encode it now."""
    return Memory(
        state=run.state,
        members=tuple(run.members.values()),
        row=run.row,
        target=run.staff.target,
        reason=run.staff.reason,
        spec=run.spec,
        fingerprint=run.agreed.fingerprint,
        excluded=run.excluded,
        committed_tick=run.committed_tick,
        version=run.version,
        stop_reason=run.conclusion.stop_reason,
        end_text=run.conclusion.text,
        next_worker=run.staff.next_worker,
        next_server=run.staff.next_server,
        failures=run.failures.own,
        early_deaths=run.failures.early,
        closing=run.conclusion.closing,
        skipped=tuple(sorted(run.divergence.skipped)),
        diverging=run.divergence.ends_run,
        gain=run.staff.gain.mode,
        standings=run.standings.all,
        grant=run.staff.grant,
        audited=run.agreed.audits.equal,
        last_given_up=run.commits.last_given_up,
        detail=run.conclusion.detail,
    )


def remember(run: Facts, memory: Memory) -> None:
    """What the master before this one wrote down."""
    run.state = memory.state
    run.members = {member.name: member for member in memory.members}
    run.row = memory.row
    run.staff.gain.mode = memory.gain
    run.staff.target, run.staff.reason, run.staff.grant = memory.target, memory.reason, memory.grant
    run.agreed.fingerprint = memory.fingerprint
    committed = run.excluded
    run.quarantine = QuarantineRules(memory.excluded)
    run.quarantine.learn(committed)
    # A master may die after a commit, before it has written that down: then the storage knows more.
    known = (memory.committed_tick, run.committed_tick)
    newest = max((tick for tick in known if tick is not None), default=None)
    run.commits = Commits(newest, memory.last_given_up)
    run.version = memory.version
    run.conclusion.stop_reason, run.conclusion.text = memory.stop_reason, memory.end_text
    run.staff.next_worker, run.staff.next_server = memory.next_worker, memory.next_server
    run.failures = Failures(memory.failures, memory.early_deaths)
    run.conclusion.closing, run.conclusion.detail = memory.closing, memory.detail
    run.divergence, run.divergence.ends_run = Divergence(memory.skipped), memory.diverging
    run.agreed.audits = Audits(memory.audited)
    run.standings = Standings((*run.standings.all, *memory.standings))
    if memory.spec:
        run.learn(memory.spec)
    run.balance.take(planning.anew(run))


def adopt(
    run: Facts, living: Mapping[str, int], now_s: float, *, unread: bool = False, incarnation: int = 2
) -> list[Action]:
    """Goes on in place of a master that died. living: process numbers of members that live, by name.

    unread: the storage could not say what is committed; a FoundEvent follows. incarnation: how many masters
    there were, this one included.

    Who was started, but not written down, is ended. That those who are gone have gone is told after
    this, by ExitedEvent.
    """
    tick = run.committed_tick
    # The one before may have died before what that makes superfluous was removed: but which is the best, and
    # stays, has to be known.
    known = tick is not None and run.schedule is not None and run.standings.know(tick)
    prunes: list[Action] = [PruneAction(tick)] if tick is not None and known else []
    if run.ended:
        return [*prunes, EndAction(run.state, run.conclusion.text)]
    run.commits.unsure = unread
    run.staff.inherited = frozenset(living)
    run.conclusion.close_by_s = now_s + ending.close_s(run) if run.conclusion.closing else None
    if tick is not None and checkpoints.ends_with(run, tick):
        return [*prunes, *checkpoints.committed(run, tick)]
    run.staff.next_worker = max([run.staff.next_worker, *(number_of(n) + 1 for n in living if "worker" in n)])
    run.staff.next_server = max([run.staff.next_server, *(number_of(n) + 1 for n in living if "server" in n)])
    if run.config.all_reduce or run.config.undecided:  # the backend knows nothing of those that workers carry
        run.staff.next_server += MOST_UNWRITTEN * incarnation
    actions: list[Action] = [KillAction(name) for name in living if name not in run.members]
    for server in run.of("server") if run.config.all_reduce else ():
        if not server.carrier:  # it may live: the one before died before it wrote down with whom
            del run.members[server.name]
    for name in [name for name in run.row.names if name not in run.members]:
        actions += generations.replace(run, name, now_s)
    for member in run.members.values():
        member.heard_s = member.since_s = member.moved_s = now_s
        # Whoever is expiring still is, and another was asked for; what is known of places is told anew.
        member.doubted_s = member.replace_s = member.leave_s = None
        member.placed_s = now_s if member.carrier else None
        member.doubted_by.clear()
        member.pid = living.get(member.name) or member.pid
        if member.role == "worker":
            member.generation = 0  # what it was told may have been lost with the one who told it
    if run.state is not RunState.STARTING:
        run.cuts.begin_again(now_s)
    if run.staff.gain.mode is GainMode.CAPS:
        run.staff.gain.cap(now_s)
    if run.row.generation and run.row.phase is Phase.SERVING:
        assert run.row.start
        run.agreed.assignment = generations.assignment_from(run, run.row.start)
        actions += generations.lead_on(run)
    else:
        actions += generations.halt_all(run, now_s)
    return actions + staffing.size(run, now_s)


def on_found(run: Facts, event: FoundEvent, now_s: float) -> list[Action]:
    """What may have been committed by the master before, which died before it could write that down."""
    run.commits.unsure = False
    actions: list[Action] = []
    if event.tick is not None and run.schedule is None:
        run.commits.committed(event.tick)
        if event.standing:
            run.standings.hear(event.standing)
    elif event.tick is not None:
        actions = checkpoints.on_committed(run, CommittedEvent(event.tick, "", event.standing), now_s)
    return actions if run.ended else [*actions, *generations.form(run, now_s)]


HANDLERS: Handlers = {FoundEvent: on_found}
