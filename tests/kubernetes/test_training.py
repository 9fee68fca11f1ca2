"""Runs as ElasticFlowJobs, as people have them who know kubectl and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticflow import checkpoint
from elasticflow.checkpoint import commits, load_manifest
from tests.clusters.kubernetes import IMAGE, KubernetesCluster, host_volumes
from tests.e2e.conftest import PROGRAMS
from tests.e2e.on_clusters import WORK, ready

from .conftest import CONF, LEADER, KubernetesRun
from .test_leader import FAILING

NAME = "small"


class TrainingRun(KubernetesRun):
    """The process is the controller, ``operate``."""

    def __init__(
        self, kubernetes: KubernetesCluster, path: Path, program: str, spec: dict[str, Any], **more: Any
    ) -> None:
        super().__init__(kubernetes, path, program, settings={}, verb=["operate"], **more)
        self.apply(program, **spec)

    def apply(self, program: str, **spec: Any) -> None:
        settings = {**WORK, "checkpoint_every": 8, **spec.pop("settings", {})}
        meta = {"name": NAME, "labels": spec.pop("labels", {})}
        whole = {"program": str(PROGRAMS / program), "runDir": str(self.path), **spec, "settings": settings}
        kind = {"apiVersion": "elasticflow.dev/v1", "kind": "ElasticFlowJob"}
        self.cluster.apply({**kind, "metadata": meta, "spec": whole})

    def training(self) -> dict[str, Any]:
        """{}: there is none any more."""
        text = self.cluster.kubectl("get", "efj", NAME, "-o", "json", "--ignore-not-found")
        found: dict[str, Any] = json.loads(text or "{}")
        return found

    def told(self) -> dict[str, Any]:
        status: dict[str, Any] = self.training().get("status", {})
        return status

    def waits_for(self, state: str) -> dict[str, Any]:
        """Until its object says so."""

        def is_so() -> bool:
            assert self.process.poll() is None, self.output()
            return bool(self.told().get("state") == state)

        self.cluster.wait_until(is_so, f"the ElasticFlowJob is {state}", 120)
        return self.told()

    def start_again(self) -> None:
        """Another controller, after the one that was killed."""
        self.process.wait()
        self.process = subprocess.Popen(self.process.args, env=self.environment, start_new_session=True)

    def finish(self, timeout_s: float = 0) -> str:
        self.waits_for("Finished")
        return self.output()


@pytest.fixture
def train(
    kubernetes: KubernetesCluster, on_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., TrainingRun]]:
    """The controller has the account, and so the rights, that operator.yaml gives it."""
    for name in ("elasticflowjob", "operator"):
        kubernetes.kubectl("apply", "-f", str(CONF / f"{name}.yaml"))
    kubernetes.kubectl("scale", "deployment", "elasticflow-operator", "--replicas=0")
    kubernetes.wait_for_kinds("elasticflowjobs.elasticflow.dev")
    kubeconfig = kubernetes.kubeconfig_of("elasticflow-operator", tmp_path / "operator")
    kubernetes.clear()
    with ExitStack() as runs:

        def make(program: str = "small_torch.py", shut: tuple[str, ...] = (), **spec: Any) -> TrainingRun:
            with monkeypatch.context() as patch:  # its own process alone
                patch.setenv("KUBECONFIG", str(kubeconfig))
                run = TrainingRun(kubernetes, tmp_path / "run", program, spec, shut=shut)
            return runs.enter_context(run)

        yield make
        patch = json.dumps([{"op": "remove", "path": "/metadata/finalizers"}])
        kubernetes.kubectl("patch", "efj", NAME, "--type=json", "-p", patch, check=False)
        kubernetes.kubectl("delete", "efj", "--all", "--wait=false")
    kubernetes.clear()


Train = Callable[..., TrainingRun]


def test_it_is_told_scaled_and_ends(train: Train, undisturbed: str) -> None:
    run = train(shut=("step 20",), workers=2)
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.held_at("step 20")
    run.cluster.wait_until(lambda: run.told().get("workers") == 2, "two workers are told of")
    status = run.told()
    assert status["state"] == "Running" and status["wanted"] == 2 and status["steps"] == 48
    conditions = {each["type"]: each["status"] for each in status["conditions"]}
    assert conditions == {"Running": "True", "Complete": "False", "Failed": "False"}
    run.cluster.kubectl("scale", "efj", NAME, "--replicas=3")
    run.wait_until(lambda s: len(ready(s)) == 3)
    names = run.cluster.kubectl("get", "pods", "-l", status["selector"], "-o", "name").split()
    assert len(names) == 3
    run.open("step 20")
    assert run.digest() == undisturbed
    done = run.told()
    assert done["progress"] == "100%" and done["workers"] == 0, done
    run.is_told("Complete")
    run.leaves_nothing()


def test_deleted_it_ends_with_a_checkpoint_and_another_goes_on(train: Train, undisturbed: str) -> None:
    run = train(shut=("step 20",), workers=2)
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.held_at("step 20")
    run.cluster.kubectl("delete", "efj", NAME, "--wait=false")
    run.wait_until(lambda s: s.state == "finishing")
    run.open("step 20")
    run.cluster.wait_until(lambda: not run.training(), "the object is gone")
    report = run.dir.read_report()
    assert report and report.state == "stopped" and report.checkpoint_step == report.step >= 20
    run.cluster.wait_until(lambda: not run.pods(), "no Pod of the run is left")
    run.apply("small_torch.py", workers=2, resume=True)
    assert run.digest() == undisturbed


def test_the_controller_and_then_the_leader_are_lost(train: Train, undisturbed: str) -> None:
    run = train(shut=("step 20",), workers=2)
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.held_at("step 20")
    run.process.kill()
    run.cluster.kubectl("delete", "pod", run.pods()[LEADER]["metadata"]["name"], "--wait=false")
    run.start_again()
    run.wait_until(lambda s: s.master.incarnation == 2 and len(ready(s)) == 2)
    run.open("step 20")
    assert run.digest() == undisturbed


def test_what_is_wrong_is_said(train: Train, tmp_path: Path) -> None:
    run = train(settings={"bach_size": 3})
    assert "bach_size" in run.waits_for("Invalid")["message"]
    assert not run.pods()


def test_a_program_that_fails(train: Train, tmp_path: Path) -> None:
    program = tmp_path / "failing.py"
    program.write_text(FAILING)
    run = train(str(program))
    assert "not this one" in run.waits_for("Failed")["message"]
    run.is_told("Failed")


def test_an_example() -> None:
    """What people are shown has the fields that there are."""
    whole = yaml.safe_load((CONF.parents[1] / "kubernetes" / "digits.yaml").read_text())
    kind = yaml.safe_load((CONF / "elasticflowjob.yaml").read_text())
    schema = kind["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert whole["spec"].keys() <= schema["properties"].keys()
    assert whole["spec"].keys() >= set(schema["required"])


def deployed(run: TrainingRun) -> Iterator[dict[str, Any]]:
    """What operator.yaml has, with the tests' image and settings, this machine's files, and their owner."""
    for each in yaml.safe_load_all((CONF / "operator.yaml").read_text()):
        if each["kind"] == "ConfigMap":
            each["data"]["kubernetes.yaml"] = run.path.with_suffix(".yaml").read_text()
        elif each["kind"] == "Deployment":
            spec = each["spec"]["template"]["spec"]
            (container,) = spec["containers"]
            container |= {"image": IMAGE, "imagePullPolicy": "Never"}
            container["command"][:1] = [sys.executable, "-m", "elasticflow.cli"]
            spec["securityContext"] |= {"runAsUser": 0, "runAsNonRoot": False}
            for number, (path, source) in enumerate(host_volumes().items()):
                if path != "/etc":  # its settings are below
                    container["volumeMounts"].append({"name": f"host-{number}", "mountPath": path})
                    host = {"path": source.removeprefix("host:")}
                    spec["volumes"].append({"name": f"host-{number}", "hostPath": host})
        yield each


def test_the_controller_is_a_deployment(train: Train, undisturbed: str) -> None:
    """And its Pod is deleted: whatever it had under way, the next one finishes."""
    run = train(shut=("step 20",), workers=2)
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.held_at("step 20")
    run.process.kill()
    for each in deployed(run):
        run.cluster.apply(each)
    deployment, labels = "deployment/elasticflow-operator", "app.kubernetes.io/name=elasticflow-operator"
    try:
        run.cluster.kubectl("rollout", "status", deployment, "--timeout=55s")
        run.cluster.kubectl("delete", "efj", NAME, "--wait=false")
        (first,) = run.cluster.kubectl("get", "pod", "-l", labels, "-o", "name").split()
        run.cluster.kubectl("delete", first, "--timeout=20s")  # it heeds SIGTERM: its grace is longer
        run.open("step 20")
        run.cluster.wait_until(lambda: not run.training(), "the object is gone", 120)
        run.apply("small_torch.py", workers=2, resume=True)
        run.cluster.wait_until(lambda: run.told().get("state") == "Finished", "it is Finished", 120)
        (second,) = json.loads(run.cluster.kubectl("get", "pod", "-l", labels, "-o", "json"))["items"]
        assert [each["restartCount"] for each in second["status"]["containerStatuses"]] == [0]
    finally:
        run.cluster.kubectl("delete", deployment, "--wait=false")
        run.cluster.kubectl("delete", "configmap", "elasticflow-operator")
    storage = run.dir.storage()
    assert checkpoint.digest(storage, load_manifest(storage, commits(storage)[-1])) == undisturbed
