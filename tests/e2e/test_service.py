"""A real service, real runs on this machine: grants, promises, pauses, and deaths of the service."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from elasticflow.cli.connection import Connection
from elasticflow.run.folder import RunDir
from elasticflow.service import talk

from .conftest import PATIENCE_S
from .processes import CLI
from .serving import Served, digest_alone

pytestmark = pytest.mark.whole


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[int], Served]]:
    with ExitStack() as started:
        yield lambda workers: started.enter_context(Served(tmp_path, workers))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return digest_alone(tmp_path_factory.mktemp("alone"))


def test_two_runs_share_and_end_as_if_each_were_alone(
    serve: Callable[[int], Served], undisturbed: str
) -> None:
    service = serve(4)
    first = service.submit("first", "--deadline", "+20m")
    service.wait_until(lambda tasks: tasks[first].promised_at)
    second = service.submit("second", "--deadline", "+20m", "--workers", 2)
    assert service.tasks()[second].rates, "how fast it is was learned from the first"
    tasks = service.finish(first, second)
    assert all(task.promised_at for task in tasks.values())
    assert service.digest("first") == service.digest("second") == undisturbed


def test_one_without_a_deadline_is_held_at_zero_and_comes_back(
    serve: Callable[[int], Served], undisturbed: str
) -> None:
    service = serve(1)
    patient = service.submit("patient", "--best-effort")
    service.wait_until(lambda tasks: tasks[patient].standing == "best effort" and tasks[patient].step > 10)
    urgent = service.submit("urgent", "--deadline", "+20m", "--epochs", 1)
    tasks = service.wait_until(lambda tasks: tasks[urgent].workers)
    assert tasks[patient].held == 0, "it has left before the other one was granted its place"
    service.finish(urgent, patient)
    assert RunDir(service.runs / "patient").past_attempts()
    assert service.digest("patient") == undisturbed


def test_a_service_that_is_killed_again_and_again_loses_no_promise(
    serve: Callable[[int], Served], undisturbed: str
) -> None:
    """Runs go on without it, and a promise that somebody has heard of stands."""
    service = serve(3)
    names = [service.submit("run-1", "--deadline", "+20m")]
    service.wait_until(lambda tasks: tasks[names[0]].promised_at)
    promised: set[str] = set()
    for number in range(2, 8):
        if number < 4:
            names.append(service.submit(f"run-{number}", "--deadline", "+20m"))
        before = service.tasks()
        promised |= {name for name, task in before.items() if task.promised_at}
        service.kill()
        service.start()
        after = service.tasks()
        assert set(after) == set(before)
        assert promised <= {name for name, task in after.items() if task.promised_at}
        assert {name: after[name].promised_at for name in promised} == {
            name: before[name].promised_at for name in promised
        }
        assert sum(task.held for task in after.values()) <= 3
    tasks = service.finish(*names)
    assert set(names) == {name for name, task in tasks.items() if task.promised_at}
    assert {service.digest(f"run-{number}") for number in (1, 2, 3)} == {undisturbed}


def test_a_run_goes_on_without_a_service_and_gives_way_when_a_node_is_lost(
    serve: Callable[[int], Served], undisturbed: str
) -> None:
    service = serve(2)
    name = service.submit("alone", "--deadline", "+20m")
    service.wait_until(lambda tasks: tasks[name].workers == 2 and service.workers_of("alone") == 2)
    talk.ask(service.folder, talk.MarkNode(node=0, up=False))
    tasks = service.wait_until(lambda tasks: tasks[name].held == 1)
    assert tasks[name].workers == 1 and service.workers_of("alone") == 1
    service.kill()
    with Connection(RunDir(service.runs / "alone")) as connection:
        step = connection.status().step
        while (status := connection.next_status()) is None or status.step < step + 3:
            pass
        assert status.target_workers == 1
    service.start()
    service.finish(name)
    assert service.digest("alone") == undisturbed


def test_who_cancels_keeps_what_was_done(serve: Callable[[int], Served]) -> None:
    service = serve(1)
    name = service.submit("unwanted", "--best-effort")
    service.wait_until(lambda tasks: tasks[name].step > 3)
    done = subprocess.run(
        [*CLI, "cancel", name, "--service", str(service.folder)],
        env=service.environment, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    service.wait_until(lambda tasks: tasks[name].state == "cancelled")
    report = RunDir(service.runs / "unwanted").read_report()
    assert report is not None and report.state == "stopped" and report.checkpoint_step
