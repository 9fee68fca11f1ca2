"""What asks SLURM waits for it; whoever gives the orders does not."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from elasticflow.cluster import clerk as module
from elasticflow.cluster.clerk import Clerk
from elasticflow_slurm.client import SlurmBusy, SlurmError, SlurmRefused

PATIENCE_S = 20.0


@pytest.fixture
def clerk() -> Iterator[Clerk[SlurmError]]:
    made = Clerk(SlurmError)
    yield made
    made.close()


def turn(clerk: Clerk[SlurmError]) -> None:
    """Waits for answers, and gives them."""
    assert select.select([clerk.fd], [], [], PATIENCE_S)[0], "no answer comes"
    clerk.turn()


def readable(clerk: Clerk[SlurmError]) -> bool:
    return bool(select.select([clerk.fd], [], [], 0)[0])


def test_an_answer_is_given_in_the_thread_of_who_turns(clerk: Clerk[SlurmError]) -> None:
    threads: list[threading.Thread] = []
    answers: list[int] = []

    def act() -> int:
        threads.append(threading.current_thread())
        return 7

    def answer(value: Any) -> None:
        threads.append(threading.current_thread())
        answers.append(value)

    clerk.order(act, answer)
    assert answers == []
    turn(clerk)
    assert answers == [7] and threads[0].name == "clerk" and threads[1] is threading.current_thread()
    assert not readable(clerk)


def test_one_thing_after_the_other(clerk: Clerk[SlurmError]) -> None:
    answers: list[Any] = []
    at_once = 0
    most = 0

    def act(number: int) -> int:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.001)
        at_once -= 1
        return number

    for number in range(50):
        clerk.order(lambda number=number: act(number), answers.append)  # type: ignore[misc]
    while len(answers) < 50:
        turn(clerk)
    assert answers == list(range(50)) and most == 1


@pytest.mark.parametrize("error", [SlurmBusy("no answer"), SlurmRefused("invalid account")])
def test_slurms_errors_are_answers(clerk: Clerk[SlurmError], error: Exception) -> None:
    def act() -> None:
        raise error

    answers: list[Any] = []
    clerk.order(act, answers.append)
    clerk.order(lambda: 1, answers.append)
    while len(answers) < 2:
        turn(clerk)
    assert answers == [error, 1]


def test_a_bug_is_seen_and_does_not_end_the_clerk(clerk: Clerk[SlurmError]) -> None:
    answers: list[Any] = []
    clerk.order(lambda: 1 // 0, answers.append)
    with pytest.raises(ZeroDivisionError):
        turn(clerk)
    clerk.order(lambda: 1, answers.append)
    turn(clerk)
    assert answers == [1]


def test_who_orders_never_waits(clerk: Clerk[SlurmError]) -> None:
    goes_on = threading.Event()
    answers: list[Any] = []
    begun_s = time.monotonic()
    clerk.order(lambda: goes_on.wait(PATIENCE_S), answers.append)
    for number in range(100):
        clerk.order(lambda number=number: number, answers.append)  # type: ignore[misc]
        clerk.turn()
    assert time.monotonic() - begun_s < 5.0 and answers == []
    goes_on.set()
    while len(answers) < 101:
        turn(clerk)


def test_an_answer_may_give_another_order(clerk: Clerk[SlurmError]) -> None:
    answers: list[Any] = []
    clerk.order(lambda: 1, lambda value: clerk.order(lambda: 2, answers.append))
    while not answers:
        turn(clerk)
    assert answers == [2]


def test_a_turn_without_answers_does_nothing(clerk: Clerk[SlurmError]) -> None:
    clerk.turn()
    assert not readable(clerk)


def test_what_was_ordered_is_done_before_the_end() -> None:
    clerk, done = Clerk(SlurmError), []
    for number in range(20):
        clerk.order(lambda number=number: done.append(number), lambda _: None)  # type: ignore[misc]
    clerk.close()
    clerk.order(lambda: done.append(99), lambda _: None)
    time.sleep(0.02)
    assert done == list(range(20))


def test_a_slurm_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    clerk, goes_on = Clerk(SlurmError), threading.Event()
    clerk.order(lambda: goes_on.wait(PATIENCE_S), lambda _: None)
    begun_s = time.monotonic()
    clerk.close()
    assert time.monotonic() - begun_s < 5.0
    goes_on.set()
