"""Which slices are computed twice, by whom, and what follows from what comes of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.errors import ConfigError
from elasticflow.master.audits import MOST_WAITING, Audits, Found
from elasticflow.run.config import Config
from elasticflow.step.schedule import Kind, Schedule
from elasticflow.wire.messages import Audited, Share
from elasticflow.worker.audit import Audit

SCHEDULE = Schedule(num_records=640, num_test=64, batch_size=64, num_slices=8, epochs=2)


def told(name: str, digest: str, tick: int = 3, number: int = 1, left_out: int = 0) -> Audited:
    return Audited(name=name, tick=tick, slice=number, digest=digest, left_out=left_out)


@given(every=st.integers(1, 50), cuts=st.sets(st.integers(1, 7), max_size=7))
def test_every_nth_slice_of_all_steps_is_given_to_one_other_worker(every: int, cuts: set[int]) -> None:
    """To oneself only where there is nobody else; nothing of an evaluation is."""
    audit = Audit(every, SCHEDULE.num_slices)
    borders = [0, *sorted(cuts), 8]
    shares = [Share(f"worker-{n}", *pair) for n, pair in enumerate(pairwise(borders))]
    owner = {number: share.worker for share in shares for number in range(share.first, share.stop)}
    for tick in range(SCHEDULE.total_ticks):
        work = SCHEDULE.at(tick)
        given_to = {share.worker: audit.given_to(share.worker, work, shares) for share in shares}
        again = sorted(number for numbers in given_to.values() for number in numbers)
        picked = [number for number in range(8) if (tick * 8 + number) % every == 0]
        assert again == (picked if work.kind is Kind.TRAIN else [])
        for worker, numbers in given_to.items():
            assert len(shares) == 1 or all(owner[number] != worker for number in numbers)
        assert audit.given_to("worker-99", work, shares) == []


def test_nothing_is_computed_twice_unless_it_is_asked_for() -> None:
    shares = [Share("worker-1", 0, 8)]
    assert not any(Audit(0, 8).given_to("worker-1", SCHEDULE.at(tick), shares) for tick in range(20))


def test_the_same_twice_is_counted_and_another_is_found() -> None:
    """Whoever tells it first, however often, and when the step is made once more."""
    audits = Audits(equal=5)
    assert audits.hear(told("worker-1", "a")) is None
    assert audits.hear(told("worker-2", "a")) is None
    assert audits.hear(told("worker-1", "a")) is None and audits.equal == 7
    assert audits.hear(told("worker-3", "b", number=2)) is None
    assert audits.hear(told("worker-1", "c", number=2)) == Found(3, 2, "worker-3", "worker-1")
    assert audits.equal == 7


def test_only_slices_of_the_same_records_are_compared() -> None:
    """One that is left out makes its slice smaller, and of what follows something else."""
    audits = Audits()
    assert audits.hear(told("worker-1", "a")) is None
    assert audits.hear(told("worker-2", "b", left_out=1)) is None
    assert audits.hear(told("worker-1", "b", left_out=1)) is None and audits.equal == 1
    assert audits.hear(told("worker-2", "b")) == Found(3, 1, "worker-1", "worker-2")


def test_what_is_never_compared_takes_no_memory() -> None:
    audits = Audits()
    for tick in range(3 * MOST_WAITING):
        audits.hear(told("worker-1", "a", tick))
    assert len(audits._made) == MOST_WAITING
    assert audits.hear(told("worker-2", "b", 3 * MOST_WAITING - 1)) is not None


@pytest.mark.parametrize("settings", [{"mode": "async"}, {"fingerprint": "warn"}, {"compression": "top-k"}])
def test_where_results_differ_rightly_nothing_can_be_audited(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="audit: 10"):
        Config(audit=10, **settings)  # type: ignore[arg-type]
