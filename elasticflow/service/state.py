"""What the service decides: with the policy that was simulated, from events and the time alone.

No clock, no socket, no disk: the same events at the same times give the same grants, so the journal of the
events is all that a service has to remember. What is to be is said by ``grants``; the process around it sees
to it that it is so, as often as it must.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf

from elasticflow.scheduler import events as ev
from elasticflow.scheduler.answers import JobAnswer, answer
from elasticflow.scheduler.capacity import Capacity, capacity
from elasticflow.scheduler.curves import Curve, curve
from elasticflow.scheduler.decisions import Admitted, Decision, Deferred, Placed, Rejected, WakeAt
from elasticflow.scheduler.forecast import PlannedShare, shares_of
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.policies.base import Policy
from elasticflow.scheduler.policies.elastic import Elastic
from elasticflow.scheduler.tracks import Standing
from elasticflow.service import happenings as hp
from elasticflow.service.beginnings import LAST, expected_s
from elasticflow.service.doubts import Doubt, over, weigh
from elasticflow.service.learned import believed
from elasticflow.service.ledger import Account, Ledger

TRIAL_S, TRIAL_WITHIN_S = 60.0, 1800.0
"""Of a program that was never measured the policy plans so long on one worker, to be had within that time."""

BEHIND_S = 30.0
"""So often is decided anew while somebody is not done who should be."""
GUESSED_ANEW = 0.1
"""What was not measured is guessed anew if that makes it differ by this part."""


class TaskStanding(str, Enum):
    """What a task may count on."""

    PROMISED = "promised"
    """Its deadline."""
    HOPEFUL = "hopeful"
    """No promise yet; it runs on what others do not need, and a promise may come."""
    UNMEASURED = "unmeasured"
    """Nobody knows how fast it is: it runs, and will be told."""
    LATE = "late"
    """Its deadline cannot be kept; it runs as best effort."""
    BEST_EFFORT = "best effort"
    """It has no deadline."""
    REFUSED = "refused"
    """It was not taken in."""
    LEAVING = "leaving"
    """It was cancelled, and commits a checkpoint."""
    OVER = "over"
    """It has ended."""


ENDS = (TaskStanding.REFUSED, TaskStanding.OVER)
WITHOUT_PROMISE = (TaskStanding.HOPEFUL, TaskStanding.LATE, TaskStanding.BEST_EFFORT)
"""Of those that were measured."""


@dataclass
class Ticket:
    """What is known of a task. earliest_s: the deadline that could be promised; None: nobody knows.

    why: it has as many workers as it has; said: of its deadline. rates: steps a second by workers, measured.
    tried: the policy knows the task by its true curve. state: how its run ended. by_s: what is
    promised, later than its deadline, which is soft; None: its deadline. doubts: of numbers of workers that
    brought nothing.
    """

    task: hp.Task
    handed_s: float
    standing: TaskStanding = TaskStanding.UNMEASURED
    said: str = ""
    earliest_s: float | None = None
    why: str = ""
    steps: int | None = None
    done: int = 0
    rates: dict[int, float] = field(default_factory=dict)
    doubts: dict[int, Doubt] = field(default_factory=dict)
    tried: bool = False
    state: str = ""
    promised_s: float | None = None
    by_s: float | None = None
    ended_s: float | None = None

    @property
    def remaining(self) -> float:
        """Steps; of a trial, which has none of its own, always some."""
        return max(0, (self.steps or 0) - self.done) if self.tried else TRIAL_S


@dataclass(frozen=True)
class Granted:
    """What a run may have now. number: grows with each change.

    until_s: when that is looked at again at the latest; None: when something happens.
    """

    workers: int
    number: int
    why: str
    until_s: float | None


class ServiceState:
    """See the module's docstring."""

    def __init__(self, policy: Policy, numbered: int = 0) -> None:
        self.policy = policy
        self.numbered = numbered
        """So many tasks were handed in so far, those included that nobody remembers."""
        self.now_s = 0.0
        self.wake_s = inf
        self._behind_s: float | None = None
        """When somebody should be done by what was decided last; None: to be looked up."""
        self.tickets: dict[str, Ticket] = {}
        self.ledger = Ledger()
        self.nodes: dict[int, hp.NodeSeen] = {}
        """As they were last seen, by number."""
        self.foreseen: list[tuple[float, int]] = []
        """From when on how many workers there may be; empty: nobody has said."""
        self.shared: int | None = None
        """No more than so many just now; None: as many as there are."""
        self.beginnings: deque[float] = deque(maxlen=LAST)
        """Seconds that the last ones took."""
        self._least_s = policy.overheads.base_s
        self._arriving: list[Ticket] = []
        """Whom the policy is to be told of at the end of this turn."""

    @property
    def capacity(self) -> int:
        """Workers that there can be at once."""
        return self.policy.num_usable

    @property
    def share(self) -> Capacity:
        """What may be used now, and as far as that is known ahead."""
        most = self.policy.shape.num_gpus if self.shared is None else self.shared
        return capacity((from_s, min(size, most)) for from_s, size in self.foreseen or [(0.0, most)])

    def handle(self, happened: Sequence[hp.Happening], now_s: float) -> None:
        """Takes in what has happened, and decides once."""
        self.now_s = now_s = max(self.now_s, now_s)
        self._arriving = []  # one that raised may have left some
        told: list[ev.Event] = []
        for happening in happened:
            told += self._take_in(happening)
        told += self._try_again()
        told += [
            ev.ArrivalEvent(self._job(ticket)) for ticket in self._arriving if ticket.standing not in ENDS
        ]
        if told:
            remaining = {
                name: self.tickets[name].remaining for name in self.policy.tracks if name in self.tickets
            }
            self._decide([ev.ProgressEvent(remaining), *told])
        self.ledger.settle(self.capacity, self._by_urgency())

    @property
    def due_s(self) -> float:
        """When something is to be decided at the latest, though nothing happens."""
        doubts = (doubt for ticket in self.under_way() for doubt in ticket.doubts.values())
        if self._behind_s is None:
            etas_s = filter(None, map(self.eta_s, self.ledger.accounts))
            self._behind_s = max(min(etas_s, default=inf), self.now_s + BEHIND_S)
        return min(
            [self.wake_s, self._behind_s, *(doubt.until_s for doubt in doubts if doubt.until_s > self.now_s)]
        )

    def granted(self, name: str) -> Granted:
        """What the run of this task may have: none, if it is not under way."""
        account = self.ledger.accounts.get(name, Account())
        until_s = self.wake_s if account.granted and self.wake_s < inf else None
        return Granted(account.granted, account.number, self.tickets[name].why, until_s)

    def in_vain(self, name: str) -> tuple[int, float] | None:
        """Twice the workers that it has, for which there is room, and until when it is believed that so many
        bring nothing, as was measured. None: that is not why it has no more."""
        ticket, account = self.tickets[name], self.ledger.accounts.get(name)
        if account is None or ticket.standing not in WITHOUT_PROMISE:
            return None
        more, doubt = 2 * account.wanted, ticket.doubts.get(2 * account.wanted)
        idle = self.capacity - sum(each.wanted for each in self.ledger.accounts.values())
        is_so = doubt is not None and doubt.until_s > self.now_s and account.wanted <= idle
        return (more, doubt.until_s) if doubt and is_so else None

    def eta_s(self, name: str) -> float | None:
        """When it is done by its plan, or as it goes now; None: nobody knows."""
        track = self.policy.tracks.get(name)
        if track is None or not self.tickets[name].tried:
            return None
        finish_s = track.plan.finish_s if track.plan else track.finish_s()
        return None if finish_s == inf else finish_s

    def planned(self, name: str) -> tuple[tuple[PlannedShare, ...], bool]:
        """What it gets from now on, and whether that is its plan; nothing of a trial: it has no end."""
        track = self.policy.tracks.get(name)
        if track is None or not self.tickets[name].tried:
            return (), False
        return shares_of(track, self.now_s)

    def instead(self, name: str, is_late: Callable[[], bool] = lambda: False) -> JobAnswer | None:
        """What could be promised now to a task for which there is no room; None: there is, or none knows.

        is_late: see ``scheduler.answers``.
        """
        track = self.policy.tracks.get(name)
        if track is None or track.standing is not Standing.WAITING or not isinstance(self.policy, Elastic):
            return None
        return answer(self.policy, track.job, self.now_s, is_late=is_late)

    def under_way(self) -> list[Ticket]:
        """Those that are not over, in the order in which they were handed in."""
        return [self.tickets[name] for name in self.ledger.accounts]

    def check_invariants(self) -> None:
        """What is true after every event."""
        self.policy.check_invariants()
        accounts = self.ledger.accounts
        assert list(accounts) == [name for name, each in self.tickets.items() if each.standing not in ENDS]
        assert all(0 <= each.granted <= each.held for each in accounts.values())
        assert all(each.granted <= each.wanted for each in accounts.values())
        assert sum(each.wanted for each in accounts.values()) <= self.capacity

    # --- what happened ---------------------------------------------------------------------------

    def _take_in(self, happening: hp.Happening) -> list[ev.Event]:
        """What the policy is to be told of it. Of tasks that are over nothing counts any more."""
        if isinstance(happening, hp.HandedIn):
            return self._hand_in(happening.task)
        if isinstance(happening, hp.Advanced):
            for name, done in happening.done.items():
                self.tickets[name].done = done
            return []
        if isinstance(happening, hp.NodeSeen):
            return self._see(happening)
        if isinstance(happening, hp.Foreseen):
            self.foreseen = happening.steps
            return [ev.CapacityEvent(self.share)]
        if isinstance(happening, hp.Shared):
            self.shared = happening.workers
            return [ev.CapacityEvent(self.share)]
        if isinstance(happening, hp.Woken):
            self.wake_s = inf if self.wake_s <= self.now_s else self.wake_s
            return [ev.TickEvent()]
        if isinstance(happening, hp.Began):
            return self._see_beginning(happening.seconds)
        ticket = self.tickets[happening.name]
        if ticket.standing in ENDS:
            return []
        if isinstance(happening, hp.Over):
            return self._end(ticket, happening.state, happening.text)
        if isinstance(happening, hp.Held):
            self.ledger.confirm(happening.name, happening.workers, happening.number)
            account = self.ledger.accounts[happening.name]
            if ticket.standing is TaskStanding.LEAVING and not account.held:
                return self._end(ticket, "cancelled", ticket.said)
            return []
        if ticket.standing is TaskStanding.LEAVING:
            return []
        if isinstance(happening, hp.Cancelled):
            return self._cancel(ticket, happening.by)
        if isinstance(happening, hp.Counted):
            ticket.steps = happening.steps
            return self._know(ticket)
        return self._pace(ticket, happening.workers, happening.rate)

    def _hand_in(self, task: hp.Task) -> list[ev.Event]:
        self.numbered += 1
        ticket = Ticket(task, self.now_s, steps=task.steps, rates=dict(task.rates))
        weigh(ticket.doubts, ticket.rates, None, self.now_s)
        self.tickets[task.name], self.ledger.accounts[task.name] = ticket, Account()
        self._arriving.append(ticket)
        return []

    def _cancel(self, ticket: Ticket, by: str) -> list[ev.Event]:
        name = ticket.task.name
        ticket.standing, ticket.said = TaskStanding.LEAVING, f"cancelled by {by}"
        account, ticket.why = self.ledger.accounts[name], ticket.said
        told: list[ev.Event] = [ev.CompletionEvent(name)]
        return told if account.held else [*told, *self._end(ticket, "cancelled", ticket.said)]

    def _end(self, ticket: Ticket, state: str, text: str) -> list[ev.Event]:
        known = ticket.standing is not TaskStanding.LEAVING
        ticket.standing, ticket.state, ticket.said = TaskStanding.OVER, state, text or ticket.said
        ticket.ended_s = self.now_s
        self.ledger.close(ticket.task.name)
        return [ev.CompletionEvent(ticket.task.name)] if known else []

    def _see(self, seen: hp.NodeSeen) -> list[ev.Event]:
        self.nodes[seen.node] = seen
        if seen.up == (seen.node not in self.policy.placement.down):
            return []
        return [ev.NodeBackEvent(seen.node) if seen.up else ev.NodeLostEvent(seen.node)]

    def _see_beginning(self, seconds: float) -> list[ev.Event]:
        """Plans count on it from now on, if it is news."""
        self.beginnings.append(seconds)
        before = self.policy.overheads
        base_s = expected_s(self.beginnings, self._least_s, before.base_s)
        if base_s == before.base_s:
            return []
        self.policy.count_on(replace(before, base_s=base_s))
        return [ev.TickEvent()]

    def _pace(self, ticket: Ticket, workers: int, rate: float) -> list[ev.Event]:
        ticket.rates[workers] = rate
        weigh(ticket.doubts, ticket.rates, workers, self.now_s)
        if not ticket.tried:
            return self._know(ticket)
        if ticket in self._arriving or workers not in self.policy.tracks[ticket.task.name].job.curve.sizes:
            return []
        now, before = (
            believed(ticket.rates, ticket.task.most_workers),
            self.policy.tracks[ticket.task.name].job.curve,
        )
        guessed = [size for size in now.sizes if size not in ticket.rates]
        if any(abs(now.rate(size) / before.rate(size) - 1) > GUESSED_ANEW for size in guessed):
            return [self._guessed_anew(ticket, now)]
        return [ev.ProfileCorrectedEvent(ticket.task.name, workers, rate)]

    def _guessed_anew(self, ticket: Ticket, now: Curve) -> ev.Event:
        measured = {size: ticket.rates[size] for size in now.sizes if size in ticket.rates}
        return ev.ProfileReplacedEvent(ticket.task.name, now, measured)

    def _try_again(self) -> list[ev.Event]:
        """Forgets of runs without a promise, which could rest on it, what is not believed any longer."""
        told: list[ev.Event] = []
        for name, account in self.ledger.accounts.items():
            ticket = self.tickets[name]
            again = set(over(ticket.doubts, ticket.rates, account.wanted, self.now_s))
            if again and account.wanted and ticket.standing in WITHOUT_PROMISE:
                ticket.rates = {size: rate for size, rate in ticket.rates.items() if size not in again}
                told.append(self._guessed_anew(ticket, believed(ticket.rates, ticket.task.most_workers)))
        return told

    def _know(self, ticket: Ticket) -> list[ev.Event]:
        """Enough is known of a task that was on trial: from now on the policy plans all of it."""
        if ticket.tried or ticket.steps is None or not self._is_measured(ticket):
            return []
        if ticket in self._arriving:
            return []
        self._arriving.append(ticket)
        return [ev.CompletionEvent(ticket.task.name)]

    def _is_measured(self, ticket: Ticket) -> bool:
        return any(size <= ticket.task.most_workers and not size & (size - 1) for size in ticket.rates)

    # --- what the policy is told -----------------------------------------------------------------

    def _job(self, ticket: Ticket) -> Job:
        """All of it if its speed and its length are known, or else as much as it takes to measure it."""
        task = ticket.task
        if ticket.steps is None or not self._is_measured(ticket):
            ticket.said = "was never measured: it begins, and " + (
                "is measured as it goes"
                if task.deadline_s is None
                else "is promised its deadline then or told the truth"
            )
            return self._as_job(task, curve({1: 1.0}), TRIAL_S, self.now_s + TRIAL_WITHIN_S)
        ticket.tried = True
        ticket.standing = TaskStanding.BEST_EFFORT if task.deadline_s is None else TaskStanding.HOPEFUL
        job = self._as_job(task, believed(ticket.rates, task.most_workers), ticket.remaining, task.deadline_s)
        for size in job.curve.sizes:
            if size in ticket.rates:
                self.policy.speeds.learn(job, size, ticket.rates[size])
        return job

    def _as_job(self, task: hp.Task, rates: Curve, iterations: float, deadline_s: float | None) -> Job:
        return Job(
            task.name,
            rates,
            max(iterations, 1.0),
            self.now_s,
            deadline_s,
            model=task.kind,
            user=task.user,
            priority=task.priority,
            soft=tuple(task.soft) if deadline_s is not None and deadline_s == task.deadline_s else (),
        )

    # --- what the policy says --------------------------------------------------------------------

    def _decide(self, told: list[ev.Event]) -> None:
        """Asks again at once for those who are refused when they have begun: they go on without a promise."""
        self._behind_s = None
        lost = any(isinstance(event, ev.NodeLostEvent) for event in told)
        before = {name: self.tickets[name].why for name in self.ledger.accounts}
        while told:
            decisions = self.policy.handle(told, self.now_s)
            told = [event for decision in decisions for event in self._carry_out(decision)]
        for name, account in self.ledger.accounts.items():  # who lost a node is not placed, and not said
            track = self.policy.tracks.get(name)
            wanted = len(track.gpus) if track else 0
            if lost and wanted < account.wanted and self.tickets[name].why == before.get(name):
                self.tickets[name].why = f"{account.wanted} to {wanted}: its nodes are gone"
            account.wanted = wanted

    def _carry_out(self, decision: Decision) -> list[ev.Event]:
        if isinstance(decision, WakeAt):
            self.wake_s = decision.at_s
            return []
        ticket = self.tickets[decision.job_id]
        if isinstance(decision, Placed):
            ticket.why = decision.reason
            if not ticket.tried:  # the deadline of a trial is the policy's affair, and nobody else's
                sizes, _, _ = decision.reason.partition(":")
                ticket.why = f"{sizes}: {'to be measured' if decision.gpus else 'others need them'}"
        elif isinstance(decision, Rejected):
            return self._reject(ticket, decision)
        elif not ticket.tried:
            pass  # a promise to try it is none to whoever waits for it
        elif isinstance(decision, Admitted):
            ticket.standing, ticket.said = TaskStanding.PROMISED, decision.reason
            ticket.promised_s, ticket.by_s = self.now_s, decision.by_s
        elif isinstance(decision, Deferred):
            ticket.standing, ticket.said = TaskStanding.HOPEFUL, decision.reason
        return []

    def _reject(self, ticket: Ticket, decision: Rejected) -> list[ev.Event]:
        task, account = ticket.task, self.ledger.accounts[ticket.task.name]
        if not ticket.tried:
            return [ev.ArrivalEvent(self._as_job(task, curve({1: 1.0}), TRIAL_S, None))]
        ticket.said, ticket.earliest_s = decision.reason, decision.earliest_deadline_s
        if ticket.handed_s == self.now_s and not account.held:  # nothing was done of it yet
            ticket.standing, ticket.state, ticket.ended_s = TaskStanding.REFUSED, "refused", self.now_s
            self.ledger.close(task.name)
            return []
        ticket.standing = TaskStanding.LATE
        rates = believed(ticket.rates, task.most_workers)
        return [ev.ArrivalEvent(self._as_job(task, rates, ticket.remaining, None))]

    def _by_urgency(self) -> list[str]:
        def urgency(ticket: Ticket) -> tuple[bool, float, str]:
            deadline_s = ticket.task.deadline_s
            is_promised = ticket.standing is TaskStanding.PROMISED
            return not is_promised, inf if deadline_s is None else deadline_s, ticket.task.name

        return [ticket.task.name for ticket in sorted(self.under_way(), key=urgency)]
