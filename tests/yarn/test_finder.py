"""How members and clients tell whether a master lives, will come back, or will not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from elasticflow.cluster import finder as asking
from elasticflow.cluster import presence as presences
from elasticflow.cluster.finder import ASK_LAST_S, Orphaned
from elasticflow.cluster.presence import KEEP_S, NoMaster, Presence, RunEnd, find_address
from elasticflow.errors import ConfigError, UnknownError
from elasticflow.run.folder import UNKNOWN, Address, HostJob, RunDir, publish
from elasticflow_yarn import first
from elasticflow_yarn.errors import SkeinNotInstalled, YarnBusy, YarnError, YarnRefused
from elasticflow_yarn.finder import ASK_S, SUBMIT_S, YarnFinder, YarnPresence
from elasticflow_yarn.java import QUICK, skein_driver
from tests.clock import Clock
from tests.yarn.fakes import APP, FakeManager, app, yarn_id

ENDPOINT = "tcp://node1:4711"
BEAT_S = 0.5


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch, asking, presences)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path)
    publish(made.job, HostJob("yarn", APP, "0123456789ab"))
    publish(made.address, Address(ENDPOINT, "node1", 1))
    return made


def search(made: YarnFinder, clock: Clock, seconds: float = 60.0) -> str | None:
    """A member that hears nothing looks with each heartbeat; what it found last. Raises Orphaned."""
    end_s, found = clock.now_s + seconds, None
    while clock.now_s < end_s:
        clock.now_s += BEAT_S
        found = made.find()
    return found


# --- members ----------------------------------------------------------------------------------------


def test_it_finds_the_newest_address(run: RunDir, clock: Clock) -> None:
    made = YarnFinder(str(run.path), 600.0, yarn_id(3), cluster=FakeManager(app("RUNNING")))
    assert search(made, clock) == ENDPOINT
    publish(run.address, Address("tcp://node2:1", "node2", 1))
    assert made.find() == "tcp://node2:1"
    run.address.unlink()
    assert made.find() is None


def test_one_of_the_first_that_had_to_wait_does_not_take_a_later_attempts_master_for_its_own(
    run: RunDir, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = FakeManager(app("RUNNING"))
    made = YarnFinder(str(run.path), 600.0, yarn_id(3), cluster=manager)
    assert first.wait(made) == ENDPOINT and not manager.calls
    run.address.unlink()

    def sleep(seconds: float) -> None:
        publish(run.address, Address("tcp://node2:1", "node2", 1))

    monkeypatch.setattr(first, "time", SimpleNamespace(monotonic=clock.monotonic, sleep=sleep))
    assert first.wait(made) == "tcp://node2:1"
    run.address.unlink()
    manager.newest = 2
    with pytest.raises(Orphaned, match="is in attempt 2, and this is a container of attempt 1"):
        first.wait(made)


def test_one_of_the_first_does_not_wait_for_ever(
    run: RunDir, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.address.unlink()
    monkeypatch.setattr(first, "time", clock)
    with pytest.raises(Orphaned, match="none has begun within 600 s"):
        first.wait(YarnFinder(str(run.path), 600.0, "", cluster=FakeManager()))


def test_a_short_silence_is_nobodys_business(run: RunDir, clock: Clock) -> None:
    manager = FakeManager(app("RUNNING"))
    search(YarnFinder(str(run.path), 600.0, yarn_id(3), cluster=manager), clock, ASK_S / 2)
    assert manager.calls == 0


def test_a_long_one_is_asked_about_less_and_less_often(run: RunDir, clock: Clock) -> None:
    manager = FakeManager(app("RUNNING"))
    made = YarnFinder(str(run.path), 3600.0, yarn_id(3), cluster=manager)
    search(made, clock, 600.0)
    before = manager.calls
    search(made, clock, 600.0)
    assert 600.0 / (1.5 * ASK_LAST_S) - 1 <= (manager.calls - before) / 2 <= 600.0 / ASK_LAST_S + 1


@pytest.mark.parametrize("state", ["FINISHED", "FAILED", "KILLED"])
def test_an_application_that_is_over_has_no_master(run: RunDir, clock: Clock, state: str) -> None:
    made = YarnFinder(str(run.path), 600.0, yarn_id(3), cluster=FakeManager(app(state)))
    with pytest.raises(Orphaned, match=f"{APP} is {state}"):
        search(made, clock)


def test_one_that_yarn_has_forgotten_has_none(run: RunDir, clock: Clock) -> None:
    made = YarnFinder(str(run.path), 600.0, yarn_id(3), cluster=FakeManager(None))
    with pytest.raises(Orphaned, match="does not know"):
        search(made, clock)


def test_a_member_of_an_attempt_of_before_is_an_orphan(run: RunDir, clock: Clock) -> None:
    manager = FakeManager(app("RUNNING"), newest=2)
    with pytest.raises(Orphaned, match="in attempt 2, and this is a container of attempt 1"):
        search(YarnFinder(str(run.path), 600.0, yarn_id(3), cluster=manager), clock)
    assert search(YarnFinder(str(run.path), 600.0, yarn_id(3, 2), cluster=manager), clock) == ENDPOINT


@pytest.mark.parametrize(
    "error", [YarnBusy("no"), YarnRefused("403"), SkeinNotInstalled("no"), ConfigError("no")]
)
def test_what_cannot_be_known_is_waited_for(run: RunDir, clock: Clock, error: Exception) -> None:
    manager = FakeManager(None)
    manager.error = error
    made = YarnFinder(str(run.path), 600.0, yarn_id(3), cluster=manager)
    assert search(made, clock) == ENDPOINT and manager.calls > 1


def test_outside_of_a_container_only_the_folder_is_asked(run: RunDir, clock: Clock) -> None:
    manager = FakeManager(None)
    assert search(YarnFinder(str(run.path), 600.0, "", cluster=manager), clock) == ENDPOINT
    assert manager.calls == 0


# --- clients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "alive"),
    [("NEW", True), ("ACCEPTED", True), ("RUNNING", True), ("FINISHED", False), ("KILLED", False)],
)
def test_a_run_is_alive_as_long_as_its_application(run: RunDir, state: str, alive: bool) -> None:
    assert YarnPresence(str(run.path), FakeManager(app(state))).is_alive() is alive


def test_a_run_with_a_report_is_over(run: RunDir) -> None:
    run.report.write_text("{}")
    assert not YarnPresence(str(run.path), FakeManager(app("RUNNING"))).is_alive()


def test_while_yarn_does_not_answer_what_it_said_last_is_true(run: RunDir, clock: Clock) -> None:
    manager = FakeManager(app("RUNNING"))
    presence = YarnPresence(str(run.path), manager)
    assert presence.is_alive()
    manager.error = YarnBusy("no")
    clock.now_s += 2 * KEEP_S
    assert presence.is_alive()


def test_whoever_may_not_ask_is_told(run: RunDir) -> None:
    manager = FakeManager()
    manager.error = YarnRefused("403 Forbidden")
    with pytest.raises(UnknownError, match="403 Forbidden"):
        YarnPresence(str(run.path), manager).is_alive()


def test_while_yarn_is_silent_nobody_is_told_that_a_run_is_over_or_not(run: RunDir) -> None:
    manager = FakeManager()
    manager.error = YarnBusy("no answer")
    one = YarnPresence(str(run.path), manager)
    assert one.is_alive() and one.silence() == "no answer"
    run.address.unlink()
    with pytest.raises(NoMaster, match="whether it goes on is not known just now: no answer"):
        find_address(run, one, 0.0)


def test_yarns_own_word_of_an_end(run: RunDir) -> None:
    killed = app("KILLED", diagnostics="Application killed by user ann.\n")
    one = YarnPresence(str(run.path), FakeManager(killed))
    assert one.end() == RunEnd(APP, "KILLED", "ended as KILLED: Application killed by user ann")
    gone = YarnPresence(str(run.path), FakeManager(None))
    assert gone.end() == RunEnd(APP, "", "is not known to YARN any more, which forgets applications")


def test_an_answer_is_kept_for_a_moment(run: RunDir, clock: Clock) -> None:
    manager = FakeManager(app("RUNNING"))
    presence = YarnPresence(str(run.path), manager)
    assert all(presence.is_alive() for _ in range(5)) and manager.calls == 1


def test_a_run_that_is_being_submitted_is_alive_for_a_while(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(run.job, HostJob("yarn", UNKNOWN, "0123456789ab"))
    presence = YarnPresence(str(run.path), FakeManager(None))
    assert presence.is_alive()
    assert presence.waits_for().startswith(
        "it is being submitted; if who does that was killed, that is known"
    )
    later = run.job.stat().st_mtime + SUBMIT_S + 1
    monkeypatch.setattr(presences, "time", SimpleNamespace(monotonic=lambda: 1e9, time=lambda: later))
    assert not presence.is_alive()


def test_what_a_master_of_before_has_left_is_no_master(run: RunDir) -> None:
    waiting = YarnPresence(
        str(run.path), FakeManager(app("ACCEPTED", diagnostics="AM limit exceeded.\nmore"))
    )
    assert waiting.is_alive() and not waiting.has_master()
    queue = "queue train uses 0 MiB of at most 8 GPUs, 64 GiB and 16 vcores"
    assert waiting.waits_for() == f"{APP} is ACCEPTED: AM limit exceeded.; {queue}"
    running = YarnPresence(str(run.path), FakeManager(app("RUNNING")))
    assert running.is_alive() and running.has_master()
    assert running.waits_for() == Presence(str(run.path)).waits_for()


class Driver:
    """Skein's. killed: the applications that it was told to kill."""

    killed: list[str] = []

    def __init__(self, log: str | None, java_options: list[str]) -> None:
        self.log, self.java_options = log, java_options

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def kill_application(self, id: str) -> None:
        self.killed.append(id)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    import skein

    monkeypatch.setattr(skein, "Client", Driver)
    monkeypatch.setattr("elasticflow_yarn.preflight.check_tools", lambda environ: None)
    Driver.killed = []
    return Driver.killed


