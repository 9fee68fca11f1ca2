"""All decisions about members' Pods: what happened and the time in, actions and reasons out. Pure.

What any cluster needs is in ``elasticflow.cluster.sizing``. Here is what Kubernetes adds: a Pod bears its
member's name as a label, so one whose answer was lost is found again; what is shown is so at that moment, and
what is not shown is gone; one that has ended stays until it is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from elasticflow.cluster.asks import WORKER, Ask, AskPhase
from elasticflow.cluster.contract import Ended, How
from elasticflow.cluster.fair import OtherRun
from elasticflow.cluster.sizing import End, Poll, Sizing
from elasticflow.cluster.ways import ClusterWays
from elasticflow_kubernetes import reasons
from elasticflow_kubernetes.config import KubernetesConfig
from elasticflow_kubernetes.errors import ApiRefused, QuotaReached
from elasticflow_kubernetes.pods import LOST, STARTING, TERMINATING, WAITING, Pod, by_member

WAYS = ClusterWays(
    waiting=WAITING,
    running=frozenset({"Running"}),
    who="the API server",
    look_s=0.2,
    names_asks=True,
    forget_s=0.0,
    forget_polls=1,
    left_out="is left out of new Pods",
    ended="Pod {} is deleted",
)


class Create(msgspec.Struct, frozen=True):
    """Answered by ``accepted`` or ``refused``."""

    name: str
    exclude: tuple[str, ...]


Action = Create | End | Poll


class KubernetesSizing(Sizing[Ask[Pod], Pod]):
    """See the module's docstring, and Sizing."""

    def __init__(self, config: KubernetesConfig, num_min: int, run_id: str) -> None:
        super().__init__(Ask, WAYS, config, num_min)
        self._config, self._run_id = config, run_id
        self._past: set[str] = set()
        """Pods whose ends are known, and that are shown until they are deleted."""
        self._was_accepted = self._was_observed = False

    # --- what the API server answered -------------------------------------------------------------

    def accepted(self, name: str, id: str, now_s: float) -> None:
        self._was_accepted = True
        super().accepted(name, id, now_s)

    def _learn(self, ask: Ask[Pod] | None, error: Exception, now_s: float) -> bool:
        self._busy.fail(str(error), now_s)
        self._polls.look()
        if isinstance(error, ApiRefused) and not self._was_accepted:
            self.fatal = str(error)
        elif isinstance(error, (ApiRefused, QuotaReached)):
            self.news.note("warning", f"Kubernetes takes no more Pods: {error}", once=True)
        return isinstance(error, (ApiRefused, QuotaReached))

    # --- decisions --------------------------------------------------------------------------------

    def decide(self, now_s: float) -> list[Action]:
        self._decided_s = now_s
        exclude = self._nodes.excluded(now_s)
        creates = [Create(ask.name, exclude) for ask in self._due(now_s)]
        return [*self._ends_now(now_s), *creates, *self._polls_now(now_s)]

    def unobserved(self, error: Exception, now_s: float) -> None:
        if isinstance(error, ApiRefused) and not self._was_observed:
            self.fatal = f"Kubernetes does not show its Pods: {error}"
        super().unobserved(error, now_s)

    # --- polls ------------------------------------------------------------------------------------

    def _sorted(self, sights: Sequence[Pod]) -> dict[Any, list[Pod]]:
        self._was_observed = True
        shown = {pod.id for pod in sights}
        self._past &= shown
        for (
            id
        ) in self._past:  # a poll later: a master that died with what it knew is followed by one that sees
            self._end(id, self._decided_s)
        ours = by_member(self._run_id, sights)
        return {name: [pod for pod in pods if pod.id not in self._past] for name, pods in ours.items()}

    def _others(self, sights: Sequence[Pod]) -> list[OtherRun]:
        """Other runs of this namespace."""
        found: dict[str, list[Pod]] = {}
        for pod in sights:
            if pod.run != self._run_id and pod.member.startswith(WORKER) and not pod.over:
                found.setdefault(pod.run, []).append(pod)
        return [
            OtherRun(run, len(pods) - waiting, waiting)
            for run, pods in found.items()
            for waiting in [sum(pod.state in WAITING for pod in pods)]
        ]

    def _chosen(self, ask: Ask[Pod], shown: dict[Any, list[Pod]], now_s: float) -> Pod | None:
        pods = shown.pop(ask.name, [])
        # Of several the first is its own: the others came of asks whose answers were lost.
        mine = next((pod for pod in pods if ask.id in (None, pod.id)), None)
        if others := [pod for pod in pods if pod is not mine]:
            shown[ask.name] = others
        if mine is None or (mine.over and ask.unanswered):
            return None
        self._was_accepted = True
        ask.id = mine.id
        return mine

    def _see_strangers(self, shown: dict[Any, list[Pod]], began_s: float, now_s: float) -> None:
        """One that has ended, and that nobody waits for, is deleted without a word."""
        for pods in shown.values():
            self._past.update(pod.id for pod in pods if pod.over)
        super()._see_strangers(shown, began_s, now_s)

    def _see_running(self, ask: Ask[Pod], sight: Pod, now_s: float) -> None:
        if failure := reasons.launch_failure(sight):
            self._launch_failed(sight.node, failure, now_s)
            self._end(sight.id, now_s)
            self._past.add(sight.id)
            self._over(ask, Ended(ask.name, How.TAKEN, failure))
        else:
            super()._see_running(ask, sight, now_s)

    def _see_over(self, ask: Ask[Pod], sight: Pod, now_s: float) -> None:
        self._past.add(sight.id)
        super()._see_over(ask, sight, now_s)

    def _judge(self, ask: Ask[Pod], sight: Pod, now_s: float) -> None:
        if sight.state == LOST:
            self._end(sight.id, now_s)
        if failure := reasons.launch_failure(sight):
            self._launch_failed(sight.node, failure, now_s)
        elif reasons.blames_node(sight):
            self._blame(sight.node, now_s)
        memory = self._config.memory if ask.role == WORKER else self._config.server_memory
        self._over(ask, reasons.ending(ask.name, sight, memory))

    def _forgotten(self, ask: Ask[Pod]) -> Ended:
        return reasons.forgotten(ask.name, ask.sight, ask.id)

    # --- reasons ----------------------------------------------------------------------------------

    def _stands(self, ask: Ask[Pod]) -> bool:
        return ask.sight is not None and ask.sight.state in (STARTING, TERMINATING)

    def _why(self, role: str) -> str:
        if self._polls.silence.failures > 1:
            return f"the API server does not answer: {self._polls.silence.text}"
        if self._busy.failures:
            return self._busy.text
        if self._launches.cooldown.failures:
            return self._launches.cooldown.text
        asks = self._asks.of(role, AskPhase.WAITING, AskPhase.RUNNING)
        sights = [ask.sight for ask in asks if ask.sight is not None]
        if line := [pod for pod in sights if pod.state in WAITING]:
            return reasons.waiting(line)
        if starting := next((pod for pod in sights if pod.state == STARTING), None):
            why = f" ({starting.reason})" if starting.reason else ""
            return f"Pod {starting.id} starts on {starting.node}{why}"
        if leaving := next((pod for pod in sights if pod.state == TERMINATING), None):
            return f"Pod {leaving.id} leaves {leaving.node}"
        return "makes way for others" if self._decided_s < self._growth.way_until_s else "they start"
