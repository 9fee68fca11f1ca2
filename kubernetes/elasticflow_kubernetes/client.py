"""The few things that are asked of an API server, by Kubernetes' own client."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from email.utils import parsedate_to_datetime
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from elasticflow.errors import ConfigError
from elasticflow.process.decoding import from_json
from elasticflow_kubernetes.config import KubernetesConfig
from elasticflow_kubernetes.errors import ApiBusy, KubernetesError, error_of
from elasticflow_kubernetes.jobs import LeaderJob, Owner, read_job, read_jobs
from elasticflow_kubernetes.nodes import KubernetesNode, read_nodes
from elasticflow_kubernetes.objects import ObjectList, Refusal, message_of
from elasticflow_kubernetes.pods import MEMBER, OURS, RUN, Pod, read_list
from elasticflow_kubernetes.training import GROUP, PLURAL, VERSION

TIMEOUT_S = (3.0, 20.0)
"""To connect, and between two pieces of an answer."""
END_S = 1
"""Grace of a Pod that is to end at once: less would take its name, and not its processes, off the books."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IN_POD = "KUBERNETES_SERVICE_HOST"
"""Kubernetes sets it in each container."""
KUBECONFIG = "KUBECONFIG"
WATCH_S, SILENT_S = 240, 150.0
"""The API server ends a stream of changes after the first; one that is silent for the second is gone: there
are bookmarks, at the least."""
_TRAINING: dict[str, Any] = {"group": GROUP, "version": VERSION, "plural": PLURAL}
_KUEUE: dict[str, Any] = {"group": "kueue.x-k8s.io", "version": "v1beta2"}
_OF = "kueue.x-k8s.io/job-uid"
"""Label of a Workload: whose it is."""


def is_configured() -> bool:
    """Whether something here says which cluster is meant."""
    named = os.environ.get(KUBECONFIG) or IN_POD in os.environ
    return bool(named) or Path("~/.kube/config").expanduser().exists()


class ObjectKind(Enum):
    """What may be watched."""

    PODS = "Pods"
    """Of all runs."""
    LEADERS = "Jobs"
    TRAININGS = "ElasticFlowJobs"


class _Change(msgspec.Struct):
    type: str
    object: msgspec.Raw


