"""A cluster that is a dictionary, with all that real ones do to their users.

It preempts, loses nodes, has quotas, goes away, loses answers though it has heard, hides what it has, and
forgets it. Its words are those of Kubernetes, where there are any.
"""

from __future__ import annotations

from collections import Counter
from itertools import count

import msgspec

from elasticflow.errors import RunError


class PretendError(RunError):
    """The cluster did not do what it was asked for."""


class Away(PretendError):
    """No answer; it may have heard."""


class QuotaReached(PretendError):
    """Less may do."""


class Forbidden(PretendError):
    """Asking again for the same is no use."""


class Pod(msgspec.Struct, frozen=True):
    """A place for one process, or the wish for one."""

    id: str
    name: str
    state: str = "Pending"
    """Pending, Running; Succeeded, Failed, Evicted, Lost, Deleted, Unlaunched."""
    node: str = ""
    run: str = ""

    @property
    def over(self) -> bool:
        return self.state not in ("Pending", "Running")


class PretendCluster:
    """nodes: how many pods fit on each."""

    def __init__(self, nodes: dict[str, int]) -> None:
        self.nodes = dict(nodes)
        self.pods: dict[str, Pod] = {}
        self.others = 0
        """Places that somebody else has."""
        self.quota: int | None = None
        self.broken: set[str] = set()
        """Nodes on which nothing can be started."""
        self.drained: set[str] = set()
        """Nodes to which nothing more comes."""
        self.away = self.forbids = self.loses_answers = False
        self.hidden: set[str] = set()
        """Names of pods that it does not show."""
        self.was_hidden: set[str] = set()
        """Of those, and of those that it did not show before."""
        self.excluded: dict[str, tuple[str, ...]] = {}
        self._ids = count(1)

    # --- what a backend may ask -------------------------------------------------------------------

    def ask(self, name: str, exclude: tuple[str, ...] = (), run: str = "") -> str:
        """Returns the id of a new pod, which is never on one of the nodes in ``exclude``."""
        self._answer_or_not()
        if self.forbids:
            raise Forbidden(f"pods are forbidden: {name}")
        if self.quota is not None and len(self.living()) >= self.quota:
            raise QuotaReached(f"exceeded quota: pods={self.quota}")
        id = f"pod-{next(self._ids)}"
        self.pods[id] = Pod(id, name, run=run)
        self.excluded[id] = exclude
        self.turn()
        if self.loses_answers:
            raise Away("the answer was lost")
        return id

    def end(self, id: str) -> None:
        self._answer_or_not()
        if id in self.pods and not self.pods[id].over:
            self.change(id, "Deleted")

    def shown(self) -> list[Pod]:
        self._answer_or_not()
        self.turn()
        return [pod for pod in list(self.pods.values()) if pod.name not in self.hidden]

    # --- what happens there -----------------------------------------------------------------------

    def turn(self) -> None:
        """Pods that wait get the places that are free, in their order."""
        for pod in list(self.pods.values()):
            if pod.state == "Pending" and (node := self._room(self.excluded[pod.id])):
                state = "Unlaunched" if node in self.broken else "Running"
                self.pods[pod.id] = msgspec.structs.replace(pod, state=state, node=node)

    def living(self, *states: str) -> list[Pod]:
        """Pods that are not over; with ``states``: those in one of them."""
        return [
            pod for pod in list(self.pods.values()) if not pod.over and (not states or pod.state in states)
        ]

    def change(self, id: str, state: str) -> None:
        self.pods[id] = msgspec.structs.replace(self.pods[id], state=state)

    def hide(self, names: set[str]) -> None:
        """Shows these no more, and all others again."""
        self.hidden = names
        self.was_hidden |= names

    def lose(self, node: str) -> None:
        """A node is gone, with all that was on it."""
        self.nodes.pop(node, None)
        for pod in self.living("Running"):
            if pod.node == node:
                self.change(pod.id, "Lost")

    def _room(self, exclude: tuple[str, ...]) -> str:
        used = Counter(pod.node for pod in self.living("Running"))
        closed = self.drained.union(exclude)
        free = [node for node in self.nodes if used[node] < self.nodes[node] and node not in closed]
        is_free = sum(self.nodes.values()) - sum(used.values()) > self.others
        return free[0] if free and is_free else ""

    def _answer_or_not(self) -> None:
        if self.away:
            raise Away("connection refused")
