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
from elasticflow_kubernetes.pods import (
    MEMBER,
    OURS,
    RUN,
    Pod,
    message_of,
    name_of,
    node_names,
    read_list,
)

TIMEOUT_S = (3.0, 20.0)
"""To connect, and between two pieces of an answer."""
END_S = 1
"""Grace of a Pod that is to end at once: less would take its name, and not its processes, off the books."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


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
            if "KUBERNETES_SERVICE_HOST" in os.environ and not (config.context or "KUBECONFIG" in os.environ):
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
        self._core = client.CoreV1Api(client.ApiClient(settings))
        self._refusal: type[Exception] = client.ApiException

    def pods(self) -> list[Pod]:
        """Of all runs in the namespace, as they are now."""
        answer = self._ask(self._core.list_namespaced_pod, label_selector=OURS)
        told = answer.headers.get("Date")
        with contextlib.suppress(ValueError, msgspec.MsgspecError):
            return read_list(answer.data, parsedate_to_datetime(told).timestamp() if told else time.time())
        raise ApiBusy("the list of Pods cannot be read")

    def create(self, manifest: dict[str, Any]) -> str:
        """Returns the Pod's name."""
        answer = self._ask(self._core.create_namespaced_pod, body=manifest)
        with contextlib.suppress(msgspec.MsgspecError):
            return name_of(answer.data)
        raise ApiBusy("the answer to a Pod that was asked for cannot be read")  # a poll shows it, or does not

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

    def drained(self) -> set[str]:
        """Nodes to which nothing more is to come; none where this account may not see nodes."""
        with contextlib.suppress(KubernetesError):
            answer = self._ask(
                self._core.list_node, field_selector="spec.unschedulable=true", of_namespace=False
            )
            return node_names(answer.data)
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
