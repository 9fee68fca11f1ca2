"""How the service follows a run whose leader is a cluster's job, whatever the cluster says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from elasticflow.cluster.presence import Presence
from elasticflow.cluster.share import ClusterShare, ShareNode
from elasticflow.errors import ConfigError, ElasticFlowError, UnknownError
from elasticflow.master.actions import EndAction
from elasticflow.master.members import RunState
from elasticflow.run.config import make
from elasticflow.run.folder import UNKNOWN, Address, HostJob, RunDir, publish
from elasticflow.run.telling import Report
from elasticflow.service import hands
from elasticflow.service import happenings as hp
from elasticflow.service.follower import PAUSED, TRIES
from elasticflow.service.hands import Hands, RunFolder, RunSight, read_folder, sight_of
from elasticflow.service.marks import mark_of
from elasticflow.service.state import Granted
from elasticflow.service.submitted import AGAIN_S, SILENT, SILENT_S, SubmittedFollower
from elasticflow.wire.keys import MemberKeys, make_keys
from elasticflow.wire.messages import Grant, Situation, StopRequest, ToMaster
from tests.telling import Told

NONE, TWO = Granted(0, 4, "others need them", None), Granted(2, 4, "to be in time", None)
END = EndAction(RunState.STOPPED, "", "")
HERE = Address("tcp://127.0.0.1:1", "here", 1)


class PlayedHands(Hands):
    """Answers when the test says so. ordered: what was ordered last, and not answered yet.

    listening: what a folder tells at once; so often it was read.
    """

    def __init__(self) -> None:
        self.ordered: dict[str, Callable[..., None]] = {}
        self.listening, self.num_read = RunSight(True), 0

    def passes(self, error: ElasticFlowError) -> bool:
        return isinstance(error, UnknownError)

    def look_at(self, run: RunDir, answer: Callable[..., None]) -> None:
        self.ordered["look"] = answer

    def listen_for(self, run: RunDir, answer: Callable[..., None]) -> None:
        self.num_read += 1
        answer(self.listening)

    def begin(self, run: RunDir, answer: Callable[..., None]) -> None:
        self.ordered["begin"] = answer

    def take_back(self, run: RunDir, answer: Callable[..., None]) -> None:
        self.ordered["end"] = answer


class Played(SubmittedFollower):
    """Its line is a list. now_s: goes on with each turn, by more than a look takes to be due."""

    def __init__(self, folder: Path) -> None:
        self.hands = PlayedHands()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        super().__init__(self.context, "1-a", str(folder), 30.0, self.hands, mark="its own")
        self.told: list[ToMaster] = []
        self.now_s = 0.0

    def _connect(self, address: Address, keys: MemberKeys) -> None:
        super()._connect(address, keys)
        self.told = []

    def _send(self, message: ToMaster) -> None:
        self.told.append(message)

    def go(self, granted: Granted, held: int, after_s: float = SILENT_S) -> list[hp.Happening]:
        self.now_s += after_s
        return self.turn(granted, held, self.now_s)

    def see(self, sight: RunSight | ElasticFlowError, granted: Granted, held: int) -> list[hp.Happening]:
        """A look that shows this, and what follows from it."""
        self.go(granted, held, AGAIN_S)
        self.hands.ordered.pop("look")(sight)
        return self.go(granted, held, 0.0)

    def say(self, workers: int, number: int, step: int = 7) -> list[hp.Happening]:
        return self._take(
            Situation(number=number, workers=workers, ready=workers, step=step, steps=0), self.now_s
        )


ALIVE = RunSight(True, (HERE, make_keys().of("client")))
GONE = RunSight(False, words="it was cancelled")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Played]:
    run = Played(tmp_path)
    yield run
    run.close()
    run.context.term()


def report(state: str, text: str) -> Report:
    told = Told()
    return msgspec.structs.replace(told.story.report(told.state, END), state=state, text=text)


def test_a_leader_that_begins_is_told_its_grant_as_soon_as_it_listens(run: Played) -> None:
    run.see(RunSight(alive=False), TWO, 2)
    assert run.hands.num_read == 0
    run.hands.ordered.pop("begin")("17")
    run.go(TWO, 2, 0.1)
    run.go(TWO, 2, 0.1)
    assert run.hands.num_read == 2 and not run.told and not run.hands.ordered
    run.hands.listening = ALIVE
    run.go(TWO, 2, 0.1)
    assert run.has_answer
    run.go(TWO, 2, 0.0)
    assert run.told == [Grant(number=4, workers=2, why="to be in time")]
    run.go(TWO, 2, 0.1)
    assert run.hands.num_read == 3, "a folder may be far away: nobody reads it for nothing"


def test_it_is_submitted_once_and_told_its_grant_when_its_master_listens(run: Played) -> None:
    assert run.see(RunSight(alive=False), TWO, 2) == []
    run.go(TWO, 2)
    assert list(run.hands.ordered) == ["begin"], "nothing else is done until that is answered"
    run.hands.ordered.pop("begin")("17")
    assert run.see(RunSight(True, waits="its leader, job 17, waits: Resources"), TWO, 2) == []
    assert run.waits == "its leader, job 17, waits: Resources" and not run.hands.ordered
    assert run.see(ALIVE, TWO, 2) == []
    assert run.told == [Grant(number=4, workers=2, why="to be in time")]
    assert run.say(2, 4) == [hp.Held(name="1-a", workers=2, number=4)] and run.waits == ""


def test_one_that_speaks_is_not_looked_for_and_a_silent_one_keeps_what_it_has(run: Played) -> None:
    run.see(ALIVE, TWO, 2)
    for _ in range(5):
        run.say(2, 4)
        assert run.go(TWO, 2, SILENT_S / 2) == [] and not run.hands.ordered
    assert run.see(UnknownError("SLURM does not answer"), TWO, 2) == []
    assert run.see(RunSight(alive=True, waits="its master starts"), TWO, 2) == []
    assert run.see(ALIVE, TWO, 2) == [], "it is only slow"


def test_one_that_is_granted_workers_again_is_looked_for_at_once_unless_the_cluster_is_away(
    run: Played,
) -> None:
    run.see(GONE, NONE, 0)
    run.go(NONE, 0, SILENT_S / 2)
    assert not run.hands.ordered
    run.go(TWO, 2, 0.0)
    assert list(run.hands.ordered) == ["look"]
    run.hands.ordered.pop("look")(UnknownError("SLURM does not answer"))
    run.go(NONE, 0, 0.0)
    run.go(TWO, 2, 0.0)
    assert not run.hands.ordered, "it is asked again, but not at each grant"
    run.go(TWO, 2, AGAIN_S)
    assert list(run.hands.ordered) == ["look"]


def test_the_cluster_is_not_asked_for_one_of_which_nothing_is_left_before_it_is_to_begin(run: Played) -> None:
    paused = GONE._replace(report=report("stopped", PAUSED))
    assert run.see(paused, NONE, 2) == [hp.Held(name="1-a", workers=0, number=4)]
    assert run.see(paused, NONE, 2), "it is said again until that is known"
    for _ in range(3):
        run.go(NONE, 0, AGAIN_S)
        assert not run.hands.ordered
    run.go(TWO, 2, 0.0)
    run.hands.ordered.pop("look")(paused)
    run.go(TWO, 2, 0.0)
    assert list(run.hands.ordered) == ["begin"]


def test_one_for_which_no_connection_is_left_goes_on_and_is_tried_again(run: Played) -> None:
    run.context.max_sockets = 1
    other = run.context.socket(zmq.PAIR)
    assert run.see(ALIVE, TWO, 2) == []
    assert "two open files for each run" in run.waits and run.told == []
    other.close(linger=0)
    while not run.told:  # ZeroMQ has it back a moment later
        run.see(ALIVE, TWO, 2)
    assert run.told == [Grant(number=4, workers=2, why="to be in time")]


def test_what_the_cluster_has_answered_is_acted_on_in_a_turn_of_its_own(run: Played) -> None:
    run.go(TWO, 2, AGAIN_S)
    assert not run.has_answer
    run.hands.ordered.pop("look")(RunSight(alive=False))
    assert run.has_answer
    run.go(TWO, 2, 0.0)
    assert not run.has_answer and list(run.hands.ordered) == ["begin"]
    run.hands.ordered.pop("begin")("17")
    assert run.has_answer
    run.go(TWO, 2, 0.0)
    assert not run.has_answer


def test_what_workers_may_still_hold_after_their_leader_is_nobody_elses(run: Played) -> None:
    run.see(ALIVE, NONE, 2)
    assert run.told[-1] == StopRequest(reason=PAUSED)
    paused = report("stopped", PAUSED)
    assert run.see(GONE._replace(report=paused, places=2), NONE, 2) == []
    assert run.see(GONE._replace(report=paused, places=1), NONE, 2) == [
        hp.Held(name="1-a", workers=1, number=4)
    ]
    assert run.see(GONE._replace(report=paused), NONE, 1) == [hp.Held(name="1-a", workers=0, number=4)]
    assert run.see(GONE._replace(report=paused, places=1), TWO, 2) == []
    assert not run.hands.ordered, "it is not begun beside what is left of it"
    run.see(GONE._replace(report=paused), TWO, 2)
    assert list(run.hands.ordered) == ["begin"]


def test_a_leader_that_waits_is_taken_back_when_there_is_nothing_for_it(run: Played) -> None:
    for _ in range(2 * TRIES):
        run.see(RunSight(alive=False), TWO, 2)
        run.hands.ordered.pop("begin")("17")
        run.see(RunSight(alive=True, waits="Resources"), NONE, 2)
        run.hands.ordered.pop("end")("job 17 is cancelled; it had not begun")
        assert run.see(GONE, NONE, 2) == [hp.Held(name="1-a", workers=0, number=4)]


def test_one_that_was_held_is_begun_again_for_as_long_as_it_is_refused_and_people_hear_why(
    run: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as while its leader's QOS was taken away: it lacks nothing itself."""
    paused = GONE._replace(report=report("stopped", PAUSED))
    for _ in range(2 * TRIES):
        assert run.see(paused, TWO, 2) == []
        run.hands.ordered.pop("begin")(ConfigError("Invalid qos specification"))
        assert run.go(TWO, 2, 0.1) == [] and run.waits == "Invalid qos specification"
    assert capsys.readouterr().out.count("warning: 1-a: Invalid qos specification") == 1


