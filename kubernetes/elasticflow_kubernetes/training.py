"""ElasticFlowJobs, the kind that ``conf/kubernetes/elasticflowjob.yaml`` defines. Pure."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import msgspec

from elasticflow.process.decoding import from_json
from elasticflow.run.folder import ENDED
from elasticflow.run.telling import Report, Status
from elasticflow_kubernetes.objects import ObjectMeta

GROUP, VERSION, PLURAL, KIND = "elasticflow.dev", "v1", "elasticflowjobs", "ElasticFlowJob"
FINALIZER = f"{GROUP}/checkpoint"
"""Keeps one that is being deleted until its run has ended with a checkpoint."""
QUEUE = "kueue.x-k8s.io/"
"""How Kueue's labels begin."""
WAITING, RUNNING, INVALID, FAILED, FINISHED = "Waiting", "Running", "Invalid", "Failed", "Finished"
OVER = frozenset({*(state.capitalize() for state in ENDED), INVALID})
"""States after which nothing more happens."""


class _TrainingSpec(msgspec.Struct, rename="camel"):
    program: str
    run_dir: str
    workers: int | None = None
    min_workers: int = 1
    resume: bool = False
    settings: dict[str, Any] = {}


class TrainingJob(msgspec.Struct):
    """One of them."""

    metadata: ObjectMeta
    spec: _TrainingSpec
    status: dict[str, Any] = {}
    """As ``told`` says it."""

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def state(self) -> str:
        """ "": nobody has told one yet."""
        return str(self.status.get("state") or "")

    @property
    def is_leaving(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @property
    def over(self) -> bool:
        """What is invalid may be corrected."""
        was_seen = self.status.get("observedGeneration") == self.metadata.generation
        return self.state in OVER and (self.state != INVALID or was_seen)

    @property
    def has_begun(self) -> bool:
        return self.state not in ("", WAITING, INVALID)

    @property
    def workers(self) -> str:
        """As the setting of that name has it; "": that is left to the settings."""
        least, most = self.spec.min_workers, self.spec.workers
        return f"{min(least, most)}..{most}" if most else ""

    @property
    def queue(self) -> dict[str, str]:
        """Labels by which Kueue's users name one, and how it is treated there."""
        return {name: value for name, value in self.metadata.labels.items() if name.startswith(QUEUE)}

    @property
    def owner(self) -> dict[str, Any]:
        """As its leader's Job names it."""
        reference = {"kind": KIND, "name": self.name, "uid": self.metadata.uid, "controller": True}
        return {"apiVersion": f"{GROUP}/{VERSION}", **reference}


def read_training(answer: bytes) -> TrainingJob:
    """Raises msgspec.MsgspecError."""
    return from_json(answer, TrainingJob)


def told(status: Status) -> dict[str, Any]:
    """What the object's status says of a run."""
    ended = status.state in ENDED
    text = status.text if isinstance(status, Report) else status.shortage
    done = status.step / status.steps_total if status.steps_total else None
    return {
        "state": status.state.capitalize() if ended else RUNNING,
        "message": text,
        "workers": 0 if ended else sum(worker.state == "ready" for worker in status.workers),
        "wanted": status.target_workers,
        "step": status.step,
        "steps": status.steps_total,
        "progress": None if done is None else f"{100 * done:.0f}%",
        "eta": None if ended else _date(status.eta_at),
        "deadline": _date(status.deadline_at),
    }


def conditions(state: str, message: str, before: list[dict[str, Any]], at_s: float) -> list[dict[str, Any]]:
    """In Kubernetes' own style: ``Running``, ``Complete`` and ``Failed``. before: those that there are."""
    reason = state or WAITING
    now = {"Running": state == RUNNING, "Complete": state == FINISHED}
    now["Failed"] = state in OVER and not now["Complete"]
    known = {each["type"]: each for each in before}
    found = []
    for kind, is_so in now.items():
        status = str(is_so)
        changed = known.get(kind, {}).get("status") != status
        since = _date(at_s) if changed else known[kind].get("lastTransitionTime")
        words = {"reason": reason, "message": message, "lastTransitionTime": since}
        found.append({"type": kind, "status": status, **words})
    return found


def _date(at_s: float | None) -> str | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
