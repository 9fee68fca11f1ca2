"""Whatever happens to its Pods, the model is the same, and no Pod is left."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.clusters.kubernetes import KubernetesCluster
from tests.e2e.on_clusters import ready

from .conftest import LEADER, KubernetesRun

Submit = Callable[..., KubernetesRun]


@pytest.fixture
def run(submit: Submit) -> KubernetesRun:
    """Two workers, held at step 20; a checkpoint is there."""
    run = submit("small_torch.py", "--workers", 2, "--checkpoint-every", 8, shut=["step 20"])
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.held_at("step 20")
    run.wait_until(lambda s: s.checkpoint_step)
    return run


def ends_well(run: KubernetesRun, undisturbed: str) -> None:
    run.open("step 20")
    assert run.digest() == undisturbed
    run.leaves_nothing()
    run.is_told("Complete")


def test_nothing_happens(run: KubernetesRun, undisturbed: str) -> None:
    pods = run.pods()
    assert sorted(pods) == [LEADER, "server-0", "server-1", "worker-1", "worker-2"]
    assert pods.pop(LEADER)["spec"]["serviceAccountName"] == "elasticflow"
    owner = {run.job()["metadata"]["uid"]}
    for name, pod in pods.items():
        assert {each["uid"] for each in pod["metadata"]["ownerReferences"]} == owner
        spec, (container,) = pod["spec"], pod["spec"]["containers"]
        assert spec["priorityClassName"] == ("serve" if name.startswith("server") else "train")
        assert spec["automountServiceAccountToken"] is False
        assert container["resources"].get("limits", {}) == (
            {} if name.startswith("server") else {"nvidia.com/gpu": "1"}
        )
    ends_well(run, undisturbed)


def test_a_queue_admits_its_pods_one_by_one(
    submit: Submit, kubernetes: KubernetesCluster, undisturbed: str
) -> None:
    """It begins with who is admitted, and says what it waits for."""
    gates = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    section = {"labels": {"kueue.x-k8s.io/queue-name": "training"}, "pod": gates}
    run = submit("small_torch.py", "--workers", 2, section=section, shut=["step 20"])

    def admit(name: str) -> None:
        kubernetes.wait_until(lambda: name in run.pods(), f"{name} is asked for")
        pod = run.pods()[name]
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "training"
        patch = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}])
        kubernetes.kubectl("patch", "pod", pod["metadata"]["name"], "--type=json", "-p", patch)

    for name in (LEADER, "server-0", "server-1", "worker-1"):
        admit(name)
    run.wait_until(lambda s: ready(s) == ["worker-1"] and "nobody has admitted it yet" in s.shortage)
    run.held_at("step 20")
    admit("worker-2")
    run.wait_until(lambda s: len(ready(s)) == 2)
    ends_well(run, undisturbed)


def test_a_worker_is_killed(run: KubernetesRun, undisturbed: str) -> None:
    run.kill("worker-1")
    run.wait_until(lambda s: sorted(ready(s)) == ["worker-2", "worker-3"] and s.num_faults == 1)
    ends_well(run, undisturbed)


def test_a_workers_pod_is_deleted(run: KubernetesRun, undisturbed: str) -> None:
    run.cluster.kubectl("delete", "pod", run.pods()["worker-1"]["metadata"]["name"], "--wait=false")
    run.wait_until(lambda s: sorted(ready(s)) == ["worker-2", "worker-3"])
    ends_well(run, undisturbed)


def test_a_servers_pod_is_deleted_by_force(run: KubernetesRun, undisturbed: str) -> None:
    run.cluster.kubectl(
        "delete", "pod", run.pods()["server-0"]["metadata"]["name"], "--force", "--grace-period=0"
    )
    run.wait_until(lambda s: s.generation == 2 and not s.regrouping)
    ends_well(run, undisturbed)


def test_the_master_is_killed(run: KubernetesRun, undisturbed: str) -> None:
    before = run.uids()
    run.kill("master")
    run.wait_until(lambda s: s.master.incarnation == 2 and len(ready(s)) == 2)
    assert run.uids() == before, "they were adopted"
    ends_well(run, undisturbed)


def test_a_worker_is_preempted_and_comes_back(
    submit: Submit, take: Callable[..., None], kubernetes: KubernetesCluster, undisturbed: str
) -> None:
    run = submit("small_torch.py", "--workers", "1..4", shut=["step 20"])
    run.wait_until(lambda s: len(ready(s)) == 4)
    run.held_at("step 20")
    take("service", "serve")
    status = run.wait_until(lambda s: len(ready(s)) == 3 and "nvidia.com/gpu" in s.shortage)
    assert "0 of 2 nodes have one (2 Insufficient nvidia.com/gpu)" in status.shortage
    kubernetes.kubectl("delete", "pod", "service")
    run.wait_until(lambda s: len(ready(s)) == 4)
    ends_well(run, undisturbed)


def test_it_begins_with_what_is_idle(
    submit: Submit, take: Callable[..., None], kubernetes: KubernetesCluster, undisturbed: str
) -> None:
    for number in range(2):
        take(f"other-{number}", "serve")
    run = submit("small_torch.py", "--workers", "1..4", shut=["step 20"])
    run.held_at("step 20")
    run.wait_until(lambda s: len(ready(s)) == 2 and "2 Insufficient nvidia.com/gpu" in s.shortage)
    kubernetes.kubectl("delete", "pod", "other-0", "other-1")
    run.wait_until(lambda s: len(ready(s)) == 4)
    ends_well(run, undisturbed)


def test_a_node_is_drained(run: KubernetesRun, undisturbed: str) -> None:
    pods = run.pods()
    node = pods["worker-1"]["spec"]["nodeName"]
    on_it = {name for name, pod in pods.items() if pod["spec"]["nodeName"] == node}
    run.cluster.kubectl("drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data")
    run.wait_until(lambda s: len(ready(s)) == 2 and not on_it & {worker.name for worker in s.workers})
    members = {name: pod for name, pod in run.pods().items() if name != LEADER}
    assert node not in {pod["spec"]["nodeName"] for pod in members.values()}
    ends_well(run, undisturbed)


def test_the_api_server_is_away_for_a_while(run: KubernetesRun, undisturbed: str) -> None:
    run.cluster.kill("apiserver")
    run.kill("worker-1")
    run.wait_until(lambda s: "does not answer" in s.shortage)
    run.cluster.start_apiserver()
    run.wait_until(lambda s: sorted(ready(s)) == ["worker-2", "worker-3"])
    ends_well(run, undisturbed)


def test_a_node_is_lost(run: KubernetesRun, undisturbed: str) -> None:
    """Its kubelet is silent, and its processes are killed: nobody ever confirms that they have ended."""
    node = run.pods()["worker-1"]["spec"]["nodeName"]
    lost = run.lose(node)
    try:
        run.wait_until(lambda s: len(ready(s)) == 2 and not lost & {each.name for each in s.workers})
        run.open("step 20")
        assert run.digest() == undisturbed
    finally:
        run.cluster.start_kubelet(node)
    run.leaves_nothing()
