from __future__ import annotations

import pytest

from elasticflow.step.schedule import Kind
from elasticflow_ps.stalls import ENOUGH, Stalls


class Ticks(Stalls):
    """That say how long they took."""

    now_s = 0.0

    def __init__(self) -> None:
        super().__init__(self.now_s)

    def took(self, tick: int, kind: Kind, seconds: float) -> None:
        self.now_s += seconds
        self.done(tick, kind, self.now_s)


def test_what_takes_more_than_twice_the_median_is_told_once() -> None:
    stalls = Ticks()
    for tick in range(20):
        stalls.took(tick, Kind.TRAIN, 0.02 if tick != 12 else 0.3)
    ((tick, seconds),) = stalls.take()
    assert tick == 12 and seconds == pytest.approx(0.26)
    assert stalls.take() == ()


def test_ticks_are_compared_with_those_of_their_kind() -> None:
    stalls = Ticks()
    for tick in range(20):
        stalls.took(tick, Kind.TRAIN, 0.02)
        stalls.took(tick, Kind.EVALUATE, 0.5)
    assert stalls.take() == ()


def test_nothing_is_told_before_it_is_known_what_is_usual() -> None:
    stalls = Ticks()
    for tick in range(ENOUGH):
        stalls.took(tick, Kind.TRAIN, 10.0 if tick == ENOUGH - 1 else 0.02)
    assert stalls.take() == ()
