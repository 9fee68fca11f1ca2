"""Runs in a queue of the real Kueue, which admits their Pods one by one, and takes them back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clusters.kubernetes import KubernetesCluster
from tests.clusters.kueue import Kueue, require
from tests.e2e.on_clusters import ready

from .conftest import LEADER, KubernetesRun
from .test_faults import Submit, ends_well
from .test_leader import comes_again, said
from .test_training import Train, train

__all__ = ["train"]

QUEUE = "training"
LABELS = {"kueue.x-k8s.io/queue-name": QUEUE}
SECTION = {"labels": LABELS}
NO_MORE = "insufficient unused quota for nvidia.com/gpu in flavor any, 1 more needed"
NO_CPU = "insufficient quota for cpu in flavor any"
FEW = 4
KUEUE = "kueue.x-k8s.io/v1beta2"
Give = Callable[..., None]


@pytest.fixture(scope="module")
def kueue(kubernetes: KubernetesCluster) -> Iterator[Kueue]:
    require()
    with Kueue(kubernetes) as started:
        yield started
        kubernetes.clear()


@pytest.fixture
def give(kueue: Kueue, kubernetes: KubernetesCluster) -> Give:
    """Gives the queue so many GPUs, whoever has some. more: of its ``spec``."""

    def amount(gpus: int, cpus: int = 64, **more: Any) -> None:
        covered = {"cpu": cpus, "nvidia.com/gpu": gpus}
        quota = [{"name": name, "nominalQuota": amount} for name, amount in covered.items()]
        cluster_queue = {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [
                {"coveredResources": list(covered), "flavors": [{"name": "any", "resources": quota}]}
            ],
            **more,
        }
        for kind, name, spec in (
            ("ResourceFlavor", "any", {}),
            ("ClusterQueue", QUEUE, cluster_queue),
            ("LocalQueue", QUEUE, {"clusterQueue": QUEUE}),
        ):
            meta = {"name": name, "namespace": "default"}
            whole = {"apiVersion": KUEUE, "kind": kind, "metadata": meta, "spec": spec}
            kubernetes.apply(whole)

    return amount


def test_it_has_what_its_queue_gives_and_grows_with_it(submit: Submit, give: Give, undisturbed: str) -> None:
    """And never asks for many more than that."""
    give(2)
    run = submit("small_torch.py", "--workers", "1..8", section=SECTION, shut=["step 20"])
    run.held_at("step 20")
    run.wait_until(lambda s: len(ready(s)) == 2 and f"in their queue: {NO_MORE}" in s.shortage)
    waiting = [name for name, pod in run.pods().items() if pod["status"]["phase"] == "Pending"]
    assert 1 <= len(waiting) <= FEW, waiting
    give(4)
    run.wait_until(lambda s: len(ready(s)) == 4)
    ends_well(run, undisturbed)


@pytest.fixture
def run(submit: Submit, give: Give) -> KubernetesRun:
    """Two workers, which is all that its queue gives, held at step 20; a checkpoint is there."""
    give(2)
    run = submit("small_torch.py", "--workers", 2, "--checkpoint-every", 8, section=SECTION, shut=["step 20"])
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.held_at("step 20")
    run.wait_until(lambda s: s.checkpoint_step)
    return run


@pytest.mark.parametrize(
    ("priority_class", "label"),
    [("serve", {}), ("train", {"kueue.x-k8s.io/priority-class": "urgent"})],
    ids=["kubernetes", "kueue"],
)
def test_a_worker_is_preempted_and_comes_back(
    submit: Submit,
    give: Give,
    take: Callable[..., None],
    kubernetes: KubernetesCluster,
    undisturbed: str,
    priority_class: str,
    label: dict[str, str],
) -> None:
    """By a Pod of another of Kubernetes' priority classes, or of Kueue's. The leader and the servers stay."""
    give(4)
    urgent = {"apiVersion": KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": "urgent"}}
    kubernetes.apply({**urgent, "value": 500})
    run = submit("small_torch.py", "--workers", "1..4", section=SECTION, shut=["step 20"])
    run.wait_until(lambda s: len(ready(s)) == 4)
    run.held_at("step 20")
    before = run.uids()
    take("service", priority_class, **LABELS, **label)
    status = run.wait_until(lambda s: len(ready(s)) == 3 and NO_MORE in s.shortage)
    assert status.num_faults == 0
    kubernetes.kubectl("delete", "pod", "service")
    status = run.wait_until(lambda s: len(ready(s)) == 4)
    assert status.num_faults == 0 and status.master.incarnation == 1
    stayed = {name for name, uid in run.uids().items() if before.get(name) == uid}
    assert stayed >= {"server-0", "server-1"}
    if label:  # else the scheduler preempts, too, for a Pod that Kueue has let in already
        assert len(stayed) == 5
    ends_well(run, undisturbed)


def test_its_queue_holds_the_leader_back(
    submit: Submit, give: Give, kubernetes: KubernetesCluster, undisturbed: str
) -> None:
    give(2, cpus=0)
    run = submit("small_torch.py", "--workers", 2, section=SECTION)
    name = run.job_id
    kubernetes.wait_until(lambda: NO_CPU in said("status", name).stdout, "it waits, and says why")
    give(2)
    assert run.digest() == undisturbed
    run.leaves_nothing()


def test_its_queue_is_drained_and_opened_again(
    run: KubernetesRun, give: Give, kubernetes: KubernetesCluster, undisturbed: str
) -> None:
    """All its Pods are taken from it, its leader's too, which may have asked for others before."""
    give(2, stopPolicy="HoldAndDrain")

    def has_none() -> bool:
        return all(pod["status"]["phase"] == "Pending" for pod in run.pods().values())

    kubernetes.wait_until(has_none, "no Pod is left that runs")
    name = run.job_id
    kubernetes.wait_until(lambda: "is inactive" in said("status", name).stdout, "it waits, and says why")
    give(2)
    run.wait_until(lambda s: s.master.incarnation == 2 and len(ready(s)) == 2)
    ends_well(run, undisturbed)


