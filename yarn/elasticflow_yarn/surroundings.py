"""What the ResourceManager shows, as far as sizing has use for it. Pure.

A request for more than any registered node has would end the ApplicationMaster: none is made without a look
at the nodes. Where the ResourceManager is silent for too long, or never tells, what was seen last, or checked
at submission, must do.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from elasticflow.cluster.asks import WORKER
from elasticflow.cluster.clock import WallClock
from elasticflow.cluster.cooldown import NEVER_S, Cooldown
from elasticflow.cluster.giving import Pressure
from elasticflow.cluster.news import SizingNews
from elasticflow.cluster.polls import Polls
from elasticflow_yarn.cluster import App, QueueUser, YarnNode, YarnQueue
from elasticflow_yarn.config import YarnConfig
from elasticflow_yarn.errors import SkeinNotInstalled, YarnError, YarnRefused
from elasticflow_yarn.resources import Measure, Resources

DEAF_S, DEAF_MOST_S = 60.0, 30.0
"""A ResourceManager that is silent for longer than this holds nothing up any more; pauses until then."""
FRESH_VIEWS = 2.5
"""The last look at the cluster is good for so many times the time between two."""


class View(msgspec.Struct, frozen=True):
    """What the ResourceManager shows. containers: YARN's ids of this attempt's, "" left out. app: the
    application itself, which may be in another queue than the one that was named; None: it is not shown."""

    nodes: tuple[YarnNode, ...]
    queues: tuple[YarnQueue, ...]
    containers: frozenset[str] = frozenset()
    app: App | None = None

    @property
    def live(self) -> set[str]:
        """Addresses of the nodes that are up."""
        return {node.address for node in self.nodes if node.live}

    def queue(self, name: str) -> YarnQueue | None:
        return next((queue for queue in self.queues if queue.is_called(name)), None)

    def free(self, measure: Measure) -> int:
        """What nobody uses."""
        return sum(measure.of(node.available) for node in self.nodes if node.live)

    def user(self, own: YarnQueue) -> QueueUser | None:
        """What the queue tells of whose application this is."""
        return own.user(self.app.user) if self.app else None

    def has_room(self, asked: Resources, own: YarnQueue, label: str) -> bool:
        """Whether a node and the queue have that much left, and its user may have it.

        label: "" for nodes without any; labelled ones are for those that ask for them.
        """
        nodes = (node for node in self.nodes if (label in node.labels if label else not node.labels))
        user = None if label else self.user(own)
        is_allowed = asked.plus(own.used).fits(own.most) and (user is None or user.may_have(asked))
        return is_allowed and any(node.live and asked.fits(node.available) for node in nodes)

    def pressure(self, own: YarnQueue, measure: Measure, each: int) -> Pressure | None:
        """None: nobody waits for what we have, or might get. each: the amount that one worker has.

        YARN takes containers from queues that use more than their share as soon as one that has less waits.
        What others wait for beyond their own share it does not take, and what is free they will get.
        """
        others = {queue.name: queue.lacks(measure) for queue in self.queues if queue.path != own.path}
        waits = {name: amount for name, amount in others.items() if amount}
        lacking = sum(waits.values()) - self.free(measure)
        used, share = measure.of(own.used), measure.of(own.share)
        if lacking <= 0 or used + each <= share:
            return None
        for_whom = ", ".join(
            f"queue {name} waits for {measure.text(amount)}" for name, amount in waits.items()
        )
        text = f"queue {own.name} uses {measure.text(used)}, its share is {measure.text(share)}, {for_whom}"
        return Pressure(-(-lacking // each), max(0, used - share) // each, text)


class Surroundings:
    """services: what a container of each asks for."""

    def __init__(
        self, config: YarnConfig, services: Mapping[str, Resources], news: SizingNews, clock: WallClock
    ) -> None:
        self.view: View | None = None
        self.looks = Polls(config.rm_poll_s, Cooldown(config.rm_poll_s, max(DEAF_MOST_S, config.rm_poll_s)))
        self._config, self._services, self._news, self._clock = config, services, news, clock
        self._measure = Measure(bool(services[WORKER].gpus))
        self._each = max(1, self._measure.of(services[WORKER]))
        """What one worker takes of its queue's share."""
        self._view_s = NEVER_S
        self._blind = ""
        """Why the ResourceManager will never tell."""

    # --- looks -----------------------------------------------------------------------------------

    def viewed(self, view: View, now_s: float) -> None:
        silent_s = self.looks.answered(now_s)
        if silent_s and not self._blind:
            self._news.note("info", f"the ResourceManager answers again, after {silent_s:.0f} s")
        self._blind, self.view, self._view_s = "", view, now_s

    def not_viewed(self, error: YarnError, now_s: float) -> None:
        is_told = self.looks.failed(error, now_s)
        if isinstance(error, (YarnRefused, SkeinNotInstalled)) and self.view is None:
            if not self._blind:
                why = "so what was checked at submission must do"
                self._news.note("warning", f"nodes and queues cannot be looked at, {why}: {error}")
            self._blind = str(error)
        elif is_told:
            self._news.note("warning", str(error))

    @property
    def deaf_until_s(self) -> float:
        """From then on a silent ResourceManager holds nothing up."""
        return self.looks.silent_since_s + DEAF_S

    @property
    def silence(self) -> str:
        """That it does not answer, if it does not, and should; "": it does."""
        if self.looks.silence.failures <= 1 or self._blind:
            return ""
        return f"the ResourceManager does not answer since {self._clock.text(self.looks.silent_since_s)}"

    def why_not(self, service: str, now_s: float) -> str:
        """Why nothing may be asked for of this service; "": it may."""
        if self._blind:
            return ""
        fresh = now_s - self._view_s <= FRESH_VIEWS * self._config.rm_poll_s
        if not fresh and not self.looks.silence.failures:
            return "the nodes are looked at"
        if not fresh and now_s < self.deaf_until_s:
            return f"the ResourceManager does not answer since {self._clock.text(self.looks.silent_since_s)}"
        return self._too_large(service, self.view) if self.view else ""

    def _too_large(self, service: str, view: View) -> str:
        """Why no node can have such a container; "": one can."""
        asked, label = self._services[service], self._config.node_label
        live = [node for node in view.nodes if node.takes(label)]
        if any(asked.fits(node.total) for node in live):
            return ""
        kind = f" with the label {label}" if label else ""
        if not live:
            return f"there is no live node{kind}"
        largest = max((node.total for node in live), key=lambda total: (total.gpus, total.memory_mb))
        return f"no live node{kind} has {asked}; the largest has {largest}"

    # --- the queue -------------------------------------------------------------------------------

    @property
    def own(self) -> YarnQueue | None:
        """The queue that has our application by now; None: it is not shown."""
        if self.view is None:
            return None
        return self.view.queue(self.view.app.queue if self.view.app else self._config.queue)

    def claim(self) -> int:
        """How many workers more are the queue's by its share."""
        own = self.own
        return (self._measure.of(own.share) - self._measure.of(own.used)) // self._each if own else 0

    def pressure(self) -> Pressure | None:
        """Who waits for what we have; None: nobody does, or it is not given back."""
        own = self.own
        if self.view is None or own is None or not self._config.give_back:
            return None
        return self.view.pressure(own, self._measure, self._each)

    def forgets(self, services: list[str]) -> bool:
        """Whether YARN does not know that so much was asked for."""
        own = self.own
        return own is not None and own.forgets(self._services[each] for each in services)

    def has_room(self, service: str) -> bool:
        own = self.own
        if self.view is None or own is None:
            return False
        return self.view.has_room(self._services[service], own, self._config.node_label)

    def fullness(self) -> str:
        """What the queue has, as far as is known."""
        own = self.own
        if own is None or self.view is None:
            return ""
        if label := self._config.node_label:  # the queue's figures are of nodes without labels
            nodes = [node for node in self.view.nodes if node.takes(label)]
            free = sum(self._measure.of(node.available) for node in nodes)
            total = sum(self._measure.of(node.total) for node in nodes)
            return f"{self._measure.of_text(free, total)} are free on nodes with the label {label}, "
        used, most = self._measure.of(own.used), self._measure.of(own.most)
        if used + self._each > most:
            return f"queue {own.name} is at its maximum of {self._measure.text(most)}, "
        user = self.view.user(own)
        if user is not None and not user.may_have(self._services[WORKER]):
            most_of = f"{user.most} that queue {own.name} lets one user have"
            return f"user {user.name} has {user.used} of the {most_of}, "
        free = self.view.free(self._measure)
        total = sum(self._measure.of(node.total) for node in self.view.nodes if node.live)
        uses = f"queue {own.name} uses {self._measure.of_text(used, most)}"
        return f"{uses}, {self._measure.of_text(free, total)} are free, "
