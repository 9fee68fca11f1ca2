"""A real service, real runs on this machine: grants, promises, pauses, and deaths of the service."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from elasticflow.cli.connection import Connection
from elasticflow.local.process import recorded
from elasticflow.run.folder import RunDir
from elasticflow.service import talk
from tests.clusters.processes import parent_of

from .conftest import PATIENCE_S, Run
from .processes import CLI, remove_under_way
from .serving import OPTIONS, Served, digest_alone

pytestmark = pytest.mark.whole
ROOT = Path(__file__).parents[2]
CLICKS = ("--epochs", 2, "--batch-size", 256)
"""314 steps of the clicks' program."""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    with ExitStack() as started:
        yield lambda workers, **more: started.enter_context(Served(tmp_path, workers, **more))


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
    fork_server = service.folder / "forkservers" / "torch"
    service.wait_until(lambda _: fork_server.with_suffix(".sock").exists())
    urgent = service.submit("urgent", "--deadline", "+20m", "--epochs", 1)
    tasks = service.wait_until(lambda tasks: tasks[urgent].workers and service.nursery_of("urgent").exists())
    forked_from, nursery = map(recorded, (fork_server.with_suffix(".json"), service.nursery_of("urgent")))
    assert forked_from and nursery and parent_of(nursery.pid) == forked_from.pid
    assert tasks[patient].held == 0, "it has left before the other one was granted its place"
    service.finish(urgent, patient)
    assert RunDir(service.runs / "patient").past_attempts()
    assert service.digest("patient") == undisturbed


def test_a_service_that_is_told_to_end_leaves_no_fork_server_and_its_run_goes_on(
    serve: Callable[[int], Served], undisturbed: str
) -> None:
    service = serve(1)
    name = service.submit("alone", "--deadline", "+20m")
    fork_server = service.folder / "forkservers" / "torch"
    service.wait_until(lambda tasks: fork_server.with_suffix(".sock").exists() and tasks[name].step > 5)
    forks = recorded(fork_server.with_suffix(".json"))
    assert service.process is not None and forks is not None
    service.process.terminate()
    assert service.process.wait(PATIENCE_S) == -signal.SIGTERM
    assert forks.watch() is None, "it has ended with the service"
    service.start()
    service.finish(name)
    assert not RunDir(service.runs / "alone").past_attempts()
    assert service.digest("alone") == undisturbed


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


@pytest.mark.parametrize("way", ["removed", "moved"])
def test_a_service_whose_folder_is_gone_leaves_the_place_to_the_next_one(
    serve: Callable[[int], Served], undisturbed: str, way: str
) -> None:
    """It would promise what nobody finds again, and grant the same workers beside the next one."""
    service = serve(1)
    fork_server = service.folder / "forkservers" / "torch"
    service.submit("alone", "--deadline", "+20m")
    service.wait_until(lambda _: fork_server.with_suffix(".sock").exists())
    first, before = service.process, recorded(fork_server.with_suffix(".json"))
    if way == "moved":
        service.folder.rename(service.runs / "elsewhere")
    else:
        remove_under_way(service.folder)
    service.start()
    name = service.submit("next", "--deadline", "+20m")
    assert first is not None and first.wait(PATIENCE_S) == 1
    assert "was removed, moved or replaced while this service used it" in service.log.read_text()
    assert before is not None and before.watch() is None, "its fork server has ended with it"
    service.finish(name)
    after = recorded(fork_server.with_suffix(".json"))
    assert after is not None and (watched := after.watch()) is not None, "the next one's has not"
    os.close(watched)
    assert service.digest("next") == undisturbed


