"""Memory that is written while it is lent is noticed by whoever uses it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from elasticflow.api import SGD
from elasticflow.errors import BrokenError, ProtocolError
from elasticflow.process import poison
from elasticflow.step.layout import Entry, Layout, Rule, Vector
from elasticflow.step.schedule import Kind
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import parcels_of
from elasticflow_ps.store import Store, Sum
from elasticflow_ps.watch import LEAST_BYTES, MASK, TURNS, WINDOWS, Watched, checks_of, checksum

LAYOUT = Layout(
    [
        Entry("w", (40, 7), "float32", Rule.UPDATE),
        Entry("count", (), "int64", Rule.FIRST),
        Entry("report", (2,), "float64", Rule.REPORT),
    ]
)
PARCEL = parcels_of(LAYOUT, range(len(LAYOUT.chunks)))[0]


def filled(value: float) -> Vector:
    vector = Vector(LAYOUT)
    for group in vector.groups:
        group.fill(value)
    return vector


def watched(vector: Vector) -> Watched:
    return Watched(checks_of(PARCEL.views(vector, Kind.TRAIN), 5), 5, lambda: "what worker-1 pushed")


def test_a_checksum_follows_from_the_bytes_alone() -> None:
    array = np.arange(1000, dtype=np.float32)
    whole = checksum(array, 0)
    assert whole == checksum(array.copy(), 7) == checksum(memoryview(array.tobytes()), 3)
    assert 0 <= whole <= MASK and checksum(np.empty(0, np.float32), 0) >= 0
    for place in (0, 500, 999):
        other = array.copy()
        other.view(np.uint32)[place] ^= 1
        assert checksum(other, 0) != whole
    assert checksum(np.roll(array, 1), 0) != whole  # the same numbers elsewhere


SIZES = [WINDOWS * LEAST_BYTES + 64, 1 << 17, 1 << 20, (4 << 20) - 64, 8 << 20]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_what_is_overwritten_is_seen_at_once(monkeypatch: pytest.MonkeyPatch, size: int, part: float) -> None:
    """A tenth of an array, wherever it lies, in any turn."""
    monkeypatch.setattr(poison, "ON", False)
    array = np.zeros(size, np.uint8)
    torn = array.copy()
    torn[int(part * size) :][: size // 10] = 1
    assert all(checksum(torn, turn) != checksum(array, turn) for turn in range(300))


@pytest.mark.parametrize("size", SIZES)
def test_every_bit_has_its_turn(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(poison, "ON", False)
    array = np.zeros(size, np.uint8)
    turns = range(2 * TURNS)
    whole = [checksum(array, turn) for turn in turns]
    for place in np.linspace(0, size - 1, 50).astype(int):
        array[place] = 1
        assert [checksum(array, turn) for turn in turns] != whole
        array[place] = 0


@pytest.mark.parametrize("place", range(len(PARCEL.spans)))
def test_who_uses_other_bits_than_were_lent_says_which(place: int) -> None:
    vector = filled(1)
    lent = watched(vector)
    arrays = PARCEL.views(vector, Kind.TRAIN)
    lent.compare(arrays, PARCEL.spans, "server-0")
    arrays[place].view(np.uint8)[-1] ^= 1
    chunks = ", ".join(str(chunk.number) for chunk in PARCEL.spans[place].chunks)
    with pytest.raises(
        BrokenError, match=f"what worker-1 pushed, chunk {chunks}: server-0 has got other bits"
    ):
        lent.compare(arrays, PARCEL.spans, "server-0")


def test_too_few_checksums_are_a_wrong_message() -> None:
    with pytest.raises(ProtocolError, match="1 checksums of 3 arrays"):
        Watched((1,), 0, str).compare(PARCEL.views(filled(1), Kind.TRAIN), PARCEL.spans, "server-0")


@pytest.mark.parametrize("side", ["left", "right"])
def test_sums_are_compared_when_they_are_added_up(side: str) -> None:
    vectors = {"left": filled(1), "right": filled(2)}
    sums = {}
    for name, vector in vectors.items():
        arrays = PARCEL.views(vector, Kind.TRAIN)
        compare = partial(watched(vector).compare, arrays, PARCEL.spans, "server-0")
        sums[name] = Sum(arrays, PARCEL.spans, compare)
    vectors[side].groups[0][3] = 7
    with pytest.raises(BrokenError):
        sums["left"].plus(sums["right"])


def test_a_sum_is_compared_once_and_its_own_changes_are_none() -> None:
    left, right = filled(1), filled(2)
    arrays = PARCEL.views(left, Kind.TRAIN)
    spans = PARCEL.spans
    total = Sum(arrays, spans, partial(watched(left).compare, arrays, PARCEL.spans, "server-0"))
    total.plus(Sum(PARCEL.views(right, Kind.TRAIN), spans)).use()
    assert (arrays[0] == 3).all()


def test_a_version_is_looked_back_at_when_it_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison, "ON", True)
    store = Store([PARCEL], kernel_for(SGD(lr=0.5)))
    store.initialise(0, PARCEL, [np.ones(len(span), span.dtype) for span in PARCEL.state])
    old = store.arrays(0, PARCEL)
    checks = store.checks(0, PARCEL, old, 0)
    assert checks == checks_of(old, 0) == store.checks(0, PARCEL, old, 0)
    spans = PARCEL.spans
    for version in (0, 1):
        root = Sum([np.full(len(span), 1, span.dtype) for span in PARCEL.spans], spans)
        store.apply(version, PARCEL, root, lr=0.5, update=version + 1, scale=1.0)
    store.retire(1)  # as it was lent: nobody minds
    fresh = store.arrays(1, PARCEL)
    store.checks(1, PARCEL, fresh, 1)
    fresh[0][5] = 9
    with pytest.raises(BrokenError, match="written while they were lent"):
        store.retire(2)


def test_poison_is_none_and_reaches_all(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [np.ones((2, 3)), np.ones(4, np.float32), np.ones(5, np.int64), np.empty(0)]
    monkeypatch.setattr(poison, "ON", False)
    quiet = np.ones(3)
    poison.poison(quiet)
    assert (quiet == 1).all()
    monkeypatch.setattr(poison, "ON", True)
    poison.poison(*arrays)
    assert np.isnan(arrays[0]).all() and np.isnan(arrays[1]).all() and (arrays[2] == -1).all()
