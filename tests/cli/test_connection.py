"""A client and the masters of a run, one after the other: real sockets, a master that is none."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticflow.cli import connection, main
from elasticflow.cli.connection import Connection, status_of
from elasticflow.cluster import presence
from elasticflow.cluster.presence import NoMaster
from elasticflow.errors import EXIT_UNKNOWN, RunError
from elasticflow.master.actions import EndAction, NoteAction
from elasticflow.master.members import RunState
from elasticflow.run.folder import publish
from elasticflow.wire.messages import Answer, ScaleRequest, StatusRequest, StopRequest

from ..telling import Told
from .fake_master import FakeMaster, new_run


class Life:
    """A run's masters, and its lock."""

    def __init__(self, path: Path) -> None:
        self.run = new_run(path)
        self._lock = self.run.hold()
        self.master = FakeMaster(self.run)
        self._number = 1

    def next_master(self, same_port: bool = True, **options: Any) -> None:
        port = self.master.port if same_port else 0
        self.master.die()
        self._number += 1
        self.master = FakeMaster(self.run, self._number, port, **options)

    def note(self, text: str) -> None:
        self.master.change(lambda told: told.story.note(NoteAction("info", text)))

    def end(self, state: RunState = RunState.FINISHED, text: str = "all is done") -> None:
        """As a master ends: the report, the last status, the lock."""

        def over(told: Told) -> None:
            told.state.state = state
            publish(self.run.report, told.story.report(told.state, EndAction(state, text)))

        self.master.change(over)

    def close(self) -> None:
        self.master.die()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    life = Life(tmp_path / "run")
    yield life
    life.close()


def called(*arguments: object) -> tuple[threading.Thread, list[int]]:
    """A command that runs in a thread, and its exit code to come."""
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main([str(each) for each in arguments])))
    thread.start()
    return thread, codes


@pytest.mark.parametrize("same_port", [True, False])
def test_what_was_asked_of_a_master_that_died_is_asked_of_the_next(life: Life, same_port: bool) -> None:
    """It had seen much news; those of the next one are counted anew."""
    life.next_master(mute=True)
    with Connection(life.run) as connection:
        answers: list[Any] = []
        asking = threading.Thread(
            target=lambda: answers.append(connection.ask(StatusRequest(newer_than=500), timeout_s=20))
        )
        asking.start()
        life.master.wait_for(StatusRequest)
        life.next_master(same_port)
        asking.join()
    assert answers[0].status["master"]["incarnation"] == 3


def test_a_master_that_refuses(life: Life) -> None:
    with Connection(life.run) as connection, pytest.raises(RunError, match="from 1 to 8"):
        connection.ask(ScaleRequest(workers=9))


def test_a_master_that_is_silent_is_named(life: Life) -> None:
    life.next_master(mute=True)
    with Connection(life.run) as connection, pytest.raises(RunError, match=r"tcp://.* does not answer"):
        connection.ask(StatusRequest(), timeout_s=0.1)


def test_one_status_after_the_other_from_one_master_after_the_other(life: Life) -> None:
    with Connection(life.run) as connection:
        assert connection.next_status(20)
        assert connection.next_status(0.05) is None  # no news
        life.note("one")
        status = connection.next_status(20)
        assert status and [event.text for event in status.events] == ["one"]
        life.next_master(same_port=False)
        while status is None or status.master.incarnation == 1:
            status = connection.next_status()
        assert status.news == 0
        life.close()
        with pytest.raises(RunError, match="this run is over"):
            while True:
                connection.next_status()


@pytest.mark.parametrize("same_port", [True, False])
def test_what_is_insisted_on_every_master_hears(life: Life, same_port: bool) -> None:
    with Connection(life.run) as connection:
        connection.insist(StopRequest())
        life.master.wait_for(StopRequest)
        life.next_master(same_port)
        while not life.master.was_stopped:
            connection.next_status(0.1)
            life.note("there is news all the time")


