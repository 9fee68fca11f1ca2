"""The backend's threads and clocks, with an application that is not there."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from elasticflow.cli import page
from elasticflow.cluster import sized
from elasticflow.cluster.contract import Ended, How
from elasticflow.errors import RunError
from elasticflow.master.fence import Superseded
from elasticflow.run import config as configs
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.settings import MemberSettings
from elasticflow_yarn import backend as backends
from elasticflow_yarn import containers, ending
from elasticflow_yarn.backend import YarnBackend
from elasticflow_yarn.config import YarnConfig
from elasticflow_yarn.container import MEMBER
from elasticflow_yarn.ending import Ending
from elasticflow_yarn.errors import ApplicationGone, YarnBusy, YarnError, YarnRefused
from tests.yarn.fakes import FakeApplication, FakeManager, node, yarn_id

FAILED = "Container failed during execution, see logs for more information."


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


@pytest.fixture(autouse=True)
def without_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "start_page", lambda run_dir, show: show("http://127.0.0.1:1/t/"))


@pytest.fixture
def application() -> FakeApplication:
    return FakeApplication()


@pytest.fixture
def begin(
    run: RunDir, application: FakeApplication, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., YarnBackend]]:
    """Starts a backend; all are ended."""
    monkeypatch.setenv("CONTAINER_ID", yarn_id(1))
    monkeypatch.setenv("NM_HOST", "node0")
    monkeypatch.setenv("NM_HTTP_PORT", "8042")
    begun: list[YarnBackend] = []

    def start(manager: FakeManager | None = None) -> YarnBackend:
        made = YarnBackend(settings(), str(run.path), application, lambda: manager or FakeManager())
        begun.append(made)
        return made

    yield start
    application.error = None
    application.hangs.set()
    for each in begun:
        each.abandon()


def settings() -> Config:
    yarn = {"queue": "train", "poll_s": 0.02, "rm_poll_s": 0.05, "gpus": 2, "gpu_devices": "0,1"}
    return configs.make(None, {"program": "digits.py", "workers": "1..4", "backend": "yarn"}, {"yarn": yarn})


def member(name: str) -> MemberSettings:
    role = name.partition("-")[0]
    return MemberSettings.of(
        settings(), name=name, role=role, host="", master="tcp://m:1", run_dir="hdfs:///r", started_s=5.0
    )


def until(backend: YarnBackend, is_so: Callable[[], bool]) -> list[Ended]:
    """Does what a master's loop does; what has ended until then."""
    ended: list[Ended] = []
    poller = select.poll()
    for fd in backend.wait_fds():
        poller.register(fd, select.POLLIN)
    deadline = time.monotonic() + 30.0
    while not is_so():
        assert time.monotonic() < deadline, backend.shortage()
        next_s = backend.next_time_s()
        wait_s = 1.0 if next_s is None else max(0.0, next_s - time.monotonic())
        poller.poll(min(wait_s, 1.0) * 1000)
        ended += backend.ended()
    return ended


def test_members_become_containers_that_know_what_they_are_to_do(
    begin: Callable[..., YarnBackend], application: FakeApplication
) -> None:
    backend = begin()
    backend.start(member("server-0"))
    backend.start(member("worker-1"))
    until(backend, lambda: len(application.kept) == 2 and backend.shortage() == "")
    assert sorted(application.kept.values()) == ["server-0", "worker-1"]
    envs = {application.kept[f"member/{id}"]: env for id, env in application.env.items()}
    told = msgspec.json.decode(bytes.fromhex(envs["worker-1"][MEMBER]), type=MemberSettings)
    assert told == msgspec.structs.replace(member("worker-1"), started_s=0.0)
    assert envs["worker-1"]["ELASTICFLOW_GPUS"] == "2" and envs["server-0"]["ELASTICFLOW_GPUS"] == "0"
    assert backend.num_running == 2
    assert " on node node1:8042" in backend.where("worker-1") and backend.where("worker-9") == ""


