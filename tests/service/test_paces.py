"""How fast a run is found to be by number of workers, and how long that is believed if it is bad news."""

from __future__ import annotations

import pytest

from elasticflow.master.gain import MOST_REGROW_S, REGROW_S
from elasticflow.service.doubts import Doubt, over, weigh
from elasticflow.service.paces import KEPT, NEWS, SETTLED_S, SURE, Paces


class Stay:
    """The rates that a run of so many workers is measured to have, one after the other."""

    def __init__(self, paces: Paces, now_s: float = 0.0) -> None:
        self.paces, self.now_s, self.step = paces, now_s, 0

    def change(self, workers: int) -> None:
        self.workers = workers
        assert self.paces.see(workers, True, self.step, self.now_s) is None
        self.now_s += SETTLED_S
        assert self.paces.see(workers, True, self.step, self.now_s) is None

    def measure(self, *rates: int) -> list[float | None]:
        """What is told after each."""
        told = []
        for rate in rates:
            self.now_s, self.step = self.now_s + 1, self.step + rate
            told.append(self.paces.see(self.workers, True, self.step, self.now_s))
        return told


def test_a_pace_is_measured_while_nobody_comes_or_goes() -> None:
    paces = Paces(measure_s=2.0)
    assert paces.see(1, True, 0, 0.0) is None
    assert paces.see(1, True, 9, SETTLED_S / 2) is None
    assert paces.see(1, True, 10, SETTLED_S) is None
    assert paces.see(1, True, 19, SETTLED_S + 1.9) is None
    assert paces.see(1, True, 30, SETTLED_S + 2) == 10.0
    assert paces.see(2, False, 60, SETTLED_S + 6) is None
    assert paces.see(2, True, 61, SETTLED_S + 9) is None, "from here on"
    assert paces.see(2, True, 64, SETTLED_S + 20) is None, "too few steps"
    assert paces.see(2, True, 3, SETTLED_S + 30) is None, "it went back to a checkpoint"


def test_one_measurement_that_others_do_not_confirm_is_not_told() -> None:
    stay = Stay(Paces(measure_s=1.0))
    stay.change(1)
    assert stay.measure(100, 100, 20, 100, 100) == [100.0, None, None, None, None]
    assert stay.measure(50, 50, 50) == [None, 50.0, None], "it has become slower"
    assert stay.measure(*[50] * KEPT, int(50 * (1 + NEWS))) == [None] * (KEPT + 1)


def test_that_more_workers_bring_nothing_is_measured_several_times() -> None:
    stay = Stay(Paces(measure_s=1.0))
    stay.change(1)
    stay.measure(100)
    stay.change(2)
    assert stay.measure(90, 180) == [None, 135.0], "the first one was a hiccup"
    assert stay.measure(180) == [180.0]
    stay.change(4)
    assert stay.measure(*[170] * SURE) == [None] * (SURE - 1) + [170.0]


def test_what_is_measured_again_is_told_again() -> None:
    """The service may have forgotten it, to have it tried."""
    stay = Stay(Paces(measure_s=1.0))
    stay.change(1)
    assert stay.measure(100) == [100.0]
    stay.change(2)
    stay.measure(150)
    stay.change(1)
    assert stay.measure(100, 100) == [100.0, None]


def test_for_how_long_it_is_believed_that_workers_bring_nothing() -> None:
    doubts: dict[int, Doubt] = {}
    rates = {1: 10.0, 2: 10.5, 4: 30.0}
    weigh(doubts, rates, 2, 0.0)
    assert doubts == {2: Doubt(REGROW_S, REGROW_S)}
    weigh(doubts, rates, 4, 50.0)
    assert doubts[2].until_s == REGROW_S, "only another measurement of it counts"
    assert not list(over(doubts, rates, 1, REGROW_S - 1))
    assert list(over(doubts, rates, 1, REGROW_S)) == [2]
    assert not list(over(doubts, rates, 2, REGROW_S)), "it is being measured"
    assert not list(over(doubts, {1: 10.0}, 1, REGROW_S)), "it is forgotten already"
    now_s, waits = REGROW_S, []
    for _ in range(6):
        weigh(doubts, rates, 2, now_s)
        waits.append(doubts[2].wait_s)
        now_s = doubts[2].until_s
    assert waits == [min(REGROW_S * 2**n, MOST_REGROW_S) for n in range(1, 7)]
    weigh(doubts, {**rates, 2: 18.0}, 2, now_s)
    assert not doubts


@pytest.mark.parametrize("rates", [{1: 1.0}, {2: 5.0, 8: 6.0}, {3: 5.0, 4: 5.0}, {1: 1.0, 2: 1.9, 4: 3.5}])
def test_who_gets_faster_with_more_workers_is_not_doubted(rates: dict[int, float]) -> None:
    doubts: dict[int, Doubt] = {}
    weigh(doubts, rates, None, 0.0)
    assert not doubts