def test_whoever_watches_waits_for_a_master_that_begins_slowly(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was insisted on meanwhile it hears, too; who only asks is told."""
    monkeypatch.setattr(connection, "START_S", 0.05)
    waited = threading.Event()
    with Connection(life.run) as asking, Connection(life.run, waiting=lambda text: waited.set()) as watching:
        assert watching.next_status(20) and asking.next_status(20)
        life.master.die()
        life.run.address.unlink()
        with pytest.raises(NoMaster, match="try again"):
            asking.next_status(0.05)
        watching.insist(StopRequest())
        begins = threading.Thread(target=lambda: waited.wait(20) and life.next_master())
        begins.start()
        while not life.master.was_stopped:
            watching.next_status(0.1)
        begins.join()


# --- commands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state, code", [(RunState.FINISHED, 0), (RunState.FAILED, 1), (RunState.STOPPED, 3)])
def test_attach_ends_with_the_runs_exit_code(
    life: Life, state: RunState, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the master dies meanwhile. What happened before is shown, though not all of it."""
    for number in range(30):
        life.note(f"event {number}")
    life.master.wait_for_changes()
    attached, codes = called("attach", life.run.path)
    life.master.wait_for(StatusRequest)
    life.next_master()
    life.note("of the second")
    life.master.wait_for(StatusRequest)
    life.end(state, "this is the end")
    life.master.wait_for_changes()
    life.close()
    attached.join()
    assert codes == [code]
    shown = capsys.readouterr()
    assert "event 29" in shown.out and "event 19" not in shown.out
    assert shown.out.count("of the second") == 1
    assert "this is the end" in (shown.err if code == 1 else shown.out.splitlines()[-1])


def test_attach_to_a_run_that_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path)
    assert main(["attach", str(tmp_path)]) == 1
    assert "this run is over, and left no report" in capsys.readouterr().err
    told = Told()
    publish(run.report, told.story.report(told.state, EndAction(RunState.STOPPED, "by somebody")))
    assert main(["attach", str(tmp_path)]) == 1
    assert "stopped, by somebody" in capsys.readouterr().err


def test_status_is_watched_through_a_masters_death(life: Life, capsys: pytest.CaptureFixture[str]) -> None:
    watching, codes = called("status", life.run.path, "--watch", "--json")
    life.master.wait_for(StatusRequest)
    life.note("one")
    life.master.wait_for_changes()
    life.next_master()
    life.master.wait_for(StatusRequest)
    life.end()
    life.master.wait_for_changes()
    watching.join()
    statuses = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
    news = [status["news"] for status in statuses]
    assert codes == [0] and news == sorted(set(news))
    assert statuses[-1]["state"] == "finished" and statuses[-1]["master"]["incarnation"] == 2


def test_stop_is_heard_by_the_next_master(life: Life, capsys: pytest.CaptureFixture[str]) -> None:
    stopping, codes = called("stop", life.run.path)
    life.master.wait_for(StopRequest)
    life.next_master()
    life.master.wait_for(StopRequest)
    life.end(RunState.STOPPED, "as asked")
    life.master.wait_for_changes()
    life.close()
    stopping.join()
    assert codes == [0] and "stopped: as asked" in capsys.readouterr().out


