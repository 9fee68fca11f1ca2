"""Who may ask a service what, and what becomes of those who ask nonsense."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from elasticflow.errors import ConfigError, RunError, UnknownError
from elasticflow.process.locked_files import hold
from elasticflow.process.unix_sockets import nearby
from elasticflow.run.config import Config
from elasticflow.service import talk
from elasticflow.service.marks import LOCK
from elasticflow.service.memory import Known, kind_of
from elasticflow.service.settings import ServiceConfig, folder_of, read_service_config


class Clerk:
    """Answers each question with what was asked, in a thread, until the test is over."""

    def __init__(self, folder: Path) -> None:
        self.desk = talk.Desk(folder)
        self.asked: list[talk.Question] = []
        self._over, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            poller = zmq.Poller()
            poller.register(self._over, zmq.POLLIN)
            for descriptor, sends in self.desk.waiting:
                poller.register(descriptor, zmq.POLLOUT if sends else zmq.POLLIN)
            if self._over.fileno() in dict(poller.poll()):
                return
            for person, question in self.desk.receive():
                self.asked.append(question)
                self.desk.answer(person, talk.ServiceAnswer(capacity=len(self.asked)))

    def close(self) -> None:
        self._end.close()
        self._thread.join()
        self._over.close()
        self.desk.close()


@pytest.fixture
def clerk(tmp_path: Path) -> Iterator[Clerk]:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    clerk = Clerk(folder)
    yield clerk
    clerk.close()


def connected(folder: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    with nearby(folder / talk.SOCKET) as near:
        line.connect(near)
    line.settimeout(20)
    return line


def test_it_answers_though_others_are_silent_or_talk_nonsense(clerk: Clerk, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    with connected(folder) as silent, connected(folder) as half, connected(folder) as wordy:
        half.sendall(b'{"type":"List')
        with pytest.raises(OSError):
            for _ in range(1000):
                wordy.sendall(b"x" * (1 << 16))
        assert talk.ask(folder, talk.Cancel(name="1-a")).capacity == 1
        assert clerk.asked == [talk.Cancel(name="1-a")]
        half.sendall(b'Tasks"}\n')
        assert msgspec.json.decode(half.recv(4096), type=talk.ServiceAnswer).capacity == 2
        silent.sendall(b'{"type":"Format"}\n')
        answer = msgspec.json.decode(silent.recv(4096), type=talk.ServiceAnswer)
        assert "not a question to this service" in answer.error


def test_many_who_say_nothing_keep_nobody_out(clerk: Clerk, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    with contextlib.ExitStack() as silent:
        lines = [silent.enter_context(connected(folder)) for _ in range(talk.MOST_PEOPLE + 5)]
        assert talk.ask(folder, talk.ListTasks()).capacity == 1
        assert lines[0].recv(1) == b"", "who came first has gone"


def test_nobody_else_is_answered(clerk: Clerk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("long" * 30)
    stranger = os.geteuid() + 1
    monkeypatch.setattr(talk, "uid_of", lambda line: stranger)
    with pytest.raises(RunError, match=f"answers nobody else; you are {stranger}"):
        talk.ask(folder, talk.ListTasks())
    assert clerk.asked == []
    monkeypatch.setattr(talk, "uid_of", lambda line: 0)
    assert talk.ask(folder, talk.ListTasks()).capacity == 1


def test_that_there_is_no_service_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no service is there; 'elasticflow serve FILE' starts one"):
        talk.ask(tmp_path, talk.ListTasks())
    with pytest.raises(RunError, match="no service is there"):
        talk.ask(tmp_path / "nowhere", talk.ListTasks())


def test_one_that_goes_away_may_be_asked_again(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        with nearby(tmp_path / talk.SOCKET) as near:
            listener.bind(near)
        listener.listen()
        dying = threading.Thread(target=lambda: listener.accept()[0].close())
        dying.start()
        with pytest.raises(UnknownError):
            talk.ask(tmp_path, talk.ListTasks())
        dying.join()


def test_a_run_is_handed_in_to_the_next_service_if_the_first_goes_away(tmp_path: Path) -> None:
    question = talk.HandIn(run_dir="/runs/a")
    with pytest.raises(RunError, match="no service is there"):
        talk.insist(tmp_path, question)
    with socket.socket(socket.AF_UNIX) as listener:
        with nearby(tmp_path / talk.SOCKET) as near:
            listener.bind(near)
        listener.listen()
        clerks: list[Clerk] = []

        def die() -> None:
            listener.accept()[0].close()
            listener.close()
            clerks.append(Clerk(tmp_path))

        dying = threading.Thread(target=die)
        dying.start()
        assert talk.insist(tmp_path, question).capacity == 1
        dying.join()
        assert clerks[0].asked == [question]
        clerks[0].close()


def test_one_that_begins_again_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = talk.ListTasks(under_way=False, over=0)
    talk.Desk(tmp_path).close()  # what one leaves that was killed
    clerks: list[Clerk] = []

    def begin(_: float) -> None:
        clerks.append(Clerk(tmp_path))

    with monkeypatch.context() as patch:
        patch.setattr(talk.time, "sleep", begin)
        assert talk.insist(tmp_path, question).capacity == 1
    clerks[0].close()

    lock = hold(tmp_path / LOCK)  # one that does not listen yet
    with pytest.raises(UnknownError, match="the service begins, and does not listen yet; ask again"):
        talk.ask(tmp_path, question)
    monkeypatch.setattr(talk, "ANSWER_S", 0.0)
    with pytest.raises(UnknownError, match="does not listen yet; ask again"):
        talk.insist(tmp_path, question)
    with pytest.raises(UnknownError, match="/runs/a: whether this run was taken in is not known"):
        talk.insist(tmp_path, talk.HandIn(run_dir="/runs/a"))
    os.close(lock)
    monkeypatch.setattr(talk, "RESTART_S", 0.0)
    with pytest.raises(RunError, match="no service is there"):
        talk.insist(tmp_path, question)


def test_what_was_learned_of_a_program_is_there_for_its_next_run(tmp_path: Path) -> None:
    first = Config(program="/a.py", program_sha256="1" * 64, epochs=3, run_dir="/runs/1", workers="1")
    later = msgspec.structs.replace(first, epochs=5, run_dir="/runs/2", seed=4)
    other = msgspec.structs.replace(first, batch_size=32)
    kind = kind_of(first)
    assert kind == kind_of(later) != kind_of(other)
    known = Known(tmp_path / "known.json")
    assert known.steps(kind, later) is None
    for rate in (3.0, 2.0, 100.0, 2.5, 2.25, 2.75):
        known.paced(kind, 2, rate)
    known.counted(kind, first, 30)
    again = Known(tmp_path / "known.json")
    assert again.rates(kind) == {2: 2.5} and again.spread(kind)[2] > 10
    assert again.steps(kind, later) == 50
    assert again.steps(kind, msgspec.structs.replace(later, max_steps=20)) == 20
    assert again.rates(kind_of(other)) == {}
    (tmp_path / "known.json").write_text("{")
    with pytest.raises(RunError, match="all programs are measured anew"):
        Known(tmp_path / "known.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("folders: a\n", "unknown key folders. Known keys: folder, nodes"),
        ("- a\n", "no names and values"),
        ("nodes: 0\n", "nodes"),
        ("workers_per_node: 3\n", "power of two"),
        ("policy: best\n", "policy: 'best'; allowed are elastic"),
        ("a: {\n", "is no YAML"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "service.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_service_config(str(tmp_path / "service.yaml"))


def test_the_file_of_settings_shows_all_defaults() -> None:
    conf = Path(__file__).parents[2] / "conf" / "service.yaml"
    assert read_service_config(str(conf)) == ServiceConfig()
    assert all(f"\n{name}:" in conf.read_text() for name in ServiceConfig.__struct_fields__)


def test_a_service_is_found_by_name_or_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder_of("gpus") == tmp_path / ".elasticflow" / "services" / "gpus"
    assert folder_of(f"{tmp_path}/gpus") == tmp_path / "gpus"
    assert folder_of("~/gpus") == tmp_path / "gpus"