def test_of_a_master_that_does_not_answer_people_hear_so_and_what_holds_it_up(run: Played) -> None:
    """Such as a job that is suspended. The run keeps what it has."""
    run.see(ALIVE, TWO, 2)
    assert run.waits == "", "it was only just found"
    assert run.see(ALIVE, TWO, 2) == [] and run.waits == SILENT
    assert run.see(ALIVE._replace(waits="it is suspended"), TWO, 2) == [] and run.waits == "it is suspended"
    run.say(2, 3)
    assert run.waits == ""
    run.hands.ordered.pop("look", None)
    run.go(TWO, 2)
    run.say(2, 3)
    run.hands.ordered.pop("look")(ALIVE)
    run.go(TWO, 2, 0.0)
    assert run.waits == "", "it answered while it was looked for"


def test_of_what_it_is_granted_people_hear_how_much_it_has(run: Played) -> None:
    """Such as where an account's limit lets no more begin. Why, its own status tells."""
    assert run.lacks(2) == "", "nobody has asked it"
    run._take(Situation(number=3, workers=2, ready=1, step=7, steps=0), 0.0)
    assert run.lacks(2) == "1 of 2 have begun, and its status tells why" and run.lacks(1) == ""


def test_how_it_ended_is_told_and_one_that_gets_nowhere_is_given_up(run: Played) -> None:
    for _ in range(TRIES):
        assert run.see(GONE, TWO, 2) == []
        run.hands.ordered.pop("begin")("17")
    (over,) = run.see(GONE, TWO, 2)
    assert isinstance(over, hp.Over) and over.state == "failed" and "it was cancelled" in over.text
    told = msgspec.structs.replace(report("finished", "all done"), step=8)
    assert run.see(GONE._replace(report=told), TWO, 2) == [
        hp.Over(name="1-a", state="finished", text="all done")
    ]
    assert run.step == 8, "however long ago its master has said one"


