"""Runs in a queue of the real Kueue, which admits their Pods one by one, and takes them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clusters.kubernetes import KubernetesCluster
from tests.clusters.kueue import Kueue, require
from tests.e2e.on_clusters import ready

from .conftest import LEADER, KubernetesRun
from .test_faults import Submit, ends_well

QUEUE = "training"
LABELS = {"kueue.x-k8s.io/queue-name": QUEUE}
SECTION = {"labels": LABELS}


@pytest.fixture(scope="module")
def kueue(kubernetes: KubernetesCluster) -> Iterator[Kueue]:
    require()
    with Kueue(kubernetes) as started:
        yield started


@pytest.fixture
def give(kueue: Kueue, kubernetes: KubernetesCluster, submit: Submit) -> Callable[[int], None]:
    """Gives the queue so many GPUs, whoever has some."""

    def give(gpus: int) -> None:
        covered = {"cpu": 64, "nvidia.com/gpu": gpus}
        amounts = [{"name": name, "nominalQuota": amount} for name, amount in covered.items()]
        flavors = [{"name": "any", "resources": amounts}]
        for kind, name, spec in (
            ("ResourceFlavor", "any", {}),
            (
                "ClusterQueue",
                QUEUE,
                {
                    "namespaceSelector": {},
                    "preemption": {"withinClusterQueue": "LowerPriority"},
                    "resourceGroups": [{"coveredResources": list(covered), "flavors": flavors}],
                },
            ),
            ("LocalQueue", QUEUE, {"clusterQueue": QUEUE}),
        ):
            kubernetes.apply(
                {
                    "apiVersion": "kueue.x-k8s.io/v1beta2",
                    "kind": kind,
                    "metadata": {"name": name, "namespace": "default"},
                    "spec": spec,
                }
            )

    return give


def test_it_has_what_the_queue_gives(
    submit: Submit, give: Callable[[int], None], kubernetes: KubernetesCluster, undisturbed: str
) -> None:
    give(2)
    run = submit("small_torch.py", "--workers", "1..4", section=SECTION, shut=["step 20"])
    try:
        run.held_at("step 20")
        status = run.wait_until(lambda s: len(ready(s)) == 2 and s.shortage)
        print(status.shortage)
        print(kubernetes.kubectl("get", "pods,jobs,workloads", "-o", "wide"))
        import time; time.sleep(5)
        print(run.status().shortage)
        print(kubernetes.kubectl("get", "pods,jobs,workloads", "-o", "wide"))
        print(kubernetes.kubectl("get", "pods,workloads", "-o", "yaml"))
    except BaseException:
        print(kubernetes.kubectl("get", "pods,jobs,workloads", "-o", "wide"))
        raise
    give(4)
    run.wait_until(lambda s: len(ready(s)) == 4)
    ends_well(run, undisturbed)
