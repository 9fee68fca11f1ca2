"""Whether an update makes numbers alone: the same in C and in NumPy, for each rule, at any place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from elasticflow.api import SGD, Adagrad, Adam, AdamW, Ftrl, Optimizer
from elasticflow.embedding import Embedding
from elasticflow.errors import ProgramError
from elasticflow.step.layout import Entry, Layout, Rule
from elasticflow.step.rows import Rows
from elasticflow_ps import native
from elasticflow_ps.compression import TopK
from elasticflow_ps.finite import all_finite, are_numbers, first_odd
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import parcels_of
from elasticflow_ps.store import Store, Sum
from elasticflow_ps.tables import tables_of

RULES: list[Optimizer] = [
    SGD(lr=0.1),
    SGD(lr=0.1, momentum=0.9, nesterov=True),
    Adam(),
    Adam(amsgrad=True),
    AdamW(),
    Adagrad(),
    Ftrl(l1=0.1),
]
SIZES = (1, 15, 16, 17, 64, 1000, (1 << 18) + 5)
"""The last is large enough to be written past the caches, and shared by threads."""


@pytest.fixture(params=["c", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(native, "available", False)
    elif not native.available:
        pytest.skip("there is no C")
    return str(request.param)


def update(optimizer: Optimizer, params: np.ndarray, grad: np.ndarray) -> tuple[bool, np.ndarray]:
    kernel, out = kernel_for(optimizer), np.empty_like(params)
    slots = kernel.new_slots(params)
    return kernel.apply(params, grad, slots, out, slots, lr=optimizer.lr, update=1), out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("optimizer", RULES, ids=lambda each: type(each).__name__)
def test_an_update_tells_of_the_one_number_that_is_none(way, optimizer, dtype) -> None:
    for size in SIZES:
        params, grad = np.full(size, 0.5, dtype), np.full(size, 0.25, dtype)
        assert update(optimizer, params, grad)[0]
        for place in {0, size // 2, size - 1}:
            for odd in (np.nan, np.inf, -np.inf):
                grad[place] = odd
                finite, out = update(optimizer, params, grad)
                assert not finite and np.flatnonzero(~np.isfinite(out)).tolist() == [place]
                grad[place] = 0.25


def test_what_is_infinite_may_stay_so_and_what_overflows_is_found(way) -> None:
    params = np.array([1.0, -np.inf, np.inf, 3e38], np.float32)
    assert update(SGD(lr=1.0), params, np.zeros(4, np.float32))[0]
    assert not update(SGD(lr=1.0), params, np.array([0, 0, 0, -3e38], np.float32))[0]
    assert not update(SGD(lr=1.0), params, np.array([0, np.nan, 0, 0], np.float32))[0]


def test_all_finite(way) -> None:
    for size in SIZES:
        values = np.full(size, 3e38, np.float32)
        assert all_finite(values)
        for odd in (np.nan, -np.inf):
            values[size - 1] = odd
            assert not all_finite(values)
    assert all_finite(np.zeros(0, np.float32)) and all_finite(np.arange(3))
    assert are_numbers(np.array([np.inf, 1.0]), np.array([np.inf, 2.0]))
    assert not are_numbers(np.array([-np.inf]), np.array([np.inf]))
    assert are_numbers(np.array([np.nan]), np.array([np.nan])), "what is not set may stay so"
    assert not are_numbers(np.array([np.nan]), np.array([1.0]))


ENTRIES = (
    Entry("a", (20,), "float32", Rule.UPDATE),
    Entry("b", (20,), "float32", Rule.UPDATE),
    Entry("mean", (4,), "float32", Rule.MEAN),
)


def new_store(entries: tuple[Entry, ...] = ENTRIES) -> tuple[Store, Layout]:
    layout, optimizer = Layout(entries), Adam()
    parcels = parcels_of(layout, range(len(layout.chunks)))
    specs = tuple(Embedding(None, 4).spec for _ in layout.tables)
    store = Store(parcels, kernel_for(optimizer), tables=tables_of(layout, specs, optimizer, parcels, 0))
    for parcel in parcels:
        store.initialise(0, parcel, [np.ones(len(span), span.dtype) for span in parcel.state])
    return store, layout


@pytest.mark.parametrize("number, place, name", [(0, 3, "a"), (0, 40, "b"), (1, 1, "mean")])
def test_a_store_that_was_given_a_nan_offers_no_such_version(number: int, place: int, name: str) -> None:
    store, layout = new_store()
    (parcel,) = store.parcels
    held = store.snapshot(0)
    root = Sum([np.ones(len(span), span.dtype) for span in parcel.spans], parcel.spans)
    assert store.is_sound(0, parcel, root)
    root.arrays[number][place] = np.nan
    assert not store.is_sound(0, parcel, root)
    assert first_odd(layout, zip(parcel.spans, root.arrays, strict=True)) == name
    assert not store.apply(0, parcel, root, lr=0.1, update=1, scale=1.0)
    assert not store.is_whole(0) and not store.is_whole(1)
    store.go_back_to(held)
    assert store.is_whole(0)
    assert all(np.array_equal(array, np.ones_like(array)) for array in store.arrays(0, parcel))


def test_a_table_tells_as_well_and_still_has_the_rows_of_before() -> None:
    store, _ = new_store((Entry("table", (0, 4), "float32", Rule.ROWS),))
    (parcel,) = store.parcels
    keys = np.array([5, 9], np.uint64)
    table, before, after = store.tables[0], *np.empty((2, 2, 4), np.float32)
    table.read(keys, 0, 1, before)
    rows = Rows(keys, np.full((2, 4), np.nan, np.float32))
    assert not store.is_sound(0, parcel, rows)
    assert not store.apply(0, parcel, rows, lr=0.1, update=1, scale=1.0)
    assert not store.is_whole(1) and not store.is_whole(0)
    table.read(keys, 0, 1, after)
    assert np.array_equal(before, after)


def test_what_is_left_of_a_gradient_is_never_nan() -> None:
    """Or all that follows would be."""
    layout = Layout([Entry("w", (64,), "float32", Rule.UPDATE)])
    (span,) = parcels_of(layout, range(len(layout.chunks)))[0].spans
    compression, grad = TopK(0.1), np.ones(64, np.float32)
    bad = grad.copy()
    bad[60] = np.nan
    for array, finite in ((bad, False), (grad, True)):
        pushed = compression.pushed(span, array)
        (sent,) = compression.sum_of((span,), [memoryview(pushed.view(np.uint8))]).arrays
        assert all_finite(sent) is finite and sent.any()


# --- numbers that a program names -----------------------------------------------------------------


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 10**60, "1", None, True, [1.0]])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: SGD(lr=x),
        lambda x: SGD(momentum=x),
        lambda x: SGD(dampening=x, momentum=0.5),
        lambda x: SGD(clip_norm=[x]),
        lambda x: Adam(betas=(0.9, x)),
        lambda x: Adam(betas=x),
        lambda x: Adam(eps=x),
        lambda x: AdamW(weight_decay=x),
        lambda x: Adagrad(initial_accumulator_value=x),
        lambda x: Ftrl(beta=x),
    ],
)
def test_numbers_of_an_optimizer_are_numbers(make: Callable[[object], Optimizer], odd: object) -> None:
    with pytest.raises(ProgramError, match="must be"):
        make(odd)


def test_numbers_are_told_as_they_can_be() -> None:
    named = Adam(lr=np.float32(0.5), betas=[np.float64(0.5), 0], eps=1)  # type: ignore[arg-type]
    assert named == Adam(lr=0.5, betas=(0.5, 0.0), eps=1.0)
    assert type(named.lr) is type(named.eps) is type(named.betas[0]) is float
    for odd in (float("inf"), float("nan")):
        with pytest.raises(ProgramError, match="clip_norm must be"):
            SGD(clip_norm=odd)
    with pytest.raises(ProgramError, match="amsgrad must be True or False"):
        Adam(amsgrad="yes")  # type: ignore[arg-type]
