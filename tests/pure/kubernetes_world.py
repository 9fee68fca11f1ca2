"""Kubernetes' sizing in the cluster that is in memory, whose words are Kubernetes' already."""

from __future__ import annotations

import msgspec

from elasticflow_kubernetes.config import KubernetesConfig
from elasticflow_kubernetes.errors import ApiBusy, ApiRefused, KubernetesError, QuotaReached
from elasticflow_kubernetes.pods import LOST, Pod
from elasticflow_kubernetes.sizing import KubernetesSizing
from tests.pretend import cluster as pretend
from tests.pretend.world import World

RUN = "0123456789ab"


class KubernetesWorld(World):
    """What is over is shown until it is deleted, as long as its node is there to say so."""

    def make_sizing(self) -> KubernetesSizing:
        return KubernetesSizing(KubernetesConfig(), self.num_min, RUN)

    def shown(self) -> list[Pod]:
        return [pod for each in self.cluster.shown() if (pod := shown_as(each)) is not None]

    def end(self, id: str) -> None:
        self.cluster.end(id)
        self.cluster.pods.pop(id, None)

    def error_of(self, error: pretend.PretendError) -> KubernetesError:
        return error_of(error)


def error_of(error: pretend.PretendError) -> KubernetesError:
    kinds = {pretend.QuotaReached: QuotaReached, pretend.Forbidden: ApiRefused}
    return kinds.get(type(error), ApiBusy)(str(error))


def shown_as(pod: pretend.Pod) -> Pod | None:
    """None: what was deleted is gone."""
    common = Pod(id=pod.id, run=pod.run or RUN, member=pod.name, state=pod.state, node=pod.node)
    match pod.state:
        case "Deleted":
            return None
        case "Pending" | "Running" | "Succeeded":
            return common
        case "Failed":
            return replace(common, exit_code=1, reason="Error")
        case "Evicted":
            return replace(common, state="Failed", exit_code=143, disruption="PreemptionByScheduler")
        case "Lost":
            return replace(common, state=LOST)
        case _:
            return replace(common, state="Starting", reason="ErrImagePull", message="not found")


def replace(pod: Pod, **changes: object) -> Pod:
    return msgspec.structs.replace(pod, **changes)
