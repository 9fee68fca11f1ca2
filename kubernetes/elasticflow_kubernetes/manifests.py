"""Pods and Jobs as Kubernetes is asked for them: pure, so that a dry run shows exactly what would be."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from elasticflow import launch
from elasticflow.cluster.asks import SERVER
from elasticflow.cluster.scripts import as_yaml, script_of
from elasticflow.errors import ConfigError
from elasticflow.process.fingerprint import library_settings
from elasticflow.run.config import Config
from elasticflow.run.settings import MemberSettings
from elasticflow.storage.urls import is_url
from elasticflow_kubernetes.config import KubernetesConfig, Volume, image_of
from elasticflow_kubernetes.jobs import JOB, OF_TRAINING, RUN_DIR, TRAINING, UID, Owner
from elasticflow_kubernetes.pods import MANAGED, MEMBER, ROLE, RUN
from elasticflow_kubernetes.training import TrainingJob

_LOG = """\
# What it says is found where the run's other logs are.
{{ : >> {log}; }} 2> /dev/null || {{ echo {log}: cannot be written on this node >&2; exit 1; }}
exec >> {log} 2>&1"""
GONE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""What Kubernetes taints a node with that does not answer."""
MOST_NAME = 40
"""Of a Pod's name, at most so much is the program's."""
TRIES = 5
"""Of a leader's Pods, until one has begun: with what is wrong there all would fail."""
KEPT_S = 7 * 86400
"""A leader's Job that is over is shown for so long."""


def member_pod(
    config: Config,
    kubernetes: KubernetesConfig,
    run: str,
    settings: MemberSettings,
    exclude: Sequence[str] = (),
    owner: Owner | None = None,
) -> dict[str, Any]:
    """A worker's, or a parameter server's. owner: the Job with which it goes. Raises ConfigError if no image
    is named."""
    is_server = settings.role == SERVER
    threads = config.server_threads if is_server else config.threads
    log = shlex.quote(str(Path(settings.run_dir, "logs", f"{settings.name}.log")))
    member = [_python(kubernetes), "-m", launch.__name__, msgspec.json.encode(settings).decode()]
    script = script_of(_LOG.format(log=log), kubernetes.setup.rstrip(), f"exec {shlex.join(member)}")
    variables = [{"name": name, "value": value} for name, value in library_settings(threads).items()]
    name = kubernetes.server_priority_class if is_server else kubernetes.priority_class
    amounts = _amounts(kubernetes, is_server, threads)
    owners = {"ownerReferences": [owner.reference]} if owner else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{stem_of(config)}-{settings.name}-",
            "labels": _labels(kubernetes, {RUN: run, MEMBER: settings.name, ROLE: settings.role}),
            **owners,
        },
        "spec": {
            "automountServiceAccountToken": False,
            **_spec(kubernetes, name, exclude),
            "containers": [_container(kubernetes, "member", script, variables, amounts)],
        },
    }


def leader_job(
    config: Config, kubernetes: KubernetesConfig, run: str, run_dir: str, resume: bool
) -> dict[str, Any]:
    """That of a run's master: Kubernetes gives it another Pod whenever one is gone, until it says itself that
    it is over. Raises ConfigError if no image is named."""
    meta = {
        "generateName": f"{stem_of(config)}-",
        "labels": _labels(kubernetes, {RUN: run}),
        "annotations": {RUN_DIR: run_dir},
    }
    return _leader(kubernetes, meta, run_dir, ["--run-dir", run_dir, *(["--resume"] if resume else [])])


def training_leader(
    training: TrainingJob, settings: dict[str, Any], kubernetes: KubernetesConfig
) -> dict[str, Any]:
    """That of an ElasticFlowJob, by its name: its run begins with it. settings: the run's, but for what has
    fields of its own in the object. Raises ConfigError."""
    spec = training.spec
    if is_url(spec.run_dir):  # what names it in a Pod of today is not there in the next one
        raise ConfigError(
            f"spec.runDir: {spec.run_dir}: must be a folder in the shared volume. For checkpoints in a store "
            "set checkpoint_dir in spec.settings."
        )
    meta = {
        "name": training.name,
        "labels": _labels(kubernetes, {OF_TRAINING: training.name}),
        "annotations": {RUN_DIR: spec.run_dir},
        "ownerReferences": [training.owner],
    }
    options = [spec.program, "--run-dir", spec.run_dir, "--config", "/dev/fd/3"]
    options += ["--resume"] if spec.resume or training.has_begun else []  # else its Job was deleted
    here = f" 3<<'SETTINGS'\n{as_yaml(settings)}SETTINGS"
    told = {"name": TRAINING, "value": training.name}
    return _leader(kubernetes, meta, spec.run_dir, options, here, told)


