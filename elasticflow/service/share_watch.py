"""What a service sees of its share: the nodes that there are, and what is known ahead of it."""

from __future__ import annotations

from math import inf

from elasticflow.cluster.share import ShareNode
from elasticflow.errors import ConfigError, ElasticFlowError
from elasticflow.master.log import say
from elasticflow.process.clocks import SteadyClock
from elasticflow.service import happenings as hp
from elasticflow.service import roster
from elasticflow.service.hands import Hands
from elasticflow.service.hours import Foresight
from elasticflow.service.settings import ServiceConfig
from elasticflow.service.state import ServiceState


class ShareWatch:
    """hands: None: the runs are this machine's, and its nodes are there unless people say otherwise."""

    def __init__(
        self, config: ServiceConfig, state: ServiceState, clock: SteadyClock, hands: Hands | None
    ) -> None:
        self._config, self._state, self._clock, self._hands = config, state, clock, hands
        self._nodes_s, self._told = 0.0, ""
        self._foresight = Foresight(config.hours, state.policy.shape)
        self._news: list[hp.Happening] = []

    def take(self) -> list[hp.Happening]:
        """What has come and gone since the last call."""
        news, self._news = self._news, []
        return news

    def look(self) -> None:
        """At the nodes, unless that was done a short while ago, or is being done."""
        if self._hands and self._clock.now_s() >= self._nodes_s:
            self._nodes_s = inf
            self._hands.look_at_nodes(self.seen)

    def seen(self, answer: list[ShareNode] | ElasticFlowError) -> None:
        """A cluster that does not answer has the nodes that it had; one without such a share has none."""
        self._nodes_s = self._clock.now_s() + self._config.look_s
        words = ""
        if isinstance(answer, ConfigError):
            words, answer = f"warning: it has no nodes: {answer}", []
        elif isinstance(answer, ElasticFlowError):
            words = f"warning: its nodes are not known just now: {answer}"
        if words and words != self._told:
            say(words)
        self._told = words
        if isinstance(answer, ElasticFlowError):
            return
        names = {number: seen.name for number, seen in self._state.nodes.items()}
        down = self._state.policy.placement.down
        shape = self._state.policy.shape
        seen = roster.changes(names, down, shape.num_nodes, shape.gpus_per_node, answer)
        for each in seen:
            say(f"node {each.name}: {'is there' if each.up else f'is gone: {each.why}'}")
        self._news += seen
        if words := self._foresight.see(answer, self._clock.now_s()):
            say(f"its nodes are known ahead: {words}")

    def foreseen(self) -> list[hp.Happening]:
        """What is new of what is known ahead of the share."""
        steps = self._foresight.news(self._clock.now_s(), was_told=bool(self._state.foreseen))
        return [hp.Foreseen(steps=steps)] if steps else []
