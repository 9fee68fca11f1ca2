"""The small machines of which sizing is made: pauses, polls, orders, nodes, and who gives back."""

from __future__ import annotations

import pytest

from elasticflow.cluster.cooldown import Cooldown
from elasticflow.cluster.giving import REST_S, RETURN_S, GivingBack, Pressure
from elasticflow.cluster.nodes import WINDOW_S, Nodes
from elasticflow.cluster.orders import EndOrders
from elasticflow.cluster.polls import Polls

WORKERS = [f"worker-{number}" for number in range(1, 7)]

# --- pauses -------------------------------------------------------------------------------------------


def test_what_fails_during_a_pause_does_not_prolong_it() -> None:
    cooldown = Cooldown(5.0, 300.0)
    cooldown.fail("no", 0.0)
    cooldown.fail("no", 4.0)
    assert (cooldown.failures, cooldown.until_s) == (1, 5.0)
    cooldown.fail("no", 5.0)
    assert (cooldown.failures, cooldown.until_s) == (2, 15.0)
    cooldown.end()
    cooldown.fail("no", 6.0)
    assert cooldown.until_s == 26.0


# --- nodes --------------------------------------------------------------------------------------------


def test_no_more_than_half_of_the_nodes_are_left_out_the_latest_to_fail_first() -> None:
    nodes = Nodes(1)
    for node in ("a", "b", "c", "d", "e"):
        nodes.saw(node)
    assert [nodes.failed(node, number) for number, node in enumerate("abc")] == [True, True, True]
    assert nodes.excluded(10) == ("b", "c")


def test_failures_count_for_an_hour() -> None:
    nodes = Nodes(2)
    nodes.failed("a", 0)
    assert not nodes.failed("a", WINDOW_S + 1)
    assert not nodes.failed("a", WINDOW_S + 1.5), "two that fail together fail by one cause"
    assert nodes.failed("a", WINDOW_S + 4)
    assert not nodes.failed("", 0)


# --- polls --------------------------------------------------------------------------------------------


def test_there_is_one_question_at_a_time_and_news_bring_the_next_one_forward() -> None:
    polls = Polls(10.0, Cooldown(1.0, 30.0), look_s=2.0)
    polls.ask(0.0)
    polls.look()
    assert polls.next_s is None
    polls.answered(1.0)
    assert polls.next_s == 2.0, "what happened while it was asked needs another"
    polls.ask(2.0)
    polls.answered(2.5)
    assert polls.next_s == 12.5


def test_one_question_without_an_answer_is_nothing_to_tell() -> None:
    polls = Polls(10.0, Cooldown(1.0, 30.0))
    told = []
    for now_s in (0.0, 1.0, 3.0):
        polls.ask(now_s)
        told.append(polls.failed(OSError("no answer"), now_s))
    assert told == [False, True, False] and polls.next_s == 3.0 + 4.0
    assert polls.answered(8.0) == 8.0 and polls.next_s == 18.0
    polls.failed(OSError("no answer"), 18.0)
    assert polls.answered(19.0) == 0.0


def test_who_is_silent_is_not_asked_sooner_whatever_happens() -> None:
    polls = Polls(10.0, Cooldown(5.0, 30.0))
    polls.ask(0.0)
    polls.failed(OSError("no answer"), 0.0)
    polls.look()
    assert polls.next_s == 5.0


# --- orders -------------------------------------------------------------------------------------------


def test_an_order_is_given_once_and_again_if_it_was_not_heard() -> None:
    orders: EndOrders[int] = EndOrders(30.0)
    assert orders.end(7, 0.0) and not orders.end(7, 1.0)
    assert orders.take(1.0) == [7] and orders.take(2.0) == []
    assert not orders.end(7, 29.0) and orders.end(7, 30.0)


def test_an_id_that_is_anothers_by_now_is_another_order() -> None:
    orders: EndOrders[int] = EndOrders(30.0)
    assert orders.end(7, 10.0, 5.0) and not orders.end(7, 11.0, 5.0)
    assert orders.end(7, 12.0, 10.5)


# --- giving back --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lacking", "excess", "leaving", "chosen"),
    [
        (2, 4, 0, ["worker-6", "worker-5"]),
        (4, 2, 0, ["worker-6", "worker-5"]),
        (9, 9, 0, ["worker-6", "worker-5", "worker-4", "worker-3"]),
        (2, 4, 1, ["worker-6"]),
        (2, 4, 2, []),
        (2, 0, 0, []),
    ],
)
def test_the_newest_give_back_what_others_lack_and_never_the_least(
    lacking: int, excess: int, leaving: int, chosen: list[str]
) -> None:
    assert GivingBack(2).press(Pressure(lacking, excess, ""), WORKERS, leaving, 0.0) == chosen


def test_who_is_on_the_way_counts_for_a_while() -> None:
    giving, pressure = GivingBack(1), Pressure(2, 5, "prod waits")
    assert giving.press(pressure, WORKERS, 0, 0.0) == ["worker-6", "worker-5"]
    assert giving.press(pressure, WORKERS, 0, 1.0) == []
    assert giving.press(pressure, WORKERS[:5], 1, 2.0) == []
    assert giving.press(pressure, WORKERS, 0, RETURN_S) == ["worker-6", "worker-5"]
    assert giving.is_pressed(RETURN_S + REST_S - 0.1) and not giving.is_pressed(RETURN_S + REST_S)
