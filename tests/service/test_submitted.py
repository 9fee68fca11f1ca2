"""How the service follows a run whose leader is a cluster's job, whatever the cluster says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from elasticflow.errors import ConfigError, ElasticFlowError, UnknownError
from elasticflow.master.actions import EndAction
from elasticflow.master.members import RunState
from elasticflow.run.folder import Address, RunDir
from elasticflow.run.telling import Report
from elasticflow.service import happenings as hp
from elasticflow.service.follower import PAUSED, TRIES
from elasticflow.service.hands import Hands, RunSight
from elasticflow.service.state import Granted
from elasticflow.service.submitted import AGAIN_S, SILENT_S, SubmittedFollower
from elasticflow.wire.keys import MemberKeys, make_keys
from elasticflow.wire.messages import Grant, Situation, StopRequest, ToMaster
from tests.telling import Told

NONE, TWO = Granted(0, 4, "others need them", None), Granted(2, 4, "to be in time", None)
END = EndAction(RunState.STOPPED, "", "")
HERE = Address("tcp://127.0.0.1:1", "here", 1)


class PlayedHands(Hands):
    """Answers when the test says so. ordered: what was ordered last, and not answered yet."""

    def __init__(self) -> None:
        self.ordered: dict[str, Callable[..., None]] = {}

    def passes(self, error: ElasticFlowError) -> bool:
        return isinstance(error, UnknownError)

    def look_at(self, run: RunDir, answer: Callable[..., None]) -> None:
        self.ordered["look"] = answer

    def begin(self, run: RunDir, answer: Callable[..., None]) -> None:
        self.ordered["begin"] = answer

    def take_back(self, run: RunDir, answer: Callable[..., None]) -> None:
        self.ordered["end"] = answer


class Played(SubmittedFollower):
    """Its line is a list. now_s: goes on with each turn, by more than a look takes to be due."""

    def __init__(self, folder: Path) -> None:
        self.hands = PlayedHands()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        super().__init__(self.context, "1-a", str(folder), 30.0, self.hands)
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


def test_how_it_ended_is_told_and_one_that_gets_nowhere_is_given_up(run: Played) -> None:
    for _ in range(TRIES):
        assert run.see(GONE, TWO, 2) == []
        run.hands.ordered.pop("begin")("17")
    (over,) = run.see(GONE, TWO, 2)
    assert isinstance(over, hp.Over) and over.state == "failed" and "it was cancelled" in over.text
    done = GONE._replace(report=report("finished", "all done"))
    assert run.see(done, TWO, 2) == [hp.Over(name="1-a", state="finished", text="all done")]


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
