"""Which records of a slice are found to be deadly, by what becomes of the processes that try them."""

from __future__ import annotations

import pytest

from elasticflow.worker.trial import Deadly, TrialOutcome, how_it_ended, try_slice

DIED, RAISED, WELL = TrialOutcome(died="was killed by SIGSEGV"), TrialOutcome(raised=True), TrialOutcome()
TEXT = "a process that computed it was killed by SIGSEGV"
ROWS = (4, 7, 9)


class Tries:
    """What becomes of each try: by rows, of None for the slice; of the last for ever."""

    def __init__(self, **outcomes: tuple[TrialOutcome, ...]) -> None:
        self._outcomes = {name: list(each) for name, each in outcomes.items()}
        self.asked: list[str] = []

    def __call__(self, rows: tuple[int, ...] | None) -> TrialOutcome:
        name = "slice" if rows is None else "_" + "_".join(map(str, rows))
        self.asked.append(name)
        left = self._outcomes.get(name, [WELL])
        return left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize("outcome", [WELL, RAISED])
def test_a_slice_that_a_process_survives_is_not_looked_into(outcome: TrialOutcome) -> None:
    tries = Tries(slice=(outcome,), _7=(DIED,))
    assert try_slice(tries, ROWS) is None
    assert tries.asked == ["slice"]


def test_each_record_is_tried_and_those_that_are_deadly_twice_are_named() -> None:
    tries = Tries(slice=(DIED,), _4=(DIED,), _4_4=(DIED,), _9=(DIED,), _9_9=(DIED,))
    assert try_slice(tries, ROWS) == Deadly((4, 9), TEXT)


def test_what_was_ended_once_from_outside_is_no_records_fault() -> None:
    assert try_slice(Tries(slice=(DIED, WELL)), ROWS) is None
    assert try_slice(Tries(slice=(DIED, WELL), _7=(DIED,), _7_7=(WELL,)), ROWS) is None
    assert try_slice(Tries(slice=(DIED, RAISED), _7=(DIED, WELL)), ROWS) is None


def test_a_record_that_cannot_be_computed_alone_is_tried_in_company() -> None:
    """BatchNorm raises on one record before the one that is deadly comes to it."""
    alone = {f"_{row}": (RAISED,) for row in ROWS}
    tries = Tries(slice=(DIED,), _7_7=(DIED, DIED), **alone)
    assert try_slice(tries, ROWS) == Deadly((7,), TEXT)
    tries = Tries(slice=(DIED, WELL), _7_7=(DIED, WELL), **alone)
    assert try_slice(tries, ROWS) is None, "once is not enough"
    tries = Tries(slice=(DIED, WELL), _7=(RAISED,), _7_7=(RAISED,))
    assert try_slice(tries, ROWS) is None, "it raises: that is dealt with elsewhere"


def test_a_slice_that_is_deadly_though_none_of_its_records_is() -> None:
    assert try_slice(Tries(slice=(DIED, DIED)), ROWS) == Deadly((), TEXT)
    assert try_slice(Tries(slice=(DIED, DIED)), ()) == Deadly((), TEXT)


@pytest.mark.parametrize(
    "status, words",
    [
        (3, "ended by itself, with exit code 3"),
        (0, "ended by itself, with exit code 0"),
        (-11, "was killed by SIGSEGV"),
        (-40, "was killed by signal 40"),
    ],
)
def test_how_a_process_ended(status: int, words: str) -> None:
    assert how_it_ended(status) == words