def _leader(
    kubernetes: KubernetesConfig,
    meta: dict[str, Any],
    run_dir: str,
    options: list[str],
    here: str = "",
    *variables: dict[str, Any],
) -> dict[str, Any]:
    """here: text that the command reads, as a shell has it."""
    logs = Path(run_dir, "logs")
    lead = [_python(kubernetes), "-m", "elasticflow.cli", "lead", "--on", "kubernetes", *options]
    script = script_of(
        f"mkdir -p {shlex.quote(str(logs))}",
        _LOG.format(log=shlex.quote(str(logs / "leader.log"))),
        kubernetes.setup.rstrip(),
        f"exec {shlex.join(lead)}{here}",
    )
    told = {JOB: "job-name", UID: "controller-uid"}
    own = [
        {
            "name": name,
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['batch.kubernetes.io/{label}']"}},
        }
        for name, label in told.items()
    ]
    amounts = _set({"cpu": kubernetes.leader_cpus, "memory": kubernetes.leader_memory})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {
            "backoffLimit": TRIES - 1,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": {
                "metadata": {"labels": meta["labels"]},
                "spec": {
                    **_set({"serviceAccountName": kubernetes.service_account}),
                    **_spec(kubernetes, kubernetes.server_priority_class),
                    "containers": [_container(kubernetes, "leader", script, [*own, *variables], amounts)],
                },
            },
        },
    }


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    """As the Job's controller will ask for it."""
    template = job["spec"]["template"]
    meta = {"generateName": "leader-", **template["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}


def stem_of(config: Config) -> str:
    """How names of a run's Pods begin: as the program is called, as far as Kubernetes allows such names."""
    stem = re.sub("[^a-z0-9]+", "-", Path(config.program).stem.lower()).strip("-")[:MOST_NAME].strip("-")
    return stem or "run"


def _labels(kubernetes: KubernetesConfig, own: dict[str, str]) -> dict[str, str]:
    return {**kubernetes.labels, MANAGED: "elasticflow", **own}


def _python(kubernetes: KubernetesConfig) -> str:
    return kubernetes.python or "python3"


def _container(
    kubernetes: KubernetesConfig,
    name: str,
    script: str,
    variables: list[dict[str, Any]],
    amounts: dict[str, str],
) -> dict[str, Any]:
    return {
        "name": name,
        "image": image_of(kubernetes),
        **_set({"imagePullPolicy": kubernetes.image_pull_policy}),
        "command": ["/bin/sh", "-c", script],
        "env": variables,
        "envFrom": [{"secretRef": {"name": name}} for name in kubernetes.env_secrets],
        "resources": {"requests": amounts, "limits": _limits(amounts)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": _mounts(kubernetes),
    }


def _spec(kubernetes: KubernetesConfig, priority_class: str, exclude: Sequence[str] = ()) -> dict[str, Any]:
    """All but the container, and whether it may ask the API server."""
    more = dict(kubernetes.pod)
    gone = [
        {
            "key": key,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": int(kubernetes.unreachable_s),
        }
        for key in GONE
    ]
    more["tolerations"] = [*more.get("tolerations", []), *gone]
    if exclude:
        more["affinity"] = _but_for(more.get("affinity", {}), exclude)
    user, _, group = kubernetes.user.partition(":")
    uid, gid = (int(user), int(group or user)) if user else (os.getuid(), os.getgid())
    security = {
        "runAsUser": uid,
        "runAsGroup": gid,
        "runAsNonRoot": uid != 0,
        "seccompProfile": {"type": "RuntimeDefault"},
        **more.pop("securityContext", {}),
    }
    return {
        "enableServiceLinks": False,
        **_set({"priorityClassName": priority_class}),
        "terminationGracePeriodSeconds": kubernetes.grace_s,
        **more,
        "restartPolicy": "Never",  # one name, one process
        # So that SIGTERM reaches a process that has no handler yet, and nothing stays a zombie.
        "shareProcessNamespace": not more.get("hostPID", False),
        "securityContext": security,
        "volumes": _volumes(kubernetes),
    }


def _but_for(affinity: dict[str, Any], exclude: Sequence[str]) -> dict[str, Any]:
    """Adds to each of the terms, of which one has to hold, that it is not one of these nodes."""
    other = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": sorted(exclude)}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    node = affinity.get("nodeAffinity", {})
    terms = node.get(required, {}).get("nodeSelectorTerms") or [{}]
    terms = [{**term, "matchExpressions": [*term.get("matchExpressions", []), other]} for term in terms]
    return {**affinity, "nodeAffinity": {**node, required: {"nodeSelectorTerms": terms}}}


def _amounts(kubernetes: KubernetesConfig, is_server: bool, threads: int) -> dict[str, str]:
    if is_server:
        return _set({"cpu": kubernetes.server_cpus or str(threads), "memory": kubernetes.server_memory})
    gpus = {kubernetes.gpu_resource: str(kubernetes.gpus)} if kubernetes.gpus else {}
    return _set({"cpu": kubernetes.cpus or str(threads), "memory": kubernetes.memory, **gpus})


def _limits(amounts: dict[str, str]) -> dict[str, str]:
    """CPUs have none: what is idle may be used."""
    return {name: value for name, value in amounts.items() if name != "cpu"}


def _named(kubernetes: KubernetesConfig) -> dict[str, tuple[str, Volume]]:
    """By where they are mounted: each source has a name of its own, however often it is."""
    names: dict[tuple[str, str], str] = {}
    found = {}
    for mount, source in kubernetes.volumes.items():
        volume = Volume.of(mount, source)
        key = (volume.claim, "" if volume.claim else volume.path)
        found[mount] = names.setdefault(key, f"volume-{len(names)}"), volume
    return found


def _volumes(kubernetes: KubernetesConfig) -> list[dict[str, Any]]:
    """One a source."""
    found: dict[str, dict[str, Any]] = {}
    for name, volume in _named(kubernetes).values():
        claim = {"persistentVolumeClaim": {"claimName": volume.claim}}
        found[name] = {"name": name, **(claim if volume.claim else {"hostPath": {"path": volume.path}})}
    return list(found.values())


def _mounts(kubernetes: KubernetesConfig) -> list[dict[str, Any]]:
    mounts = []
    for mount, (name, volume) in _named(kubernetes).items():
        inside = {"subPath": volume.path} if volume.claim and volume.path else {}
        read_only = {"readOnly": True} if volume.read_only else {}
        mounts.append({"name": name, "mountPath": mount, **inside, **read_only})
    return mounts


def _set(options: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if value}