def test_another_run_in_its_folder_is_told_nothing_and_is_its_end(run: Played) -> None:
    for nothing in (None, "its own"):
        assert run.see(ALIVE._replace(mark=nothing), TWO, 2) == []
        run._let_go()
        run.told = []
    (over,) = run.see(ALIVE._replace(mark=""), TWO, 2)
    assert isinstance(over, hp.Over) and "another run has begun there" in over.text
    assert run.socket is None and not run.told


def test_a_cluster_that_does_not_take_it_just_now_is_asked_again_for_as_long_as_it_lasts(run: Played) -> None:
    for _ in range(2 * TRIES):
        run.see(RunSight(alive=False), TWO, 2)
        run.hands.ordered.pop("begin")(UnknownError("QOSMaxSubmitJobPerUserLimit"))
        assert run.go(TWO, 2) == [] and run.waits == "QOSMaxSubmitJobPerUserLimit"
        assert not run.hands.ordered
    for left in reversed(range(TRIES)):
        run.see(RunSight(alive=False), TWO, 2)
        run.hands.ordered.pop("begin")(ConfigError("no such partition"))
        happened = run.go(TWO, 2)
        assert bool(happened) is (left == 0)
    assert happened == [hp.Over(name="1-a", state="failed", text="cannot be begun: no such partition")]


