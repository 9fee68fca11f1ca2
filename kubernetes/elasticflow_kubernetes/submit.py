"""``elasticflow submit --on kubernetes``: checks what can be checked here, and has the leader's Job made."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Any

from elasticflow.cli.folders import next_run_dir
from elasticflow.cluster.asks import SERVER, WORKER
from elasticflow.cluster.missing import check_data
from elasticflow.cluster.scripts import as_yaml
from elasticflow.errors import ConfigError
from elasticflow.leading import begin, in_new_folder, submission
from elasticflow.run.config import Config
from elasticflow.run.folder import UNKNOWN, HostJob, RunDir, publish
from elasticflow.run.settings import MemberSettings
from elasticflow_kubernetes import index
from elasticflow_kubernetes.client import KubernetesClient
from elasticflow_kubernetes.config import KubernetesConfig, check_seen, read
from elasticflow_kubernetes.errors import ApiRefused, KubernetesError, QuotaReached
from elasticflow_kubernetes.manifests import leader_job, member_pod, pod_of
from elasticflow_kubernetes.objects import name_of


def dry_run(chosen: Config, resume: bool) -> str:
    """What would be made, as YAML: the leader's Job, and, as a comment, a worker's Pod."""
    kubernetes = read(chosen.kubernetes)
    run_dir = os.path.abspath(RunDir(chosen.run_dir or next_run_dir(chosen)).folder)
    check_seen(kubernetes, "run_dir", run_dir)
    leader = as_yaml(leader_job(chosen, kubernetes, "RUN", run_dir, resume))
    head = "Each worker, and each parameter server, is a Pod of its own, which the leader makes:"
    worker = [head, "", *as_yaml(_sample(chosen, kubernetes, WORKER, run_dir)).splitlines()]
    return "\n".join([leader, *(f"# {line}".rstrip() for line in worker)]) + "\n"


def submit(chosen: Config, resume: bool) -> tuple[str, Path]:
    """Submits a run; returns its Job's name, and its folder.

    Raises ConfigError, RunError; nothing is left behind then.
    """
    return in_new_folder(partial(_submit, resume=resume), chosen, partial(next_run_dir, chosen))


def preflight(chosen: Config) -> None:
    """Changes nothing. Raises ConfigError, RunError where a run with such settings would not be taken."""
    kubernetes, run_dir = read(chosen.kubernetes), os.path.abspath(chosen.run_dir)
    check_seen(kubernetes, "run_dir", run_dir)
    _preflight(KubernetesClient(kubernetes), chosen, kubernetes, run_dir)


def _preflight(client: KubernetesClient, chosen: Config, kubernetes: KubernetesConfig, run_dir: str) -> None:
    check_data(chosen.data, here=not kubernetes.setup)
    _check_taken(client, chosen, kubernetes, run_dir)


def _submit(chosen: Config, resume: bool) -> tuple[str, Path]:
    """See ``submit``."""
    kubernetes = read(chosen.kubernetes)
    check_seen(kubernetes, "run_dir", os.path.abspath(RunDir(chosen.run_dir).folder))
    client = KubernetesClient(kubernetes)
    with submission(chosen, resume, partial(_withdraw, client)) as run:
        _preflight(client, chosen, kubernetes, str(run.folder))
        begin(run, chosen, UNKNOWN)
        host = run.host()
        assert host is not None
        job = name_of(client.create(leader_job(chosen, kubernetes, host.run, str(run.folder), resume)))
        publish(run.job, HostJob("kubernetes", job, host.run))
    index.add(job, job, run.folder)
    return job, run.folder


def _withdraw(client: KubernetesClient, run: str) -> None:
    """Ends all that Kubernetes may have taken of a run, unheard too."""
    with contextlib.suppress(KubernetesError):
        for job in client.jobs(run):
            client.delete_job(job.name)
        client.delete_run(run)


def _check_taken(client: KubernetesClient, chosen: Config, kubernetes: KubernetesConfig, folder: str) -> None:
    """Raises ConfigError with Kubernetes' own words where it would never take what is to run there: it looks
    at each as if to make it. A quota that is reached now will pass."""
    leader = leader_job(chosen, kubernetes, "0", folder, resume=False)
    asked = {"leader": leader, "leader's Pod": pod_of(leader)}
    asked[WORKER] = _sample(chosen, kubernetes, WORKER, folder)
    if chosen.num_servers:
        asked["parameter server"] = _sample(chosen, kubernetes, SERVER, folder)
    for what, manifest in asked.items():
        try:
            client.create(manifest, only_try=True)
        except QuotaReached:
            continue
        except ApiRefused as error:
            raise ConfigError(f"kubernetes: takes no {what} such as this: {error}") from error


def _sample(chosen: Config, kubernetes: KubernetesConfig, role: str, run_dir: str) -> dict[str, Any]:
    """A first member's, but for where its master will be."""
    member = MemberSettings.of(
        chosen, name=f"{role}-1", role=role, host=kubernetes.host, master="tcp://MASTER", run_dir=run_dir
    )
    return member_pod(chosen, kubernetes, "0", member)