def test_workers_leave_nodes_that_are_being_decommissioned(
    begin: Callable[..., YarnBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sized, "DRAINED_POLLS", 2)
    manager = FakeManager()
    backend = begin(manager)
    backend.start(member("worker-1"))
    backend.start(member("server-0"))
    until(backend, lambda: backend.shortage() == "")
    manager.all_nodes = [msgspec.structs.replace(node(), state="DECOMMISSIONING")]
    told: dict[str, str] = {}
    until(backend, lambda: bool(told.update(backend.returns()) or told))
    assert told == {"worker-1": "leaves: its node node1:8042 is being drained"}


def test_where_members_are_is_written_down_for_those_who_look_for_logs(
    begin: Callable[..., YarnBackend], run: RunDir
) -> None:
    backend = begin()
    backend.start(member("worker-1"))
    until(backend, lambda: containers.path(run).exists() and "worker-1" in containers.read(run))
    placed = containers.read(run)
    assert placed["master"] == containers.PlacedContainer(yarn_id(1), "node0:8042")
    assert placed["worker-1"].node == "node1:8042"


def test_what_was_written_down_of_members_before_stays_though_it_cannot_be_read_for_a_while(
    begin: Callable[..., YarnBackend], run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    containers.write(run, {"worker-9": containers.PlacedContainer(yarn_id(9), "node9:8042")})
    read, reads = containers.read, []

    def read_later(run: RunDir) -> dict[str, containers.PlacedContainer]:
        reads.append(run)
        if len(reads) == 1:
            raise RunError("containers.json: cannot be read") from ConnectionRefusedError("no NameNode")
        return read(run)

    monkeypatch.setattr(containers, "read", read_later)
    backend = begin()
    backend.start(member("worker-1"))
    until(backend, lambda: len(reads) > 1 and "worker-1" in read(run))
    assert "worker-9" in read(run)


def test_an_end_is_told_with_the_members_last_words(
    begin: Callable[..., YarnBackend], application: FakeApplication, run: RunDir
) -> None:
    backend = begin()
    backend.start(member("worker-1"))
    until(backend, lambda: bool(backend.where("worker-1")) and backend.shortage() == "")
    ((id, container),) = application.known.items()
    ending.write(run, "worker-1", Ending(1, "KeyError: 'label'", container.yarn_id, "node1"))
    application.end(id, "FAILED", FAILED)
    heard: list[Ended] = []
    while not heard:
        heard += until(backend, lambda: backend.num_running == 0)
        heard += backend.ended()
    (ended,) = heard
    assert ended.how is How.FAILED and "KeyError: 'label'" in ended.text


def test_whoever_is_killed_is_not_told_of(
    begin: Callable[..., YarnBackend], application: FakeApplication
) -> None:
    backend = begin()
    backend.start(member("worker-1"))
    until(backend, lambda: backend.shortage() == "")
    backend.kill("worker-1")
    assert until(backend, lambda: backend.num_running == 0) == []
    assert [each.state for each in application.known.values()] == ["KILLED"]


def test_a_specification_without_its_services_is_refused(
    run: RunDir, application: FakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = application.services()
    monkeypatch.setattr(application, "services", lambda: {"server": services["server"]})
    with pytest.raises(YarnRefused, match="no service worker; the master needs worker and server"):
        YarnBackend(settings(), str(run.path), application, FakeManager)


def test_another_master_finds_them_and_what_has_ended(
    begin: Callable[..., YarnBackend], application: FakeApplication
) -> None:
    first = begin()
    for name in ("worker-1", "worker-2", "worker-3"):
        first.start(member(name))
    until(first, lambda: len(application.kept) == 3 and first.shortage() == "")
    first.abandon()
    ids = {name: key.removeprefix("member/") for key, name in application.kept.items()}
    application.end(ids["worker-2"], "FAILED", "Container preempted by scheduler")
    del application.kept[f"member/{ids['worker-3']}"]  # it died before it could say so
    second = begin()
    assert second.living(["worker-1", "worker-2", "worker-3"]) == {"worker-1": 0}
    (ended,) = second.ended()
    assert (ended.name, ended.how) == ("worker-2", How.TAKEN) and "was preempted" in ended.text
    until(second, lambda: application.known[ids["worker-3"]].over)
    assert application.known[ids["worker-1"]].state == "RUNNING"


def test_the_first_containers_are_members_without_being_asked_for(
    begin: Callable[..., YarnBackend], application: FakeApplication, run: RunDir
) -> None:
    application.begin_with(worker=1, server=1)
    backend = begin()
    for name in ("server-0", "server-1", "worker-1", "worker-2"):
        backend.start(member(name))
    until(backend, lambda: len(application.kept) == 2 and backend.shortage() == "")
    assert sorted(application.kept.values()) == ["server-1", "worker-2"]
    assert len(application.known) == backend.num_running == 4
    until(backend, lambda: containers.path(run).exists() and "worker-1" in containers.read(run))
    backend.kill("worker-1")
    until(backend, lambda: application.known["worker_0"].state == "KILLED")


def test_another_master_finds_the_first_containers_too(
    begin: Callable[..., YarnBackend], application: FakeApplication
) -> None:
    application.begin_with(worker=3, server=1)
    begin().abandon()  # before it has said whom it wants
    application.end("worker_1", "FAILED", FAILED)
    assert begin().living() == {"server-0": 0, "worker-1": 0, "worker-3": 0}


def test_those_of_a_later_attempt_are_ended(
    begin: Callable[..., YarnBackend], application: FakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    application.begin_with(worker=1)
    begin().abandon()
    monkeypatch.setenv("CONTAINER_ID", yarn_id(1, attempt=2))
    backend = begin()
    assert backend.living(["worker-1"]) == {}
    backend.start(member("worker-2"))
    until(backend, lambda: application.known["worker_0"].over and backend.shortage() == "")
    assert list(application.kept.values()) == ["worker-2"] and backend.notes() == []


def test_in_a_new_attempt_there_is_nobody(begin: Callable[..., YarnBackend]) -> None:
    assert begin().living(["worker-1"]) == {}


def test_a_container_whose_name_could_not_be_kept_is_ended(
    begin: Callable[..., YarnBackend], application: FakeApplication
) -> None:
    backend = begin()
    application.put_error = YarnBusy("the ApplicationMaster does not answer within 10 s")
    backend.start(member("worker-1"))
    backend.start(member("worker-2"))
    ended: list[Ended] = []
    while not ended:
        ended += until(backend, lambda: bool(application.known))
        ended += backend.ended()
    application.put_error = None
    assert ended[0].how is How.TAKEN and "was not started" in ended[0].text
    backend.start(member("worker-3"))
    until(backend, lambda: any(each.over for each in application.known.values()))


def test_without_its_application_master_a_master_is_superseded(
    begin: Callable[..., YarnBackend], application: FakeApplication
) -> None:
    backend = begin()
    backend.start(member("worker-1"))
    until(backend, lambda: backend.shortage() == "")
    application.error = ApplicationGone("the ApplicationMaster does not answer: Unable to connect")
    with pytest.raises(Superseded, match="its ApplicationMaster is gone"):
        until(backend, lambda: False)


def test_nor_does_one_begin(
    begin: Callable[..., YarnBackend], application: FakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "GONE_S", 0.1)
    application.error = ApplicationGone("the ApplicationMaster does not answer: Unable to connect")
    with pytest.raises(Superseded):
        begin()


def test_what_is_refused_for_ever_ends_the_run(
    begin: Callable[..., YarnBackend], application: FakeApplication
) -> None:
    backend = begin()
    assert backend.comes_again()
    application.add_error = YarnRefused("Skein refuses: Unknown service 'worker'")
    backend.start(member("worker-1"))
    with pytest.raises(RunError, match="Unknown service"):
        until(backend, lambda: False)
    assert not backend.comes_again()


def test_close_ends_all(begin: Callable[..., YarnBackend], application: FakeApplication) -> None:
    backend = begin()
    for name in ("server-0", "worker-1"):
        backend.start(member(name))
    until(backend, lambda: len(application.kept) == 2 and backend.shortage() == "")
    backend.close()
    assert all(each.state == "KILLED" for each in application.known.values())


def test_abandon_ends_nobody_and_waits_for_nobody(
    begin: Callable[..., YarnBackend], application: FakeApplication
) -> None:
    backend = begin()
    backend.start(member("worker-1"))
    until(backend, lambda: backend.shortage() == "")
    application.hangs.clear()
    backend.look()
    backend.abandon()
    assert [each.state for each in application.known.values()] == ["RUNNING"]


def test_a_resource_manager_that_hangs_holds_nobody_else_up(
    begin: Callable[..., YarnBackend], application: FakeApplication
) -> None:
    manager = FakeManager()
    backend = begin(manager)
    backend.start(member("worker-1"))
    until(backend, lambda: backend.shortage() == "")
    manager.error = YarnBusy("the ResourceManager does not answer")
    ((id, _),) = application.known.items()
    application.end(id, "FAILED", "Container preempted by scheduler")
    ended: list[Ended] = []
    while not ended:
        ended += until(backend, lambda: backend.num_running == 0)
        ended += backend.ended()
    assert ended[0].how is How.TAKEN


def test_yarn_is_told_of_the_progress(
    begin: Callable[..., YarnBackend], application: FakeApplication
) -> None:
    backend = begin()
    backend.tell_progress(0.25)
    until(backend, lambda: application.progress == 0.25)


@pytest.mark.parametrize("error", [YarnError("Skein: no"), OSError("no port"), RunError("no keys")])
def test_a_page_that_cannot_be_shown_is_no_reason_to_end(
    begin: Callable[..., YarnBackend], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run_dir: str, application: object) -> None:
        raise error

    monkeypatch.setattr(page, "start_page", fail)
    backend = begin()
    notes: list[tuple[str, str]] = []
    backend.start(member("worker-1"))

    def is_told() -> bool:
        notes.extend(backend.notes())
        return any("there is no page" in text for _, text in notes)

    until(backend, is_told)
    assert ("warning", f"there is no page in the application's web UI: {error}") in notes


def test_settings_name_the_queue() -> None:
    assert YarnConfig().queue == "default" and settings().yarn["queue"] == "train"
