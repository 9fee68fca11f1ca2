"""Settings of a Kubernetes that will hurt runs, for ``elasticflow doctor``. What is made of them is pure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from elasticflow.doctor.finding import Diagnosis, broken, hurts, ok
from elasticflow.errors import ConfigError
from elasticflow.process.decoding import from_json
from elasticflow.run.config import Config
from elasticflow_kubernetes.client import KubernetesClient, is_configured
from elasticflow_kubernetes.config import KubernetesConfig, Volume, image_of, read
from elasticflow_kubernetes.errors import ApiRefused, KubernetesError
from elasticflow_kubernetes.nodes import KubernetesNode
from elasticflow_kubernetes.queues import LABEL, LocalQueue
from elasticflow_kubernetes.share import slots_of

MANY = "ReadWriteMany"
A = TypeVar("A")
T = TypeVar("T")


class PriorityClass(msgspec.Struct, frozen=True, rename="camel"):
    """value: Pods of a higher one are not preempted by those of a lower."""

    value: int


class _ClaimSpec(msgspec.Struct, rename="camel"):
    access_modes: list[str] = []


class Claim(msgspec.Struct):
    """Of storage."""

    spec: _ClaimSpec


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of what the settings name, by their names; None where it is missing. What this account
    may not see is left out."""

    nodes: Sequence[KubernetesNode] = ()
    classes: Mapping[str, PriorityClass | None] = {}
    claims: Mapping[str, Claim | None] = {}
    accounts: Mapping[str, bool] = {}
    queues: Mapping[str, LocalQueue | None] = {}


def concerns(config: Config) -> bool:
    """Whether these settings have to do with Kubernetes, or this machine and they."""
    return config.backend == "kubernetes" or (is_configured() and bool(config.kubernetes))


def check(config: Config) -> Iterator[Diagnosis]:
    """All findings; each question has a time limit."""
    try:
        kubernetes = read(config.kubernetes)
        image_of(kubernetes)
        client = KubernetesClient(kubernetes)
    except ConfigError as error:
        cure = "Correct the file of settings, or submit from elsewhere."
        yield broken("kubernetes settings", str(error), cure)
        return
    try:
        client.pods()
    except ApiRefused as error:
        cure = "Have this account given the rights of conf/kubernetes/account.yaml in this namespace."
        yield broken("kubernetes", f"in namespace {client.namespace}: {error}", cure)
        return
    except KubernetesError as error:
        cure = "Does 'kubectl get pods' work?"
        yield broken("kubernetes", f"the API server does not answer: {error}", cure)
        return
    yield ok("kubernetes", f"answers, in namespace {client.namespace}")
    yield from findings(kubernetes, _seen(client, kubernetes))


def findings(kubernetes: KubernetesConfig, seen: Seen) -> Iterator[Diagnosis]:
    """Of what was seen."""
    yield from _of_nodes(kubernetes, seen.nodes)
    yield from _of_classes(kubernetes, seen.classes)
    for name, claim in seen.claims.items():
        subject = f"kubernetes claim {name}"
        if claim is None:
            yield broken(subject, "is not there", "Make it, or name another in kubernetes.volumes.")
        elif MANY not in claim.spec.access_modes:
            found = f"accessModes: {', '.join(claim.spec.access_modes)}"
            yield hurts(subject, found, f"Pods on several nodes can share one that is {MANY} only.")
        else:
            yield ok(subject, MANY)
    for name, is_there in seen.accounts.items():
        subject = f"kubernetes account {name}"
        cure = "kubectl apply -f conf/kubernetes/account.yaml, or name another as kubernetes.service_account."
        yield ok(subject, "is there") if is_there else broken(subject, "is not there", cure)
    for name, queue in seen.queues.items():
        subject = f"kubernetes queue {name}"
        if queue is None:
            cure = "Is Kueue there? Make this LocalQueue in the namespace, or have labels name another."
            yield broken(subject, "is not there", cure)
        elif why := queue.why_inactive:
            yield broken(subject, why, "Nothing begins or grows in it until its ClusterQueue admits.")
        else:
            yield ok(subject, "admits")


def _of_nodes(kubernetes: KubernetesConfig, nodes: Sequence[KubernetesNode]) -> Iterator[Diagnosis]:
    if not nodes:
        return
    num = sum(slots_of(node, kubernetes) for node in nodes if not node.away)
    found = f"{num} on {len(nodes)} nodes"
    cure = f"Is a device plugin there, and {kubernetes.gpu_resource} what it calls them?"
    subject = "kubernetes places of workers"
    yield ok(subject, found) if num or not kubernetes.gpus else broken(subject, found, cure)


def _of_classes(
    kubernetes: KubernetesConfig, classes: Mapping[str, PriorityClass | None]
) -> Iterator[Diagnosis]:
    for name, found in classes.items():
        if found is None:
            cure = "kubectl apply -f conf/kubernetes/priorities.yaml, or name another."
            yield broken(f"kubernetes priority class {name}", "is not there", cure)
    ours = [classes.get(name) for name in (kubernetes.priority_class, kubernetes.server_priority_class)]
    values = [each.value if each else 0 for each in ours]
    told = f"{values[0]} of workers, {values[1]} of the leader and parameter servers"
    if values[1] > values[0]:
        yield ok("kubernetes priorities", told)
    else:
        cure = "Give kubernetes.server_priority_class a higher one: they are what a run should lose last."
        yield hurts("kubernetes priorities", told, cure)


def _seen(client: KubernetesClient, kubernetes: KubernetesConfig) -> Seen:
    classes = dict.fromkeys((kubernetes.priority_class, kubernetes.server_priority_class))
    volumes = [Volume.of(mount, source) for mount, source in kubernetes.volumes.items()]
    claims = dict.fromkeys(volume.claim for volume in volumes)
    account = kubernetes.service_account or "default"
    nodes: list[KubernetesNode] = []
    with contextlib.suppress(KubernetesError):
        nodes = client.nodes()
    return Seen(
        nodes=nodes,
        classes=_read(classes, client.priority_class, PriorityClass),
        claims=_read(claims, client.claim, Claim),
        accounts=dict(_asked([account], client.has_account)),
        queues=_read([kubernetes.labels.get(LABEL, "")], client.queue, LocalQueue),
    )


def _read(names: Iterable[str], ask: Callable[[str], bytes | None], kind: type[T]) -> dict[str, T | None]:
    found = _asked(filter(None, names), ask)
    return {name: from_json(answer, kind) if answer else None for name, answer in found}


def _asked(names: Iterable[str], ask: Callable[[str], A]) -> Iterator[tuple[str, A]]:
    for name in names:
        with contextlib.suppress(KubernetesError):  # this account may not see it
            yield name, ask(name)