def test_scale(life: Life, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", str(life.run.path), "3"]) == 0
    assert main(["scale", str(life.run.path), "9"]) == 1
    assert "from 1 to 8" in capsys.readouterr().err


# --- the report ---------------------------------------------------------------------------------------


def disturbed(told: Told) -> None:
    """A story with one of everything."""
    told.progress(3, evaluations=((10, (0.25, 0.75)),))
    told.story.resized(2, 3, "asked for by scale")
    told.after(9).fault("server-1", "was killed by SIGKILL")
    told.after(0.5).regrouped(9, 6)
    told.after(1).progress(30, stalls=())
    told.fault("worker-2", "is silent")
    told.state.committed_tick = 5


def test_report_of_a_run_under_way(life: Life, capsys: pytest.CaptureFixture[str]) -> None:
    life.master.change(disturbed)
    life.master.wait_for_changes()
    assert main(["report", str(life.run.path)]) == 0
    shown = capsys.readouterr().out
    for words in (
        "running, after 0:1",
        "under way",
        "3 of them made again",
        "epoch 1, step 10: test cost 0.2500  accuracy 0.7500",
        "Faults: 2, which cost 1.50 s and 3 steps made again",
        "0:09  server-1  was killed by SIGKILL  1.50 s, 3 steps  went on from what the others held in memory",
        "2 to 3 asked for  asked for by scale",
        "Checkpoints: the last is of step 5",
    ):
        assert words in shown, shown


def test_report_of_a_run_that_is_over_and_of_one_that_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path)
    assert main(["report", str(tmp_path)]) == 1
    assert "before it had begun" in capsys.readouterr().err
    told = Told()
    disturbed(told)
    publish(run.path / "journal.json", {"incarnation": 4, "story": told.story.remembered()})
    assert main(["report", str(tmp_path)]) == 0
    killed = capsys.readouterr().out
    assert "killed, after 0:11" in killed and "go on with --resume" in killed and "3 steps" in killed
    assert main(["report", str(tmp_path), "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["steps_redone"] == 3
    publish(run.report, told.story.report(told.state, EndAction(RunState.FINISHED, "all is done")))
    assert main(["report", str(tmp_path)]) == 0
    ended = capsys.readouterr().out
    assert "finished, after 0:1" in ended and "all is done" in ended
    assert (
        ended.splitlines()[2:-1] == killed.splitlines()[2:-1]
    )  # all but the first, the program, checkpoints
    (run.path / "journal.json").write_text("{")
    run.report.unlink()
    assert main(["report", str(tmp_path)]) == 1
    assert "journal.json: cannot be read" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nowhere")]) == 1
    assert "is not the folder of a run" in capsys.readouterr().err


# --- a master that hangs ---------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["stop", "attach", "status", "scale"])
def test_nobody_waits_for_a_mute_master_for_ever(
    tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command ends with an error that says which process it is, and what to do."""
    monkeypatch.setattr(connection, "SILENT_S", 2.0)
    monkeypatch.setattr(connection, "PROBE_S", 1.0)
    monkeypatch.setattr(Connection.ask, "__defaults__", (1.0,))
    run = new_run(tmp_path / "run")
    lock, master = run.hold(), FakeMaster(run, mute=True)
    try:
        arguments = ["2"] if verb == "scale" else []
        assert main([verb, str(run.path), *arguments]) == EXIT_UNKNOWN
    finally:
        master.die()
        os.close(lock)
    said = capsys.readouterr().err
    assert "it is process 1 on here" in said and "kill -9 1" in said, said


def test_a_master_without_news_is_asked_whether_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not taken for one that hangs."""
    monkeypatch.setattr(connection, "SILENT_S", 1.0)
    monkeypatch.setattr(connection, "PROBE_S", 0.3)
    run = new_run(tmp_path / "run")
    lock, master = run.hold(), FakeMaster(run)
    try:
        with Connection(run) as line:
            assert line.next_status() is not None
            seen = [line.next_status(0.1) for _ in range(40)]
    finally:
        master.die()
        os.close(lock)
    assert any(seen) and not all(seen)


def test_a_run_that_says_that_it_ends_and_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(presence, "END_S", 0.1)
    run = new_run(tmp_path / "run", storage_patience_s=0.1)
    lock, master = run.hold(), FakeMaster(run)
    try:
        master.change(lambda told: setattr(told.state, "state", RunState.STOPPED))
        assert main(["stop", str(run.path)]) == 1
    finally:
        master.die()
        os.close(lock)
    assert "should have ended, and has not within 0.2 s" in capsys.readouterr().err


def test_a_run_whose_supervisor_hangs_before_there_is_a_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(presence.Presence, "master_s", 0.2)
    run = new_run(tmp_path / "run")
    lock = run.hold()
    try:
        assert main(["stop", str(run.path)]) == 1
    finally:
        os.close(lock)
    assert "has had no master for 0.2 s" in capsys.readouterr().err


def test_a_status_of_another_elasticflow_is_refused_in_words() -> None:
    with pytest.raises(RunError, match="another ElasticFlow, .* missing required field `run`"):
        status_of(Answer(status={"state": "running"}))
