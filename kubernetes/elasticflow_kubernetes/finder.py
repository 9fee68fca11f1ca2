"""How clients tell whether a leader lives, or will come again: they ask the API server for its Job."""

from __future__ import annotations

import contextlib

from elasticflow.cluster.presence import JobPresence, RunEnd
from elasticflow.run.folder import UNKNOWN, HostJob, RunDir, last_line
from elasticflow_kubernetes.client import KubernetesClient
from elasticflow_kubernetes.config import read
from elasticflow_kubernetes.errors import ApiBusy, KubernetesError
from elasticflow_kubernetes.jobs import LeaderJob
from elasticflow_kubernetes.queues import leader_waits

SUBMIT_S = 60.0
"""An API server takes a Job, or refuses it, within this."""
BY_HAND = "host/"
"""How the id begins of what is no Job: a process on the host that follows, which holds the run's lock."""


class KubernetesPresence(JobPresence):
    """See JobPresence."""

    busy = ApiBusy

    def __init__(self, run_dir: str, client: KubernetesClient | None = None) -> None:
        super().__init__(run_dir, SUBMIT_S)
        self._client = client
        self._job: LeaderJob | None = None

    def waits_for(self) -> str:
        if self._job is None or not self._begins() or self._client is None:
            return super().waits_for()
        with contextlib.suppress(KubernetesError):
            text, has_failed = leader_waits(self._client, self._job)
            failed = f"; one has failed: {last_line(self._run.logs / 'leader.log')}" if has_failed else ""
            return f"its leader, Job {self._job.name}: {text}{failed}"
        return f"its leader, Job {self._job.name}, begins"

    def last_words(self) -> str:
        return f"the last line in its leader's log: {last_line(self._run.logs / 'leader.log')}"

    def end(self) -> RunEnd | None:
        host = self._run.host()
        if host is None or host.id == UNKNOWN or self.is_alive():
            return None
        if self._job is None:
            return RunEnd(f"Job {host.id}", "", "is not known to Kubernetes any more: it was deleted")
        state = self._job.state.lower()
        return RunEnd(f"Job {host.id}", self._job.state, f"is {state}: {self._job.text}")

    def cancel(self) -> str:
        is_alive = self.is_alive()  # which asks for the Job
        has_begun = not self._begins() or self._run.address.exists()  # it may be given another Pod
        if not is_alive or has_begun or self._job is None or self._client is None:
            return ""
        self._client.delete_job(self._job.name)
        return f"Job {self._job.name} is deleted; it had not begun"

    def _ask(self, host: HostJob) -> bool:
        self._client = self._client or client_of(self._run)
        job = self._client.job(host.id)
        self._job = job if job and job.run == host.run else None
        return self._job is not None and not self._job.over and not self._job.is_leaving

    def _begins(self) -> bool:
        return self._job is not None and not self._job.is_up


def client_of(run: RunDir) -> KubernetesClient:
    """Of the cluster that a run is on. Raises ConfigError, RunError."""
    return KubernetesClient(read(run.config().kubernetes))
