"""What is trained in which epoch: ``trainable(epoch)`` and what follows from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as some

from elasticflow.errors import ProgramError
from elasticflow.step.layout import Entry, Layout, Rule, spread
from elasticflow.step.schedule import Kind, Schedule
from elasticflow.training.freezing import begins_late, epochs_before, is_trained, toggles_of, told
from elasticflow.training.trainable import HORIZON, toggles_by_name
from elasticflow_ps.parcels import parcels_of

NAMES = ("body.0.weight", "body.0.bias", "head.weight")


@given(some.lists(some.booleans(), min_size=1, max_size=12), some.integers(0, 3))
def test_toggles_say_what_was_said(trained: list[bool], beyond: int) -> None:
    toggles = toggles_of(trained)
    meant = [*trained, *[trained[-1]] * beyond]
    assert [is_trained(toggles, epoch) for epoch in range(len(meant))] == meant
    assert [epochs_before(toggles, epoch) for epoch in range(len(meant))] == [
        sum(meant[:epoch]) for epoch in range(len(meant))
    ]
    assert begins_late(toggles) is not trained[0]


def test_updates_are_those_of_the_epochs_in_which_it_is_trained() -> None:
    schedule = Schedule(num_records=10, num_test=1, batch_size=4, num_slices=2, epochs=5, updates_before=100)
    counted = [
        schedule.update(work, 0, (0, 1, 2, 4))
        for work in map(schedule.at, range(schedule.total_ticks))
        if work.kind is Kind.TRAIN and work.epoch in (1, 4)
    ]
    assert counted == [101, 102, 103, 104, 105, 106]


@pytest.mark.parametrize(
    "toggles, words",
    [
        ((), ""),
        ((0,), "never trained"),
        ((0, 5), "trained from epoch 6 on"),
        ((3,), "trained in epochs 1 to 3"),
        ((1, 4, 5), "trained in epoch 1, in epoch 5"),
    ],
)
def test_people_count_epochs_from_1(toggles: tuple[int, ...], words: str) -> None:
    assert told(toggles) == words


def test_patterns_of_each_epoch_make_toggles() -> None:
    def trainable(epoch: int) -> list[str]:
        return ["head.*"] if epoch < 2 else ["*.bias", "head.*"] if epoch < 4 else ["*"]

    found = toggles_by_name(trainable, NAMES, ())
    assert found == {"body.0.weight": (0, 4), "body.0.bias": (0, 2), "head.weight": ()}


def test_it_is_asked_for_the_same_epochs_however_many_the_run_has() -> None:
    asked: list[int] = []
    toggles_by_name(lambda epoch: asked.append(epoch) or ["*"], NAMES, ())
    assert asked == list(range(HORIZON))


@pytest.mark.parametrize(
    "trainable, words",
    [
        (lambda epoch: "head.*", r"trainable\(0\) returned 'head.\*'; it must return a list of patterns"),
        (lambda epoch: None if epoch == 3 else ["*"], r"trainable\(3\) returned None; it must"),
        (lambda epoch: ["hed.*"], r"trainable\(0\): 'hed.\*' fits no parameter; there are body.0.weight, "),
        (lambda epoch: ["mean"], r"trainable\(0\): 'mean' fits 'mean', which model\(\) has as a buffer"),
        (lambda epoch: ["*"] if epoch < 7 else [], r"trainable\(7\) returned no pattern, so nothing would"),
    ],
)
def test_what_makes_no_sense_is_refused(trainable: Callable[[int], object], words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        toggles_by_name(trainable, NAMES, ["mean"])


ENTRIES = (
    Entry("body", (3000,), "float32", Rule.UPDATE, toggles=(0, 2)),
    Entry("head", (70,), "float32", Rule.UPDATE),
    Entry("mean", (5,), "float32", Rule.MEAN),
    Entry("report", (1,), "float64", Rule.REPORT),
)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_parcel_is_trained_or_not_and_then_nothing_of_it_travels(servers: int) -> None:
    layout = Layout(ENTRIES)
    schedule = Schedule(num_records=4, num_test=0, batch_size=4, num_slices=2, epochs=4)
    parcels = [p for chunks in spread(layout, servers) for p in parcels_of(layout, chunks)]
    for epoch in range(4):
        pushed = [span for parcel in parcels for span in parcel.pushed(Kind.TRAIN, epoch)]
        names = {layout.groups[span.group].toggles for span in pushed}
        assert names == ({()} if epoch < 2 else {(), (0, 2)})
        for parcel in parcels:
            changes = bool(parcel.state) and (epoch >= 2 or not parcel.toggles)
            assert parcel.is_changed(schedule.at(epoch)) is changes
            assert {layout.groups[span.group].toggles for span in parcel.state} <= {parcel.toggles, ()}


@pytest.mark.parametrize("toggles", [(-1,), (2, 2), (3, 1)])
def test_a_layout_with_toggles_that_are_none_is_refused(toggles: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="is trained, or not, by"):
        Layout([Entry("w", (3,), "float32", Rule.UPDATE, toggles=toggles)])
    with pytest.raises(ValueError, match="is trained, or not, by"):
        Layout([Entry("m", (3,), "float32", Rule.MEAN, toggles=(0, 1))])
