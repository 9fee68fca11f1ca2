"""How a process ended, in words."""

from __future__ import annotations

import pytest

from elasticflow.process.ending import how_it_ended, signal_name


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-9, "was killed by SIGKILL"),
        (-40, "was killed by signal 40"),
    ],
)
def test_an_end_in_words(status: int, words: str) -> None:
    assert how_it_ended(status) == words


def test_numbers_that_are_no_signals_have_no_name() -> None:
    assert [signal_name(number) for number in (15, 0, -128, 1000)] == ["SIGTERM", "", "", ""]
