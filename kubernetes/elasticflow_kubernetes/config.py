"""The ``kubernetes:`` section of a run's settings. ``conf/kubernetes.yaml`` shows each with a comment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from elasticflow.cluster.config import ClusterConfig, read_section
from elasticflow.errors import ConfigError
from elasticflow.run.config import Count, Positive, PositiveSeconds

_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_SOURCES = ("pvc:", "host:")
_KINDS: dict[str, type[dict[str, Any]] | type[list[Any]]] = {
    "affinity": dict,
    "nodeSelector": dict,
    "securityContext": dict,
    "tolerations": list,
}
"""What is added to, of a Pod's spec."""
_OUR_LABELS = ("app.kubernetes.io/managed-by", "elasticflow/")
CPUS = ("cpus", "server_cpus", "leader_cpus")


class KubernetesConfig(ClusterConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Amounts are Kubernetes' quantities (``500m``, ``16Gi``); "": none is asked for."""

    lease_s: PositiveSeconds = 900.0
    """Workers wait for so long for another leader: Kubernetes takes up to ten minutes, after many."""

    namespace: str = ""
    """"": that of the kubeconfig's context, or of the Pod in which the master is."""
    context: str = ""
    """Of the kubeconfig; "": its current one."""
    image: str = ""
    """Of every Pod. It has to have a shell, Python and what the program imports, or ``volumes`` has."""
    image_pull_policy: str = ""
    volumes: dict[str, str] = {}
    """By where they are mounted: ``pvc:CLAIM[/FOLDER]``, or ``host:PATH``; with ``:ro`` behind, to read only.
    The run's folder has to be in one that all nodes share."""

    gpus: Count = 1
    gpu_resource: str = "nvidia.com/gpu"
    """``nvidia.com/mig-3g.40gb``, ``amd.com/gpu``: what a GPU is called there."""
    cpus: str = ""
    """Of a worker; "": as many as ``threads``."""
    memory: str = ""
    priority_class: str = ""
    """Of workers: one that may be preempted."""
    server_cpus: str = ""
    """Of a parameter server; "": as many as ``server_threads``."""
    server_memory: str = "2Gi"
    server_priority_class: str = ""
    """Of parameter servers, and of the leader: one that others do not preempt."""
    leader_cpus: str = "1"
    leader_memory: str = "2Gi"
    service_account: str = "elasticflow"
    """The leader's: ``conf/kubernetes/account.yaml`` makes one, with the rights that it needs."""

    grace_s: Positive = 30
    """So long a Pod may take to leave where it is preempted or evicted."""
    unreachable_s: PositiveSeconds = 30.0
    """After so long Kubernetes gives up a worker whose node does not answer."""
    user: str = ""
    """``UID`` or ``UID:GID`` of its processes; "": of whoever begins the run, who owns its folder."""
    labels: dict[str, str] = {}
    """Of each Pod and the leader's Job: of a queue that admits them (``kueue.x-k8s.io/queue-name``), ..."""
    env_secrets: list[str] = []
    """Secrets of the namespace whose keys are environment variables of each Pod: of an object store, say."""
    pod: dict[str, Any] = {}
    """More of each Pod's ``spec``, in Kubernetes' own words: ``nodeSelector``, ``tolerations``, ..."""

    def __post_init__(self) -> None:
        for name in (*CPUS, "memory", "server_memory", "leader_memory"):
            if (text := getattr(self, name)) and not _QUANTITY.fullmatch(text):
                raise ConfigError(
                    f"kubernetes.{name}: {text!r} is no quantity; write a number, or one with a unit, "
                    "such as 4, 500m or 16Gi."
                )
        for path, source in self.volumes.items():
            if not path.startswith("/") or not source.startswith(_SOURCES):
                raise ConfigError(
                    f"kubernetes.volumes: {path}: {source!r}: give, for an absolute path in the Pods, "
                    "pvc:CLAIM, pvc:CLAIM/FOLDER or host:PATH, with or without :ro behind."
                )
        if self.user and not re.fullmatch(r"\d+(:\d+)?", self.user):
            raise ConfigError(f"kubernetes.user: {self.user!r}: write UID or UID:GID, such as 1000:1000.")
        if ours := sorted(name for name in self.labels if name.startswith(_OUR_LABELS)):
            raise ConfigError(
                f"kubernetes.labels: {', '.join(ours)}: tells Pods of runs apart; choose another."
            )
        for name, kind in _KINDS.items():
            if not isinstance(self.pod.get(name, kind()), kind):
                raise ConfigError(f"kubernetes.pod: {name}: {self.pod[name]!r}: has to be a {kind.__name__}.")
        if ours := sorted(self.pod.keys() & {"containers", "volumes", "restartPolicy", "priorityClassName"}):
            raise ConfigError(
                f"kubernetes.pod: {', '.join(ours)}: is made from other settings; leave it out."
            )


def read(section: dict[str, Any]) -> KubernetesConfig:
    """The checked settings. Raises ConfigError, which names the key."""
    checked = dict(section)
    for name in (*CPUS, "user"):
        if type(section.get(name)) in (int, float):  # what YAML takes them for
            checked[name] = str(section[name])
    return read_section(KubernetesConfig, "kubernetes", checked)


def image_of(config: KubernetesConfig) -> str:
    """Raises ConfigError if none is named."""
    if not config.image:
        raise ConfigError(
            "kubernetes.image: is not set; name the image that Pods run, such as "
            "pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime."
        )
    return config.image


def check_seen(config: KubernetesConfig, what: str, path: str) -> None:
    """Raises ConfigError if Pods do not see this absolute path."""
    if not any(Path(path).is_relative_to(mount) for mount in config.volumes):
        mounts = ", ".join(config.volumes) or "none are given"
        raise ConfigError(
            f"{what}: {path} is in none of kubernetes.volumes ({mounts}), so no Pod would see it: have it in "
            "one, at the same path as here."
        )


class Volume(msgspec.Struct, frozen=True):
    """One of ``volumes``. claim: of storage; "": ``path`` is the node's own."""

    mount: str
    claim: str
    path: str
    read_only: bool

    @classmethod
    def of(cls, mount: str, source: str) -> Volume:
        text, read_only = source.removesuffix(":ro"), source.endswith(":ro")
        kind, _, rest = text.partition(":")
        if kind == "host":
            return cls(mount, "", rest, read_only)
        claim, _, folder = rest.partition("/")
        return cls(mount, claim, folder, read_only)