class KubernetesClient:
    """All of one namespace. Each call raises KubernetesError; ``ApiBusy`` where there was no answer."""

    def __init__(self, config: KubernetesConfig) -> None:
        """Raises ConfigError where nothing says which cluster is meant."""
        try:
            import kubernetes.client as client
            import kubernetes.config as contexts
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
        settings.keep_alive = True  # or a stream that is lost on its way would be heard of late
        settings.retries = False  # a Pod that is asked for twice is two Pods
        self.namespace = config.namespace or context_namespace or "default"
        api = client.ApiClient(settings)
        self._core, self._batch = client.CoreV1Api(api), client.BatchV1Api(api)
        self._scheduling, self._custom = client.SchedulingV1Api(api), client.CustomObjectsApi(api)
        self._refusal: type[Exception] = client.ApiException
        self._ahead_s = 0.0
        """So much the API server's clock is before this one."""

    def now_s(self) -> float:
        """By the API server's clock, in seconds since 1970."""
        return time.time() + self._ahead_s

    # --- all of a kind ----------------------------------------------------------------------------

    def listed(self, kind: ObjectKind) -> tuple[list[msgspec.Raw], str]:
        """All that there are, as JSON, and the version of that."""
        call, what = self._of(kind)
        answer = self._ask(call, **what)
        with contextlib.suppress(msgspec.MsgspecError):
            whole = from_json(answer.data, ObjectList[msgspec.Raw])
            return whole.items, whole.metadata.resource_version
        raise ApiBusy(f"the list of {kind.value} cannot be read")

    def changes(self, kind: ObjectKind, version: str) -> Iterator[tuple[str, msgspec.Raw]]:
        """Those after a version, as they come, for some minutes: what happened, and to which, as JSON.

        Also raises Stale.
        """
        call, what = self._of(kind)
        how: dict[str, Any] = {"resource_version": version, "timeout_seconds": WATCH_S}
        how["allow_watch_bookmarks"] = True
        answer = self._ask(call, watch=True, silence_s=SILENT_S, **how, **what)
        try:
            for line in _lines(answer):
                change = from_json(line, _Change)
                if change.type == "ERROR":
                    told = from_json(change.object, Refusal)
                    raise error_of(told.code, told.message)
                yield change.type, change.object
        except msgspec.MsgspecError as error:
            raise ApiBusy(f"a change of {kind.value} cannot be read: {error}") from error
        finally:
            answer.close()

    def _of(self, kind: ObjectKind) -> tuple[Callable[..., Any], dict[str, Any]]:
        match kind:
            case ObjectKind.PODS:
                return self._core.list_namespaced_pod, {"label_selector": OURS}
            case ObjectKind.LEADERS:
                return self._batch.list_namespaced_job, {"label_selector": OURS}
            case ObjectKind.TRAININGS:
                return self._custom.list_namespaced_custom_object, dict(_TRAINING)

    # --- Pods -------------------------------------------------------------------------------------

    def pods(self) -> list[Pod]:
        """Of all runs in the namespace, as they are now."""
        return self._pods(OURS)

    def _pods(self, selector: str) -> list[Pod]:
        answer = self._ask(self._core.list_namespaced_pod, label_selector=selector)
        with contextlib.suppress(msgspec.MsgspecError):
            return read_list(answer.data, self.now_s())
        raise ApiBusy("the list of Pods cannot be read")

    def create(self, manifest: dict[str, Any], *, only_try: bool = False) -> bytes:
        """A Pod, or a Job; returns it as JSON. only_try: it is looked at as if to make it."""
        is_pod = manifest["kind"] == "Pod"
        call = self._core.create_namespaced_pod if is_pod else self._batch.create_namespaced_job
        how: dict[str, Any] = {"dry_run": "All"} if only_try else {}
        return bytes(self._ask(call, body=manifest, **how).data)

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
        return self._pods(f"batch.kubernetes.io/job-name={job}")

    def change_job(self, job: Owner, change: dict[str, Any]) -> None:
        """change: of its fields, a merge patch; if it is not there, or another of its name, does nothing."""
        meta = {**change.get("metadata", {}), "uid": job.uid}  # refused as a conflict where it is another
        body = {**change, "metadata": meta}
        self._ask(self._batch.patch_namespaced_job, name=job.name, body=body, may_lack=True)

    def delete_job(self, name: str) -> None:
        """And its Pods, after it; if it is not there, does nothing."""
        self._ask(
            self._batch.delete_namespaced_job, name=name, propagation_policy="Background", may_lack=True
        )

    # --- ElasticFlowJobs --------------------------------------------------------------------------

    def training(self, name: str) -> bytes | None:
        """As JSON; None: there is none of that name."""
        answer = self._ask(self._custom.get_namespaced_custom_object, name=name, may_lack=True, **_TRAINING)
        return bytes(answer.data) if answer else None

    def change_training(self, name: str, change: dict[str, Any]) -> None:
        """change: a JSON merge patch, of its ``status`` or of all else; if it is not there, does nothing."""
        call = self._custom.patch_namespaced_custom_object
        if "status" in change:
            call = self._custom.patch_namespaced_custom_object_status
        self._ask(call, name=name, body=change, may_lack=True, **_TRAINING)

    # --- Kueue's -------------------------------------------------------------------------------

    def workloads(self, uids: Sequence[str]) -> bytes:
        """The list of those of these Pods and Jobs, as JSON."""
        selector = f"{_OF} in ({','.join(uids)})"
        call = self._custom.list_namespaced_custom_object
        return bytes(self._ask(call, label_selector=selector, plural="workloads", **_KUEUE).data)

    def queue(self, name: str) -> bytes | None:
        """A LocalQueue, as JSON; None: there is none of that name."""
        return self._found(self._custom.get_namespaced_custom_object, name, plural="localqueues", **_KUEUE)

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

    def _found(
        self, call: Callable[..., Any], name: str, *, of_namespace: bool = True, **what: Any
    ) -> bytes | None:
        answer = self._ask(call, name=name, may_lack=True, of_namespace=of_namespace, **what)
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
        self,
        call: Callable[..., Any],
        *,
        may_lack: bool = False,
        of_namespace: bool = True,
        silence_s: float = TIMEOUT_S[1],
        **what: Any,
    ) -> Any:
        import urllib3

        place = {"namespace": self.namespace} if of_namespace else {}
        try:
            timeout_s = (TIMEOUT_S[0], silence_s)
            answer = call(**place, **what, _preload_content=False, _request_timeout=timeout_s)
            if "watch" not in what:
                answer.data  # noqa: B018  (read here, where what breaks off is no bug)
            with contextlib.suppress(ValueError):
                if told := answer.headers.get("Date"):
                    self._ahead_s = parsedate_to_datetime(told).timestamp() - time.time()
            return answer
        except self._refusal as error:
            status = int(getattr(error, "status", 0) or 0)
            if may_lack and status == 404:
                return None
            raise error_of(status, message_of(getattr(error, "body", None))) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiBusy(" ".join(str(error).split())) from error


def _lines(answer: Any) -> Iterator[bytes]:
    """As they come. Raises ApiBusy where they break off."""
    import urllib3

    rest = b""
    try:
        for part in answer.stream(None, decode_content=False):
            *lines, rest = (rest + part).split(b"\n")
            yield from lines
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise ApiBusy(" ".join(str(error).split())) from error
