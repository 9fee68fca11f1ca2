"""A worker that awaits rows hears its master, and servers that are lost, or say what makes no sense."""

from __future__ import annotations

import os
import threading
from collections import deque
from itertools import count
from typing import Any

import numpy as np
import pytest

from elasticflow.frameworks import Interrupted
from elasticflow.step.layout import Entry, Layout, Rule, spread
from elasticflow.step.rows import keys_of
from elasticflow.wire.messages import Compute, Read, RowsRead, ServerInfo
from elasticflow.wire.outbox import Outbox, Parts
from elasticflow_ps.compression import Compression
from elasticflow_ps.reading import RowReading
from elasticflow_ps.remote import Remote

DIM = 3
LAYOUT = Layout(
    [
        Entry("w", (8,), "float32", Rule.UPDATE),
        Entry("t", (0, DIM), "float32", Rule.ROWS),
        Entry("report", (1,), "float64", Rule.REPORT),
    ]
)
KEYS = np.sort(keys_of(np.arange(100)))


class Link:
    """A connection to a server that answers as ``answers`` says, given a question and its keys."""

    def __init__(self, answers: Any) -> None:
        self.socket, self.monitor = (os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2))
        self._answers, self._inbox = answers, deque[Any]()
        outbox: Outbox[Read] = Outbox(self._send)
        self.put, self.flush, self.more = outbox.put, outbox.flush, False

    def _send(self, parts: Parts[Read]) -> None:
        for message, arrays in parts:
            self._inbox.extend(self._answers(message, np.concatenate(arrays)))
        if self._inbox:
            os.eventfd_write(self.socket, 1)

    def receive(self) -> Any:
        return self._inbox.popleft() if self._inbox else None

    def is_closed(self) -> bool:
        try:
            os.eventfd_read(self.monitor)
        except BlockingIOError:
            return False
        os.eventfd_write(self.monitor, 1)
        return True

    def close(self) -> None:
        os.eventfd_write(self.monitor, 1)


def rows(keys: Any) -> Any:
    return np.repeat(keys.astype(np.float32)[:, None], DIM, axis=1)


def answer(question: Read, keys: Any) -> list[Any]:
    return [(RowsRead(number=question.number), [memoryview(rows(keys).tobytes())])]


def silent(question: Read, keys: Any) -> list[Any]:
    return []


class Asked:
    """A worker's way to servers that answer like this."""

    def __init__(self, *answers: Any) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.remotes: list[Any] = []
        for number, chunks in enumerate(spread(LAYOUT, len(answers))):
            info = ServerInfo(name=f"server-{number}", endpoint="", chunks=tuple(chunks))
            self.remotes.append(Remote(info, Link(answers[number]), LAYOUT, Compression()))  # type: ignore[arg-type]
        self.reading = RowReading(LAYOUT, self.remotes, self.wake_fd, count(1))
        self.urgent = deque[bool]()
        """What the master's messages, one after the other, are; each wakes the worker."""

    def is_urgent(self) -> bool:
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            return False
        urgent = self.urgent.popleft()
        if self.urgent:
            os.eventfd_write(self.wake_fd, 1)
        return urgent

    def read(self, *urgent: bool) -> Any:
        """Ends with the loss of server 0 where nothing else ends it."""
        self.urgent.extend(urgent)
        if urgent:
            os.eventfd_write(self.wake_fd, 1)
        timer = threading.Timer(2.0, self.remotes[0].link.close)
        timer.start()
        try:
            return self.reading.ask(0, 5, KEYS, self.is_urgent)()
        finally:
            timer.cancel()


def test_each_server_is_asked_for_what_it_has() -> None:
    np.testing.assert_array_equal(Asked(answer, answer, answer).read(False), rows(KEYS))


def test_what_else_comes_meanwhile_waits() -> None:
    other = Compute(tick=5, slices=(1,))
    asked = Asked(answer, lambda question, keys: [(other, []), *answer(question, keys)])
    np.testing.assert_array_equal(asked.read(), rows(KEYS))
    assert [message for message, _ in asked.remotes[1].early] == [other]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_what_is_urgent_is_heard_after_what_is_not(before: int) -> None:
    with pytest.raises(Interrupted, match="the master has something that cannot wait"):
        Asked(silent, answer).read(*[False] * before, True)


