"""Runs in a queue of the real Kueue, which admits their Pods one by one, and takes them back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.clusters.kubernetes import KubernetesCluster
from tests.clusters.kueue import Kueue, require
from tests.e2e.on_clusters import ready

from .conftest import LEADER, KubernetesRun
from .test_faults import Submit, ends_well
from .test_leader import said
from .test_training import NAME, Train, train

__all__ = ["train"]

QUEUE = "training"
LABELS = {"kueue.x-k8s.io/queue-name": QUEUE}
SECTION = {"labels": LABELS}
NO_MORE = "insufficient unused quota for nvidia.com/gpu in flavor any, 1 more needed"
FEW = 4
Give = Callable[[int], None]


@pytest.fixture(scope="module")
def kueue(kubernetes: KubernetesCluster) -> Iterator[Kueue]:
    require()
    with Kueue(kubernetes) as started:
        yield started
        kubernetes.clear()


@pytest.fixture
def give(kueue: Kueue, kubernetes: KubernetesCluster) -> Give:
    """Gives the queue so many GPUs, whoever has some."""

    def amount(gpus: int) -> None:
        covered = {"cpu": 64, "nvidia.com/gpu": gpus}
        quota = [{"name": name, "nominalQuota": amount} for name, amount in covered.items()]
        cluster_queue = {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [
                {"coveredResources": list(covered), "flavors": [{"name": "any", "resources": quota}]}
            ],
        }
        for kind, name, spec in (
            ("ResourceFlavor", "any", {}),
            ("ClusterQueue", QUEUE, cluster_queue),
            ("LocalQueue", QUEUE, {"clusterQueue": QUEUE}),
        ):
            meta = {"name": name, "namespace": "default"}
            whole = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": meta, "spec": spec}
            kubernetes.apply(whole)

    return amount


def test_it_has_what_its_queue_gives_and_grows_with_it(
    submit: Submit, give: Give, undisturbed: str
) -> None:
    give(2)
    run = submit("small_torch.py", "--workers", "1..8", section=SECTION, shut=["step 20"])
    run.held_at("step 20")
    run.wait_until(lambda s: len(ready(s)) == 2 and f"in their queue: {NO_MORE}" in s.shortage, 40)
    waiting = [name for name, pod in run.pods().items() if pod["status"]["phase"] == "Pending"]
    assert 1 <= len(waiting) <= FEW, waiting
    give(4)
    run.wait_until(lambda s: len(ready(s)) == 4)
    ends_well(run, undisturbed)


def test_a_worker_is_preempted_and_comes_back(
    submit: Submit, give: Give, take: Callable[..., None], kubernetes: KubernetesCluster, undisturbed: str
) -> None:
    give(4)
    run = submit("small_torch.py", "--workers", "1..4", section=SECTION, shut=["step 20"])
    run.wait_until(lambda s: len(ready(s)) == 4)
    run.held_at("step 20")
    take("service", "serve", **LABELS)
    status = run.wait_until(lambda s: len(ready(s)) == 3 and NO_MORE in s.shortage, 40)
    print(status.shortage, status.num_faults)
    print(kubernetes.kubectl("get", "pods,workloads"))
    assert status.num_faults == 0
    kubernetes.kubectl("delete", "pod", "service")
    run.wait_until(lambda s: len(ready(s)) == 4)
    ends_well(run, undisturbed)
    print(run.output())
    print([p.name for p in run.path.rglob("*") if p.is_file()])
    for p in run.path.rglob("*"):
        if p.is_file() and p.suffix in (".log", ".jsonl", ".txt"):
            print("==", p.name); print(p.read_text()[-1500:])