@pytest.mark.usefixtures("on_cluster")
def test_a_doctor_looks_at_it(give: Give, kubernetes: KubernetesCluster, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(json.dumps({"backend": "kubernetes", "kubernetes": {"image": "any", **SECTION}}))

    def tells(words: str) -> Callable[[], bool]:
        return lambda: f"  kubernetes queue {QUEUE}: {words}" in said("doctor", settings).stdout

    give(2)
    kubernetes.wait_until(tells("admits"), "it admits")
    give(2, stopPolicy="Hold")
    kubernetes.wait_until(tells("Can't submit new workloads to clusterQueue"), "it is stopped")
    kubernetes.kubectl("delete", "localqueue", QUEUE)
    kubernetes.wait_until(tells("is not there"), "it is not there")


def test_its_leader_is_followed_by_another(run: KubernetesRun, undisturbed: str) -> None:
    before = run.uids()
    run.cluster.kubectl("delete", "pod", run.pods()[LEADER]["metadata"]["name"], "--wait=false")
    comes_again(run, before)
    ends_well(run, undisturbed)


def test_kueue_is_away_for_a_while(run: KubernetesRun, kueue: Kueue, undisturbed: str) -> None:
    """No Pod can be made then, and none is gone."""
    kueue.kill()
    try:
        run.kill("worker-1")
        run.wait_until(lambda s: len(ready(s)) == 1 and "failed calling webhook" in s.shortage)
    finally:
        kueue.start()
    run.wait_until(lambda s: sorted(ready(s)) == ["worker-2", "worker-3"])
    ends_well(run, undisturbed)


def test_an_elasticflowjob_names_its_queue(train: Train, give: Give, undisturbed: str) -> None:
    give(1, cpus=0)
    run = train(shut=("step 20",), workers=2, labels=LABELS)
    run.cluster.wait_until(lambda: NO_CPU in run.told().get("message", ""), "it says why it waits")
    give(1)
    run.held_at("step 20")
    run.cluster.wait_until(lambda: NO_MORE in run.told().get("message", ""), "it says why it has one")
    give(2)
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.open("step 20")
    assert run.digest() == undisturbed
    run.leaves_nothing()
