"""``elasticflow lead --on kubernetes``: a run's master and supervisor, in a Job's Pod or where Pods reach it.

A Job's Pod that is lost is followed by another, which comes here again and goes on with the run. A run that
is over says so to its Job, or that would have one Pod after the other fail.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

from elasticflow.cli.folders import trust_or_check
from elasticflow.cli.led import settings_in_job, stem_of
from elasticflow.cli.resuming import new_program
from elasticflow.cluster.missing import check_data
from elasticflow.errors import ElasticFlowError
from elasticflow.leading import begin, check_begun, check_resume, host, patiently
from elasticflow.master.supervisor import TERMINATED
from elasticflow.program.loading import parse
from elasticflow.run.config import Config
from elasticflow.run.folder import EXIT_CODES, HostJob, RunDir, publish
from elasticflow_kubernetes import index, steward
from elasticflow_kubernetes.backend import ASK_S, TRIES, KubernetesBackend, comes_again
from elasticflow_kubernetes.client import IN_POD, KubernetesClient
from elasticflow_kubernetes.config import KubernetesConfig, image_of, read
from elasticflow_kubernetes.errors import ApiBusy, KubernetesError
from elasticflow_kubernetes.finder import BY_HAND
from elasticflow_kubernetes.jobs import FINAL, LASTING, RUN_DIR, TRAINING, Owner
from elasticflow_kubernetes.pods import MANAGED, RUN
from elasticflow_kubernetes.telling import tell
from elasticflow_kubernetes.training import FAILED

TELL_S = 20.0
"""So long whoever tells of a run may take to say how it ended."""


def lead(arguments: argparse.Namespace) -> int:
    """Returns the run's exit code: 0 finished, 1 failed, 3 stopped. Raises ConfigError, RunError."""
    run = RunDir(os.path.abspath(arguments.run_dir or f"runs/{stem_of(arguments)}"))
    if job := Owner.of(os.environ):
        return JobLeader(run, job).lead(arguments)
    lock = run.hold()  # by which others see that it lives; the master, which is forked, has it too
    try:
        known = patiently(run.host)
        id = f"{BY_HAND}{socket.gethostname()}"
        # A Pod whose container is started anew goes on; a node has one name for all runs that it ever had.
        if arguments.resume or known is None or known.id != id or IN_POD not in os.environ:
            _begin(run, arguments, id)
        settings, kubernetes = _ready(run, arguments)
        KubernetesClient(kubernetes)  # says so at once where there is no cluster
        sign = partial(run.logs.mkdir, parents=True, exist_ok=True)
        return host(
            run, settings.storage_patience_s, resume=arguments.resume, sign=sign, clear=partial(_clear, run)
        )
    finally:
        os.close(lock)


class JobLeader:
    """A leader that is a Job's, and is followed by another when its Pod is lost."""

    def __init__(self, run: RunDir, job: Owner) -> None:
        self._run, self._job, self._client = run, job, KubernetesClient(KubernetesConfig())
        self._id = ""
        """Of its run, once that is known to be this Job's."""

    def lead(self, arguments: argparse.Namespace) -> int:
        """See ``lead``. Whatever ends the run is said to its Job."""
        try:
            code = self._code_of(arguments)
        except ElasticFlowError as error:
            if training := os.environ.get(TRAINING):
                with contextlib.suppress(KubernetesError):
                    tell(self._client, training, {"state": FAILED, "message": str(error)})
            self._clear()
            self._say_over()
            raise
        if code and code in EXIT_CODES.values():
            self._say_over()
        return code

    def _code_of(self, arguments: argparse.Namespace) -> int:
        run, job = self._run, self._job
        known = patiently(run.host)
        # Where a Pod was lost while it made the folder, the settings are not there yet, but whose it is.
        is_begun = known is not None and known.run == job.run and patiently(run.settings.exists)
        if arguments.program is None or is_begun:
            patiently(lambda: check_begun(run))
            assert known is not None
            self._id = known.run
            if known.id == job.name and (report := run.read_report()):
                self._clear()
                return EXIT_CODES[report.state]  # it could not be said any more
        else:
            _begin(run, arguments, job.name, job.run)
            self._id = job.run
        settings, _ = _ready(run, arguments)
        with _steward(run):
            code = host(
                run,
                settings.storage_patience_s,
                resume=arguments.resume,
                sign=self._sign,
                clear=lambda: None,  # it is not known yet whether the next leader goes on with it
            )
        if code in EXIT_CODES.values() or (code == TERMINATED and not comes_again(self._client, job)):
            self._clear()
        return code

    def _sign(self) -> None:
        """Has the run be found by its Job, and the Job by its run, whoever has made it."""
        run, job = self._run, self._job
        run.logs.mkdir(parents=True, exist_ok=True)
        known = run.host()
        assert known is not None
        publish(run.job, HostJob("kubernetes", job.name, known.run))
        index.add(job.name, job.name, run.folder)
        meta = {
            "labels": {MANAGED: "elasticflow", RUN: known.run},
            "annotations": {RUN_DIR: str(run.folder)},
        }
        with contextlib.suppress(KubernetesError):  # the run's folder tells as well
            self._client.change_job(job, {"metadata": meta, "spec": LASTING})

    def _say_over(self) -> None:
        """Where this is not heard another Pod comes, and says it again."""
        with contextlib.suppress(KubernetesError):
            self._client.change_job(self._job, {"spec": FINAL})

    def _clear(self) -> None:
        """Ends what is left of its run; another that was begun in this folder meanwhile is left alone."""
        if not self._id:
            return
        with contextlib.suppress(OSError, ElasticFlowError):
            known = self._run.host()
            if known and known.run == self._id:
                self._run.address.unlink(missing_ok=True)
        with contextlib.suppress(KubernetesError):
            for _ in range(TRIES):
                with contextlib.suppress(ApiBusy):
                    self._client.delete_run(self._id)
                    return
                time.sleep(ASK_S)  # nobody tells when the API server is back


@contextlib.contextmanager
def _steward(run: RunDir) -> Iterator[None]:
    """Of a run that an ElasticFlowJob has; where that is over it may say how it was."""
    training = os.environ.get(TRAINING)
    if not training:
        yield
        return
    command = [sys.executable, "-m", steward.__name__, str(run.folder), training]
    again = ["/bin/sh", "-c", 'until "$@"; do sleep 2; done', "steward"]  # whatever ends it but the run's end
    process = subprocess.Popen([*again, *command])
    try:
        yield
        if run.report.exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TELL_S)
    finally:
        process.kill()


def _begin(run: RunDir, arguments: argparse.Namespace, job: str, id: str = "") -> None:
    trust_or_check(run, arguments.trust)
    named = os.path.abspath(arguments.program) if arguments.program else ""
    anew = new_program(arguments)
    chosen = settings_in_job(run, arguments, named, anew, backend="kubernetes", run_dir=None)
    if not chosen.program_sha256:
        parse(chosen.program)
    if arguments.resume:
        check_resume(run, chosen)
    begin(run, chosen, job, id=id)


def _ready(run: RunDir, arguments: argparse.Namespace) -> tuple[Config, KubernetesConfig]:
    """A run's settings. Raises ConfigError, DataError, RunError."""
    settings = patiently(run.config)
    kubernetes = read(settings.kubernetes)
    image_of(kubernetes)
    if not arguments.resume and not run.journal.exists():
        check_data(settings.data, here=not kubernetes.setup)
    return settings, kubernetes


def _clear(run: RunDir) -> None:
    KubernetesBackend.clear(str(run.folder))
    run.address.unlink(missing_ok=True)
