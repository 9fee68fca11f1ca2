"""Which run a Job is, or was, the leader of, by ``elasticflow.cluster.index`` in the user's state folder.

Where that has no word of it, the API server is asked, if one is known here: a leader's Job has the run's
folder in an annotation.
"""

from __future__ import annotations

from collections.abc import Iterator

from elasticflow.cluster.index import HomeIndex, IndexEntry
from elasticflow.errors import ConfigError, UnknownError
from elasticflow_kubernetes.client import KubernetesClient, is_configured
from elasticflow_kubernetes.config import KubernetesConfig
from elasticflow_kubernetes.errors import KubernetesError


def unasked() -> str:
    """Why no more runs on Kubernetes are known here than this user's home remembers; "": it is asked, too."""
    return "" if is_configured() else "Kubernetes was not asked: there is no kubeconfig here"


def _told() -> Iterator[IndexEntry]:
    """By the API server, if one is known here, of its namespace. Raises UnknownError if it is silent."""
    if not is_configured():
        return
    try:
        jobs = KubernetesClient(KubernetesConfig()).jobs()
    except ConfigError:
        return
    except KubernetesError as error:
        raise UnknownError(f"Kubernetes does not answer: {error}") from error
    for job in sorted(jobs, key=lambda job: job.created_at, reverse=True):
        if job.run_dir:
            yield IndexEntry(job.name, job.name, job.run_dir, job.created_at)


_INDEX = HomeIndex("kubernetes", _told)
folder, add, entries = _INDEX.folder, _INDEX.add, _INDEX.entries
