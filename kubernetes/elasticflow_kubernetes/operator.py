"""``elasticflow operate``: the controller of a namespace's ElasticFlowJobs. ``operating`` decides."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

from elasticflow.errors import ConfigError, RunError
from elasticflow.process.guard import complain
from elasticflow.run import config as settings
from elasticflow_kubernetes.client import KubernetesClient, ObjectKind
from elasticflow_kubernetes.config import read
from elasticflow_kubernetes.errors import ApiRefused, KubernetesError
from elasticflow_kubernetes.jobs import LeaderJob, read_job
from elasticflow_kubernetes.manifests import training_leader
from elasticflow_kubernetes.mirror import FIRST_LIST_S, Mirror
from elasticflow_kubernetes.operating import Action, EndLeader, Hold, Lead, Release, Tell, decide
from elasticflow_kubernetes.queues import leader_waits
from elasticflow_kubernetes.telling import tell
from elasticflow_kubernetes.training import FINALIZER, INVALID, WAITING, TrainingJob, read_training

AGAIN_S = 5.0
"""What the API server did not take is tried again after so long."""


def operate(file: str | None) -> int:
    """Goes on until it is ended. file: settings of all that do not say otherwise.

    Raises ConfigError; RunError if it may not see what it is for.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())  # the first process of a Pod has none
    defaults = settings.read_file(file) if file else {}
    client = KubernetesClient(read(settings.make(None, defaults).kubernetes))
    Operator(client, defaults).run()
    return 0


class Operator:
    """Of one namespace. defaults: settings."""

    def __init__(self, client: KubernetesClient, defaults: dict[str, Any]) -> None:
        self._client, self._defaults = client, defaults
        self._change = threading.Event()
        self._trainings = Mirror(client, ObjectKind.TRAININGS, read_training, self._change.set)
        self._leaders = Mirror(client, ObjectKind.LEADERS, read_job, self._change.set)

    def run(self) -> None:
        """Never returns. Raises RunError."""
        try:
            self._trainings.items(FIRST_LIST_S)
        except ApiRefused as error:
            raise RunError(
                f"ElasticFlowJobs cannot be seen in namespace {self._client.namespace}: {error}. Are "
                "conf/kubernetes/elasticflowjob.yaml and operator.yaml applied?"
            ) from error
        except KubernetesError:
            pass  # it will answer
        print(f"ElasticFlowJobs of namespace {self._client.namespace} are looked after", flush=True)
        while True:
            is_well = self.turn()
            self._change.wait(None if is_well else AGAIN_S)
            self._change.clear()

    def turn(self) -> bool:
        """Does what is to be done now; whether all of it was done."""
        try:
            trainings = self._trainings.items(FIRST_LIST_S)
            leaders = self._leaders.items(FIRST_LIST_S)
        except KubernetesError as error:
            print(f"warning: {error}", flush=True)
            return False
        return all([self._attend(each, leaders.get(each.name)) for each in trainings.values()])

    def _attend(self, training: TrainingJob, leader: LeaderJob | None) -> bool:
        """Whether no other look at it is needed before something changes. One that is odd stops no other."""
        try:
            return self._attended(training, leader)
        except ConfigError as error:
            return self._say(training, INVALID, str(error))
        except KubernetesError as error:
            self._say(training, training.state or WAITING, str(error))
            return False
        except Exception as error:  # noqa: BLE001
            complain(training.name)
            return self._say(training, INVALID, f"{type(error).__name__}: {error}")

    def _attended(self, training: TrainingJob, leader: LeaderJob | None) -> bool:
        if decide(training, leader) is None:
            return not self._waits(training, leader)
        now = self._client.training(training.name)  # its leader may have said more meanwhile
        if now is None:
            return True
        training = read_training(now)
        if (action := decide(training, leader)) is not None:
            self._do(action, training)
        return not isinstance(action, Lead)

    def _waits(self, training: TrainingJob, leader: LeaderJob | None) -> bool:
        """Whether a leader waits for its place; then says why."""
        if leader is None or leader.is_up or leader.over or training.state != WAITING or training.is_leaving:
            return False
        text, has_failed = leader_waits(self._client, leader)
        failed = "; one has failed, its log tells why" if has_failed else ""
        tell(self._client, training.name, {"message": f"its leader: {text}{failed}"})
        return True

    def _do(self, action: Action, training: TrainingJob) -> None:
        others = [each for each in training.metadata.finalizers if each != FINALIZER]
        match action:
            case Hold():
                self._keep(training, [*others, FINALIZER])
            case Release():
                self._keep(training, others)
            case Lead():
                self._leaders.add(self._client.create(self._leader(training)))
            case EndLeader():
                self._client.delete_job(training.name)
            case Tell(state, message):
                tell(self._client, training.name, {"state": state, "message": message})
        print(f"{training.name}: {type(action).__name__.lower()}", flush=True)

    def _keep(self, training: TrainingJob, finalizers: list[str]) -> None:
        meta = {"finalizers": finalizers, "resourceVersion": training.metadata.resource_version}
        self._client.change_training(training.name, {"metadata": meta})  # refused where others were quicker

    def _say(self, training: TrainingJob, state: str, message: str) -> bool:
        print(f"{training.name}: {state.lower()}: {message}", flush=True)
        try:
            tell(self._client, training.name, {"state": state, "message": message})
        except KubernetesError as error:
            print(f"warning: {training.name}: {error}", flush=True)
            return False
        return True

    def _leader(self, training: TrainingJob) -> dict[str, Any]:
        """Raises ConfigError."""
        own = {name.replace("-", "_"): value for name, value in training.spec.settings.items()}
        section = own.get("kubernetes") or {}
        if not isinstance(section, dict):
            raise ConfigError(f"spec.settings.kubernetes: {section!r}: must have settings by their names.")
        section = {**self._defaults.get("kubernetes", {}), **section}
        if training.queue:
            section["labels"] = {**section.get("labels", {}), **training.queue}
        whole = {**self._defaults, **own, "kubernetes": section, "backend": "kubernetes"}
        if training.workers:
            whole["workers"] = training.workers
        settings.check_names(whole, "spec.settings")
        chosen = settings.make(None, whole)
        return training_leader(training, whole, read(chosen.kubernetes))
