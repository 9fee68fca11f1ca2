"""Leaders' Jobs as an API server shows them, and as their own Pods know them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from elasticflow.process.decoding import from_json
from elasticflow_kubernetes.objects import ObjectCondition, ObjectList, ObjectMeta
from elasticflow_kubernetes.pods import RUN

RUN_DIR = "elasticflow/run-dir"
"""Annotation of a leader's Job: where the run's folder is."""
JOB, UID, TRAINING = "ELASTICFLOW_JOB", "ELASTICFLOW_JOB_UID", "ELASTICFLOW_TRAINING"
"""Variables of a leader's Pod: which Job it is of, and of which ElasticFlowJob that is, if any."""
OF_TRAINING = "elasticflow/job"
"""Label of a Job that is an ElasticFlowJob's: its name."""
COMPLETE, FAILED = "Complete", "Failed"
LASTING: dict[str, Any] = {"backoffLimit": 2**31 - 1}
"""Of a Job whose leader has begun: nodes may fail for as long as its run takes, and other Pods follow."""
FINAL: dict[str, Any] = {"backoffLimit": 0}
"""Of a Job whose run is over: none follows, so it has failed as soon as this Pod has."""


class Owner(msgspec.Struct, frozen=True):
    """A Job, as what goes when it goes."""

    name: str
    uid: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Owner | None:
        """That of the Pod in which this process is; None: it is in none, or its Pod was made otherwise."""
        return cls(environ[JOB], environ[UID]) if environ.get(JOB) and environ.get(UID) else None

    @property
    def run(self) -> str:
        """The id of the run that begins with it."""
        return run_of(self.uid)

    @property
    def reference(self) -> dict[str, Any]:
        return {"apiVersion": "batch/v1", "kind": "Job", "name": self.name, "uid": self.uid}


def run_of(uid: str) -> str:
    """The id of the run that begins with a Job: another Job of that name begins another."""
    return uid.rpartition("-")[2]


class LeaderJob(msgspec.Struct, frozen=True, kw_only=True):
    """state: ``COMPLETE``, ``FAILED``, or "" as long as it is neither. is_up: its Pod runs, as far as is
    known. is_leaving: it is being deleted."""

    name: str
    uid: str
    run: str
    """The id of the run that it leads, or will begin."""
    run_dir: str
    owners: tuple[str, ...] = ()
    """Uids; one is that of the ElasticFlowJob whose leader it is, if any."""
    created_at: float
    """In seconds since 1970."""
    state: str = ""
    text: str = ""
    """Kubernetes' words for how it ended."""
    is_up: bool = False
    is_suspended: bool = False
    """It has no Pod, as long as a queue, such as Kueue's, or somebody else holds it back."""
    is_leaving: bool = False

    @property
    def over(self) -> bool:
        return bool(self.state)


class _JobStatus(msgspec.Struct):
    conditions: list[ObjectCondition] = []
    ready: int = 0


class _JobSpec(msgspec.Struct):
    suspend: bool = False


class _JobItem(msgspec.Struct):
    metadata: ObjectMeta
    spec: _JobSpec = msgspec.field(default_factory=_JobSpec)
    status: _JobStatus = msgspec.field(default_factory=_JobStatus)


def read_job(answer: bytes) -> LeaderJob:
    """Of one. Raises msgspec.MsgspecError."""
    return _read(from_json(answer, _JobItem))


def read_jobs(answer: bytes) -> list[LeaderJob]:
    """Of a list. Raises msgspec.MsgspecError."""
    return [_read(item) for item in from_json(answer, ObjectList[_JobItem]).items]


def _read(item: _JobItem) -> LeaderJob:
    meta, status = item.metadata, item.status
    true = [each for each in status.conditions if each.is_true]
    over = next((each for each in true if each.type in (COMPLETE, FAILED)), None)
    return LeaderJob(
        name=meta.name,
        uid=meta.uid,
        run=meta.labels.get(RUN) or run_of(meta.uid),
        run_dir=meta.annotations.get(RUN_DIR, ""),
        owners=tuple(owner.uid for owner in meta.owner_references),
        created_at=meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0,
        state=over.type if over else "",
        text=": ".join(text for text in (over.reason, over.message) if text) if over else "",
        is_up=status.ready > 0,
        is_suspended=item.spec.suspend,
        is_leaving=meta.deletion_timestamp is not None,
    )
