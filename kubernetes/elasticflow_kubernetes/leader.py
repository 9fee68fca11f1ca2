"""``elasticflow lead --on kubernetes``: a run's master and supervisor, in a Pod or where Pods reach it."""

from __future__ import annotations

import argparse
import os
import socket
from functools import partial

from elasticflow.cli.led import settings_in_job, stem_of
from elasticflow.cli.resuming import new_program
from elasticflow.cluster.missing import check_data
from elasticflow.leading import begin, check_resume, host, patiently
from elasticflow.program.loading import parse
from elasticflow.run.folder import RunDir
from elasticflow_kubernetes.backend import KubernetesBackend
from elasticflow_kubernetes.client import KubernetesClient
from elasticflow_kubernetes.config import image_of, read

IN_POD = "KUBERNETES_SERVICE_HOST"
"""Kubernetes sets it in each container, whose host's name is its Pod's."""


def lead(arguments: argparse.Namespace) -> int:
    """Returns the run's exit code: 0 finished, 1 failed, 3 stopped. Raises ConfigError, RunError.

    A Pod whose container is started anew comes here again, and goes on with the run where the last one was.
    """
    run = RunDir(os.path.abspath(arguments.run_dir or f"runs/{stem_of(arguments)}"))
    lock = run.hold()  # by which others see that it lives; the master, which is forked, has it too
    begun = patiently(run.host)
    again = begun is not None and begun.id == socket.gethostname() and IN_POD in os.environ
    if arguments.resume or not again:  # a node has one name for all runs that are begun on it
        _begin(run, arguments)
    settings = patiently(run.config)
    kubernetes = read(settings.kubernetes)
    image_of(kubernetes)
    KubernetesClient(kubernetes)  # says so at once where there is no cluster
    if not arguments.resume and not run.journal.exists():
        check_data(settings.data, here=not kubernetes.setup)

    def clear() -> None:
        KubernetesBackend.clear(str(run.folder))
        run.address.unlink(missing_ok=True)

    sign = partial(run.logs.mkdir, parents=True, exist_ok=True)
    try:
        return host(run, settings.storage_patience_s, resume=arguments.resume, sign=sign, clear=clear)
    finally:
        os.close(lock)


def _begin(run: RunDir, arguments: argparse.Namespace) -> None:
    named = os.path.abspath(arguments.program) if arguments.program else ""
    anew = new_program(arguments)
    chosen = settings_in_job(run, arguments, named, anew, backend="kubernetes", run_dir=None)
    if not chosen.program_sha256:
        parse(chosen.program)
    if arguments.resume:
        check_resume(run, chosen)
    begin(run, chosen, socket.gethostname())
