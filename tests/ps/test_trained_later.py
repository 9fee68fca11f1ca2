"""What is trained from some epoch on is updated as a plain loop does: before that nothing of it changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elasticflow import api
from elasticflow.step.layout import Entry, Layout, Rule, spread
from elasticflow.step.schedule import Kind, Schedule
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import parcels_of
from elasticflow_ps.state import ApplyAction
from elasticflow_ps.store import Store, Sum
from elasticflow_ps.updating import Updating

torch = pytest.importorskip("torch")
TOGGLES = {"always": (), "late": (0, 2), "early": (1, 3)}
LAYOUT = Layout(Entry(name, (20,), "float64", Rule.UPDATE, toggles=each) for name, each in TOGGLES.items())
SCHEDULE = Schedule(num_records=6, num_test=0, batch_size=2, num_slices=1, epochs=4)
ONE = {"always": {0, 1, 2, 3}, "late": {2, 3}, "early": {0, 3}}


class Served:
    def __init__(self, optimizer: api.Optimizer) -> None:
        self.parcels = parcels_of(LAYOUT, spread(LAYOUT, 1)[0])
        self.store = Store(self.parcels, kernel_for(optimizer))
        spec: Any = SimpleNamespace(optimizer=optimizer, optimizers=(optimizer,), tables=())
        made: Any = SimpleNamespace(schedule=SCHEDULE, spec=spec, staleness_rule="none")
        self.updating = Updating(made, self.store)
        self.values = {name: np.random.default_rng(n).normal(size=20) for n, name in enumerate(TOGGLES)}
        for parcel in self.parcels:
            self.store.initialise(0, parcel, [self._of(span, self.values) for span in parcel.state])

    def _of(self, span: Any, values: dict[str, np.ndarray]) -> np.ndarray:
        whole = np.zeros(LAYOUT.groups[span.group].size)
        for name, value in values.items():
            group, start = LAYOUT.places[name]
            if group == span.group:
                whole[start : start + 20] = value
        return whole[span.start : span.stop]

    def step(self, tick: int, gradients: dict[str, np.ndarray]) -> None:
        for parcel in self.parcels:
            spans = parcel.pushed(Kind.TRAIN, SCHEDULE.at(tick).epoch)
            root = Sum([self._of(span, gradients).copy() for span in spans], spans)
            assert self.updating.apply(ApplyAction(tick, parcel.number, root, None, None), parcel)
        self.store.retire(tick)

    def found(self, version: int, slot: str = "") -> dict[str, np.ndarray]:
        whole = [np.zeros(group.size) for group in LAYOUT.groups]
        for parcel in self.parcels:
            for span in parcel.state:
                slabs = self.store._slots[span.number] if slot else {}
                value = slabs[slot].array if slot else self.store._versions[version][span.number].array
                whole[span.group][span.start : span.stop] = value
        return {
            name: whole[group][start : start + 20].copy() for name, (group, start) in LAYOUT.places.items()
        }


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD", "Adagrad", "Adamax"])
def test_it_is_as_in_a_plain_loop(name: str) -> None:
    """torch counts steps by parameter, and passes over one without a gradient."""
    more = {"momentum": 0.9, "dampening": 0.1} if name == "SGD" else {}
    served = Served(getattr(api, name)(lr=0.1, weight_decay=0.1, ema=0.9, **more))
    params = {n: torch.nn.Parameter(torch.from_numpy(v.copy())) for n, v in served.values.items()}
    plain = getattr(torch.optim, name)(params.values(), lr=0.1, weight_decay=0.1, foreach=False, **more)
    rng, averages = np.random.default_rng(9), dict[str, np.ndarray]()
    before = served.found(0)
    for tick in range(SCHEDULE.total_ticks):
        epoch = SCHEDULE.at(tick).epoch
        gradients = {n: rng.normal(size=20) for n in TOGGLES}
        served.step(tick, gradients)
        for n, param in params.items():
            param.grad = torch.from_numpy(gradients[n]) if epoch in ONE[n] else None
        plain.step()
        after = served.found(tick + 1)
        for n, param in params.items():
            assert np.allclose(after[n], param.detach().numpy(), rtol=1e-9, atol=1e-12), (tick, n)
            if epoch not in ONE[n]:
                assert (after[n] == before[n]).all(), (tick, n)
        now = {n: param.detach().numpy() for n, param in params.items() if epoch in ONE[n] or not tick}
        averages |= {n: 0.9 * averages[n] + 0.1 * v if n in averages else v.copy() for n, v in now.items()}
        for n, average in served.found(tick + 1, "ema").items():
            assert np.allclose(average, averages[n], rtol=1e-9, atol=1e-12), (tick, n)
        before = after


def test_norms_are_of_what_is_trained() -> None:
    served = Served(api.SGD(lr=0.1))
    norms = {}
    for parcel in served.parcels:
        spans = parcel.pushed(Kind.TRAIN, 1)
        root = Sum([np.ones(len(span)) for span in spans], spans)
        norms |= dict(served.store.norms(parcel, root))
    chunks = {c.number: LAYOUT.groups[c.group].toggles for c in LAYOUT.chunks}
    assert norms.keys() == chunks.keys()
    assert all((norms[number] > 0) is (toggles == ()) for number, toggles in chunks.items())
