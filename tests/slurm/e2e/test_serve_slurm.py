"""A service that shares a real SLURM cluster among runs: promises, nodes that go, and its own deaths."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from elasticflow.run.folder import UNKNOWN, RunDir
from tests.clusters.slurm import SlurmCluster
from tests.e2e.conftest import PATIENCE_S
from tests.e2e.processes import CLI
from tests.e2e.serving import LONG, Served, digest_alone, two_under_deadlines

from .conftest import SMALL

SECTION = {
    "leader": {"partition": "cpu"},
    "workers": [{"partition": "spare"}],
    **SMALL,
    "poll_s": 0.2,
    "time_min": "1",
}
"""Two nodes with two GPUs each. A minute is enough for a worker: so it may begin beside what is to come."""


class ServedOnSlurm(Served):
    """See Served."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        settings = {"cluster": "slurm", "look_s": 0.5, "slurm": SECTION}
        more = yaml.safe_dump(settings)
        super().__init__(folder, 4, more, slice_s=0.05)
        self.cluster = cluster

    def check_places(self) -> None:
        assert self.worker_jobs() <= 4

    def clear(self) -> None:
        self.cluster.cancel_all()
        self.cluster.wait_until_idle()

    def worker_jobs(self) -> int:
        """Of all runs: those that SLURM has not ended."""
        text = self.cluster.run("squeue", "-h", "-o", "%k", "-t", "PENDING,RUNNING,COMPLETING")
        return sum(" worker-" in line for line in text.splitlines())


@pytest.fixture
def served(cluster: SlurmCluster, tmp_path: Path) -> Iterator[ServedOnSlurm]:
    cluster.reset()
    with ServedOnSlurm(cluster, tmp_path) as service:
        yield service


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    return digest_alone(tmp_path_factory.mktemp("alone"))


def until(what: Callable[[], object], story: Callable[[], object]) -> None:
    """Until SLURM says so; it tells nobody by itself."""
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, story()
        time.sleep(0.1)


def test_two_runs_under_deadlines_and_the_service_is_killed_in_the_middle(
    served: ServedOnSlurm, tmp_path: Path
) -> None:
    two_under_deadlines(served, digest_alone(tmp_path, *LONG), *LONG)
    served.cluster.wait_until_idle()


def test_a_drained_node_takes_its_promises_along_and_a_paused_run_leaves_nothing(
    served: ServedOnSlurm, alone: str
) -> None:
    """With no node no run has a leader even; it comes back with the nodes."""
    name = served.submit("run", "--best-effort")
    served.wait_until(lambda tasks: tasks[name].workers == 4 and tasks[name].step > 3)
    served.cluster.drain("g3")
    tasks = served.wait_until(lambda tasks: tasks[name].held <= 2)
    assert tasks[name].workers <= 2
    until(lambda: served.worker_jobs() <= 2, served.log.read_text)
    served.cluster.drain("g4")
    tasks = served.wait_until(lambda tasks: not tasks[name].held)
    assert served.worker_jobs() == 0 and 3 < tasks[name].step < 75
    until(lambda: not served.cluster.jobs(), served.log.read_text)
    served.cluster.resume("g3")
    served.cluster.resume("g4")
    served.wait_until(lambda tasks: tasks[name].workers)
    served.finish(name)
    assert served.digest("run") == alone
    assert len(RunDir(served.runs / "run").past_attempts()) == 1


def test_a_leader_that_is_lost_is_followed_by_another_and_whoever_cancels_keeps_what_was_done(
    served: ServedOnSlurm,
) -> None:
    name = served.submit("run", "--best-effort")
    served.wait_until(lambda tasks: tasks[name].workers == 4 and tasks[name].step > 3)
    host = RunDir(served.runs / "run").host()
    assert host is not None
    served.cluster.run("scancel", "--full", "--signal=KILL", host.id, check=False)
    served.cluster.run("scancel", host.id)

    def begun_anew() -> bool:
        now = RunDir(served.runs / "run").host()
        return now is not None and now.id not in (host.id, UNKNOWN)

    until(begun_anew, served.log.read_text)
    step = served.tasks()[name].step
    served.wait_until(lambda tasks: tasks[name].step > step)
    done = subprocess.run(
        [*CLI, "cancel", name, "--service", str(served.folder)],
        env=served.environment, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tasks = served.wait_until(lambda tasks: tasks[name].state)
    assert tasks[name].state == "cancelled" and served.worker_jobs() == 0
    assert RunDir(served.runs / "run").read_report().step >= step  # type: ignore[union-attr]


def test_a_run_that_could_use_all_begins_on_what_is_idle_and_grows(
    served: ServedOnSlurm, tmp_path: Path
) -> None:
    half = served.submit("half", "--best-effort", "--workers", 2, "--epochs", 2)
    served.wait_until(lambda tasks: tasks[half].workers == 2 and tasks[half].step > 3)
    most = served.submit("most", "--best-effort", *LONG)
    tasks = served.wait_until(lambda tasks: tasks[most].workers == 2)
    assert tasks[half].held == 2 and not tasks[half].state
    served.wait_until(lambda tasks: tasks[most].workers == 4)
    served.finish(half, most)
    report = RunDir(served.runs / "most").read_report()
    assert report is not None and served.digest("most") == digest_alone(tmp_path, *LONG)
    sizes = [size.ready for size in report.sizes]
    assert sizes.index(2) < sizes.index(4), sizes


def test_nothing_is_promised_on_nodes_that_a_reservation_will_take(served: ServedOnSlurm) -> None:
    """A run that is far from done by then is taken in, and promised its deadline once the nodes stay."""
    first = served.submit("first", "--best-effort", "--epochs", 2)
    served.finish(first)
    when = ("starttime=now+10minutes", "duration=infinite", "flags=maint")
    served.cluster.run("scontrol", "create", "reservation=upkeep", "nodes=g[3-4]", "users=root", *when)
    try:
        until(lambda: "known ahead: 4 workers now, 0 from" in served.log.read_text(), served.log.read_text)
        name = served.submit("long", "--deadline", "+12h", "--epochs", 400)
        task = served.tasks()[name]
        assert task.rates and task.steps == 10_000 and not task.promised_at and not task.state, task
    finally:
        served.cluster.run("scontrol", "delete", "reservation=upkeep")
    served.wait_until(lambda tasks: tasks[name].promised_at)
