"""LAMB and LARS: norms over whole tensors, which servers have parts of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from server_job import ENTRIES, LAYOUT, SCHEDULE, FakeWorker, Job

from elasticflow.api import LAMB, LARS, SGD, Optimizer
from elasticflow.errors import ProtocolError
from elasticflow.step.layout import Entry, Layout, Rule, spread
from elasticflow.step.schedule import Kind
from elasticflow.storage import DirectoryStorage
from elasticflow.wire.messages import Norms
from elasticflow.worker.loaded import _problem
from elasticflow_ps import native
from elasticflow_ps.agreement import NormSum
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import parcels_of, pieces_of
from elasticflow_ps.store import Store, Sum

STEPS = 12
OPTIMIZERS = [
    LAMB(lr=0.01, weight_decay=0.1),
    LAMB(lr=0.01, eps=1e-3, clip_norm=1.0),
    LAMB(lr=0.01, clip_value=0.5, maximize=True, ema=0.9),
    LARS(lr=2.0, weight_decay=0.01),
    LARS(lr=2.0, momentum=0.5, nesterov=True, clip_norm=1.0),
    LARS(lr=2.0, momentum=0.0, maximize=True, trust_coefficient=0.01),
]


@pytest.fixture
def begun() -> Iterator[list[Any]]:
    made: list[Any] = []
    yield made
    for each in made:
        each.close()


def trained(begun: list[Any], path: Path, servers: int, optimizer: Optimizer) -> FakeWorker:
    """What so many servers make of ``STEPS`` steps; halfway they halt, and go on from their memory."""
    job, worker = Job(DirectoryStorage(path), servers, optimizer=optimizer), FakeWorker()
    begun.extend([worker, job])
    worker.connect(job.assign())
    worker.train(STEPS // 2)
    worker.disconnect()
    worker.connect(job.regroup())
    worker.train(STEPS)
    assert all(process.server._dropped == 0 for process in job.row)
    return worker


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_the_bits_are_the_same_for_any_number_of_servers(
    begun: list[Any], tmp_path: Path, optimizer: Optimizer
) -> None:
    workers = [trained(begun, tmp_path / str(n), n, optimizer) for n in (1, 2, 3)]
    assert workers[0].model() == workers[1].model() == workers[2].model()
    expected = plainly(optimizer)
    found = dict(zip(expected, workers[0].state.tensors(ENTRIES[:2]), strict=True))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-4, atol=2e-5)


def plainly(optimizer: LAMB | LARS) -> dict[str, Any]:
    """The papers' algorithms as they stand there, in float64, over whole tensors."""
    first = FakeWorker()
    names = [entry.name for entry in ENTRIES[:2]]
    w = {n: a.astype(np.float64) for n, a in zip(names, first.state.tensors(ENTRIES[:2]), strict=True)}
    padding = [flat[entry.size :] for flat, entry in zip(first.state.groups, ENTRIES, strict=False)]
    assert sum(map(len, padding[:2])) == 2, "what is said of norms holds where there is padding as well"
    m = {name: np.zeros_like(values) for name, values in w.items()}
    v = {name: np.zeros_like(values) for name, values in w.items()}
    first.close()
    for tick in range(STEPS):
        assert SCHEDULE.at(tick).kind is Kind.TRAIN
        noise = np.random.default_rng(tick)
        grads = {}
        for group, entry in zip(LAYOUT.groups, ENTRIES, strict=True):
            drawn = noise.normal(size=group.size) * 10
            if entry.rule is Rule.UPDATE:
                grads[entry.name] = drawn[: entry.size].reshape(entry.shape) + 0.1 * w[entry.name]
        if optimizer.clip_norm is not None:
            norm = np.sqrt(sum(np.sum(grad**2) for grad in grads.values()))
            grads = {n: grad * min(1.0, optimizer.clip_norm / (norm + 1e-6)) for n, grad in grads.items()}
        for name, grad in grads.items():
            g = -grad if optimizer.maximize else grad
            if optimizer.clip_value is not None:
                g = np.clip(g, -optimizer.clip_value, optimizer.clip_value)
            size = np.linalg.norm(w[name])
            if isinstance(optimizer, LAMB):
                beta1, beta2 = optimizer.betas
                m[name] = beta1 * m[name] + (1 - beta1) * g
                v[name] = beta2 * v[name] + (1 - beta2) * g**2
                mean, square = m[name] / (1 - beta1 ** (tick + 1)), v[name] / (1 - beta2 ** (tick + 1))
                change = mean / (np.sqrt(square) + optimizer.eps) + optimizer.weight_decay * w[name]
                w[name] = w[name] - optimizer.lr * size / np.linalg.norm(change) * change
            else:
                decay = optimizer.weight_decay
                trust = optimizer.trust_coefficient * size / (np.linalg.norm(g) + decay * size)
                change = optimizer.lr * trust * (g + decay * w[name])
                m[name] = optimizer.momentum * m[name] + change
                w[name] = w[name] - (change + optimizer.momentum * m[name] if optimizer.nesterov else m[name])
    return w