class Found(ClusterShare):
    """A share whose cluster knows of a leader; asked: for which runs."""

    def __init__(self, id: str) -> None:
        super().__init__({})
        self.id, self.asked = id, 0

    def nodes(self) -> list[ShareNode]:
        return []

    def num_places(self, job: HostJob) -> int:
        return 0

    def leader_of(self, job: HostJob) -> str:
        self.asked += 1
        return self.id


def test_a_leader_that_somebody_submitted_who_was_killed_is_written_down_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path)
    publish(run.job, HostJob("slurm", UNKNOWN, "0123456789ab"))
    monkeypatch.setattr(hands, "presence_of", lambda _: Presence(str(tmp_path)))
    none, found = Found(""), Found("17")
    assert not sight_of(run, none).alive and none.asked == 1
    assert run.host() == HostJob("slurm", UNKNOWN, "0123456789ab"), "nobody knows yet whether it was taken"
    for _ in range(2):
        sight_of(run, found)
    assert run.host() == HostJob("slurm", "17", "0123456789ab") and found.asked == 1


def test_what_holds_up_a_master_that_there_is_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Suspended(Presence):
        def is_alive(self) -> bool:
            return True

        def paused(self) -> str:
            return "job 1 is suspended"

    run = RunDir(tmp_path)
    publish(run.job, HostJob("slurm", "1", "0123456789ab"))
    publish(run.address, HERE)
    monkeypatch.setattr(hands, "presence_of", lambda _: Suspended(str(tmp_path)))
    monkeypatch.setattr(hands, "read_keys", lambda *_: None)
    assert sight_of(run, Found("")).waits == "job 1 is suspended"


def test_a_folder_is_read_in_a_thread_and_what_is_wrong_with_it_is_an_answer(tmp_path: Path) -> None:
    run, answers = RunDir(tmp_path / "run"), []
    assert mark_of(run) is None
    at_work = Hands("slurm", Found(""))
    try:
        at_work.read(run, answers.append)
        wait(at_work, answers)
        run.create(make(None, {"program": "x.py"}))
        at_work.read(run, answers.append)
        wait(at_work, answers, 2)
    finally:
        at_work.close()
    missing, folder = answers
    assert isinstance(folder, RunFolder) and folder.mark == mark_of(run) == read_folder(run).mark
    assert isinstance(missing, ElasticFlowError)
    assert isinstance(folder, RunFolder) and folder.config.program == "x.py" and folder.owner


def wait(at_work: Hands, answers: list[object], number: int = 1) -> None:
    poller = zmq.Poller()
    for fd in at_work.fds:
        poller.register(fd, zmq.POLLIN)
    while len(answers) < number:
        assert poller.poll(60_000), "nobody answers"
        at_work.turn()
