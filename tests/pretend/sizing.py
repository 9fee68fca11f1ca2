"""What the cluster of this folder adds to ``elasticflow.cluster.sizing``: the least that any has to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from elasticflow.cluster.asks import Ask, AskPhase
from elasticflow.cluster.config import ClusterConfig
from elasticflow.cluster.contract import Ended, How
from elasticflow.cluster.fair import OtherRun
from elasticflow.cluster.sizing import End, Poll, Sizing
from elasticflow.cluster.ways import ClusterWays
from tests.pretend.cluster import Forbidden, Pod, QuotaReached

WAYS = ClusterWays(
    waiting=frozenset({"Pending"}),
    running=frozenset({"Running"}),
    who="the cluster",
    names_asks=True,
    forget_s=5.0,
    forget_polls=2,
)
HOW = {
    "Succeeded": (How.DONE, "ended"),
    "Failed": (How.FAILED, "failed"),
    "Evicted": (How.TAKEN, "was evicted"),
    "Lost": (How.TAKEN, "lost its node"),
    "Deleted": (How.TAKEN, "was deleted"),
    "Unlaunched": (How.TAKEN, "could not be started"),
}


class Request(msgspec.Struct, frozen=True):
    """An action: a pod. Answered by ``accepted`` or ``refused``."""

    name: str
    exclude: tuple[str, ...]


Action = End | Request | Poll


class PretendSizing(Sizing[Ask[Pod], Pod]):
    """Pods are known by their names, and no id ever comes twice."""

    def __init__(self, config: ClusterConfig, num_min: int, run: str = "") -> None:
        super().__init__(Ask, WAYS, config, num_min)
        self._run = run
        self._past: set[str] = set()
        """Pods that are over and done with, and whose names are used again."""

    def decide(self, now_s: float) -> list[Action]:
        self._decided_s = now_s
        exclude = self._nodes.excluded(now_s)
        requests = [Request(ask.name, exclude) for ask in self._due(now_s)]
        return [*self._ends_now(now_s), *requests, *self._polls_now(now_s)]

    def _learn(self, ask: Ask[Pod] | None, error: Exception, now_s: float) -> bool:
        self._busy.fail(str(error), now_s)
        self._polls.look()
        if isinstance(error, Forbidden):
            self.fatal = str(error)
        return isinstance(error, (QuotaReached, Forbidden))

    def _sorted(self, sights: Sequence[Pod]) -> dict[Any, list[Pod]]:
        by_name = defaultdict(list)
        for pod in sights:
            if pod.run == self._run and pod.id not in self._past:
                by_name[pod.name].append(pod)
        return by_name

    def _others(self, sights: Sequence[Pod]) -> list[OtherRun]:
        living = [pod for pod in sights if pod.run != self._run and not pod.over]
        states = {run: [pod.state for pod in living if pod.run == run] for run in {pod.run for pod in living}}
        return [OtherRun(run, all_.count("Running"), all_.count("Pending")) for run, all_ in states.items()]

    def _see_over(self, ask: Ask[Pod], sight: Pod, now_s: float) -> None:
        self._past.add(sight.id)
        super()._see_over(ask, sight, now_s)

    def _chosen(self, ask: Ask[Pod], shown: dict[Any, list[Pod]], now_s: float) -> Pod | None:
        pods = shown.pop(ask.name, [])
        mine = [pod for pod in pods if ask.id in (None, pod.id)]
        if not mine or (mine[0].over and ask.unanswered):
            return None
        ask.id = mine[0].id
        return mine[0]

    def _judge(self, ask: Ask[Pod], sight: Pod, now_s: float) -> None:
        if sight.state == "Failed":
            self._blame(sight.node, now_s)
        if sight.state == "Unlaunched":
            self._launch_failed(sight.node, f"{sight.node} lacks a volume", now_s)
        how, text = HOW[sight.state]
        self._over(ask, Ended(ask.name, how, f"{text} ({sight.id})"))

    def _forgotten(self, ask: Ask[Pod]) -> Ended:
        return Ended(ask.name, How.TAKEN, f"is lost: the cluster does not know {ask.id} any more")

    def _why(self, role: str) -> str:
        if self._polls.silence.failures > 1 or self._busy.failures:
            return self._polls.silence.text or self._busy.text
        waiting = len(self._asks.of(role, AskPhase.WAITING))
        if waiting:
            return f"{waiting} wait for a place"
        return "makes way for others" if self._decided_s < self._growth.way_until_s else "they start"
