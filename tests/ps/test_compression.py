"""What travels is smaller: the same bits in C and NumPy, and, rounded, whoever adds up which slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from elasticflow.api import SGD
from elasticflow.errors import ProtocolError
from elasticflow.step.layout import Entry, Layout, Rule, Vector, spread
from elasticflow.step.schedule import Kind, Work
from elasticflow.step.slices import Node, SliceTree, cover
from elasticflow.wire.messages import Push
from elasticflow.wire.outbox import Outbox, Parts
from elasticflow.worker.sums import Sums
from elasticflow_ps import native
from elasticflow_ps.compression import Bfloat16, Compression, TopK
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.outgoing import Pushing, Routes
from elasticflow_ps.packing import (
    from_bfloat16,
    round_to_bfloat16,
    take_largest,
    to_bfloat16,
    to_bfloat16_with_numpy,
)
from elasticflow_ps.parcels import Parcel, parcels_of
from elasticflow_ps.store import Store, Sum

LAYOUT = Layout(
    [
        Entry("w", (40, 10), "float32", Rule.UPDATE),
        Entry("v", (7,), "float64", Rule.UPDATE),
        Entry("u", (33,), "float32", Rule.UPDATE),
        Entry("mean", (5,), "float32", Rule.MEAN),
        Entry("count", (), "int64", Rule.FIRST),
        Entry("report", (2,), "float64", Rule.REPORT),
    ]
)
WHOLE = [chunk.number for chunk in LAYOUT.chunks]
TEMPLATE, WORK = Push(tick=3, parcel=0, level=0, index=0), Work(3, Kind.TRAIN, 0, 4, 0, 8)
EDGES = [0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF, 0xFFBFFFFF, 0x7F7FFFFF, 1, 0x8000]
EDGES += [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF]
BITS = some.lists(some.sampled_from(EDGES) | some.integers(0, (1 << 32) - 1), min_size=1, max_size=100)


# --- bfloat16 -------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(BITS, some.integers(0, 7))
def test_c_and_numpy_round_to_the_same_bits_at_any_address(bits: list[int], skip: int) -> None:
    memory = np.zeros(skip + 4 * len(bits), np.uint8)
    values = memory[skip:].view(np.float32)
    values.view(np.uint32)[:] = bits
    packed = to_bfloat16(values)
    assert (packed == to_bfloat16_with_numpy(values.copy())).all()
    unpacked = np.empty_like(values)
    from_bfloat16(packed, unpacked)
    assert (unpacked.view(np.uint32) == packed.astype(np.uint32) << 16).all()
    round_to_bfloat16(values)
    assert (values.view(np.uint32) == unpacked.view(np.uint32)).all()
    assert (to_bfloat16(values) == packed).all(), "what is rounded stays as it is"


def test_without_c(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(100, dtype=np.float32) / 7
    packed, rounded = to_bfloat16(values), values.copy()
    round_to_bfloat16(rounded)
    monkeypatch.setattr(native, "_rounds", False)
    assert (to_bfloat16(values) == packed).all()
    round_to_bfloat16(values)
    assert (values == rounded).all()


def test_it_is_the_bfloat16_that_pytorch_knows() -> None:
    torch = pytest.importorskip("torch")
    bits = np.random.default_rng(1).integers(0, 1 << 32, 100_000, np.uint32)
    values = np.concatenate([bits, np.array(EDGES, np.uint32)]).view(np.float32)
    unpacked = np.empty_like(values)
    from_bfloat16(to_bfloat16(values), unpacked)
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(unpacked, expected, equal_nan=True)
    assert np.isnan(unpacked).sum() == np.isnan(values).sum() > 0 and np.isinf(unpacked).any()


# --- the same answer ------------------------------------------------------------------------------


class Remote:
    """A server: takes down what it is sent, and adds it up."""

    def __init__(self, name: str, chunks: list[int], compression: Compression, num_slices: int) -> None:
        self.name, self.parcels = name, parcels_of(LAYOUT, chunks)
        self.mapped: set[int] = set()
        self.bases: dict[int, int] = {}
        self.link: Outbox[Push] = Outbox(self._send)
        self.trees = [SliceTree[Any](num_slices, lambda left, right: left.plus(right)) for _ in self.parcels]
        self._compression = compression

    def _send(self, parts: Parts[Push]) -> None:
        for push, arrays in parts:
            spans = self.parcels[push.parcel].pushed(Kind.TRAIN)
            frames = [memoryview(bytearray(array)) for array in arrays]
            total = self._compression.sum_of(spans, frames)
            self.trees[push.parcel].add(Node(push.level, push.index), total)

    def roots(self, out: Vector) -> None:
        for parcel, tree in zip(self.parcels, self.trees, strict=True):
            root = tree.take_root()
            for span, array in zip(parcel.spans, root.arrays, strict=True):
                span.view(out)[:] = array


def slice_of(seed: int, number: int) -> Vector:
    rng, vector = np.random.default_rng([seed, number]), Vector(LAYOUT)
    for group in vector.groups:
        group[:] = (rng.normal(size=len(group)) * 10.0 ** rng.integers(-3, 3)).astype(group.dtype)
    return vector


def add_up(seed: int, cuts: list[int], servers: int, streams: bool, compression: Compression) -> Vector:
    """The root over 8 slices of which each worker has those between two cuts."""
    remotes: list[Any] = [
        Remote(f"server-{number}", chunks, compression, 8)
        for number, chunks in enumerate(spread(LAYOUT, servers))
        if chunks
    ]
    bounds = [0, *cuts, 8]
    for first, stop in zip(bounds, bounds[1:], strict=False):
        for node in cover(first, stop):
            sums = Sums(node, Kind.TRAIN, lambda vector: None, compression.rounding)
            early = node.stop - node.first - streams
            for number in range(node.first, node.first + early):
                sums.take(number, slice_of(seed, number))
            parts = [vector for _, vector in sums.totals if vector is not None]
            parts += [slice_of(seed, node.stop - 1)] if streams else []
            template = Push(tick=3, parcel=0, level=node.level, index=node.index)
            Pushing(
                Routes(LAYOUT, remotes), WORK, template, parts, block=-1, asks=True,
                sent=lambda *how: None, compression=compression,
            ).finish(0.1)  # fmt: skip
    out = Vector(LAYOUT)
    for remote in remotes:
        remote.roots(out)
    return out


CUTS = some.lists(some.integers(1, 7), max_size=5, unique=True).map(sorted)


@settings(max_examples=100)
@given(some.integers(0, 99), CUTS, some.integers(1, 4), some.booleans())
def test_rounded_sums_do_not_depend_on_who_adds_up(seed: int, cuts: list[int], servers: int, streams: bool):
    found = add_up(seed, cuts, servers, streams, Bfloat16())
    alone = add_up(seed, [], 1, False, Bfloat16())
    exact = add_up(seed, [], 1, False, Compression())
    for group, mine, other, whole in zip(
        LAYOUT.groups, found.groups, alone.groups, exact.groups, strict=True
    ):
        assert mine.tobytes() == other.tobytes()
        if group.rule is Rule.UPDATE and group.dtype == "float32":
            assert not (mine.view(np.uint32) & 0xFFFF).any(), "the root is rounded as well"
            assert (mine != whole).any()
        else:
            assert mine.tobytes() == whole.tobytes()


def test_a_version_is_rounded_once_and_stays_what_it_was_on_the_server() -> None:
    compression, packed = Bfloat16(), []
    store = Store(parcels_of(LAYOUT, WHOLE), kernel_for(SGD()))
    values, state = slice_of(1, 1), Vector(LAYOUT)

    def pack(span: Any, array: np.ndarray) -> np.ndarray:
        packed.append(span.number)
        return compression.packed(span, array)

    for parcel in store.parcels:
        store.initialise(0, parcel, [span.view(values) for span in parcel.state])
        for _ in range(2):
            for span, array in zip(parcel.state, store.packed(0, parcel, pack), strict=True):
                assert array.nbytes == compression.version_bytes(span)
                compression.unpack(span, array.view(np.uint8), span.view(state))
        for span, array in zip(parcel.state, store.arrays(0, parcel), strict=True):
            assert (array == span.view(values)).all()
    assert len(packed) == len(set(packed)) > 1
    expected = slice_of(1, 1)
    assert compression.rounding
    compression.rounding(expected)
    for group, mine, other in zip(LAYOUT.groups, state.groups, expected.groups, strict=True):
        assert group.rule is Rule.REPORT or (mine == other).all()


# --- the largest elements -------------------------------------------------------------------------


@settings(max_examples=200)
@given(BITS, some.data())
def test_the_largest_elements_are_taken(bits: list[int], data: Any) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    before, k = values.view(np.uint32).copy(), data.draw(some.integers(1, len(bits)))
    indices, taken = take_largest(values, k)
    order = sorted(range(len(bits)), key=lambda i: (-(bits[i] & 0x7FFFFFFF), i))
    assert list(indices) == sorted(order[:k])
    assert (taken.view(np.uint32) == before[indices]).all() and not values[indices].any()
    rest = np.setdiff1d(np.arange(len(bits)), indices)
    assert (values.view(np.uint32)[rest] == before[rest]).all()


def only_parcel() -> Parcel:
    (parcel,) = parcels_of(LAYOUT, WHOLE)
    return parcel


def pushed(compression: Compression, parcel: Parcel, vector: Vector) -> Sum:
    arrays = [compression.pushed(span, span.view(vector)) for span in parcel.spans]
    return compression.sum_of(parcel.spans, [memoryview(bytearray(array)) for array in arrays])


def test_what_is_not_pushed_is_pushed_later() -> None:
    parcel, compression = only_parcel(), TopK(0.1)
    gradient = slice_of(2, 2)
    for array in gradient.groups:
        array[:] = np.round(array * 8).astype(array.dtype)  # sums are exact, in any order
    total = [np.zeros(len(span), span.dtype) for span in parcel.spans]
    for push in range(200):
        if push == 20:
            for array in gradient.groups:
                array.fill(0)
        for mine, other, span in zip(
            total, pushed(compression, parcel, gradient).arrays, parcel.spans, strict=True
        ):
            mine += other
            nonzero = np.count_nonzero(other)
            assert span.dtype != "float32" or span.rule is not Rule.UPDATE or nonzero <= 0.1 * len(span) + 1
    once = slice_of(2, 2)
    for mine, span in zip(total, parcel.spans, strict=True):
        assert (mine == 20 * np.round(span.view(once) * 8)).all()


@pytest.mark.parametrize("place", [-1, 1 << 20])
def test_a_place_that_is_none_is_refused(place: int) -> None:
    parcel, compression = only_parcel(), TopK(0.1)
    arrays = [compression.pushed(span, span.view(Vector(LAYOUT))).copy() for span in parcel.spans]
    frames = [memoryview(bytearray(array)) for array in arrays]
    with pytest.raises(ProtocolError, match="bytes"):
        compression.sum_of(parcel.spans, [memoryview(bytes(frames[0])[:-8]), *frames[1:]])
    arrays[0].view(np.int32)[0] = place
    frames = [memoryview(bytearray(array)) for array in arrays]
    with pytest.raises(ProtocolError, match="none of"):
        compression.sum_of(parcel.spans, frames)