@pytest.mark.skipif(not native.available, reason="there is no C here")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_norms_have_the_same_bits_in_c_and_wherever_arrays_lie(
    optimizer: Optimizer, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, kernel = np.random.default_rng(3), kernel_for(optimizer)
    params, grad = (rng.normal(size=70_003).astype(dtype) for _ in range(2))  # blocks, and a rest
    slots = {name: np.abs(rng.normal(size=params.size)).astype(dtype) for name in kernel.slots}
    before = {name: slot.copy() for name, slot in slots.items()}
    found = kernel.squared_norms(params, grad, slots, update=3, grad_scale=0.7)
    assert all(np.array_equal(slots[name], before[name]) for name in slots), "nothing is changed"
    moved = [np.concatenate([array[:1], array])[1:] for array in (params, grad)]
    assert kernel.squared_norms(*moved, slots, update=3, grad_scale=0.7) == found
    monkeypatch.setattr(native, "takes", lambda *arrays: False)
    assert kernel.squared_norms(params, grad, slots, update=3, grad_scale=0.7) == found


@pytest.mark.parametrize("optimizer", [LAMB(), LARS()], ids=repr)
def test_a_norm_of_nothing_leaves_the_learning_rate_as_it_is(optimizer: Optimizer) -> None:
    """Zeros are how many a bias begins: it would stay 0 for ever, or become NaN."""
    kernel = kernel_for(optimizer)
    assert kernel.trust(0.0, 2.0) == kernel.trust(2.0, 0.0) == kernel.trust(0.0, 0.0) == 1.0


def test_pieces_are_all_elements_once_whoever_holds_them() -> None:
    for servers in (1, 3):
        found = [
            piece
            for chunks in spread(LAYOUT, servers)
            for parcel in parcels_of(LAYOUT, chunks)
            for span in parcel.spans
            if span.rule is Rule.UPDATE
            for piece in span.pieces
        ]
        updated = [c for c in LAYOUT.chunks if LAYOUT.groups[c.group].rule is Rule.UPDATE]
        assert sorted(found) == sorted(piece for chunk in updated for piece in pieces_of(LAYOUT, chunk))
        sizes = [sum(p.stop - p.start for p in found if p.tensor == number) for number in (0, 1)]
        assert sizes == [150_000, 70]
        assert sum(piece.end - piece.start for piece in found) == sum(c.stop - c.start for c in updated)


def test_pieces_of_a_group_of_many_tensors() -> None:
    entries = [Entry(f"t{n}", (size,), "float32", Rule.UPDATE) for n, size in enumerate((5, 1, 0, 4000, 17))]
    layout = Layout(entries)
    found = [piece for chunk in layout.chunks for piece in pieces_of(layout, chunk)]
    sizes = {number: sum(p.stop - p.start for p in found if p.tensor == number) for number in range(5)}
    assert sizes == {0: 5, 1: 1, 2: 0, 3: 4000, 4: 17}
    covered = [element for piece in found for element in range(piece.start, piece.end)]
    assert covered == list(range(layout.groups[0].size))


def test_norms_of_tensors_are_added_in_the_order_of_the_chunks() -> None:
    sums = NormSum(
        {"a": frozenset({1}), "b": frozenset({2})}, {"a": frozenset({(0, 1)}), "b": frozenset({(0, 2)})}
    )
    for wrong in (((0, 2, 1.0, 1.0),), ((1, 1, 1.0, 1.0),), ((0, 1, -1.0, 1.0),), ((0, 1, 1.0, -1.0),)):
        with pytest.raises(ProtocolError):
            sums.check("a", Norms(tick=0, norms=(), tensors=wrong))
    right = {
        "b": Norms(tick=0, norms=(), tensors=((0, 2, 7.0, 2.0),)),
        "a": Norms(tick=0, norms=(), tensors=((0, 1, 9.0, 2.0),)),
    }
    for name, message in right.items():
        sums.check(name, message)
    assert sums.add("b", right["b"]) is None
    agreed = sums.add("a", right["a"])
    assert agreed is not None and agreed.tensors == {0: (4.0, 2.0)}


def test_some_tensors_alone_have_learning_rates_of_their_own() -> None:
    """A group's optimizer; the others are updated as they would be without."""
    entries = [
        Entry("a", (500,), "float32", Rule.UPDATE),
        Entry("b", (700,), "float32", Rule.UPDATE, part=1),
        Entry("c", (30,), "float32", Rule.UPDATE, part=1),
    ]
    layout, kernels = Layout(entries), [kernel_for(SGD(lr=0.5)), kernel_for(LAMB(lr=0.5))]
    (parcel,) = parcels_of(layout, range(len(layout.chunks)))
    store, rng = Store([parcel], *kernels), np.random.default_rng(1)
    values, grads = ([rng.normal(size=len(span)).astype(np.float32) for span in parcel.spans] for _ in "vg")
    store.initialise(0, parcel, values)
    root = Sum([grad.copy() for grad in grads], parcel.spans)
    told = store.tensor_norms(0, parcel, root, update=1, scale=1.0)
    assert {tensor for tensor, *_ in told} == {1, 2}
    trust = {1: 3.0, 2: 0.25}
    assert store.apply(0, parcel, root, lr=0.5, others=(0.1,), update=1, scale=1.0, trust=trust)
    plain, adapted = store.arrays(1, parcel)
    np.testing.assert_array_equal(plain, values[0] - np.float32(0.5) * grads[0])
    for number, where in ((1, slice(0, 700)), (2, slice(704, 734))):  # padded to lines of 16 elements
        out = np.empty_like(values[1][where])
        slots = kernels[1].new_slots(out)
        kernels[1].apply(
            values[1][where], grads[1][where], slots, out, slots, lr=0.1 * trust[number], update=1
        )
        np.testing.assert_array_equal(adapted[where], out)


@pytest.mark.parametrize(
    ("optimizer", "others", "tables", "asynchronous", "words"),
    [
        (LAMB(), (), (), True, "ef.LAMB follows from norms over whole tensors.* mode: sync"),
        (SGD(), (LARS(),), (), True, "ef.LARS follows"),
        (LARS(), (), (None,), False, "ef.LARS follows.* Give each ef.Embedding another"),
        (LAMB(), (), (SGD(),), False, "^$"),
        (SGD(), (LAMB(),), (None,), False, "^$"),
        (SGD(), (), (None,), True, "^$"),
    ],
)
def test_what_cannot_be_is_told(
    optimizer: Any, others: Any, tables: Any, asynchronous: bool, words: str
) -> None:
    groups: Any = SimpleNamespace(optimizer=optimizer, others=others)
    specs: Any = [SimpleNamespace(optimizer=each) for each in tables]
    assert re.search(words, _problem(groups, specs, asynchronous=asynchronous))
