"""All decisions about members' places: what happened and the time in, orders and reasons out. Pure.

The master decides which members there are to be, and names each once. Here it is decided when a member is
asked for, what becomes of one whose place is gone, and, in one sentence, why fewer run than are wanted. A
backend adds what its cluster is like: ``ClusterWays`` in numbers, the abstract methods in deeds.

Growth is like TCP's slow start. Of what is asked for beyond the least number of workers only a few may wait:
twice as many whenever all of them have started, and one once an ask has waited for ``patience_s``.
That one stays in line: it is the bell that rings when a place becomes free. Nodes on which members fail are
left out for a while (``nodes``); a cluster that refuses, or does not answer, is left alone for longer and
longer (``cooldown``). Where polls show other runs too, those share with this one (``fair``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Generic

import msgspec

from elasticflow.cluster.asks import SERVER, WORKER, A, AskPhase, Asks, S
from elasticflow.cluster.clock import WallClock
from elasticflow.cluster.config import ClusterConfig
from elasticflow.cluster.contract import Ended, How
from elasticflow.cluster.cooldown import NEVER_S, Cooldown
from elasticflow.cluster.fair import OtherRun
from elasticflow.cluster.growth import Growth
from elasticflow.cluster.launches import Launches
from elasticflow.cluster.news import SizingNews
from elasticflow.cluster.nodes import Nodes
from elasticflow.cluster.orders import EndOrders
from elasticflow.cluster.polls import Polls
from elasticflow.cluster.ways import ClusterWays

BUSY_S = (1.0, 30.0)
"""Pauses while the cluster takes no asks: the first, and the longest."""
SILENT_S = 30.0
"""The longest pause while nobody answers polls."""


class End(msgspec.Struct, frozen=True):
    """An action: ends these. Needs no answer: polls show what came of it."""

    ids: tuple[Any, ...]


class Poll(msgspec.Struct, frozen=True):
    """An action: answered by ``observed`` or ``unobserved``. There is no other before that."""


class Sizing(ABC, Generic[A, S]):
    """See the module's docstring.

    Call ``decide`` after each event, and at ``next_time_s``. Of the times, ``now_s`` is on the monotonic
    clock, ``at`` in seconds since 1970.
    """

    def __init__(self, make: type[A], ways: ClusterWays, config: ClusterConfig, num_min: int) -> None:
        self.fatal = ""
        """Why no member of this run can ever start, in the cluster's words."""
        self.news = SizingNews()
        self._ways, self._pace = ways, config
        self._asks = Asks(make)
        self._growth: Growth[A] = Growth(self._asks, ways, num_min, config.patience_s)
        self._nodes = Nodes(config.exclude_after)
        silence_s = ways.silence_s or (config.poll_s, max(SILENT_S, config.poll_s))
        self._polls = Polls(config.poll_s, Cooldown(*silence_s), ways.look_s)
        self._orders: EndOrders[Any] = EndOrders(ways.end_again_s)
        self._clock = WallClock()
        self._busy = Cooldown(*BUSY_S)
        self._launches = Launches(config.launch_failures)
        self._decided_s = NEVER_S

    @property
    def leaves_drained(self) -> bool:
        """Whether nodes that are being drained are of interest just now."""
        return self._pace.leave_drained and bool(self._asks.of(WORKER, AskPhase.RUNNING))

    # --- what the master wants -------------------------------------------------------------------

    def want(self, name: str, now_s: float, id: Any = None) -> None:
        """There is to be a member of this name, which was never used before.

        id: of what has been asked for it already; None: nothing has.
        """
        phase = AskPhase.WANTED if id is None else AskPhase.WAITING
        self._asks.add(name, phase, now_s, id)

    def adopt(self, name: str, now_s: float, id: Any = None) -> None:
        """A master before this one has asked for this member; polls will tell more. id: None: they alone."""
        phase = AskPhase.ADOPTED if id is None else AskPhase.WAITING
        self._asks.add(name, phase, now_s, id)

    def unwant(self, name: str, now_s: float) -> None:
        """Ends a member, or never starts it. Nobody is told of its end."""
        ask = self._asks.get(name)
        if ask is None:
            return
        if ask.phase in (AskPhase.WANTED, AskPhase.OVER):
            self._asks.drop(ask)
        else:
            self._end_as(ask, AskPhase.LEAVING, now_s)

    def blame(self, name: str, now_s: float) -> None:
        """Its process never came, for which its node may be to blame."""
        ask = self._asks.get(name)
        if ask is not None and ask.sight is not None:
            self._blame(ask.sight.node, now_s)

    def look(self) -> None:
        """Something has happened to a member: to poll soon may tell what."""
        self._polls.look()

    def give_way(self, now_s: float) -> None:
        """The cluster takes a member's place for somebody else, who is to get it."""
        self._growth.give_way(now_s)

    def limit_workers(self, most: int) -> None:
        """Places, those of workers included that have left, and are not known to be free."""
        self._growth.most_workers = most

    # --- what the cluster answered ---------------------------------------------------------------

    def accepted(self, name: str, id: Any, now_s: float) -> None:
        """It took an ask."""
        self._busy.clear()
        ask = self._asks.get(name)
        if ask is None:  # it has ended already
            return
        ask.unanswered, ask.seen_s, ask.missed = False, now_s, 0
        if ask.phase is AskPhase.ASKED:
            ask.phase, ask.id = AskPhase.WAITING, id
        elif ask.phase is AskPhase.LEAVING:  # it was given up while the cluster had not answered yet
            ask.id = id
            self._end(id, now_s)

    def refused(self, name: str, error: Exception, now_s: float) -> None:
        """It did not take an ask, or may have, and did not say so."""
        ask = self._asks.get(name)
        is_sure = self._learn(ask, error, now_s)
        if ask is None:
            return
        ask.unanswered, ask.seen_s, ask.missed = False, now_s, 0
        if not is_sure and not self._ways.names_asks:  # it may be there, and two must not have one name
            self._over(ask, Ended(name, How.TAKEN, f"was not started: {error}"))
        elif ask.phase is AskPhase.ASKED:
            ask.enter(AskPhase.WANTED if is_sure else AskPhase.UNSURE, now_s)
        elif ask.phase is AskPhase.LEAVING and ask.id is None and is_sure:
            self._asks.drop(ask)

    def unobserved(self, error: Exception, now_s: float) -> None:
        """A poll failed."""
        if self._polls.failed(error, now_s):
            who = self._ways.who
            self.news.note("warning", f"{who} does not answer: {error}" if who else str(error))

    def observed(self, sights: Sequence[S], now_s: float, at: float) -> None:
        """A poll: all that there is.

        One that was not asked for, of a new master that looks around, shows of none that it is gone.
        """
        began_s = self._polls.began_s if self._polls.is_asking else NEVER_S
        if (silent_s := self._polls.answered(now_s)) and self._ways.who:
            self.news.note("info", f"{self._ways.who} answers again, after {silent_s:.0f} s")
        self._clock.set(at, now_s)
        # As it was before this poll: who stood in line then, and runs now, has found a free place.
        shown, line = self._sorted(sights), self._growth.line()
        for ask in self._asks:
            self._match(ask, self._chosen(ask, shown, now_s), began_s, now_s)
        self._see_strangers(shown, began_s, now_s)
        if any(ask.phase is AskPhase.RUNNING for ask in line) and not self._growth.line():
            self._growth.speed_up()
        if self._overdue(now_s):
            self._growth.slow_down()
        for ask in self._asks.of(WORKER, AskPhase.RUNNING):
            self._launches.see(ask.since_s, now_s)
        self._settle(now_s)
        self._share(sights, now_s)

    def drained(self, nodes: Collection[str]) -> None:
        """Operators are emptying these nodes: workers there are to leave. Told again while that is so."""
        for ask in self._asks.of(WORKER, AskPhase.RUNNING):
            if ask.sight is not None and ask.sight.node in nodes:
                self.news.returns.append((ask.name, f"leaves: its node {ask.sight.node} is being drained"))

    # --- decisions -------------------------------------------------------------------------------

    @abstractmethod
    def decide(self, now_s: float) -> Sequence[Any]:
        """What to do, in this order: actions, each told once."""

    def next_time_s(self) -> float | None:
        """When to decide again at the latest; None: after the next event."""
        times_s = [self._polls.next_s if len(self._asks) else None]
        if self._asks.any(AskPhase.WANTED):
            pauses_s = (
                self._growth.way_until_s,
                self._busy.until_s,
                self._launches.cooldown.until_s,
                *self._rests_s(),
            )
            times_s += [until_s for until_s in pauses_s if until_s > self._decided_s]
        return min((at_s for at_s in times_s if at_s is not None), default=None)

    @property
    def num_places(self) -> int:
        """Asks that are not over, as far as is known."""
        return sum(ask.phase not in (AskPhase.WANTED, AskPhase.OVER) for ask in self._asks)

    @property
    def num_worker_places(self) -> int:
        """Of these, those of workers."""
        return self._growth.num_places

    @property
    def reason(self) -> str:
        """Why fewer workers, or servers, run than are wanted; "" when as many do."""
        for role, what in ((WORKER, ""), (SERVER, " servers")):
            wanted = [ask for ask in self._asks if ask.role == role and ask.phase is not AskPhase.LEAVING]
            running = [ask for ask in wanted if ask.phase is AskPhase.RUNNING and not self._stands(ask)]
            if len(running) < len(wanted):
                full = role == WORKER and self._growth.left() <= 0 and self._asks.any(AskPhase.LEAVING)
                held = role == WORKER and self._growth.is_held(wanted, self._decided_s)
                fair = self._growth.fair_words(self._decided_s) if held else ""
                why = "those that have left are not gone yet" if full else fair or self._why(role)
                return f"{len(running)} of {len(wanted)}{what}: {why}"
        return ""

    def _due(self, now_s: float) -> list[A]:
        """Whom to ask for now: from here on they are asked for."""
        # While polls fail, what came of an ask would not be seen either.
        until_s = max(self._busy.until_s, self._launches.cooldown.until_s)
        if self.fatal or self._polls.silence.failures or now_s < until_s:
            return []
        due = []
        for role in (SERVER, WORKER):  # servers first: every worker waits for all of them
            wanted = self._asks.of(role, AskPhase.WANTED)
            room = len(wanted) if role == SERVER else self._growth.room(self._most(now_s), now_s)
            if not wanted or self._why_not(role, now_s):
                continue
            for ask in wanted[:room]:
                if not self._may_ask(ask, now_s):
                    break
                ask.enter(AskPhase.ASKED, now_s)
                ask.unanswered = True
                due.append(ask)
        return due

    def _ends_now(self, now_s: float) -> list[End]:
        ids = tuple(self._orders.take(now_s))
        return [End(ids)] if ids else []

    def _polls_now(self, now_s: float) -> list[Poll]:
        due_s = self._polls.next_s if len(self._asks) else None
        if due_s is None or now_s < due_s:
            return []
        self._polls.ask(now_s)
        return [Poll()]

    # --- growth ----------------------------------------------------------------------------------

    def _overdue(self, now_s: float) -> list[A]:
        """Those in line who have waited for longer than one does who finds a free place."""
        return self._growth.overdue(now_s)

    def _most(self, now_s: float) -> int:
        """How many may wait."""
        return self._growth.most()

    def _share(self, sights: Sequence[S], now_s: float) -> None:
        """Sees other runs, and takes back from the line, and from those that run, what is rather theirs."""
        withdrawn, given = self._growth.share(self._others(sights), now_s)
        for ask in withdrawn:
            self._end_as(ask, AskPhase.WITHDRAWN, now_s)
        for ask in given:
            self.news.returns.append((ask.name, f"leaves: {self._growth.fair_words(now_s)}"))

    def _may_ask(self, ask: A, now_s: float) -> bool:
        """Whether this one may be asked for, too. After a failure, one is enough to try."""
        if self._launches.in_doubt and ask.role == WORKER and (self._growth.line() or self._fresh(now_s)):
            return False
        return not (self._busy.failures and any(each.unanswered for each in self._asks))

    def _fresh(self, now_s: float) -> bool:
        """Whether a worker runs that has not shown yet that it was started well."""
        running = self._asks.of(WORKER, AskPhase.RUNNING)
        return any(self._launches.is_open(ask.since_s, now_s) for ask in running)

    # --- what a poll shows -----------------------------------------------------------------------

    def _match(self, ask: A, sight: S | None, began_s: float, now_s: float) -> None:
        """Learns what a poll shows of a member; None: nothing."""
        if ask.phase is AskPhase.OVER:
            return
        if sight is None:
            self._miss(ask, began_s, now_s)
            return
        ask.sight, ask.seen_s, ask.missed = sight, now_s, 0
        self._nodes.saw(sight.node)
        if sight.over:
            self._see_over(ask, sight, now_s)
        elif ask.phase in self._ways.ending:
            self._end_as(ask, ask.phase, now_s)
        elif sight.state in self._ways.waiting:
            self._see_waiting(ask, sight, now_s)
        else:
            self._see_running(ask, sight, now_s)

    def _miss(self, ask: A, began_s: float, now_s: float) -> None:
        """A poll does not show what it may have to show."""
        if ask.phase is AskPhase.WANTED or ask.unanswered:
            return
        if ask.phase is AskPhase.UNSURE:
            # A poll that began before the ask may have been answered before it was heard.
            if began_s >= ask.since_s:
                ask.phase = AskPhase.WANTED
            return
        # By when the poll began: its answer may be older than what was accepted while it was under way.
        if began_s > ask.seen_s + self._ways.forget_s:
            ask.missed += 1
        if ask.missed >= self._ways.forget_polls:
            self._over(ask, self._forgotten(ask))

    def _see_over(self, ask: A, sight: S, now_s: float) -> None:
        if ask.phase is AskPhase.WITHDRAWN and not sight.node and not ask.adopted:
            ask.id, ask.sight = None, None
            ask.enter(AskPhase.WANTED, now_s)
        else:
            self._judge(ask, sight, now_s)

    def _see_waiting(self, ask: A, sight: S, now_s: float) -> None:
        """It was heard of, then."""
        if ask.phase in (AskPhase.ASKED, AskPhase.UNSURE, AskPhase.ADOPTED):
            ask.phase = AskPhase.WAITING

    def _see_running(self, ask: A, sight: S, now_s: float) -> None:
        if ask.phase is not AskPhase.RUNNING:
            ask.enter(AskPhase.RUNNING, now_s)
        if sight.state in self._ways.running and ask.placed != ask.id:
            ask.placed = ask.id
            self.news.placed.append(ask.name)

    def _over(self, ask: A, ended: Ended) -> None:
        """It is gone, which is told of who was wanted."""
        if ask.phase is AskPhase.LEAVING and ask.unanswered:
            return  # another of this name may be on its way
        if ask.phase is not AskPhase.LEAVING:
            self.news.ended.append(ended)
        self._asks.drop(ask)

    # --- orders ----------------------------------------------------------------------------------

    def _end(self, id: Any, now_s: float, born_s: float = NEVER_S) -> bool:
        """See EndOrders."""
        return self._orders.end(id, now_s, born_s)

    def _end_as(self, ask: A, phase: AskPhase, now_s: float) -> None:
        if ask.id is not None:
            self._end(ask.id, now_s, self._born_s(ask.sight))
        if ask.phase is not phase:
            ask.enter(phase, now_s)

    def _born_s(self, sight: S | None) -> float:
        """When it was asked for; never: no id comes twice."""
        return NEVER_S

    def _blame(self, node: str, now_s: float) -> None:
        if self._nodes.failed(node, now_s):
            many = f"{self._pace.exclude_after} failures within an hour"
            self.news.note("warning", f"node {node} {self._ways.left_out} for an hour: {many}")

    def _launch_failed(self, node: str, text: str, now_s: float) -> None:
        """Nothing could be started in a place. text: why, with what is likely, for people."""
        if self._nodes.shut(node, now_s):
            self.news.note("warning", f"node {node} {self._ways.left_out} for an hour: {text}")
        self._launches.failed(node, text, now_s)
        self.fatal = self.fatal or self._launches.hopeless

    # --- what a cluster is like ------------------------------------------------------------------

    def _why_not(self, role: str, now_s: float) -> str:
        """Why nothing may be asked for of this role; "": it may."""
        return ""

    @abstractmethod
    def _learn(self, ask: A | None, error: Exception, now_s: float) -> bool:
        """What it tells that an ask, of somebody who may be gone by now, was not taken.

        Returns whether it is sure that it was not.
        """

    @abstractmethod
    def _sorted(self, sights: Sequence[S]) -> dict[Any, list[S]]:
        """What a poll shows, by whatever ``_chosen`` knows a member's by."""

    @abstractmethod
    def _chosen(self, ask: A, shown: dict[Any, list[S]], now_s: float) -> S | None:
        """What counts as this member's, which it takes out of ``shown``."""

    def _see_strangers(self, shown: dict[Any, list[S]], began_s: float, now_s: float) -> None:
        """What is left is no member's: of a master that died, or of an answer that was lost."""
        for name, sights in shown.items() if began_s > NEVER_S else ():
            for sight in sights:
                if not sight.over and self._end(sight.id, now_s, self._born_s(sight)):
                    self.news.note("info", f"{self._ways.ended.format(sight.id)}: nobody waits for {name}")

    def _others(self, sights: Sequence[S]) -> Sequence[OtherRun]:
        """Other runs that a poll shows in the same places; none, where polls show this run's alone."""
        return ()

    def _settle(self, now_s: float) -> None:
        """What else a poll tells; there may be nothing."""

    @abstractmethod
    def _judge(self, ask: A, sight: S, now_s: float) -> None:
        """What a member had is over: why, whether its node is to blame, and what follows."""

    @abstractmethod
    def _forgotten(self, ask: A) -> Ended:
        """Of a member of which nobody knows any more."""

    @abstractmethod
    def _why(self, role: str) -> str:
        """The first that holds of what may be in the way."""

    def _stands(self, ask: A) -> bool:
        """Whether it has a place but does not run there."""
        return False

    def _rests_s(self) -> Sequence[float]:
        """Until when asking is no use, for other reasons than those known here."""
        return ()
