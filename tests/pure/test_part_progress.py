"""Parts whose processes die: done again, looked at closely, and in the end a record is named."""

from __future__ import annotations

import random

import pytest

from elasticflow.applying.orders import PartAt, PartOrder, SearchOrder
from elasticflow.applying.progress import MOST_DEATHS, DeadlyPartError, PartProgress

KILLED = "was killed by SIGKILL"


def at(first: int, last: int) -> PartAt:
    return PartAt(first, last, "a file")


def test_all_parts_are_handed_out_once() -> None:
    progress = PartProgress([2, 5])
    assert progress.next_for("a") == PartOrder(2) and progress.next_for("b") == PartOrder(5)
    assert progress.next_for("c") is None and progress.is_busy("a") and not progress.is_busy("c")
    assert progress.done("a") and progress.done("b")
    assert progress.left == 0


def test_the_part_of_who_died_is_the_next() -> None:
    progress = PartProgress(range(3))
    progress.next_for("a")
    progress.died("a", None, KILLED)
    assert progress.next_for("b") == PartOrder(0)


def test_who_dies_with_nothing_to_do_takes_nothing_with_it() -> None:
    progress = PartProgress([0])
    progress.died("a", None, KILLED)
    assert progress.next_for("b") == PartOrder(0)


def died_of_a_batch(progress: PartProgress) -> None:
    """Twice of the part, then of its second batch."""
    for place in (None, None, at(32, 64)):
        progress.next_for("a")
        progress.died("a", place, KILLED)


def test_a_record_is_named_of_which_two_have_died() -> None:
    progress = PartProgress([0, 1])
    died_of_a_batch(progress)
    assert progress.next_for("a") == SearchOrder(0, 32, 64)
    progress.died("a", at(40, 41), KILLED)
    assert progress.next_for("a") == SearchOrder(0, 40, 41)
    with pytest.raises(DeadlyPartError, match=r"record 40 \(a file\): a process .* was killed by SIGKILL"):
        progress.died("a", at(40, 41), KILLED)


def test_who_was_ended_by_somebody_else_accuses_no_record() -> None:
    progress = PartProgress([0])
    died_of_a_batch(progress)
    progress.next_for("a")
    progress.died("a", at(40, 41), KILLED)
    assert progress.next_for("a") == SearchOrder(0, 40, 41)
    assert not progress.done("a")
    assert progress.next_for("a") == PartOrder(0, careful=True)
    assert progress.done("a") and progress.left == 0


def test_who_died_as_its_part_was_written_accuses_no_record() -> None:
    progress = PartProgress([0])
    for place in (None, None, at(64, 64)):
        progress.next_for("a")
        progress.died("a", place, KILLED)
    assert progress.next_for("a") == PartOrder(0, careful=True)


def test_records_that_kill_together() -> None:
    progress = PartProgress([0])
    died_of_a_batch(progress)
    assert progress.next_for("a") == SearchOrder(0, 32, 64)
    assert not progress.done("a")
    assert progress.next_for("a") == PartOrder(0, careful=True)
    with pytest.raises(DeadlyPartError, match="records 32 to 63 .* though it computes each of them alone"):
        progress.died("a", at(32, 64), KILLED)


def test_what_never_ends_is_given_up() -> None:
    progress = PartProgress([0])
    with pytest.raises(DeadlyPartError, match=f"{MOST_DEATHS} processes have ended over part 0"):
        for _ in range(MOST_DEATHS):
            progress.next_for("a")
            progress.died("a", None, KILLED)


@pytest.mark.parametrize("seed", range(50))
def test_whoever_dies_each_part_is_done_once(seed: int) -> None:
    rng, progress, done = random.Random(seed), PartProgress(range(40)), []
    names = ["a", "b", "c"]
    working = {}
    while progress.left:
        name = rng.choice(names)
        if not progress.is_busy(name):
            if todo := progress.next_for(name):
                working[name] = todo
        elif rng.random() < 0.1:
            progress.died(name, None, KILLED)
        elif progress.done(name):
            done.append(working[name].part)
    assert sorted(done) == list(range(40))
