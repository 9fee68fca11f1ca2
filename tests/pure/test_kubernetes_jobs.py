"""Leaders' Jobs, ElasticFlowJobs and their controller; what a doctor makes of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.doctor.finding import Health
from elasticflow.errors import ConfigError
from elasticflow.run.config import Config
from elasticflow.service.settings import ServiceConfig, read_service_config
from elasticflow_kubernetes.checks import Claim, PriorityClass, Seen, findings
from elasticflow_kubernetes.client import KubernetesClient
from elasticflow_kubernetes.config import KubernetesConfig, check_seen
from elasticflow_kubernetes.jobs import LeaderJob, Owner, read_job
from elasticflow_kubernetes.manifests import leader_job, training_leader
from elasticflow_kubernetes.nodes import KubernetesNode, read_nodes
from elasticflow_kubernetes.operating import EndLeader, Hold, Lead, Release, Tell, decide
from elasticflow_kubernetes.queues import LocalQueue
from elasticflow_kubernetes.share import KubernetesShare, slots_of
from elasticflow_kubernetes.training import FINALIZER, OVER, TrainingJob, conditions, read_training

KUBERNETES = KubernetesConfig(image="train:1", volumes={"/shared": "pvc:training"}, user="1000")


def training(**changes: Any) -> TrainingJob:
    meta = {"name": "digits", "uid": "u1", "finalizers": [FINALIZER], **changes.pop("metadata", {})}
    spec = {"program": "/shared/p.py", "runDir": "/shared/run", **changes.pop("spec", {})}
    return read_training(msgspec.json.encode({"metadata": meta, "spec": spec, **changes}))


def leader(**changes: Any) -> LeaderJob:
    known = {
        "name": "digits",
        "uid": "j-1",
        "run": "r",
        "run_dir": "/shared/run",
        "owners": ("u1",),
        "created_at": 0.0,
    }
    return LeaderJob(**{**known, **changes})


LEAVING = {"deletionTimestamp": "2026-11-27T12:00:00Z"}
RUNNING = {"state": "Running"}
INVALID = {"state": "Invalid", "observedGeneration": 1}
NOT_ITS_OWN = "a Job called digits that is not its own has to go first"


LEADERS = st.builds(
    leader,
    owners=st.sampled_from([(), ("u1",)]),
    state=st.sampled_from(["", "Complete", "Failed"]),
    is_up=st.booleans(),
)


@pytest.mark.parametrize(
    ("one", "of", "action"),
    [
        (training(metadata={"finalizers": []}), None, Hold()),
        (training(), None, Lead()),
        (training(), leader(), Tell("Waiting", "")),
        (training(status={"state": "Waiting"}), leader(), None),
        (training(status=RUNNING), leader(is_up=True), None),
        (training(status=RUNNING), None, Lead()),  # somebody has deleted its Job: the run goes on
        (training(status=RUNNING), leader(state="Complete"), Tell("Finished", "")),
        (training(status=RUNNING), leader(state="Failed", text="why"), Tell("Failed", "why")),
        (training(status={"state": "Stopped"}), leader(is_up=True), None),
        (training(status={"state": "Stopped"}), leader(state="Failed"), Release()),
        (training(status={"state": "Invalid", "observedGeneration": 1}), None, Release()),
        (
            training(status={"state": "Invalid", "observedGeneration": 1}, metadata={"generation": 2}),
            None,
            Lead(),
        ),
        (training(status={"state": "Invalid"}), leader(), Tell("Waiting", "")),
        (training(), leader(owners=("another",), state="Complete"), Tell("Waiting", NOT_ITS_OWN)),
        (training(status={"message": NOT_ITS_OWN}), leader(owners=()), None),
        (training(metadata=LEAVING), None, Release()),
        (training(metadata=LEAVING), leader(state="Failed"), Release()),
        (training(metadata=LEAVING), leader(), EndLeader()),
        (training(metadata=LEAVING), leader(owners=("another",)), Release()),
        (training(metadata=LEAVING), leader(is_leaving=True), None),
        (training(metadata=LEAVING, status=RUNNING), leader(), None),  # its leader comes again, and stops it
        (training(metadata=LEAVING), leader(is_up=True), None),
        (training(metadata={**LEAVING, "finalizers": []}), None, None),
    ],
)
def test_what_is_done_about_it(one: TrainingJob, of: LeaderJob | None, action: object) -> None:
    assert decide(one, of) == action


@given(
    is_leaving=st.booleans(),
    is_kept=st.booleans(),
    state=st.sampled_from(["", "Waiting", "Running", *sorted(OVER)]),
    of=st.none() | LEADERS,
)
def test_it_comes_to_rest(is_leaving: bool, is_kept: bool, state: str, of: LeaderJob | None) -> None:
    """Whatever there is, each action changes what leads to it: none is done for ever."""
    meta = {"finalizers": [FINALIZER] if is_kept else [], **(LEAVING if is_leaving else {})}
    one = training(metadata=meta, status={"state": state})
    for _ in range(5):
        match decide(one, of):
            case None:
                return
            case Hold():
                one.metadata.finalizers.append(FINALIZER)
            case Release():
                one.metadata.finalizers.remove(FINALIZER)
            case Lead():
                assert not is_leaving
                of = leader()
            case EndLeader():
                of = None
            case Tell(told, message):
                one.status |= {"state": told, "message": message}
    raise AssertionError(f"{one} and {of} never come to rest")


def test_how_a_job_is() -> None:
    meta = {
        "name": "digits-x",
        "creationTimestamp": "2026-11-27T12:00:00Z",
        "labels": {"elasticflow/run": "r1"},
        "annotations": {"elasticflow/run-dir": "/shared/run"},
        "ownerReferences": [{"uid": "u1"}],
    }
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "so it is"}
    gone = {"type": "Complete", "status": "False"}
    job = read_job(msgspec.json.encode({"metadata": meta, "status": {"conditions": [gone, failed]}}))
    assert job.over and (job.state, job.text) == ("Failed", "BackoffLimitExceeded: so it is")
    assert (job.run, job.run_dir, job.owners, job.is_up) == ("r1", "/shared/run", ("u1",), False)
    assert read_job(msgspec.json.encode({"metadata": meta, "status": {"ready": 1}})).is_up
    assert not job.is_suspended
    assert read_job(msgspec.json.encode({"metadata": meta, "spec": {"suspend": True}})).is_suspended


def test_an_elasticflowjob_is_in_the_queue_that_its_labels_name() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "training", "team": "ml"}
    assert training(metadata={"labels": labels}).queue == {"kueue.x-k8s.io/queue-name": "training"}
    assert not training().queue


def test_a_leader_may_ask_and_members_may_not() -> None:
    job = leader_job(Config(program="/shared/My Net.py"), KUBERNETES, "r1", "/shared/run 1", resume=True)
    spec = job["spec"]["template"]["spec"]
    assert job["metadata"]["generateName"] == "my-net-" and spec["serviceAccountName"] == "elasticflow"
    assert "automountServiceAccountToken" not in spec and spec["securityContext"]["runAsUser"] == 1000
    (script,) = [container["command"][-1] for container in spec["containers"]]
    assert "--run-dir '/shared/run 1' --resume" in script and "mkdir -p '/shared/run 1/logs'" in script
    plain = leader_job(Config(program="p.py"), KUBERNETES, "r1", "/shared/run", resume=False)
    assert "resume" not in str(plain)


def test_the_leader_of_an_object_gets_its_settings_as_they_are() -> None:
    settings = {"args": {"note": "it's $HOME\nSETTINGS", "eps": 1e-8, "most": 1e16}, "workers": "1..8"}
    job = training_leader(training(), settings, KUBERNETES)
    script = job["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    _, _, text = script.partition("<<'SETTINGS'\n")
    text, _, rest = text.partition("\nSETTINGS\n")
    assert yaml.safe_load(text) == settings and not rest and "--resume" not in script
    (owner,) = job["metadata"]["ownerReferences"]
    assert owner["uid"] == "u1" and owner["controller"]


def test_an_object_names_a_folder() -> None:
    with pytest.raises(ConfigError, match="spec.runDir: s3://.*set checkpoint_dir in spec.settings"):
        training_leader(training(spec={"runDir": "s3://bucket/runs/digits"}), {}, KUBERNETES)


def test_where_somebody_has_deleted_its_job_the_run_goes_on() -> None:
    job = training_leader(training(status=RUNNING), {}, KUBERNETES)
    assert "--resume" in job["spec"]["template"]["spec"]["containers"][0]["command"][-1]


def test_workers_of_an_object() -> None:
    assert training().workers == ""
    assert training(spec={"workers": 8}).workers == "1..8"
    assert training(spec={"workers": 8, "minWorkers": 2}).workers == "2..8"
    assert training(spec={"workers": 2, "minWorkers": 4}).workers == "2..2"


def test_conditions_keep_the_time_of_their_last_change() -> None:
    first = conditions("Running", "", [], 0.0)
    again = conditions("Running", "it is slow", first, 100.0)
    over = conditions("Finished", "", again, 200.0)
    assert {each["lastTransitionTime"] for each in again} == {"1970-01-01T00:00:00Z"}
    changed = {each["type"] for each in over if each["lastTransitionTime"] == "1970-01-01T00:03:20Z"}
    assert changed == {"Running", "Complete"}
    assert {each["type"]: each["status"] for each in over} == {
        "Running": "False",
        "Complete": "True",
        "Failed": "False",
    }


def test_which_job_a_pod_is_of() -> None:
    assert Owner.of({}) is None and Owner.of({"ELASTICFLOW_JOB": "a"}) is None
    owner = Owner.of({"ELASTICFLOW_JOB": "a", "ELASTICFLOW_JOB_UID": "u"})
    assert owner and owner.reference["uid"] == "u"


def test_what_no_pod_would_see_is_refused() -> None:
    check_seen(KUBERNETES, "run_dir", "/shared/runs/first")
    words = r"run_dir: /home/ada/run is in none of kubernetes.volumes \(/shared\)"
    with pytest.raises(ConfigError, match=words):
        check_seen(KUBERNETES, "run_dir", "/home/ada/run")


def node(ready: str = "True", **spec: Any) -> KubernetesNode:
    allocatable = {"nvidia.com/gpu": "8", "cpu": "63500m", "memory": "65536000Ki"}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": ready}]}
    item = {"metadata": {"name": "n1", "labels": {"pool": "a100"}}, "spec": spec, "status": status}
    (found,) = read_nodes(msgspec.json.encode({"items": [item]}))
    return found


def test_nodes() -> None:
    assert (node().away, node().doubtful, node().labels) == ("", False, {"pool": "a100"})
    assert (node("Unknown").away, node("Unknown").doubtful) == ("NotReady", True)
    assert node(unschedulable=True).away == "SchedulingDisabled"


@pytest.mark.parametrize(
    ("asked", "slots"),
    [
        ({}, 8),
        ({"gpus": 3}, 2),
        ({"gpus": 0}, 63),
        ({"gpus": 0, "cpus": "500m"}, 127),
        ({"gpu_resource": "amd.com/gpu"}, 0),
        ({"cpus": "10"}, 6),
        ({"cpus": "100m", "memory": "16Gi"}, 3),
    ],
)
def test_for_how_many_workers_a_node_has_room(asked: dict[str, Any], slots: int) -> None:
    assert slots_of(node(), msgspec.structs.replace(KUBERNETES, **asked)) == slots


def test_the_service_that_people_begin_with() -> None:
    config = read_service_config(str(Path(__file__).parents[2] / "conf" / "service-kubernetes.yaml"))
    assert config.cluster == "kubernetes"
    KubernetesShare(config.section, cast(KubernetesClient, object()))
    with pytest.raises(ConfigError, match="slurm: is set, but cluster is kubernetes"):
        ServiceConfig(cluster="kubernetes", slurm={"gpus": 1})


STOPPED = b"""{"status": {"conditions": [
    {"type": "Active", "status": "False", "reason": "ClusterQueueIsInactive", "message": "is stopped"}
]}}"""


def test_a_doctor_finds_what_is_missing() -> None:
    named = msgspec.structs.replace(KUBERNETES, priority_class="low", server_priority_class="high")
    claim = msgspec.json.decode(b'{"spec": {"accessModes": ["ReadWriteOnce"]}}', type=Claim)
    classes = {"low": PriorityClass(value=10), "high": PriorityClass(value=20)}
    well = Seen(
        nodes=[node()],
        classes=classes,
        claims={"training": msgspec.json.decode(b'{"spec": {"accessModes": ["ReadWriteMany"]}}', type=Claim)},
        accounts={"elasticflow": True},
        queues={"training": msgspec.json.decode(b'{"status": {"conditions": []}}', type=LocalQueue)},
    )
    assert {each.health for each in findings(named, well)} == {Health.OK}
    ill = Seen(
        nodes=[node("False")],
        classes={"low": None, "high": PriorityClass(value=0)},
        claims={"training": claim, "other": None},
        accounts={"elasticflow": False},
        queues={"training": msgspec.json.decode(STOPPED, type=LocalQueue), "other": None},
    )
    found = {each.subject: each.health for each in findings(named, ill)}
    assert found == {
        "kubernetes places of workers": Health.BROKEN,
        "kubernetes priority class low": Health.BROKEN,
        "kubernetes priorities": Health.HURTS,
        "kubernetes claim training": Health.HURTS,
        "kubernetes claim other": Health.BROKEN,
        "kubernetes account elasticflow": Health.BROKEN,
        "kubernetes queue training": Health.BROKEN,
        "kubernetes queue other": Health.BROKEN,
    }
