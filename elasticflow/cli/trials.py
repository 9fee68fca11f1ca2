"""The runs of a sweep: each begun, or gone on with, where it belongs, and followed in a thread of its own."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from elasticflow.cli.connection import Connection
from elasticflow.cli.train import Launched, begin
from elasticflow.cli.watching import follow
from elasticflow.cluster.contract import load_cluster
from elasticflow.cluster.presence import Replaced, is_alive, presence_of
from elasticflow.errors import ElasticFlowError, RunError, UnknownError
from elasticflow.local.forkserver import VARIABLE, ForkServers
from elasticflow.process.guard import guarded_thread
from elasticflow.process.retry import is_away
from elasticflow.run import config
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.telling import Report, Status
from elasticflow.service import talk
from elasticflow.wire.messages import StopRequest

LOOK_S = 1.0
REMEMBERED = 1000
"""So many tasks that are over a service is asked about."""


class TrialNews(NamedTuple):
    """Of a trial: its last evaluations, until it is over.

    report: None: it goes on, or has ended and left none. text: why it has ended, as far as that is known; of
    one that goes on, what is in the way of seeing how.
    """

    trial: int
    evaluations: tuple[dict[str, Any], ...] = ()
    is_over: bool = False
    report: Report | None = None
    text: str = ""


class Trials(ABC):
    """Where runs are. tell: called by any thread."""

    def __init__(self, tell: Callable[[TrialNews], None]) -> None:
        self._tell = tell

    @abstractmethod
    def begin(self, chosen: Config, *, resume: bool) -> RunDir:
        """Begins a run in ``chosen.run_dir``, or goes on with it. Raises ElasticFlowError."""

    outlive = False
    """Whether runs go on when the sweep is stopped."""

    def stop(self, run: RunDir, why: str) -> None:
        """Has it commit a checkpoint and end. Raises ElasticFlowError."""
        if presence_of(run).cancel():
            return  # it has not begun
        with Connection(run) as connection:
            connection.ask(StopRequest(reason=why))

    def follow(self, trial: int, run: RunDir) -> None:
        """Tells of a run that goes on, or is over, until it is over."""
        guarded_thread(self._follow, f"trial {trial}", trial, run).start()

    def _follow(self, trial: int, run: RunDir) -> None:
        teller, report, told = _Teller(trial, self._tell), None, ""
        while True:
            try:
                report = follow(run, teller, _nobody)
                if self.is_over(run):
                    break
            except Replaced:
                continue  # its service went on with it
            except (ElasticFlowError, OSError) as error:
                if not isinstance(error, UnknownError) and not is_away(error):
                    self._tell(TrialNews(trial, is_over=True, text=str(error)))
                    return
                if str(error) != told:
                    told = str(error)
                    self._tell(TrialNews(trial, text=told))
            time.sleep(LOOK_S)  # what is away, or waits at a service, tells nobody when it is back
        self.ended(run)
        text = report.text if report else "ended, and left no report"
        self._tell(TrialNews(trial, is_over=True, report=report, text=text))

    def is_under_way(self, run: RunDir) -> bool:
        """Whether it goes on without anybody's doing."""
        return run.settings.exists() and is_alive(run)

    def is_over(self, run: RunDir) -> bool:
        """Of a run that is not there just now: whether it does not come back either."""
        return True

    def ended(self, run: RunDir) -> None:  # noqa: B027  (most have nothing to do)
        """Once it is over."""

    def close(self) -> None:  # noqa: B027
        """When nothing begins any more."""

    def go_on(self, run: RunDir) -> None:
        """Has a run that ended too early go on, with its settings. Raises ElasticFlowError."""
        before = run.config()
        chosen = config.make(None, {}, msgspec.to_builtins(before))
        self.begin(
            msgspec.structs.replace(chosen, run_dir=str(run.path), backend=before.backend), resume=True
        )


