"""The few things that are asked of an API server, by Kubernetes' own client."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import msgspec

from elasticflow.errors import ConfigError
from elasticflow_kubernetes.config import KubernetesConfig
from elasticflow_kubernetes.errors import ApiBusy, KubernetesError, error_of
from elasticflow_kubernetes.jobs import LeaderJob, Owner, read_job, read_jobs
from elasticflow_kubernetes.nodes import KubernetesNode, read_nodes
from elasticflow_kubernetes.pods import (
    MEMBER,
    OURS,
    RUN,
    Pod,
    message_of,
    name_of,
    read_list,
)

TIMEOUT_S = (3.0, 20.0)
"""To connect, and between two pieces of an answer."""
END_S = 1
"""Grace of a Pod that is to end at once: less would take its name, and not its processes, off the books."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IN_POD = "KUBERNETES_SERVICE_HOST"
"""Kubernetes sets it in each container."""
KUBECONFIG = "KUBECONFIG"


def is_configured() -> bool:
    """Whether something here says which cluster is meant."""
    named = os.environ.get(KUBECONFIG) or IN_POD in os.environ
    return bool(named) or Path("~/.kube/config").expanduser().exists()


class KubernetesClient:
    """All of one namespace. Each call raises KubernetesError; ``ApiBusy`` where there was no answer."""

    def __init__(self, config: KubernetesConfig) -> None:
        """Raises ConfigError where nothing says which cluster is meant."""
        try:
            from kubernetes import client
            from kubernetes import config as contexts
        except ImportError as error:
            raise ConfigError(
                "backend kubernetes: Python's package 'kubernetes' is not installed here; "
                "pip install 'elasticflow-trainer[kubernetes]'."
            ) from error
        settings, context_namespace = client.Configuration(), ""
        try:
            of_job = Owner.of(os.environ) is not None  # the settings' context is that of who submitted it
            if IN_POD in os.environ and (of_job or not (config.context or KUBECONFIG in os.environ)):
                contexts.load_incluster_config(client_configuration=settings)
                context_namespace = (ACCOUNT / "namespace").read_text().strip()
            else:
                contexts.load_kube_config(context=config.context or None, client_configuration=settings)
                _, current = contexts.list_kube_config_contexts()
                context_namespace = current["context"].get("namespace", "") if not config.context else ""
        except (contexts.ConfigException, OSError) as error:
            raise ConfigError(
                f"backend kubernetes: which cluster is meant is not known: {error}. Set KUBECONFIG, or "
                "kubernetes.context."
            ) from error
        settings.retries = False  # a Pod that is asked for twice is two Pods
        self.namespace = config.namespace or context_namespace or "default"
        api = client.ApiClient(settings)
        self._core, self._batch = client.CoreV1Api(api), client.BatchV1Api(api)
        self._scheduling = client.SchedulingV1Api(api)
        self._refusal: type[Exception] = client.ApiException

    def pods(self) -> list[Pod]:
        """Of all runs in the namespace, as they are now."""
        return self._list(OURS)

    def _list(self, selector: str) -> list[Pod]:
        answer = self._ask(self._core.list_namespaced_pod, label_selector=selector)
        told = answer.headers.get("Date")
        with contextlib.suppress(ValueError, msgspec.MsgspecError):
            return read_list(answer.data, parsedate_to_datetime(told).timestamp() if told else time.time())
        raise ApiBusy("the list of Pods cannot be read")

    def create(self, manifest: dict[str, Any], *, only_try: bool = False) -> str:
        """A Pod, or a Job; returns its name. only_try: it is looked at as if, and not made."""
        is_pod = manifest["kind"] == "Pod"
        call = self._core.create_namespaced_pod if is_pod else self._batch.create_namespaced_job
        how: dict[str, Any] = {"dry_run": "All"} if only_try else {}
        answer = self._ask(call, body=manifest, **how)
        with contextlib.suppress(msgspec.MsgspecError):
            return name_of(answer.data)
        raise ApiBusy("the answer to what was asked for cannot be read")  # a poll shows it, or does not

    def delete(self, name: str, *, is_lost: bool = False) -> None:
        """At once; if it is over, or was never there, does nothing. is_lost: its node never confirms it."""
        seconds = 0 if is_lost else END_S
        self._ask(self._core.delete_namespaced_pod, name=name, grace_period_seconds=seconds, may_lack=True)

    def delete_run(self, run: str) -> None:
        """All of a run's members."""
        selector = f"{OURS},{RUN}={run},{MEMBER}"
        self._ask(
            self._core.delete_collection_namespaced_pod, label_selector=selector, grace_period_seconds=END_S
        )

    # --- leaders' Jobs ----------------------------------------------------------------------------

    def jobs(self, run: str = "") -> list[LeaderJob]:
        """Of a run, or of all in the namespace."""
        selector = f"{OURS},{RUN}={run}" if run else OURS
        answer = self._ask(self._batch.list_namespaced_job, label_selector=selector)
        with contextlib.suppress(msgspec.MsgspecError):
            return read_jobs(answer.data)
        raise ApiBusy("the list of Jobs cannot be read")

    def job(self, name: str) -> LeaderJob | None:
        """None: there is none of that name."""
        answer = self._ask(self._batch.read_namespaced_job, name=name, may_lack=True)
        with contextlib.suppress(msgspec.MsgspecError):
            return read_job(answer.data) if answer else None
        raise ApiBusy(f"Job {name} cannot be read")

    def pods_of(self, job: str) -> list[Pod]:
        """All that there are of a Job's own."""
        return self._list(f"batch.kubernetes.io/job-name={job}")

    def change_job(self, name: str, change: dict[str, Any]) -> None:
        """change: of its fields, a JSON merge patch; if it is not there, does nothing."""
        self._ask(self._batch.patch_namespaced_job, name=name, body=change, may_lack=True)

    def delete_job(self, name: str) -> None:
        """And its Pods, after it; if it is not there, does nothing."""
        self._ask(
            self._batch.delete_namespaced_job, name=name, propagation_policy="Background", may_lack=True
        )

    # --- what else there is -----------------------------------------------------------------------

    def priority_class(self, name: str) -> bytes | None:
        """As JSON; None: there is none of that name."""
        return self._found(self._scheduling.read_priority_class, name, of_namespace=False)

    def claim(self, name: str) -> bytes | None:
        """Of storage, as JSON; None: there is none of that name."""
        return self._found(self._core.read_namespaced_persistent_volume_claim, name)

    def has_account(self, name: str) -> bool:
        """Whether there is a service account of that name."""
        return self._found(self._core.read_namespaced_service_account, name) is not None

    def _found(self, call: Callable[..., Any], name: str, *, of_namespace: bool = True) -> bytes | None:
        answer = self._ask(call, name=name, may_lack=True, of_namespace=of_namespace)
        return bytes(answer.data) if answer else None

    # --- nodes ------------------------------------------------------------------------------------

    def nodes(self, selector: str = "") -> list[KubernetesNode]:
        """selector: of their fields."""
        answer = self._ask(self._core.list_node, field_selector=selector, of_namespace=False)
        with contextlib.suppress(msgspec.MsgspecError):
            return read_nodes(answer.data)
        raise ApiBusy("the list of nodes cannot be read")

    def drained(self) -> set[str]:
        """Nodes to which nothing more is to come; none where this account may not see nodes."""
        with contextlib.suppress(KubernetesError):
            return {node.name for node in self.nodes("spec.unschedulable=true")}
        return set()

    def _ask(
        self, call: Callable[..., Any], *, may_lack: bool = False, of_namespace: bool = True, **what: Any
    ) -> Any:
        import urllib3

        place = {"namespace": self.namespace} if of_namespace else {}
        try:
            return call(**place, **what, _preload_content=False, _request_timeout=TIMEOUT_S)
        except self._refusal as error:
            status = int(getattr(error, "status", 0) or 0)
            if may_lack and status == 404:
                return None
            raise error_of(status, message_of(getattr(error, "body", None))) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiBusy(" ".join(str(error).split())) from error
