"""Nodes as an API server shows them. Pure."""

from __future__ import annotations

import msgspec

from elasticflow.process.decoding import from_json
from elasticflow_kubernetes.objects import ObjectCondition, ObjectList, ObjectMeta


class KubernetesNode(msgspec.Struct, frozen=True, kw_only=True):
    """away: why no Pod is to come, in Kubernetes' word; "": some may. doubtful: it is silent just now."""

    name: str
    labels: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    away: str = ""
    doubtful: bool = False

    def room_for(self, asked: dict[str, str]) -> int:
        """For how many Pods that ask for such amounts, of an empty node; they ask for one at least."""
        from kubernetes.utils.quantity import parse_quantity  # whoever has seen a node has that package

        each = [
            (parse_quantity(self.allocatable.get(name, "0")), parse_quantity(asked[name])) for name in asked
        ]
        return min((int(there // wanted) for there, wanted in each if wanted), default=0)


class _NodeSpec(msgspec.Struct):
    unschedulable: bool = False


class _NodeStatus(msgspec.Struct):
    allocatable: dict[str, str] = {}
    conditions: list[ObjectCondition] = []


class _NodeItem(msgspec.Struct):
    metadata: ObjectMeta
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


def read_nodes(answer: bytes) -> list[KubernetesNode]:
    """Raises msgspec.MsgspecError."""
    return [_read(item) for item in from_json(answer, ObjectList[_NodeItem]).items]


def _read(item: _NodeItem) -> KubernetesNode:
    ready = next((each.status for each in item.status.conditions if each.type == "Ready"), "")
    away = "" if ready == "True" else "NotReady"
    if item.spec.unschedulable:
        away = "SchedulingDisabled"
    return KubernetesNode(
        name=item.metadata.name,
        labels=item.metadata.labels,
        allocatable=item.status.allocatable,
        away=away,
        doubtful=ready == "Unknown",
    )
