"""Pods as an API server shows them, and as a run's sizing sees them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from elasticflow.process.decoding import from_json, json_decoder
from elasticflow_kubernetes.objects import ObjectCondition, ObjectList, ObjectMeta

MANAGED = "app.kubernetes.io/managed-by"
RUN, MEMBER, ROLE = "elasticflow/run", "elasticflow/member", "elasticflow/role"
"""Labels of each Pod that a run's master makes."""
OURS = f"{MANAGED}=elasticflow"
"""A selector of all runs' Pods."""

WAITING = frozenset({"Pending"})
STARTING, TERMINATING, LOST = "Starting", "Terminating", "Lost"
"""States beside Kubernetes' phases: it has a node and does not run yet; it has been told to leave; it should
have left by now, and its node does not confirm it."""
OVER = frozenset({"Succeeded", "Failed", LOST})
LOST_AFTER_S = 10.0
"""What should have ended so long ago ended with its node."""
GATED = "SchedulingGated"
"""Reason of a Pod that a queue, such as Kueue's, still holds back."""
TAKEN_BACK = "TerminationTarget"
"""Condition of a Pod that Kueue ends, and its disruption."""


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """One of our Pods: a Sight, see ``elasticflow.cluster.asks``."""

    id: str
    """Its name, which Kubernetes makes, and never twice."""
    run: str
    member: str
    uid: str = ""
    state: str
    """Kubernetes' phase, or one of the above."""
    node: str = ""
    reason: str = ""
    """Kubernetes' words for why it waits, cannot start, or is over; the first is a word of its own."""
    message: str = ""
    disruption: str = ""
    """Kubernetes' word for who took its place: PreemptionByScheduler, ...; or ``TAKEN_BACK``."""
    held: str = ""
    """Why its queue does not admit it yet, as far as that is known."""
    exit_code: int | None = None

    @property
    def over(self) -> bool:
        return self.state in OVER


class _Cause(msgspec.Struct, rename="camel"):
    reason: str | None = None
    message: str | None = None
    exit_code: int | None = None


class _State(msgspec.Struct):
    waiting: _Cause | None = None
    terminated: _Cause | None = None


class _Container(msgspec.Struct):
    state: _State = msgspec.field(default_factory=_State)


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str = "Pending"
    reason: str | None = None
    message: str | None = None
    conditions: list[ObjectCondition] = []
    container_statuses: list[_Container] = []


class _PodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class PodItem(msgspec.Struct):
    """As it was last told of."""

    metadata: ObjectMeta
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


_LISTS = json_decoder(ObjectList[PodItem])


def read_list(answer: bytes, at: float) -> list[Pod]:
    """at: when the API server gave this answer, in seconds since 1970, by its own clock."""
    return [shown(item, at) for item in _LISTS.decode(answer).items]


def read_item(answer: bytes) -> PodItem:
    """Of one, of which ``shown`` makes what it is at a time. Raises msgspec.MsgspecError."""
    return from_json(answer, PodItem)


def shown(item: PodItem, at: float) -> Pod:
    """at: the present, in seconds since 1970, by the API server's clock."""
    labels, status = item.metadata.labels, item.status
    conditions = {each.type: each for each in status.conditions if each.is_true}
    disrupted, taken_back = conditions.get("DisruptionTarget"), conditions.get(TAKEN_BACK)
    container = status.container_statuses[0].state if status.container_statuses else _State()
    cause = container.terminated or container.waiting or _Cause()
    unscheduled = next((each for each in status.conditions if each.type == "PodScheduled"), None)
    if unscheduled is not None and unscheduled.status == "False":
        cause = _Cause(unscheduled.reason, unscheduled.message)
    message = (taken_back.message if taken_back else status.message) or cause.message or ""
    return Pod(
        id=item.metadata.name,
        uid=item.metadata.uid,
        run=labels.get(RUN, ""),
        member=labels.get(MEMBER, ""),
        state=_state(item, at),
        node=item.spec.node_name,
        reason=status.reason or cause.reason or "",
        message=" ".join(message.split()),
        disruption=(disrupted.reason or "") if disrupted else taken_back.type if taken_back else "",
        exit_code=cause.exit_code,
    )


def _state(item: PodItem, at: float) -> str:
    phase, leaves_at = item.status.phase, item.metadata.deletion_timestamp
    if phase in OVER:
        return phase
    if leaves_at is not None:
        return LOST if at > leaves_at.timestamp() + LOST_AFTER_S else TERMINATING
    if phase == "Pending" and item.spec.node_name:
        return STARTING
    return phase


def by_member(run: str, pods: Sequence[Pod]) -> Mapping[str, list[Pod]]:
    """Those of one run."""
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.run == run and pod.member:
            found.setdefault(pod.member, []).append(pod)
    return found