class LocalTrials(Trials):
    """On this machine. folder: of fork servers, or the framework would be imported for each trial."""

    def __init__(self, tell: Callable[[TrialNews], None], folder: Path) -> None:
        super().__init__(tell)
        self._begun: dict[str, Launched] = {}
        self._fork_servers = ForkServers(folder)
        os.environ[VARIABLE] = str(folder)  # for the masters that are started here

    def begin(self, chosen: Config, *, resume: bool) -> RunDir:
        begun = begin(msgspec.structs.replace(chosen, backend="local"), resume)
        run = begun.folder.run
        self._begun[str(run.path)] = begun
        self._fork_servers.ensure_for(run)
        return run

    def ended(self, run: RunDir) -> None:
        if begun := self._begun.pop(str(run.path), None):
            begun.master.wait()
            os.close(begun.hold)

    def close(self) -> None:
        self._fork_servers.close()


class ClusterTrials(Trials):
    """As jobs of a cluster."""

    def __init__(self, tell: Callable[[TrialNews], None], cluster: str) -> None:
        super().__init__(tell)
        self._cluster = cluster

    def begin(self, chosen: Config, *, resume: bool) -> RunDir:
        chosen = msgspec.structs.replace(chosen, backend=self._cluster)
        _, folder = load_cluster(self._cluster, "submit").submit(chosen, resume)
        return RunDir(folder)


class ServiceTrials(Trials):
    """Handed in to a service, which gives each as much as others leave: at times nothing."""

    outlive = True

    def __init__(self, tell: Callable[[TrialNews], None], service: Path, most: int) -> None:
        """most: workers of each; 0: as many as there are."""
        super().__init__(tell)
        self._service, self._most = service, most

    def begin(self, chosen: Config, *, resume: bool) -> RunDir:
        try:
            return self._handed_in(chosen, resume=resume)
        except UnknownError:
            raise
        except RunError:
            # Where nobody serves just now that is said: it is no fault of this trial, which begins later.
            self._task_of(RunDir(chosen.run_dir))
            raise

    def _handed_in(self, chosen: Config, *, resume: bool) -> RunDir:
        from elasticflow.cli.serve import handed_over, taken_in

        if not resume:
            return RunDir(taken_in(self._service, chosen, self._most).run)
        run = RunDir(chosen.run_dir)
        if run.read_report() or self._task_of(run):
            raise RunError(f"{run.path}: was ended, and its service does not go on with it.")
        # Whoever made its folder was killed before it was handed in, or the service is another one by now.
        return RunDir(handed_over(self._service, run, chosen, self._most).run)

    def stop(self, run: RunDir, why: str) -> None:
        if task := self._task_of(run):
            talk.ask(self._service, talk.Cancel(name=task.name))

    def is_under_way(self, run: RunDir) -> bool:
        task = self._task_of(run)
        return task is not None and not task.state

    def is_over(self, run: RunDir) -> bool:
        task = self._task_of(run)
        return task is None or bool(task.state)

    def _task_of(self, run: RunDir) -> talk.ToldTask | None:
        """Raises UnknownError if nobody serves just now: then nobody ends a run either."""
        try:
            tasks = talk.ask(self._service, talk.ListTasks(over=REMEMBERED)).tasks
        except RunError as error:
            raise UnknownError(str(error)) from error
        return next((task for task in tasks if RunDir(task.run).path == run.path), None)


class _Teller:
    """What is new of a run's evaluations."""

    def __init__(self, trial: int, tell: Callable[[TrialNews], None]) -> None:
        self._trial, self._tell = trial, tell
        self._told: list[dict[str, Any]] = []

    def show(self, status: Status) -> None:
        if status.evaluations != self._told:
            self._told = status.evaluations
            self._tell(TrialNews(self._trial, tuple(status.evaluations)))

    def line(self, text: str) -> None:
        """It waits for its place, or for a master: nothing that a sweep has to know."""


def _nobody(connection: Connection) -> None:
    """Ctrl-C is for the main thread."""
