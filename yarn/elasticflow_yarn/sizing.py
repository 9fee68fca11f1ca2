"""All decisions about containers: what happened and the time in, actions and reasons out. Pure.

What any cluster needs is in ``elasticflow.cluster.sizing``. Here is what YARN, with Skein, adds.

A request that waits costs YARN nothing, and while a queue has less than its share it is what makes YARN
take containers from others: those are made at once. Beyond its share, once a request has waited for
``patience_s``, a single one stays, and the others are withdrawn.

Skein and the ResourceManager each count requests, and on a busy cluster their counts may come apart: one that
YARN does not know of, or does not grant though there is room, is made again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from elasticflow.cluster.asks import WORKER, Ask, AskPhase
from elasticflow.cluster.contract import Ended, How
from elasticflow.cluster.cooldown import Cooldown
from elasticflow.cluster.giving import GivingBack
from elasticflow.cluster.sizing import End, Poll, Sizing
from elasticflow.cluster.ways import ClusterWays
from elasticflow_yarn.application import Container
from elasticflow_yarn.causes import LAUNCH_S, Cause, CauseVerdict, first_cause, judge, lasted_s
from elasticflow_yarn.config import YarnConfig
from elasticflow_yarn.ending import Ending
from elasticflow_yarn.errors import ApplicationGone, YarnError, YarnRefused
from elasticflow_yarn.resources import Resources
from elasticflow_yarn.strays import STRANGE_S, STRANGE_VIEWS, Strays
from elasticflow_yarn.surroundings import Surroundings, View

PULSE = "pulse"
"""A service that is no member's."""
GONE_S, GONE_POLL_S = 3.0, 0.5
"""An ApplicationMaster at which nobody listens for so long is gone; how often it is tried until then."""
WAYS = ClusterWays(
    waiting=frozenset({"WAITING", "REQUESTED"}),
    running=frozenset({"RUNNING"}),
    look_s=0.2,
    silence_s=(GONE_POLL_S, GONE_POLL_S),
    ahead=(64, 64),
    end_again_s=10.0,
    give_way_s=5.0,
    ending=(AskPhase.WITHDRAWN, AskPhase.SHUNNED, AskPhase.LEAVING),
)
SHUNS = 4
"""After so many in a row there is room on nodes that are left out alone: they are used again."""
PULSE_S = 30.0
"""After so long without a request the pulse ends: others might be made to give for it what it never takes."""
WORDS_S = 10.0
"""For so long a member's last words are waited for."""
OVERDUE_FIRST_S, OVERDUE_MOST_S = 30.0, 900.0
"""A request has waited in vain for so long before it is made again; pauses before the next is."""
REGISTER_S = 120.0
"""For so long a node may be missing after a restart of the ResourceManager, and with it its containers."""


class Add(msgspec.Struct, frozen=True):
    """Answered by ``accepted`` or ``refused``."""

    name: str
    service: str


class Signal(msgspec.Struct, frozen=True):
    """Ends a container, by YARN's id, that Skein has forgotten. Needs no answer."""

    yarn_id: str


class ReadWords(msgspec.Struct, frozen=True):
    """A member's last words. Answered by ``heard``."""

    name: str


class LookAround(msgspec.Struct, frozen=True):
    """Nodes and queues. Answered by ``viewed`` or ``not_viewed``. There is no other before that."""


Action = Add | End | Signal | ReadWords | Poll | LookAround


class Tenant(Ask[Container]):
    """A member and its container, if there is one."""

    missed_s: float | None = None
    """Since when YARN has not shown its container, though Skein says that it runs; None: it does."""
    num_missed: int = 0
    """How many looks in a row have not, though they have shown its node."""
    overdue: int = 0
    """In how many looks in a row its request should have been granted."""
    vanished: bool = False

    def enter(self, phase: AskPhase, now_s: float) -> None:
        super().enter(phase, now_s)
        self.overdue = 0


