"""Versions are immutable, memory is bounded, snapshots hold what they held."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from elasticflow.api import SGD, Adagrad, Adam, AdamW, Ftrl, Optimizer
from elasticflow.errors import ProtocolError
from elasticflow.step.layout import Entry, Layout, Rule, Vector, spread
from elasticflow.step.schedule import Kind
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import parcels_of
from elasticflow_ps.store import Alone, Snapshot, Store, Sum, parse

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
        return [Sum([np.full(len(s), value, s.dtype) for s in p.spans], p.spans) for p in self.parcels]

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


def test_slices_that_come_one_by_one_make_the_next_version_bit_by_bit() -> None:
    """What is sent meanwhile stays as it is; buffers change by the mean, counters once."""

    class Sending:
        done = False

    held = Held()
    for before, value in enumerate((2.0, 4.0)):
        for parcel, total in zip(held.parcels, held.sums(value), strict=True):
            alone = Alone(1, before, 1 / 2)
            held.store.apply(0, parcel, total, lr=0.5, update=1 + before, scale=1.0, alone=alone)
        if not before:
            for parcel in held.parcels:
                held.store.carry(0, parcel)  # a slice without records
                held.store.track(1, parcel, Sending())
            sent = held.arrays(1)
            copies = [array.copy() for array in sent]
    assert all((array == copy).all() for array, copy in zip(sent, copies, strict=True))
    assert all((array == 1).all() for array in held.arrays(0))
    by_rule = {
        (span.rule, span.dtype): array
        for parcel in held.parcels
        for span, array in zip(parcel.state, held.store.arrays(1, parcel), strict=True)
    }
    # SGD with momentum 0.9: 1 - 0.5 * 2, and then - 0.5 * (0.9 * 2 + 4)
    assert np.allclose(by_rule[Rule.UPDATE, "float64"], -2.9)
    assert (by_rule[Rule.MEAN, "float32"] == 1 + 3).all() and (by_rule[Rule.FIRST, "int64"] == 2).all()
    assert held.store.is_whole(1) and not held.store.is_whole(0)


def test_slices_that_come_one_by_one_take_no_more_memory() -> None:
    held = Held()
    for version in range(4):
        for before in range(8):
            for parcel, total in zip(held.parcels, held.sums(1.0), strict=True):
                held.store.apply(
                    version, parcel, total, lr=0.5, update=1, scale=1.0, alone=Alone(1, before, 1 / 8)
                )
        held.store.retire(version)
        if not version:
            num_bytes = held.store.num_bytes
    assert held.store.num_bytes <= num_bytes + sum(array.nbytes for array in held.arrays(4))


def test_a_version_is_never_written_to_while_it_is_served_or_saved() -> None:
    class Sending:
        done = False

    held, tracker = Held(), Sending()
    held.store.track(0, held.parcels[0], tracker)
    sent, sent_copy = held.arrays(0), [array.copy() for array in held.arrays(0)]
    held.step(0)
    snapshot = held.store.snapshot(1)
    kept = [(array, array.copy()) for _, arrays in snapshot.chunks() for array in arrays.values()]
    for version in range(1, 8):
        held.step(version)
    assert all((a == b).all() for a, b in zip(sent, sent_copy, strict=True))
    assert all((array == copy).all() for array, copy in kept)
    snapshot.release()
    tracker.done = True
    for version in range(8, 12):
        held.step(version)
    assert not all((a == b).all() for a, b in zip(sent, sent_copy, strict=True)), "memory is used again"


class Random:
    """A store with random gradients, and what it holds written down after each version."""

    def __init__(self, optimizer: Optimizer, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.parcels = parcels_of(LAYOUT, spread(LAYOUT, 1)[0])
        self.store = Store(self.parcels, kernel_for(optimizer))
        self.version = 0
        for parcel in self.parcels:
            values = [self.rng.normal(size=len(span)).astype(span.dtype) for span in parcel.state]
            self.store.initialise(0, parcel, values)
        gradients = np.random.default_rng(seed + 1)
        self.sums = [
            [[gradients.normal(size=len(s)).astype(s.dtype) for s in p.spans] for p in self.parcels]
            for _ in range(4)
        ]

    def step(self, only: int | None = None) -> None:
        """One update; with ``only``, of that parcel alone, which makes no version."""
        for parcel in self.parcels if only is None else [self.parcels[only]]:
            arrays = [array.copy() for array in self.sums[self.version % 4][parcel.number]]
            total = Sum(arrays, parcel.spans)
            self.store.apply(self.version, parcel, total, lr=0.1, update=self.version + 1, scale=0.9)
        if only is None:
            self.version += 1
            self.store.retire(self.version - 1)

    def carry(self) -> None:
        for parcel in self.parcels:
            self.store.carry(self.version, parcel)
        self.version += 1
        self.store.retire(self.version - 1)


def bytes_of(snapshot: Snapshot) -> list[bytes]:
    return [a.tobytes() for p in snapshot.store.parcels for a in snapshot.arrays(p.number)]


@settings(max_examples=200)
@given(
    optimizer=some.sampled_from([SGD(), SGD(momentum=0.9), Adam(amsgrad=True), AdamW(), Adagrad(), Ftrl()]),
    acts=some.lists(
        some.sampled_from(["step", "carry", "hold", "release", "back", "stay", "half"]), max_size=40
    ),
    seed=some.integers(0, 100),
)
def test_whatever_is_held_stays_and_can_be_gone_back_to(
    optimizer: Optimizer, acts: list[str], seed: int
) -> None:
    """Every version has the bits that it has where nothing is ever held, or gone back to."""
    subject = Random(optimizer, seed)
    bits = {0: bytes_of(subject.store.snapshot(0))}
    held: list[Snapshot] = []
    evaluated: set[int] = set()
    for act in acts:
        if act in ("step", "carry"):
            # Which ticks evaluate is fixed by the schedule: here, by who comes first.
            first_time = subject.version + 1 not in bits
            if first_time and act == "carry":
                evaluated.add(subject.version)
            subject.carry() if subject.version in evaluated else subject.step()
            snapshot = subject.store.snapshot(subject.version)
            assert bits.setdefault(subject.version, bytes_of(snapshot)) == bytes_of(snapshot)
            snapshot.release()
        elif act == "hold":
            held.append(subject.store.snapshot(subject.version))
        elif act == "release" and held:
            held.pop(0).release()
        elif act == "back" and held:
            subject.store.go_back_to(held[-1])
            subject.version = held[-1].version
        elif act == "stay":
            subject.store.stay_at(subject.version)
        elif act == "half" and held:  # a server that is halted in the middle of a step
            subject.step(only=0)
            has_slots = bool(kernel_for(optimizer).slots)
            assert subject.store.is_whole(subject.version) is not has_slots
            subject.store.go_back_to(held[-1])
            subject.version = held[-1].version
        assert subject.store.is_whole(subject.version)
        assert all(bytes_of(snapshot) == bits[snapshot.version] for snapshot in held)


def test_a_copy_fills_another_store() -> None:
    one, other = Random(Adam(), 1), Random(Adam(), 2)
    for _ in range(3):
        one.step()
    snapshot = one.store.snapshot(3)
    store = Store(other.parcels, kernel_for(Adam()))
    for parcel in store.parcels:
        shape = parcel.copied(kernel_for(Adam()).slots)
        frames = [memoryview(array.view(np.uint8)) for array in snapshot.arrays(parcel.number)]
        store.fill(3, parcel, parse(shape, frames).arrays)
    assert store.is_whole(3) and not store.is_whole(2)
    assert bytes_of(store.snapshot(3)) == bytes_of(snapshot)


def test_memory_does_not_grow() -> None:
    held = Held()
    for version in range(3):
        held.step(version)
    after_three = held.store.num_bytes
    for version in range(3, 50):
        held.step(version)
    assert held.store.num_bytes == after_three
    values = sum(array.nbytes for array in held.arrays(50))
    slots = values - sum(s.num_bytes for p in held.parcels for s in p.state if s.rule is not Rule.UPDATE)
    snapshots = []
    for version in range(50, 100):
        held.step(version)
        if version % 5 == 0:
            snapshots.append(held.store.snapshot(version + 1))
        if len(snapshots) > 2:
            snapshots.pop(0).release()
    assert held.store.num_bytes == after_three + 2 * (values + slots), "of each snapshot a version, and slots"


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
            total = Sum(arrays, parcel.spans)
            held.store.apply(0, parcel, total, lr=0.1, update=1, scale=0.7)
            for span, array in zip(parcel.state, held.store.arrays(1, parcel), strict=True):
                span.view(whole)[:] = array
    return [flat.tobytes() for flat in whole.groups]


def test_arrays_of_the_wrong_size_are_refused() -> None:
    held = Held()
    parcel = held.parcels[0]
    frames = [memoryview(bytes(span.num_bytes)) for span in parcel.spans]
    parse(parcel.spans, frames)
    for wrong in ([], frames[:-1], [*frames, memoryview(b"")], [memoryview(b"12345678"), *frames[1:]]):
        with pytest.raises(ProtocolError, match="bytes"):
            parse(parcel.spans, wrong)
