"""Which requests a process of a served model is given, at once or alone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.serving.orders import ModelAnswer, ModelRequest
from elasticflow.serving.waiting import (
    MOST_BYTES,
    MOST_TOGETHER,
    DeadlyRequestError,
    FullError,
    WaitingRequests,
)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


def never() -> bool:
    return False


def test_all_that_has_come_is_taken_and_a_lone_one_does_not_wait() -> None:
    async def work() -> None:
        waiting = WaitingRequests(100, 1 << 30)
        first = waiting.add(ModelRequest(b"1"))
        assert await waiting.take(never) == [first]
        asks = [waiting.add(ModelRequest(b"2")) for _ in range(MOST_TOGETHER + 1)]
        assert await waiting.take(never) == asks[:-1]
        assert await waiting.take(never) == asks[-1:]

    run(work())


def test_large_ones_are_taken_one_by_one() -> None:
    async def work() -> None:
        waiting = WaitingRequests(100, 1 << 30)
        asks = [waiting.add(ModelRequest(bytes(MOST_BYTES + 1))) for _ in range(2)]
        assert [await waiting.take(never) for _ in asks] == [[ask] for ask in asks]

    run(work())


def test_who_waits_hears_of_one_and_who_leaves_takes_none() -> None:
    async def work() -> None:
        waiting, leaves = WaitingRequests(100, 1 << 30), [False]
        first = asyncio.create_task(waiting.take(never))
        second = asyncio.create_task(waiting.take(lambda: leaves[0]))
        await asyncio.sleep(0)
        leaves[0] = True
        waiting.tell()
        assert await second == []
        ask = waiting.add(ModelRequest(b"1"))
        assert await first == [ask]

    run(work())


def test_those_of_a_dead_process_come_first_and_alone_and_once() -> None:
    async def work() -> None:
        waiting = WaitingRequests(100, 1 << 30)
        asks = [waiting.add(ModelRequest(b"1")) for _ in range(3)]
        taken = await waiting.take(never)
        later = waiting.add(ModelRequest(b"2"))
        taken[1].answered.cancel()  # nobody waits for it any more
        waiting.give_back(taken, "was killed")
        assert [await waiting.take(never) for _ in range(3)] == [[asks[0]], [asks[2]], [later]]
        waiting.give_back([asks[0]], "was killed")
        with pytest.raises(DeadlyRequestError, match="was killed"):
            await asks[0].answered
        assert not len(waiting)

    run(work())


def test_who_gave_up_makes_room() -> None:
    async def work() -> None:
        waiting = WaitingRequests(2, 1 << 30)
        asks = [waiting.add(ModelRequest(b"1")) for _ in range(2)]
        with pytest.raises(FullError):
            waiting.add(ModelRequest(b"1"))
        asks[0].answered.cancel()
        third = waiting.add(ModelRequest(b"1"))
        assert await waiting.take(never) == [asks[1], third]

    run(work())


def test_nor_more_bytes_but_one_always() -> None:
    async def work() -> None:
        waiting = WaitingRequests(100, 10)
        large = waiting.add(ModelRequest(bytes(11)))
        with pytest.raises(FullError):
            waiting.add(ModelRequest(b"1"))
        assert await waiting.take(never) == [large]
        other = waiting.add(ModelRequest(bytes(10)))
        waiting.give_back([large], "was killed")
        with pytest.raises(FullError):
            waiting.add(ModelRequest(b"1"))
        assert [await waiting.take(never) for _ in range(2)] == [[large], [other]]
        waiting.add(ModelRequest(bytes(10)))

    run(work())


def test_who_had_something_last_gets_the_next() -> None:
    async def work() -> None:
        waiting, order = WaitingRequests(100, 1 << 30), []

        async def process(name: str) -> None:
            while await waiting.take(lambda: len(order) == 6):
                order.append(name)

        tasks = [asyncio.create_task(process(name)) for name in "abc"]
        for _ in range(6):
            await asyncio.sleep(0)
            waiting.add(ModelRequest(b"1"))
            await asyncio.sleep(0)
        waiting.tell()
        await asyncio.gather(*tasks)
        assert order == ["c"] * 6

    run(work())


@given(st.lists(st.sampled_from(["add", "take", "die", "answer", "cancel"]), max_size=60))
def test_none_is_lost_and_none_answered_twice(events: list[str]) -> None:
    async def work() -> None:
        waiting, asks, held = WaitingRequests(8, 1 << 30), [], []
        for event in events:
            if event == "add":
                try:
                    asks.append(waiting.add(ModelRequest(b"1")))
                except FullError:
                    assert len(waiting) == 8
            elif event == "take" and len(waiting):
                held.append(await waiting.take(lambda: all(ask.is_over for ask in asks)))
            elif event == "die" and held:
                waiting.give_back(held.pop(), "died")
            elif event == "answer" and held:
                for ask in held.pop(0):
                    if not ask.is_over:
                        ask.answered.set_result((ModelAnswer(b""), 1))
            elif event == "cancel" and asks:
                asks[0].answered.cancel()
        there = {id(ask) for batch in held for ask in batch}
        while any(not ask.is_over and id(ask) not in there for ask in asks):
            for ask in await waiting.take(never):
                assert id(ask) not in there, "nobody has it twice"
                if not ask.is_over:
                    ask.answered.set_result((ModelAnswer(b""), 1))
        for ask in asks:
            if ask.is_over and not ask.answered.cancelled():
                ask.answered.exception()

    run(work())
