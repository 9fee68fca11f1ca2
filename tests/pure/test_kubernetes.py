"""What Pods are asked for, and what is said of those that wait or are over."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from elasticflow.cluster.contract import Ended, How
from elasticflow.errors import ConfigError
from elasticflow.run import config as configs
from elasticflow_kubernetes import reasons
from elasticflow_kubernetes.client import KubernetesClient
from elasticflow_kubernetes.config import read
from elasticflow_kubernetes.errors import ApiBusy, ApiRefused, QuotaReached, error_of
from elasticflow_kubernetes.manifests import member_pod
from elasticflow_kubernetes.pods import GATED, LOST, Pod, read_list
from elasticflow_kubernetes.queues import Queues, read_words
from tests.inprocess import toys

AT = 1_800_000_000.0


def pod_of(exclude: tuple[str, ...] = (), **section: Any) -> Any:
    kubernetes = {"image": "python", **section}
    config = configs.make(None, {"program": "digits.py"}, {"kubernetes": kubernetes})
    settings = toys.settings("worker-1", run_dir="/shared/run")
    return member_pod(config, read(config.kubernetes), "0123456789ab", settings, exclude)["spec"]


def shown(**status: Any) -> Pod:
    meta = {"name": "digits-worker-1-x", "labels": {"elasticflow/run": "r", "elasticflow/member": "worker-1"}}
    deleted = status.pop("deleted", None)
    node = status.pop("node", "n1")
    item = {"metadata": meta | ({"deletionTimestamp": deleted} if deleted else {}), "status": status}
    item["spec"] = {"nodeName": node} if node else {}
    (pod,) = read_list(json.dumps({"items": [item]}).encode(), AT)
    return pod


def test_each_source_is_a_volume_of_its_own() -> None:
    sources = {"/a": "host:/x/y", "/b": "host:/x-y:ro", "/c": "pvc:data/in", "/d": "pvc:data/out:ro"}
    spec = pod_of(volumes=sources)
    paths = {each["name"]: each.get("hostPath", {}).get("path") for each in spec["volumes"]}
    claimed = [each["persistentVolumeClaim"] for each in spec["volumes"] if "hostPath" not in each]
    mounts = {each["mountPath"]: each for each in spec["containers"][0]["volumeMounts"]}
    assert [paths[mounts[place]["name"]] for place in ("/a", "/b")] == ["/x/y", "/x-y"]
    assert claimed == [{"claimName": "data"}] and mounts["/c"]["name"] == mounts["/d"]["name"]
    assert [mounts[place].get("subPath") for place in sources] == [None, None, "in", "out"]
    assert [place for place in sources if mounts[place].get("readOnly")] == ["/b", "/d"]


def test_nodes_are_left_out_in_each_of_a_users_terms() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    affinity = {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}
    found = pod_of(("n2", "n1"), pod={"affinity": affinity})["affinity"]["nodeAffinity"][required]
    left_out = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
    assert [term["matchExpressions"][-1] for term in found["nodeSelectorTerms"]] == [left_out, left_out]
    assert [len(term["matchExpressions"]) for term in found["nodeSelectorTerms"]] == [2, 2]
    assert "affinity" not in pod_of()


@pytest.mark.parametrize(
    ("section", "word"),
    [
        ({"memory": "16 GB"}, "memory"),
        ({"volumes": {"data": "pvc:data"}}, "volumes"),
        ({"volumes": {"/data": "nfs:data"}}, "volumes"),
        ({"user": "me"}, "user"),
        ({"pod": {"restartPolicy": "Always"}}, "restartPolicy"),
        ({"image": ""}, "image"),
    ],
)
def test_what_no_pod_can_have_is_refused(section: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        pod_of(**section)


def test_how_an_end_counts() -> None:
    def terminated(code: int, reason: str = "Error") -> dict[str, Any]:
        state = {"terminated": {"exitCode": code, "reason": reason}}
        return {"phase": "Failed", "containerStatuses": [{"state": state}]}

    preempted = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    ends = {
        How.DONE: [shown(phase="Succeeded")],
        How.FAILED: [shown(**terminated(1)), shown(**terminated(137, "OOMKilled"))],
        How.KILLED: [shown(**terminated(137)), shown(**terminated(75))],
        How.TAKEN: [
            shown(**terminated(143), conditions=preempted),
            shown(phase="Failed", reason="OutOfcpu", message="no room"),
            shown(phase="Failed", reason="Evicted", message="low on memory"),
            shown(phase="Running", deleted="2020-01-01T00:00:00Z"),
        ],
    }
    for how, pods in ends.items():
        for pod in pods:
            ended = reasons.ending("worker-1", pod, "1Gi")
            assert ended.how is how and ended.text, pod
            assert pod.over
            assert reasons.blames_node(pod) is (pod.exit_code == 1), pod


def test_a_pod_that_should_be_gone_is_lost_and_not_before() -> None:
    assert shown(phase="Running", deleted="2020-01-01T00:00:00Z").state == LOST
    assert shown(phase="Running", deleted="2030-01-01T00:00:00Z").state == "Terminating"
    assert shown(phase="Pending").state == "Starting"
    assert shown(phase="Pending", node="").state == "Pending"


def test_what_waits_says_why_in_the_schedulers_words() -> None:
    told = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": told}
    pod = shown(phase="Pending", node="", conditions=[condition])
    words = "2 Pods wait for a place: 0 of 2 nodes have one (2 Insufficient nvidia.com/gpu)"
    assert reasons.waiting([pod, pod]) == words
    condition |= {
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    }
    gated = shown(phase="Pending", node="", conditions=[condition])
    assert reasons.waiting([gated, pod]) == words
    held = "1 Pod waits for a place: nobody has admitted it yet (scheduling gates)"
    assert reasons.waiting([gated]) == held


NO_MORE = "insufficient unused quota for nvidia.com/gpu in flavor any, 1 more needed"


def workloads(is_admitted: str) -> bytes:
    """Of two, of which Kueue has seen one."""
    told = f"couldn't assign flavors to pod set main: {NO_MORE}"
    condition = {"type": "QuotaReserved", "status": is_admitted, "message": told}
    seen = {"metadata": {"ownerReferences": [{"uid": "u-1"}]}, "status": {"conditions": [condition]}}
    return json.dumps({"items": [seen, {"metadata": {"ownerReferences": [{"uid": "u-2"}]}}]}).encode()


class KueueInMemory:
    """As a client of Kubernetes knows it."""

    def __init__(self) -> None:
        self.asked = 0
        self.error: Exception | None = None

    def workloads(self, uids: list[str]) -> bytes:
        self.asked += 1
        if self.error:
            raise self.error
        return workloads("False")


def test_what_a_queue_holds_back_says_why_in_its_words() -> None:
    client = KueueInMemory()
    queues = Queues(cast(KubernetesClient, client))
    gated = Pod(id="p", run="r", member="worker-1", uid="u-1", state="Pending", reason=GATED)
    runs = Pod(id="q", run="r", member="worker-2", uid="u-2", state="Running")
    told = queues.told([gated, runs])
    assert told[1:] == [runs]
    assert reasons.waiting(told[:1]) == f"1 Pod waits for a place in its queue: {NO_MORE}"
    assert queues.told([gated]) == told[:1] and client.asked == 1, "it is asked some seconds later"
    assert reasons.suspended(queues.words(["u-1"])["u-1"]) == f"waits for a place in its queue: {NO_MORE}"
    assert not read_words(workloads("True")), "it was let in"


def test_where_there_is_no_kueue_nobody_asks_often() -> None:
    client = KueueInMemory()
    queues = Queues(cast(KubernetesClient, client))
    client.error = ApiRefused("the server could not find the requested resource")
    gated = Pod(id="p", run="r", member="worker-1", uid="u-1", state="Pending", reason=GATED)
    assert queues.told([gated]) == queues.told([gated]) == [gated] and client.asked == 1


def test_what_kueue_takes_back_is_no_failure() -> None:
    message = (
        "Preempted to accommodate a workload (UID: u, JobUID: j) due to prioritization in the ClusterQueue; "
        "preemptor path: /training; preemptee path: /training"
    )
    condition = {"type": "TerminationTarget", "status": "True", "message": message}
    condition["reason"] = "WorkloadEvictedDueToPreempted"
    pod = shown(phase="Failed", conditions=[condition])
    why = "Preempted to accommodate a workload due to prioritization in the ClusterQueue"
    expected = Ended("worker-1", How.TAKEN, f"was taken back on n1 by its queue: {why}")
    assert reasons.ending("worker-1", pod, "") == expected
    leaves = shown(phase="Running", conditions=[condition], deleted="2030-01-01T00:00:00Z")
    assert reasons.forgotten("worker-1", leaves, leaves.id) == expected
    assert not reasons.blames_node(pod)


def test_labels_of_ones_own_tell_no_runs_apart() -> None:
    with pytest.raises(ConfigError, match="kubernetes.labels: elasticflow/run: tells Pods of runs apart"):
        read({"labels": {"elasticflow/run": "r", "team": "ml"}})


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (403, 'pods "x" is forbidden: exceeded quota: gpus', QuotaReached),
        (403, "pods is forbidden: User cannot create", ApiRefused),
        (422, "Invalid value", ApiRefused),
        (401, "Unauthorized", ApiBusy),
        (429, "too many requests", ApiBusy),
        (500, "", ApiBusy),
    ],
)
def test_what_is_no_answer_may_be_one_later(status: int, message: str, kind: type[Exception]) -> None:
    assert type(error_of(status, message)) is kind