def test_what_users_set_for_skeins_java_holds(killed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEIN_DRIVER_JAVA_OPTIONS", "-XX:TieredStopAtLevel=4 -Xmx1g")
    assert skein_driver().java_options == [QUICK, "-XX:TieredStopAtLevel=4", "-Xmx1g"], "the last one counts"


def test_what_skeins_java_says_is_not_in_our_output(killed: list[str]) -> None:
    """Where Skein is given no log, that process writes to the stdout of this one."""
    assert skein_driver().log is False and skein_driver("driver.log").log == "driver.log"


def test_a_run_that_has_not_begun_is_cancelled(run: RunDir, killed: list[str]) -> None:
    run.address.unlink()
    presence = YarnPresence(str(run.path), FakeManager(app("ACCEPTED"), newest=1))
    assert presence.cancel() == f"{APP} is killed; it had not begun" and killed == [APP]


@pytest.mark.parametrize(("state", "newest"), [("RUNNING", 1), ("ACCEPTED", 2), ("FINISHED", 1)])
def test_one_that_has_begun_is_not(run: RunDir, killed: list[str], state: str, newest: int) -> None:
    run.address.unlink()
    presence = YarnPresence(str(run.path), FakeManager(app(state), newest=newest))
    assert presence.cancel() == "" and killed == []


def test_one_that_begins_meanwhile_is_not(
    run: RunDir, killed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.address.unlink()
    manager = FakeManager(app("ACCEPTED"), newest=1)

    def enter(driver: Driver) -> Driver:
        manager.found = app("RUNNING")
        return driver

    monkeypatch.setattr(Driver, "__enter__", enter)
    assert YarnPresence(str(run.path), manager).cancel() == "" and killed == []


def test_to_wait_until_it_is_over(run: RunDir, clock: Clock) -> None:
    manager = FakeManager(app("RUNNING"))
    presence = YarnPresence(str(run.path), manager)
    slept = clock.sleep

    def sleep(seconds: float) -> None:
        slept(seconds)
        manager.found = app("FINISHED") if clock.now_s > 1010.0 else manager.found

    clock.time.sleep = sleep  # type: ignore[attr-defined]
    presence.wait_until_over(60.0)
    assert 1010.0 < clock.now_s < 1010.0 + 2 * KEEP_S


def test_a_skein_that_does_not_start_is_told(
    run: RunDir, killed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In our words, as a service and 'stop' tell them; not as a traceback."""
    import skein

    def fails(**options: object) -> Driver:
        raise skein.exceptions.DriverError("Failed to start java process")

    monkeypatch.setattr(skein, "Client", fails)
    run.address.unlink()
    presence = YarnPresence(str(run.path), FakeManager(app("ACCEPTED"), newest=1))
    with pytest.raises(YarnError, match=rf"{APP}: is not ended: Failed to start java process; .* -kill'"):
        presence.cancel()


def test_no_yarn_on_the_path_is_told_before_skein_starts(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    run.address.unlink()
    presence = YarnPresence(str(run.path), FakeManager(app("ACCEPTED"), newest=1))
    with pytest.raises(SkeinNotInstalled, match="'yarn' on PATH"):
        presence.cancel()
