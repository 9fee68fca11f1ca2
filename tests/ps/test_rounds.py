"""Rounds of a step: what is of one is updated in that, what is kept at the end, and the rest stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elasticflow.api import Adam
from elasticflow.step.layout import Entry, Layout, Rule, rounds_of, spread, stages_of
from elasticflow.step.schedule import Kind, Schedule
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import parcels_of
from elasticflow_ps.state import ApplyAction
from elasticflow_ps.store import Store, Sum
from elasticflow_ps.updating import Updating

ENTRIES = (
    Entry("first", (20,), "float64", Rule.UPDATE, rounds=(0,)),
    Entry("second", (20,), "float64", Rule.UPDATE, rounds=(1,)),
    Entry("both", (20,), "float64", Rule.UPDATE, rounds=(0, 1)),
    Entry("mean", (3,), "float64", Rule.MEAN),
    Entry("totals.1.sum", (2,), "int64", Rule.TOTAL, rounds=(1,)),
    Entry("kept.best", (), "float32", Rule.KEPT),
    Entry("report", (1,), "float64", Rule.REPORT),
)
LAYOUT = Layout(ENTRIES)
SCHEDULE = Schedule(
    num_records=8, num_test=0, batch_size=4, num_slices=2, epochs=2, stages=stages_of(ENTRIES),
    rounds=rounds_of(ENTRIES),
)  # fmt: skip


def test_the_ticks_of_a_step() -> None:
    ticks = [SCHEDULE.at(tick) for tick in range(SCHEDULE.total_ticks)]
    assert [(work.step, work.stage, work.kind) for work in ticks[:6]] == [
        (step, stage, kind)
        for step in (1, 2)
        for stage, kind in enumerate((Kind.TRAIN, Kind.TRAIN, Kind.KEEP))
    ]
    assert len(ticks) == 3 * 4 and {(work.first, work.last) for work in ticks[:3]} == {(0, 4)}
    assert [SCHEDULE.may_cut(version) for version in range(7)] == [v % 3 == 0 for v in range(7)]
    assert all(map(SCHEDULE.trains, range(len(ticks))))
    updates = [[SCHEDULE.update(ticks[t], 0, (), rounds) for t in (0, 1, 3, 4)] for rounds in ((0, 1), ())]
    assert updates == [[1, 2, 3, 4], [1, 1, 2, 2]]


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_what_travels_in_each(servers: int) -> None:
    parcels = [p for chunks in spread(LAYOUT, servers) for p in parcels_of(LAYOUT, chunks)]
    of_rounds = {
        0: {"first", "both", "mean", "report"},
        1: {"second", "both", "mean", "totals.1.sum", "report"},
    }
    for tick, names in ((0, of_rounds[0]), (1, of_rounds[1]), (2, {"kept.best"}), (3, of_rounds[0])):
        work = SCHEDULE.at(tick)
        pushed = {s.group for p in parcels for s in p.pushed(work.kind, work.epoch, work.stage)}
        assert pushed == {LAYOUT.places[name][0] for name in names}
    # What is of one round is in no parcel with what is of another.
    for parcel in parcels:
        assert {LAYOUT.groups[span.group].rounds for span in parcel.state} <= {parcel.rounds}


def test_each_round_updates_its_own() -> None:
    parcels = parcels_of(LAYOUT, spread(LAYOUT, 1)[0])
    store = Store(parcels, kernel_for(Adam(lr=0.5)))
    spec: Any = SimpleNamespace(optimizer=Adam(lr=0.5), optimizers=(Adam(lr=0.5),), tables=())
    made: Any = SimpleNamespace(schedule=SCHEDULE, spec=spec, staleness_rule="none")
    updating = Updating(made, store)
    for parcel in parcels:
        store.initialise(0, parcel, [np.zeros(len(s), s.dtype) for s in parcel.state])

    def values(version: int) -> dict[str, float]:
        groups: dict[int, Any] = {}
        for parcel in parcels:
            for span, array in zip(parcel.state, store.arrays(version, parcel), strict=True):
                groups.setdefault(span.group, array)
        shown = [entry.name for entry in ENTRIES if entry.rule is not Rule.REPORT]
        return {name: float(groups[LAYOUT.places[name][0]][LAYOUT.places[name][1]]) for name in shown}

    before = values(0)
    for tick in range(3):
        work = SCHEDULE.at(tick)
        for parcel in parcels:
            spans = parcel.pushed(work.kind, work.epoch, work.stage)
            root = Sum([np.full(len(span), tick + 1, span.dtype) for span in spans], spans)
            assert updating.apply(ApplyAction(tick, parcel.number, root, None, None), parcel)
        after = values(tick + 1)
        changed = {name for name in after if after[name] != before[name]}
        assert changed == [
            {"first", "both", "mean"}, {"second", "both", "mean", "totals.1.sum"}, {"kept.best"},
        ][tick]  # fmt: skip
        before = after
    assert (before["mean"], before["totals.1.sum"], before["kept.best"]) == (3, 2, 3)
    assert before["first"] == pytest.approx(-0.5) and before["second"] == pytest.approx(-0.5)


@pytest.mark.parametrize(
    "entry",
    [
        Entry("w", (3,), "float32", Rule.UPDATE, rounds=(1, 0)),
        Entry("w", (3,), "float32", Rule.UPDATE, rounds=(-1,)),
        Entry("w", (3,), "float32", Rule.UPDATE, rounds=(64,)),
        Entry("w", (3,), "float32", Rule.MEAN, rounds=(0,)),
    ],
)
def test_a_layout_with_rounds_that_are_none_is_refused(entry: Entry) -> None:
    with pytest.raises(ValueError, match="is of the rounds"):
        Layout([entry])
