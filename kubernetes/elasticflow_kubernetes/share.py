"""A share of a Kubernetes cluster: the GPUs of the nodes on which workers may be."""

from __future__ import annotations

from typing import Any

from elasticflow.cluster.asks import WORKER
from elasticflow.cluster.share import ClusterShare, ShareNode
from elasticflow.errors import ConfigError
from elasticflow.run.folder import HostJob
from elasticflow_kubernetes.client import KubernetesClient
from elasticflow_kubernetes.config import KubernetesConfig, read
from elasticflow_kubernetes.errors import ApiBusy, QuotaReached
from elasticflow_kubernetes.nodes import KubernetesNode


class KubernetesShare(ClusterShare):
    """See ClusterShare. The ``nodeSelector`` in ``kubernetes.pod`` says which nodes; what others have on them
    is not counted: give a service nodes of its own."""

    passing = (ApiBusy, QuotaReached)
    of_service = (
        "namespace", "context", "labels", "gpus", "gpu_resource", "cpus", "memory", "priority_class", "pod",
    )  # fmt: skip

    def __init__(self, section: dict[str, Any], client: KubernetesClient | None = None) -> None:
        super().__init__(section)
        self._kubernetes = read(section)
        self._client = client or KubernetesClient(self._kubernetes)

    def nodes(self) -> list[ShareNode]:
        selector: dict[str, str] = self._kubernetes.pod.get("nodeSelector", {})
        found = [node for node in self._client.nodes() if selector.items() <= node.labels.items()]
        if not found:
            wanted = ", ".join(f"{name}={value}" for name, value in selector.items()) or "any"
            raise ConfigError(f"kubernetes.pod: nodeSelector: there is no node such as this: {wanted}.")
        slots = [(node, slots_of(node, self._kubernetes)) for node in found]
        return [ShareNode(node.name, num, node.away, node.doubtful) for node, num in slots]

    def num_places(self, job: HostJob) -> int:
        pods = self._client.pods()
        return sum(pod.run == job.run and pod.member.startswith(WORKER) and not pod.over for pod in pods)

    def leader_of(self, job: HostJob) -> str:
        return next((each.name for each in self._client.jobs(job.run) if not each.over), "")


def slots_of(node: KubernetesNode, kubernetes: KubernetesConfig) -> int:
    """Workers that fit on a node, by its GPUs, CPUs and memory, as far as each asks for them."""
    asked = {"cpu": kubernetes.cpus, "memory": kubernetes.memory}
    if kubernetes.gpus:
        asked[kubernetes.gpu_resource] = str(kubernetes.gpus)
    return node.room_for({name: amount for name, amount in asked.items() if amount} or {"cpu": "1"})


share = KubernetesShare
"""See ``load_share``."""