def test_what_was_urgent_before_is_so_still() -> None:
    """It has woken the worker already, which has not come to it."""
    asked = Asked(silent, answer)
    asked.is_urgent = lambda: True  # type: ignore[method-assign]
    with pytest.raises(Interrupted, match="the master has something that cannot wait"):
        asked.read()


def test_who_is_lost_ends_it() -> None:
    with pytest.raises(Interrupted, match="the way to server-0 is lost"):
        Asked(silent, answer).read(False)
    with pytest.raises(Interrupted, match="the way to the servers is lost"):
        RowReading(LAYOUT, [], os.eventfd(0), count(1)).ask(0, 5, KEYS, lambda: False)()


def test_a_version_that_is_past_ends_it_and_its_answer_is_not_taken_for_the_next() -> None:
    late: list[Any] = []

    def once(question: Read, keys: Any) -> list[Any]:
        if question.number == 1:
            late.extend((RowsRead(number=1), [memoryview(bytes(4 * DIM * len(keys)))]) for _ in "x")
            return []
        return [*late, *answer(question, keys)]

    asked = Asked(lambda question, keys: [(RowsRead(number=question.number, gone=True), [])], once)
    with pytest.raises(Interrupted, match="that version is past"):
        asked.read()
    asked.remotes[0].link._answers = answer
    np.testing.assert_array_equal(asked.read(), rows(KEYS))


@pytest.mark.parametrize("frames", [[], [b"123"], [b"", b""]])
def test_other_rows_than_were_asked_for_are_not_taken(frames: list[bytes]) -> None:
    wrong = [memoryview(frame) for frame in frames]
    asked = Asked(lambda question, keys: [(RowsRead(number=question.number), wrong)], answer)
    with pytest.raises(Interrupted, match="server-0 sends other rows than it was asked for"):
        asked.read()


def test_questions_are_asked_before_any_is_answered() -> None:
    """Answers may come in any order, and to questions that nobody waits for."""
    held: list[Any] = []

    def hold(question: Read, keys: Any) -> list[Any]:
        held.append((question, keys))
        return [each for pair in reversed(held) for each in answer(*pair)] if len(held) == 3 else []

    asked = Asked(hold, answer)
    parts = [KEYS[::2], KEYS[1::2], KEYS]
    first, _, last = (asked.reading.ask(0, 5, np.ascontiguousarray(part), lambda: False) for part in parts)
    np.testing.assert_array_equal(last(), rows(KEYS))
    np.testing.assert_array_equal(first(), rows(KEYS[::2]))


def test_answers_to_later_questions_are_not_waited_through() -> None:
    """One server has answered all, and the other still computes: nobody turns round and round."""
    late: list[Any] = []

    def slow(question: Read, keys: Any) -> list[Any]:
        late.extend(answer(question, keys))
        return []

    asked, turns = Asked(answer, slow), list[int]()
    link = asked.remotes[1].link

    def is_urgent() -> bool:
        turns.append(1)
        return False

    def deliver() -> None:
        link._inbox.extend(late)
        os.eventfd_write(link.socket, 1)

    first, second = (asked.reading.ask(0, 5, KEYS, is_urgent) for _ in range(2))
    timer = threading.Timer(0.3, deliver)
    timer.start()
    for wait in (first, second):
        np.testing.assert_array_equal(wait(), rows(KEYS))
    assert len(turns) < 5


def test_who_asked_early_is_told_that_there_is_no_answer() -> None:
    """Whether the version is past by then, or a server is lost, or another has answered."""
    past = [(RowsRead(number=1, gone=True), [])]
    asked = Asked(answer, lambda question, keys: past)
    wait = asked.reading.ask(0, 6, KEYS, lambda: False)
    asked.reading.hurry()
    asked.reading.take(asked.remotes[1], *asked.remotes[1].link.receive())
    with pytest.raises(Interrupted, match="that version is past"):
        wait()
    asked = Asked(answer, silent)
    wait = asked.reading.ask(0, 6, KEYS, lambda: False)
    asked.remotes[1].link.close()
    with pytest.raises(Interrupted, match="the way to server-1 is lost"):
        wait()


def test_an_answer_that_comes_to_nobody() -> None:
    asked = Asked(silent, answer)
    asked.reading.ask(0, 5, KEYS, lambda: False)
    for number in (1, 1, 2):
        asked.reading.take(asked.remotes[1], RowsRead(number=number, gone=True), [])
