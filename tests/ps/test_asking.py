"""The leading server asks what the program says to an evaluation: real sockets, and a worker made for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_job import WAIT_S, FakeWorker, Job

from elasticflow.errors import BrokenError
from elasticflow.storage import DirectoryStorage
from elasticflow.training.advice import Advice, Question, Tuning, go_on, stop
from elasticflow.training.standing import WatchRules, WatchStanding
from elasticflow.wire.messages import Advise, Consult, Progress, Pull, Written

ASKED = 40
"""The first tick that evaluates."""
STANDING = WatchStanding(rules=WatchRules(consults="its hash"))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(DirectoryStorage(tmp_path))
    yield job
    job.close()


@pytest.fixture
def worker(job: Job) -> Iterator[FakeWorker]:
    """It has pushed all of the evaluation, and waits."""
    worker = FakeWorker()
    worker.connect(job.assign(standing=STANDING))
    worker.train(ASKED)
    worker.push()
    yield worker
    worker.close()


def asked(worker: FakeWorker) -> Question:
    message = worker.wait_for_anything(0)
    assert isinstance(message, Consult), message
    return message.question


def say(worker: FakeWorker, tick: int, advice: Advice) -> None:
    worker.links[0][0].send(Advise(tick=tick, advice=advice))


def test_nothing_is_said_or_written_before_there_is_an_answer(job: Job, worker: FakeWorker) -> None:
    assert worker.orders.cut, "there is to be a checkpoint of what it says"
    question, leader = asked(worker), job.row[0].link
    assert (question.tick, question.memory, question.tuning) == (ASKED, "", Tuning())
    assert set(json.loads(question.values)) == {"cost", "accuracy"}
    told = [message for message in leader.said if isinstance(message, (Progress, Written))]
    assert all(isinstance(message, Progress) and message.version <= ASKED for message in told)
    say(worker, ASKED - 1, stop("of nothing that it was asked"))
    say(worker, ASKED, go_on(lr_scale=0.5, memory=[1]))
    worker._collect()
    assert (worker.version, worker.orders.tuning) == (ASKED + 1, Tuning(factor=0.5))
    written = leader.hear(Written).standing
    assert written and not written.asks and written.memory == "[1]"
    progress = leader.hear(Progress, lambda message: bool(message.standings))
    assert progress.version == ASKED + 1 and progress.standings == (written,)
    assert [tick for tick, _ in progress.evaluations] == [ASKED]
    say(worker, ASKED, go_on(lr_scale=0.5, memory=[1]))  # another worker, later
    say(worker, ASKED, Advice(error="there was no memory"))
    worker.train(ASKED + 3)


def test_the_run_ends_if_it_says_so(job: Job, worker: FakeWorker) -> None:
    asked(worker)
    say(worker, ASKED, stop("enough"))
    worker._collect()
    assert worker.orders.ends
    written = job.row[0].link.hear(Written).standing
    assert written and written.advised == "enough" and written.stops(ASKED + 1)
    assert job.row[0].link.hear(Progress, lambda message: message.last).version == ASKED + 1


def test_two_answers_end_the_run(job: Job, worker: FakeWorker) -> None:
    """The first of them may be in the model by then."""
    asked(worker)
    say(worker, ASKED, go_on(lr=0.1))
    worker._collect()
    say(worker, ASKED, go_on(lr=0.2))
    leader = job.row[0]
    leader._thread.join(WAIT_S)
    error, leader.error = leader.error, None
    assert isinstance(error, BrokenError) and "of the same evaluation" in str(error)


def test_who_dies_with_the_question_is_not_waited_for(job: Job, worker: FakeWorker) -> None:
    question = asked(worker)
    worker.disconnect()
    other = FakeWorker("worker-2")
    other.greet(job.assignment)
    for link, _ in other.links:
        link.send(Pull(version=-1))
    assert asked(other) == question
    say(other, ASKED, go_on())
    other._collect()
    assert other.version == ASKED + 1
    other.close()


def test_a_generation_that_begins_with_a_question(job: Job) -> None:
    """As one that is resumed after ``on_epoch`` had raised."""
    first = FakeWorker()
    first.connect(job.assign(standing=STANDING))
    first.train(ASKED)
    first.push()
    asked(first)
    first.wait_for_one_parcel(1)  # the other server has applied it too, and offers what follows
    pending = STANDING.after(ASKED, ASKED, {"cost": 1.0, "accuracy": 0.5})
    job.regroup(standing=pending)
    assert job.assignment.start_tick == ASKED + 1
    first.greet(job.assignment)
    for link, _ in first.links:
        link.send(Pull(version=-1))
    assert asked(first) == pending.question
    say(first, ASKED, go_on(lr=0.5))
    first._collect()
    assert first.orders.tuning == Tuning(lr=0.5)
    first.train(ASKED + 3)
    first.close()
