"""All decisions of the master: events and the time in, actions out. No sockets, processes or clocks.

The master owns who is a member, the plan, the row of servers, the checkpoints' commits, the quarantine
and the target size. It is not on the path of a step: what it says late costs time, never correctness.
Should it die, the next one begins with ``Memory``, and with what the members say of themselves.

What is known is ``Facts``; what is decided about a subject is in its module of ``deciding``.
"""

from __future__ import annotations

from collections.abc import Mapping

from elasticflow.master.actions import Action, CutAction, PruneAction
from elasticflow.master.deciding import (
    auditing,
    checkpoints,
    departures,
    diverging,
    ending,
    gaining,
    generations,
    joining,
    records,
    staffing,
    standstill,
    takeover,
)
from elasticflow.master.deciding.facts import Facts, Handlers
from elasticflow.master.deciding.takeover import Memory
from elasticflow.master.events import ClockEvent, CommittedEvent, Event, StopEvent
from elasticflow.master.members import HERE, MemberState
from elasticflow.master.patience import leave_s, patience_ends_s, replace_s
from elasticflow.master.row import Phase
from elasticflow.run.config import Config
from elasticflow.training.standing import WatchStanding
from elasticflow.wire.messages import Excluded, Leaving


class MasterState(Facts):
    """See the module's docstring.

    restored: (training step, tick, quarantine) of the checkpoint to go on from, or None.
    memory: of the master before this one, to ``adopt`` its members.
    made_with: the fingerprint of the workers that made that checkpoint.
    stop_at_s: when the run's time limit is over; None: it has none.
    standing: what evaluations had decided by that checkpoint.
    """

    def __init__(
        self,
        config: Config,
        *,
        restored: tuple[int, int, tuple[Excluded, ...]] | None = None,
        made_with: Mapping[str, str] | None = None,
        memory: Memory | None = None,
        stop_at_s: float | None = None,
        standing: WatchStanding | None = None,
    ) -> None:
        super().__init__(
            config, restored=restored, made_with=made_with, stop_at_s=stop_at_s, standing=standing
        )
        if memory:
            takeover.remember(self, memory)

    def start(self, now_s: float) -> list[Action]:
        """The first actions of a run."""
        actions: list[Action] = []
        for name in self.row.names:
            actions += staffing.start(self, name, "server", now_s)
        return actions + staffing.size(self, now_s)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What to do, in this order, now that ``event`` has happened."""
        if self.ended:
            if isinstance(event, CommittedEvent) and not event.error:
                self.commits.committed(event.tick)  # it was under way
                return [PruneAction(event.tick)]
            return departures.on_leaving(self, event, now_s) if isinstance(event, Leaving) else []
        actions = HANDLERS[type(event)](self, event, now_s)
        if self.conclusion.closing and not self.ended:
            actions += generations.go_on_closing(self, now_s)
        self.stall.see(*standstill.mark(self), now_s)
        if not self.steps:
            self.stall.pace.wait(now_s)
        standstill.see_alone(self, now_s)
        departures.see_bereft(self, now_s)
        return actions

    def memory(self) -> Memory:
        """What the next master needs, should this one die. Holds what goes on changing: encode it now."""
        return takeover.memory(self)

    def adopt(
        self, living: Mapping[str, int], now_s: float, *, unread: bool = False, incarnation: int = 2
    ) -> list[Action]:
        """Goes on in place of a master that died: see ``takeover.adopt``."""
        return takeover.adopt(self, living, now_s, unread=unread, incarnation=incarnation)

    def next_time_s(self) -> float | None:
        """When to send a ClockEvent at the latest."""
        members, stopping = self.members.values(), bool(self.conclusion.stop_reason)
        waits = (patience_ends_s(m, self.config, self.failures.patience) for m in members)
        times = [at_s for at_s in waits if at_s is not None]
        if self.row.phase is Phase.SERVING:
            times.append(self.cuts.due_s(stopping))
        times += [leave_s(m) if m.expiring else replace_s(m) for m in self.of("worker", *HERE)]
        times += [by_s for by_s in (self.cuts.move_by_s, self.stall.pace.pause_by_s) if by_s is not None]
        alone_s = self.conclusion.alone_s
        times += [] if alone_s is None else [alone_s + standstill.ALONE_S]
        bereft_s = self.staff.bereft_s
        times += [] if bereft_s is None else [bereft_s + departures.BEREFT_S]
        times += [
            self.cuts.limit_s(stopping),
            self.staff.gain.grow_s,
            standstill.stall_due_s(self),
            diverging.divergence_ends_s(self),
        ]
        times += [standstill.stray_due_s(self, member) for member in self.of("worker", MemberState.READY)]
        return min((at_s for at_s in times if at_s < float("inf")), default=None)


def on_time(run: Facts, event: ClockEvent, now_s: float) -> list[Action]:
    """Looks at everything that is to happen at a time."""
    actions: list[Action] = []
    for member in [*run.of("server"), *run.of("worker")]:
        if member.name in run.members and not run.ended:
            actions += departures.check_alive(run, member, now_s)
    if now_s >= run.cuts.limit_s(bool(run.conclusion.stop_reason)) and not run.ended:
        actions += ending.on_stop(run, StopEvent(ending.why_time_is_over(run)), now_s)
    actions += [] if run.ended else diverging.diverge(run, now_s)
    if run.ended:
        return actions
    actions += [*staffing.check_expiries(run, now_s), *gaining.check(run, now_s)]
    actions += generations.move(run, now_s)
    if run.ended:
        return actions
    actions += [*standstill.check_stall(run, now_s), *standstill.check_strays(run, now_s)]
    actions += standstill.check_alone(run, now_s)
    actions += departures.check_bereft(run, now_s)
    if run.ended:
        return actions
    if run.row.phase is Phase.SERVING and run.cuts.due_s(bool(run.conclusion.stop_reason)) <= now_s:
        run.cuts.order(run.version, now_s)
        actions.append(CutAction(run.row.leader, finish=False))
    if run.cuts.move_by_s is not None and now_s >= run.cuts.move_by_s:
        actions += checkpoints.hand_over(run, "the newest checkpoint must do")
    return actions


HANDLERS: Handlers = {
    **joining.HANDLERS,
    **departures.HANDLERS,
    **staffing.HANDLERS,
    **generations.HANDLERS,
    **records.HANDLERS,
    **diverging.HANDLERS,
    **auditing.HANDLERS,
    **checkpoints.HANDLERS,
    **standstill.HANDLERS,
    **ending.HANDLERS,
    **takeover.HANDLERS,
    ClockEvent: on_time,
}
"""Who decides about which event."""