def test_a_copy_of_a_service_that_runs_is_not_served(
    serve: Callable[[int], Served], undisturbed: str
) -> None:
    """Both stopped and began the same run in turn."""
    service = serve(1)
    name = service.submit("run", "--deadline", "+20m")
    service.wait_until(lambda tasks: tasks[name].step)
    shutil.copytree(service.folder, copy := service.runs / "copy", ignore=lambda *_: ["socket", "torch.sock"])
    settings = service.runs / "copy.yaml"
    settings.write_text(service.settings.read_text().replace(str(service.folder), str(copy)))
    command = [*CLI, "serve", str(settings)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (
        refused.returncode == 1 and "which is running, and of which this folder is a copy" in refused.stderr
    )
    service.kill()
    service.settings = settings
    service.folder = copy  # that of one that does not run goes on with it
    service.start()
    service.finish(name)
    assert service.digest("run") == undisturbed


def under_way(service: Served) -> str:
    """A task, of another model than those that follow in its place."""
    name = service.submit("run", "--best-effort", "--seed", 5)
    service.wait_until(lambda tasks: tasks[name].step)
    return name


def test_a_run_that_is_handed_in_where_another_was_removed_is_a_task_of_its_own(
    serve: Callable[[int], Served], undisturbed: str
) -> None:
    """It was taken for the other one, and had that one's deadline."""
    service = serve(1)
    first = under_way(service)
    with Connection(service.run_of("run")) as connection:
        master = connection.status().master.pid
    os.kill(master, signal.SIGSTOP)  # or it may end, and be looked for, before there is the other one
    remove_under_way(service.runs / "run")
    second = service.submit("run", "--deadline", "+20m")
    os.kill(master, signal.SIGCONT)
    assert second != first
    tasks = service.finish(second)
    assert tasks[second].promised_at and tasks[first].state == "failed"
    assert "another run has begun there" in tasks[first].said
    assert service.digest("run") == undisturbed


def test_a_run_that_somebody_begins_by_hand_where_one_was_removed_is_left_alone(
    serve: Callable[[int], Served], undisturbed: str
) -> None:
    """It was granted its workers by the service, and its end was taken for that of the other one."""
    service = serve(1)
    first = under_way(service)
    service.kill()
    remove_under_way(service.runs / "run")
    with Run(service.runs / "run", "small_torch.py", *OPTIONS, "--workers", 2, shut=["step 9"]) as by_hand:
        by_hand.held_at("step 9")
        service.start()
        service.wait_until(lambda tasks: tasks[first].state == "failed")
        assert by_hand.status().target_workers == 2
        by_hand.open("step 9")
        assert by_hand.digest() == undisturbed


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


def test_a_neighbour_has_its_slots_when_it_is_told_so_and_a_run_grows_again_after(
    serve: Callable[..., Served],
) -> None:
    service = serve(2, slice_s=0.1)  # else two are no faster than one on a busy machine, and it stays small
    name = service.submit("patient", "--best-effort", "--epochs", 5)
    service.wait_until(lambda tasks: tasks[name].workers == 2 and service.workers_of("patient") == 2)

    def share(text: str) -> str:
        command = [*CLI, "serve", str(service.settings), "--share", text]
        done = subprocess.run(
            command, env=service.environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        return done.stdout.strip() or done.stderr.strip()

    assert share("1") == "1 workers"
    assert service.tasks()[name].held == 1 and service.workers_of("patient") == 1
    assert "has to be a number of workers, or all" in share("some")
    assert share("all") == "2 workers"
    tasks = service.wait_until(lambda tasks: tasks[name].state or tasks[name].workers == 2)
    assert not tasks[name].state, "it is over: the run is too short here"
    service.finish(name)


def test_clicks_are_foretold_as_well_however_wildly_the_workers_change(
    serve: Callable[[int], Served], tmp_path: Path
) -> None:
    """ElasticDL's third experiment, where it was similar: here digest and AUC are the same."""
    program = clicks(tmp_path)
    with Run(tmp_path / "fixed", str(program), *OPTIONS, *CLICKS, "--workers", 2) as run:
        run.wait()
        fixed = run.dir.read_report()
        digest = run.digest()
    service = serve(4)
    name = service.submit("wild", "--best-effort", *CLICKS, program=program)
    for workers in (4, 1, 3, 0, 2):
        talk.ask(service.folder, talk.SetShare(workers=workers))
        step = service.tasks()[name].step
        tasks = service.wait_until(
            lambda tasks, workers=workers, step=step: (
                tasks[name].state
                or tasks[name].held <= workers
                and (not workers or tasks[name].step > step + 3)
            )
        )
        assert not tasks[name].state, "it is over: the run is too short here"
    service.finish(name)
    wild = RunDir(service.runs / "wild").read_report()
    assert wild is not None and fixed is not None and wild.evaluation and fixed.evaluation
    assert RunDir(service.runs / "wild").past_attempts(), "it was held at zero"
    assert wild.num_evaluations == 2 and wild.evaluation["auc"] == fixed.evaluation["auc"] > 0.6
    assert service.digest("wild") == digest


def clicks(folder: Path) -> Path:
    """The program of examples/wide_and_deep, with fewer records, each slice of which takes a while."""
    copy = shutil.copytree(
        ROOT / "examples" / "wide_and_deep", folder / "clicks", ignore=shutil.ignore_patterns("data")
    )
    for file, part, new in (
        ("make_data.py", "200_000, 50_000", "40_000, 4_000"),
        ("wide_and_deep.py", "    scores = log_odds", "    time.sleep(0.05)\n    scores = log_odds"),
        ("wide_and_deep.py", "import clicks", "import time\n\nimport clicks"),
    ):
        text = (copy / file).read_text()
        assert part in text
        (copy / file).write_text(text.replace(part, new, 1))
    subprocess.run([sys.executable, copy / "make_data.py"], check=True, capture_output=True)
    return copy / "wide_and_deep.py"


def test_hours_count_from_the_start_of_the_service_that_is_told_of_them(tmp_path: Path) -> None:
    with Served(tmp_path, 2) as service:
        assert talk.ask(service.folder, talk.ListTasks()).capacity == 2
        service.kill()
        settings = service.settings.read_text()
        window = "{from: '2020-01-01T00:00', until: '2120-01-01T00:00', workers: 1}"
        service.settings.write_text(f"{settings}hours: [{window}]\n")
        service.start()
        assert talk.ask(service.folder, talk.ListTasks()).capacity == 1
        service.kill()
        service.settings.write_text(settings)
        service.start()
        assert talk.ask(service.folder, talk.ListTasks()).capacity == 2
