"""When a run stands still: how long is waited, who is asked, and who is to blame."""

from __future__ import annotations

import random

from elasticflow.master.stall import ANSWER_S, STEPS, STOP_S, Stall
from elasticflow.wire.messages import Stacks

NAMES = ("server-0", "worker-1", "worker-2")


def stacks(name: str, number: int = 1, **more: str) -> Stacks:
    return Stacks(name=name, number=number, **{"doing": "waits", "where": "there", "stack": "all", **more})


def asked(names: tuple[str, ...] = NAMES, now_s: float = 700.0) -> Stall:
    stall = Stall(600.0)
    stall.see("mark", True, 0.0)
    assert stall.ask(names, 5, now_s) == 1
    return stall


def test_the_limit_is_the_setting_or_twenty_steps() -> None:
    stall = Stall(600.0)
    assert stall.limit_s() == 600.0
    stall.pace.guess(40.0)
    assert stall.limit_s() == STEPS * 40.0, "the first step, of which only a rehearsal tells"
    for version, now_s in enumerate((0.0, 50.0, 101.0, 400.0, 450.0)):
        stall.made(version, now_s)
    assert stall.limit_s() == STEPS * 50.5, "the median: one that took long tells little"
    assert stall.limit_s(3.0) == 3 * STEPS * 50.5, "an evaluation of three steps' size"
    assert stall.limit_s(0.1) == STEPS * 50.5


def test_who_waits_for_the_end_waits_less() -> None:
    stall = Stall(600.0)
    assert stall.limit_s(stopping=True) == STOP_S
    stall.pace.guess(10.0)
    assert stall.limit_s(stopping=True) == STEPS * 10.0, "but for a step like others"
    assert Stall(3.0).limit_s(stopping=True) == 3.0


def test_only_time_in_which_something_should_move_counts() -> None:
    stall = Stall(600.0)
    stall.see("a", False, 0.0)
    assert stall.due_s(600.0) == float("inf")
    stall.see("a", True, 1000.0)
    assert stall.due_s(600.0) == 1600.0
    stall.see("a", True, 1100.0)
    stall.see("a", False, 1200.0)
    stall.see("a", True, 9000.0)
    assert stall.due_s(600.0) == 9400.0, "200 s had passed"
    stall.see("b", True, 9300.0)
    assert stall.due_s(600.0) == 9900.0, "something has moved"


def test_time_in_which_all_slept_does_not_count() -> None:
    stall = Stall(600.0)
    stall.see("a", True, 0.0)
    stall.excuse(5000.0)
    stall.see("a", True, 5100.0)
    assert stall.due_s(600.0) == 5600.0
    stall.ask(NAMES, 1, 5600.0)
    stall.excuse(100.0)
    assert stall.verdict(5600.0 + ANSWER_S) is None


def test_whose_main_thread_does_not_answer_hangs() -> None:
    stall = asked()
    for name in NAMES:
        stall.stacks(stacks(name, where="line 7" if name == "worker-2" else "there"))
    stall.here("server-0", 1)
    stall.here("worker-1", 1)
    assert stall.verdict(700.0 + ANSWER_S - 0.1) is None
    verdict = stall.verdict(700.0 + ANSWER_S)
    assert verdict and verdict.hung == ("worker-2",) and verdict.silent == () and verdict.stack == "all"
    assert verdict.text.startswith("worker-2 waits, and hangs at line 7; "), "who matters comes first"
    assert not stall.asking and stall.verdict(800.0) is None


def test_once_all_have_answered_nobody_is_waited_for() -> None:
    stall = asked()
    for name in NAMES:
        stall.stacks(stacks(name))
        stall.here(name, 1)
    verdict = stall.verdict(700.0)
    assert verdict and verdict.hung == verdict.silent == ()


def test_who_says_nothing_at_all_is_not_blamed() -> None:
    """The question was lost, with a connection perhaps; who is dead or frozen is noticed by silence."""
    stall = asked()
    stall.stacks(stacks("worker-1"))
    stall.here("worker-1", 1)
    stall.here("worker-2", 0)  # of another question
    verdict = stall.verdict(700.0 + ANSWER_S)
    assert verdict and verdict.hung == () and verdict.silent == ("server-0", "worker-2")
    assert "server-0 does not answer at all" in verdict.text


def test_what_moves_meanwhile_ends_the_question() -> None:
    stall = asked()
    stall.see("another mark", True, 701.0)
    assert not stall.asking and stall.verdict(900.0) is None
    assert stall.due_s(600.0) == 1301.0


def test_rounds_are_forgotten_beyond_the_place_where_it_hung() -> None:
    """Not by steps that are made once more: after each of these it would hang again, for ever."""
    stall = asked()
    stall.rounds = 1
    stall.made(3, 800.0)
    stall.made(5, 801.0)
    assert stall.rounds == 1
    stall.made(6, 802.0)
    assert stall.rounds == 0


def test_any_history_comes_to_an_end() -> None:
    """Whatever is seen and answered: it is never due in the past for long, and each question is judged."""
    for seed in range(2000):
        rng = random.Random(seed)
        stall, now_s, mark = Stall(rng.choice([0.5, 30.0, 600.0])), 0.0, 0
        stall.see(mark, False, now_s)
        for _ in range(60):
            limit_s = stall.limit_s(rng.choice([1.0, 5.0]), stopping=rng.random() < 0.2)
            due_s = stall.due_s(limit_s)
            what = rng.random()
            if what < 0.4:
                now_s = max(now_s, due_s) if due_s < float("inf") else now_s + 1.0
            elif what < 0.5:
                mark += 1
                stall.made(mark, now_s)
            elif what < 0.7 and stall.asking:
                name = rng.choice(NAMES)
                stall.stacks(stacks(name, stall.number - rng.randint(0, 1)))
                stall.here(rng.choice(NAMES), stall.number)
            elif what < 0.8:
                slept_s = rng.random() * 100
                now_s += slept_s
                stall.excuse(slept_s)
            if now_s >= stall.due_s(limit_s):
                was_asking = stall.asking
                verdict = stall.verdict(now_s)
                assert (verdict is not None) == was_asking, "a question that is due is judged"
                if verdict is None:
                    stall.ask(NAMES, mark, now_s)
                    assert now_s < stall.due_s(limit_s) <= now_s + ANSWER_S
                else:
                    assert {*verdict.hung, *verdict.silent} <= set(NAMES)
                    assert not set(verdict.hung) & set(verdict.silent)
            stall.see(mark, rng.random() < 0.9, now_s)
