"""Versions are immutable, memory is bounded, snapshots hold what they held."""

from __future__ import annotations

import numpy as np
import pytest

from elasticflow.api import SGD
from elasticflow.errors import ProtocolError
from elasticflow.layout import Entry, Layout, Rule, Vector, spread
from elasticflow.schedule import Kind
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import parcels_of
from elasticflow_ps.store import Store, Sum

ENTRIES = (
    Entry("w", (300, 40), "float32", Rule.UPDATE),
    Entry("v", (7,), "float64", Rule.UPDATE),
    Entry("mean", (5,), "float32", Rule.MEAN),
    Entry("count", (), "int64", Rule.FIRST),
    Entry("report", (2,), "float64", Rule.REPORT),
)
LAYOUT = Layout(ENTRIES)


class Held:
    """A store with the chunks of one of some servers, at version 0 all ones."""

    def __init__(self, server: int = 0, servers: int = 1) -> None:
        self.parcels = parcels_of(LAYOUT, spread(LAYOUT, servers)[server])
        self.store = Store(self.parcels, kernel_for(SGD(lr=0.5, momentum=0.9)))
        for parcel in self.parcels:
            self.store.initialise(0, parcel, [np.ones(len(span), span.dtype) for span in parcel.state])

    def sums(self, value: float) -> list[Sum]:
        return [
            Sum([np.full(len(s), value, s.dtype) for s in p.spans], [s.rule for s in p.spans])
            for p in self.parcels
        ]

    def step(self, version: int, value: float = 1.0) -> None:
        for parcel, total in zip(self.parcels, self.sums(value), strict=True):
            self.store.apply(version, parcel, total, lr=0.5, update=version + 1, scale=1.0)
        self.store.retire(version)

    def arrays(self, version: int) -> list[np.ndarray]:
        return [array for parcel in self.parcels for array in self.store.arrays(version, parcel)]


def test_each_rule_makes_the_next_version() -> None:
    held = Held()
    held.step(0, 2.0)
    by_rule = {
        (span.rule, span.dtype): array
        for parcel in held.parcels
        for span, array in zip(parcel.state, held.store.arrays(1, parcel), strict=True)
    }
    assert (by_rule[Rule.UPDATE, "float32"] == 0).all() and (by_rule[Rule.UPDATE, "float64"] == 0).all()
    assert (by_rule[Rule.MEAN, "float32"] == 3).all()
    assert (by_rule[Rule.FIRST, "int64"] == 2).all()
    assert Rule.REPORT not in {rule for rule, _ in by_rule}


def test_a_version_is_never_written_to_while_it_is_served_or_saved() -> None:
    class Sending:
        done = False

    held, tracker = Held(), Sending()
    held.store.track(0, held.parcels[0], tracker)
    sent, sent_copy = held.arrays(0), [array.copy() for array in held.arrays(0)]
    held.step(0)
    saved, pins = held.store.snapshot(1)
    kept = [(array, array.copy()) for _, arrays in saved for array in arrays.values()]
    for version in range(1, 8):
        held.step(version)
    assert all((a == b).all() for a, b in zip(sent, sent_copy, strict=True))
    assert all((array == copy).all() for array, copy in kept)
    held.store.release(pins)
    tracker.done = True
    for version in range(8, 12):
        held.step(version)
    assert not all((a == b).all() for a, b in zip(sent, sent_copy, strict=True)), "memory is used again"


def test_memory_does_not_grow() -> None:
    held = Held()
    for version in range(3):
        held.step(version)
    after_three = held.store.num_bytes
    for version in range(3, 50):
        held.step(version)
    assert held.store.num_bytes == after_three


def test_bits_do_not_depend_on_the_number_of_servers() -> None:
    rng = np.random.default_rng(3)
    gradient = Vector(LAYOUT)
    for flat in gradient.groups:
        flat[:] = rng.normal(size=flat.size) * 10
    one, *others = [_stepped(gradient, servers) for servers in (1, 2, 3, 8)]
    assert all(other == one for other in others)


def _stepped(gradient: Vector, servers: int) -> list[bytes]:
    """The model's bytes after a step with this gradient."""
    whole = Vector(LAYOUT)
    for server in range(servers):
        held = Held(server, servers)
        for parcel in held.parcels:
            arrays = [array.copy() for array in parcel.views(gradient, Kind.TRAIN)]
            total = Sum(arrays, [span.rule for span in parcel.spans])
            held.store.apply(0, parcel, total, lr=0.1, update=1, scale=0.7)
            for span, array in zip(parcel.state, held.store.arrays(1, parcel), strict=True):
                span.view(whole)[:] = array
    return [flat.tobytes() for flat in whole.groups]


def test_arrays_of_the_wrong_size_are_refused() -> None:
    held = Held()
    parcel = held.parcels[0]
    frames = [memoryview(bytes(span.num_bytes)) for span in parcel.spans]
    held.store.parse(parcel.spans, frames)
    for wrong in ([], frames[:-1], [*frames, memoryview(b"")], [memoryview(b"12345678"), *frames[1:]]):
        with pytest.raises(ProtocolError, match="bytes"):
            held.store.parse(parcel.spans, wrong)
