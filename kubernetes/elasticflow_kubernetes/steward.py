"""Beside a leader that an ElasticFlowJob has: says there how the run is, and has the run do what it says.

    python -m elasticflow_kubernetes.steward RUN_DIR NAME

A process of its own, since a master's supervisor has no threads and no connections.
"""

from __future__ import annotations

import signal
import sys
import threading
import time

from elasticflow.cli.connection import Connection
from elasticflow.cli.runs import stop_run
from elasticflow.cli.watching import follow
from elasticflow.cluster.presence import wait_for_master
from elasticflow.errors import ElasticFlowError, RunError, UnknownError
from elasticflow.process.guard import guarded_thread
from elasticflow.process.parent import end_with_parent
from elasticflow.run.folder import ENDED, RunDir
from elasticflow.run.telling import Report, Status
from elasticflow.wire.messages import ScaleRequest
from elasticflow_kubernetes.client import KubernetesClient, ObjectKind
from elasticflow_kubernetes.config import KubernetesConfig
from elasticflow_kubernetes.errors import KubernetesError
from elasticflow_kubernetes.mirror import FIRST_LIST_S, Mirror
from elasticflow_kubernetes.telling import tell
from elasticflow_kubernetes.training import TrainingJob, read_training, told

APART_S = 1.0
"""The same state is told again no sooner: it is news for people."""
AGAIN_S = 2.0
"""What a master, or the API server, did not hear is said again after so long."""


class Teller:
    """Shows a run in an object's status."""

    def __init__(self, client: KubernetesClient, name: str, selector: str) -> None:
        self._client, self._name, self._selector = client, name, selector
        self._told_s, self._state = float("-inf"), ""
        self.refusal = ""
        """Why the run does not do what the object says."""

    def show(self, status: Status) -> None:
        """See ``Shows``."""
        now_s = time.monotonic()
        if status.state == self._state and now_s - self._told_s < APART_S:
            return
        if status.state in ENDED and not isinstance(status, Report):
            return  # its report follows, which says why
        news = {**told(status), "job": self._name, "selector": self._selector}
        if self.refusal and status.state not in ENDED:
            news["message"] = self.refusal
        for _ in range(30 if status.state in ENDED else 1):
            try:
                tell(self._client, self._name, news)
                self._state, self._told_s = status.state, now_s
                return
            except KubernetesError as error:
                print(f"warning: how the run is could not be told: {error}", file=sys.stderr, flush=True)
            if status.state in ENDED:
                time.sleep(AGAIN_S)  # nobody tells when the API server is back

    def line(self, text: str) -> None:
        """See ``Shows``: what a run waits for is its controller's to say."""


class Wishes:
    """Obeys an object: as many workers as it says, and its end when it is being deleted."""

    def __init__(self, client: KubernetesClient, run: RunDir, name: str, teller: Teller) -> None:
        self._run, self._name, self._teller = run, name, teller
        self._change = threading.Event()
        self._mirror = Mirror(client, ObjectKind.TRAININGS, read_training, self._change.set)
        self._workers: int | None = None

    def obey(self) -> None:
        """Until the run is being stopped."""
        while True:
            self._change.wait()
            self._change.clear()
            try:
                training = self._mirror.items(FIRST_LIST_S).get(self._name)
                if training and training.is_leaving:
                    stop_run(self._run)
                    return
                self._scale(training)
            except (ElasticFlowError, OSError) as error:
                print(f"warning: tried again: {error}", file=sys.stderr, flush=True)
                time.sleep(AGAIN_S)  # nobody tells when it is of use
                self._change.set()

    def _scale(self, training: TrainingJob | None) -> None:
        workers = training.spec.workers if training else None
        if workers is None or workers == self._workers:
            return
        wait_for_master(self._run, lambda text: None)
        with Connection(self._run) as connection:
            self._teller.refusal = ""
            try:
                if connection.status().target_workers != workers:
                    connection.ask(ScaleRequest(workers=workers))
            except UnknownError:
                raise
            except RunError as refused:
                self._teller.refusal = f"workers: {refused}"
        self._workers = workers


def main(run_dir: str, name: str) -> None:
    """Ends with the run, or with the process that has started it."""
    end_with_parent(signal.SIGTERM)
    run, client = RunDir(run_dir), KubernetesClient(KubernetesConfig())
    host = run.host()
    selector = f"elasticflow/run={host.run},elasticflow/role=worker" if host else ""
    teller = Teller(client, name, selector)
    guarded_thread(Wishes(client, run, name, teller).obey, "wishes").start()
    while True:
        try:
            if follow(run, teller, lambda connection: None):
                return
        except (ElasticFlowError, OSError) as error:  # its storage may be away, or its master silent
            print(f"warning: how the run is is not known: {error}", file=sys.stderr, flush=True)
        time.sleep(AGAIN_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