class YarnSizing(Sizing[Tenant, Container]):
    """See the module's docstring, and Sizing. The answers to Add, End and Poll come in the order of these.

    services: what a container of each asks for. own: YARN's id of the ApplicationMaster's container.
    first: Skein's ids of those that the specification has asked for; who is no member ends unmentioned.
    """

    def __init__(
        self,
        config: YarnConfig,
        num_min: int,
        services: Mapping[str, Resources],
        own: str = "",
        first: Collection[str] = (),
    ) -> None:
        super().__init__(Tenant, WAYS, config, num_min)
        self.gone = False
        """Whether the ApplicationMaster is no more."""
        self._gone_since_s: float | None = None
        self._first = frozenset(first)
        self._around = Surroundings(config, services, self.news, self._clock)
        self._giving = GivingBack(num_min)
        self._strays = Strays(own)
        self._again = Cooldown(OVERDUE_FIRST_S, OVERDUE_MOST_S)
        self._has_polled = False
        """Since the last look at the cluster that came of something."""
        self._pulse_until_s = float("inf")
        self._signals: list[str] = []
        self._words: list[str] = []

    # --- what Skein answered ---------------------------------------------------------------------

    def unobserved(self, error: Exception, now_s: float) -> None:
        if not isinstance(error, ApplicationGone):
            self._gone_since_s = None
            super().unobserved(error, now_s)
            return
        self._polls.failed(error, now_s)
        self._gone_since_s = now_s if self._gone_since_s is None else self._gone_since_s
        self.gone = now_s - self._gone_since_s >= GONE_S

    def heard(self, name: str, left: Ending | None, now_s: float) -> None:
        """A member's last words; None: there are none, or they cannot be read."""
        ask = self._asks.get(name)
        if ask is not None and ask.phase is AskPhase.OVER:
            assert ask.sight is not None
            self._end_by(ask, judge(name, ask.sight, left, vanished=ask.vanished), now_s)

    def _learn(self, ask: Tenant | None, error: Exception, now_s: float) -> bool:
        self._busy.fail(str(error), now_s)
        self._polls.look()
        if isinstance(error, YarnRefused):
            self.fatal = str(error)
        return isinstance(error, (YarnRefused, ApplicationGone))

    # --- what the ResourceManager answered -------------------------------------------------------

    def viewed(self, view: View, now_s: float) -> None:
        """A look at nodes, queues and containers."""
        self._around.viewed(view, now_s)
        if view.containers and not self._polls.silence.failures:
            # else that of the ApplicationMaster is missing, so they are not known; or Skein says nothing
            self._compare(view, now_s)
        self._weigh(now_s)
        self._ask_again(now_s)
        excluded = set(self._nodes.excluded(now_s))
        if excluded and view.live <= excluded:
            self._pardon("there is no other")

    def not_viewed(self, error: YarnError, now_s: float) -> None:
        self._around.not_viewed(error, now_s)

    # --- decisions -------------------------------------------------------------------------------

    def decide(self, now_s: float) -> list[Action]:
        self._decided_s = now_s
        for ask in self._asks:
            if ask.phase is AskPhase.OVER and now_s >= ask.since_s + WORDS_S:
                self.heard(ask.name, None, now_s)
        self._withdraw(now_s)
        actions: list[Action] = [Add(ask.name, ask.role) for ask in self._due(now_s)]
        actions += self._ends_now(now_s)
        actions += [Signal(yarn_id) for yarn_id in self._signals]
        actions += [ReadWords(name) for name in self._words]
        self._signals, self._words = [], []
        actions += self._polls_now(now_s)
        if (due_s := self._next_look_s()) is not None and now_s >= due_s:
            self._around.looks.ask(now_s)
            actions.append(LookAround())
        return actions

    def next_time_s(self) -> float | None:
        times_s = [super().next_time_s(), self._next_look_s()]
        words_s = [ask.since_s + WORDS_S for ask in self._asks if ask.phase is AskPhase.OVER]
        times_s += [until_s for until_s in words_s if until_s > self._decided_s]
        return min((at_s for at_s in times_s if at_s is not None), default=None)

    def where(self, name: str, now_s: float) -> str:
        """Where a member is, or what it waits for."""
        ask = self._asks.get(name)
        if ask is None:
            return ""
        if ask.phase is AskPhase.WAITING:
            return f"requested, waits for {now_s - ask.since_s:.0f} s"
        return f"{ask.sight.yarn_id} on node {ask.sight.node}" if ask.sight and ask.sight.node else ""

    def places(self) -> dict[str, tuple[str, str]]:
        """Members that run: YARN's id of their container, and the address of its node."""
        running = [ask for ask in self._asks if ask.phase is AskPhase.RUNNING]
        return {ask.name: (ask.sight.yarn_id, ask.sight.node) for ask in running if ask.sight}

    def _next_look_s(self) -> float | None:
        """The first look is taken before there are members: they need not wait for it then."""
        return None if self._around.view and not len(self._asks) else self._around.looks.next_s

    def _why_not(self, role: str, now_s: float) -> str:
        return self._around.why_not(role, now_s)

    def _rests_s(self) -> list[float]:
        return [self._giving.rest_until_s, self._around.deaf_until_s]

    def _most(self, now_s: float) -> int:
        if self._giving.is_pressed(now_s):
            return self._growth.least()
        return max(super()._most(now_s), self._around.claim())

    def _withdraw(self, now_s: float) -> None:
        """Takes requests back that wait in vain."""
        waiting = self._asks.of(WORKER, AskPhase.WAITING)
        surplus = len(self._growth.line()) - self._most(now_s)
        for ask in reversed(waiting[-surplus:] if surplus > 0 else []):
            self._end_as(ask, AskPhase.WITHDRAWN, now_s)

    # --- polls -----------------------------------------------------------------------------------

    def _sorted(self, sights: Sequence[Container]) -> dict[Any, list[Container]]:
        """By Skein's ids."""
        self._gone_since_s, self._has_polled = None, True
        self._strays.living = frozenset(each.yarn_id for each in sights if not each.over)
        return {each.id: [each] for each in sights}

    def _chosen(self, ask: Tenant, shown: dict[Any, list[Container]], now_s: float) -> Container | None:
        return next(iter(shown.pop(ask.id, [])), None)

    def _see_strangers(self, shown: dict[Any, list[Container]], began_s: float, now_s: float) -> None:
        self._pulse_until_s = min(self._pulse_until_s, now_s + PULSE_S)
        has_asked = any(ask.id is not None and not ask.adopted for ask in self._asks)
        has_to_ask = not has_asked and self._asks.any(AskPhase.WANTED)
        is_pulse_over = not has_to_ask or now_s >= self._pulse_until_s
        for (each,) in shown.values():
            if each.service == PULSE:  # it is there until something else is asked for
                if is_pulse_over and not each.over:
                    self._end(each.id, now_s)
            elif not each.over and self._end(each.id, now_s) and each.id not in self._first:
                self.news.note("info", f"container {each.id} is ended: it is no member's")

    def _see_running(self, ask: Tenant, sight: Container, now_s: float) -> None:
        if ask.phase is not AskPhase.WAITING:
            return
        if sight.node in self._nodes.excluded(now_s):
            self._launches.later(f"came up on {sight.node}, which is left out", now_s)
            if self._launches.cooldown.failures <= SHUNS:
                self._end_as(ask, AskPhase.SHUNNED, now_s)
                return
            self._pardon("no other has room")
        if ask.role == WORKER:
            self._again.clear()
        super()._see_running(ask, sight, now_s)

    def _judge(self, ask: Tenant, sight: Container, now_s: float) -> None:
        if ask.phase in self._ways.ending:
            self._over(ask, _ended_here(ask, sight))
        elif first_cause(sight) is Cause.SILENT:
            self._ask_words(ask, now_s)
        else:
            self._end_by(ask, judge(ask.name, sight), now_s)

    def _forgotten(self, ask: Tenant) -> Ended:
        return Ended(ask.name, How.TAKEN, f"is lost: Skein does not know its container {ask.id} any more")

    # --- ends ------------------------------------------------------------------------------------

    def _ask_words(self, ask: Tenant, now_s: float) -> None:
        ask.enter(AskPhase.OVER, now_s)
        self._words.append(ask.name)

    def _end_by(self, ask: Tenant, verdict: CauseVerdict, now_s: float) -> None:
        """A member that was wanted is gone."""
        assert ask.sight is not None
        if verdict.cause is Cause.NOT_STARTED and ask.role == WORKER:
            self._launch_failed(ask.sight.node, f"a container {verdict.ended.text}", now_s)
        elif verdict.blames_node:
            self._blame(ask.sight.node, now_s)
        if verdict.cause is Cause.PREEMPTED:
            self._growth.slow_down()
        elif verdict.ended.how is How.TAKEN and lasted_s(ask.sight) < LAUNCH_S:
            self._launches.later(verdict.ended.text, now_s)  # else the same might happen again and again
        self._over(ask, verdict.ended)

    def _pardon(self, why: str) -> None:
        """Uses nodes again that are left out."""
        self._nodes.pardon()
        self._launches.cooldown.clear()
        self.news.note("warning", f"nodes that were left out are used again: {why}")

    # --- the cluster -----------------------------------------------------------------------------

    def _compare(self, view: View, now_s: float) -> None:
        """Where Skein and YARN differ: Skein drops news of ends, and YARN orders to end, now and then.

        A ResourceManager that was restarted learns of a node's containers from the node, which may take half
        a minute: until the node is there, that they are missing means little.
        """
        live, began_s = view.live, self._around.looks.began_s
        for ask in [each for each in self._asks if each.phase is AskPhase.RUNNING]:
            assert ask.sight is not None
            if ask.sight.yarn_id in view.containers or began_s <= ask.since_s:
                ask.num_missed, ask.missed_s = 0, None
                continue
            ask.missed_s = now_s if ask.missed_s is None else ask.missed_s
            ask.num_missed = ask.num_missed + 1 if ask.sight.node in live else 0
            missed_s = now_s - ask.missed_s
            if (ask.num_missed >= STRANGE_VIEWS and missed_s >= STRANGE_S) or missed_s >= REGISTER_S:
                ask.vanished = True
                self._end(ask.id, now_s)
                self._ask_words(ask, now_s)
        for yarn_id in self._strays.look(view.containers, now_s) if self._clock.at is not None else ():
            self.news.note("info", f"{yarn_id} is ended: YARN runs it, and Skein has forgotten it")
            self._signals.append(yarn_id)

    def _ask_again(self, now_s: float) -> None:
        """Takes requests back, to be made anew, that should have been granted long ago.

        Skein may know by now that they were: a look counts only if it has been asked since the one before.
        """
        if self._around.own is None or not self._has_polled:
            return
        self._has_polled = False
        waiting = [ask for ask in self._asks if ask.phase is AskPhase.WAITING]
        old = [ask for ask in waiting if self._around.looks.began_s - ask.since_s >= STRANGE_S]
        is_unknown = self._around.forgets([ask.role for ask in old])
        for ask in old:
            ask.overdue = ask.overdue + 1 if is_unknown or self._around.has_room(ask.role) else 0
        due = [ask for ask in old if ask.overdue >= STRANGE_VIEWS]
        due = [ask for ask in due if now_s - ask.since_s >= OVERDUE_FIRST_S]
        if due and now_s >= self._again.until_s:
            self._again.fail("", now_s)
            why = "YARN does not know of it" if is_unknown else "YARN has room, and does not grant it"
            self.news.note("warning", f"asked for again, since {why}: {', '.join(ask.id for ask in due)}")
            for ask in due:
                self._end_as(ask, AskPhase.WITHDRAWN, now_s)

    def _weigh(self, now_s: float) -> None:
        """Has workers give their places back before YARN takes them."""
        pressure = self._around.pressure()
        if pressure is None:
            return
        running = [ask.name for ask in self._asks.of(WORKER, AskPhase.RUNNING)]
        num_leaving = len(self._asks.of(WORKER, AskPhase.LEAVING))
        for name in self._giving.press(pressure, running, num_leaving, now_s):
            self.news.returns.append((name, f"gives its place back: {pressure.text}"))

    # --- reasons ---------------------------------------------------------------------------------

    def _why(self, role: str) -> str:
        missing = self._asks.of(role, AskPhase.WANTED, AskPhase.WITHDRAWN)
        if self.fatal:
            return f"refused: {self.fatal}"
        if self._polls.silence.failures > 1:
            return self._polls.silence.text
        if silence := self._around.silence:
            return silence
        if missing and (trouble := self._trouble(role)):
            return trouble
        if missing and role == WORKER and self._giving.is_pressed(self._decided_s):
            return f"makes way: {self._giving.why}"
        waiting = self._asks.of(role, AskPhase.WAITING)
        since_s = min((ask.since_s for ask in waiting), default=self._decided_s)
        if since_s <= self._decided_s - self._pace.poll_s:
            many = "1 container waits" if len(waiting) == 1 else f"{len(waiting)} containers wait"
            return f"{self._around.fullness()}{many} since {self._clock.text(since_s)}"
        if missing and self._decided_s < self._growth.way_until_s:
            return "makes way for somebody whom YARN prefers"
        if starting := len(self._asks.of(role, *self._ways.line)):
            return f"{starting} container{'s' * (starting != 1)} requested"
        return "places are looked for"

    def _trouble(self, role: str) -> str:
        """Why no more are asked for; "" if nothing is wrong."""
        if self._busy.failures:
            return f"requests fail: {self._busy.text}"
        if self._decided_s < self._launches.cooldown.until_s:
            return f"the last one {self._launches.cooldown.text}"
        return self._around.why_not(role, self._decided_s)


def _ended_here(ask: Tenant, container: Container) -> Ended:
    if not container.yarn_id:
        text = f"had no place yet, and its request was taken back ({container.id})"
        return Ended(ask.name, How.TAKEN, text)
    why = "which is left out" if ask.phase is AskPhase.SHUNNED else "when its request was taken back"
    return Ended(ask.name, How.TAKEN, f"came up on {container.node}, {why} ({container.yarn_id})")
