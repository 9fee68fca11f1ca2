"""What Kueue says of those that its queues hold back.

It has a Workload for each Pod, and for each leader's Job: there it says why it does not admit it yet. Where
there is no Kueue, or its Workloads may not be seen, nothing is said.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import msgspec

from elasticflow.process.decoding import from_json
from elasticflow_kubernetes import reasons
from elasticflow_kubernetes.client import KubernetesClient
from elasticflow_kubernetes.errors import KubernetesError
from elasticflow_kubernetes.jobs import LeaderJob
from elasticflow_kubernetes.objects import ObjectCondition, ObjectList, ObjectMeta
from elasticflow_kubernetes.pods import GATED, Pod

LABEL = "kueue.x-k8s.io/queue-name"
"""Of a Pod or Job: the LocalQueue that admits it."""
AGAIN_S, REFUSED_S = 10.0, 60.0
"""So much later what was told is asked for again, and what was refused."""


class _QueueingStatus(msgspec.Struct):
    conditions: list[ObjectCondition] = []


class _Workload(msgspec.Struct):
    metadata: ObjectMeta
    status: _QueueingStatus = msgspec.field(default_factory=_QueueingStatus)


class LocalQueue(msgspec.Struct):
    """Of a namespace, for those who name it."""

    status: _QueueingStatus = msgspec.field(default_factory=_QueueingStatus)

    @property
    def why_inactive(self) -> str:
        """In Kueue's words; "": it admits."""
        told = [each for each in self.status.conditions if each.type == "Active" and not each.is_true]
        return next((each.message or each.reason or "not active" for each in told), "")


def read_words(answer: bytes) -> dict[str, str]:
    """By the uids of those whose Workloads these are. Raises msgspec.MsgspecError."""
    return {
        owner.uid: reasons.of_queue(told.message)
        for each in from_json(answer, ObjectList[_Workload]).items
        for told in each.status.conditions
        if told.type == "QuotaReserved" and not told.is_true and told.message
        for owner in each.metadata.owner_references
    }


def leader_waits(client: KubernetesClient, job: LeaderJob) -> tuple[str, bool]:
    """What a leader waits for, in words, and whether a Pod of its own has failed. Raises KubernetesError."""
    pods, queues = client.pods_of(job.name), Queues(client)
    if job.is_suspended:
        text = reasons.suspended(queues.words([job.uid]).get(job.uid, ""))
    else:
        text = reasons.beginning(queues.told([pod for pod in pods if not pod.over]))
    return text, any(pod.over for pod in pods)


class Queues:
    """Has their words at hand, as they were some seconds ago."""

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client
        self._words: dict[str, str] = {}
        self._next_s = 0.0

    def told(self, pods: list[Pod]) -> list[Pod]:
        """All of them, those that are held back with why."""
        words = self.words([pod.uid for pod in pods if pod.reason == GATED])
        return [msgspec.structs.replace(pod, held=words.get(pod.uid, pod.held)) for pod in pods]

    def words(self, uids: Sequence[str]) -> dict[str, str]:
        """By uid, as far as these have any."""
        now_s = time.monotonic()
        if uids and now_s >= self._next_s:
            self._next_s = now_s + REFUSED_S
            with contextlib.suppress(KubernetesError, msgspec.MsgspecError):
                self._words = read_words(self._client.workloads(uids))
                self._next_s = now_s + (AGAIN_S if self._words.keys() >= set(uids) else 0.0)
        return {uid: self._words[uid] for uid in uids if uid in self._words}
