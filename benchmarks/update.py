"""A server's updates, each to new arrays, over torch.optim's fused ones, which work in place.

torch has no FTRL: its Adam stands in, which reads and writes the same bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.figures import Figure, figure, median
from elasticflow.api import SGD, Adagrad, Adam, AdamW, Ftrl, Optimizer
from elasticflow.step.layout import Array, Entry, Layout, Rule, spread
from elasticflow_ps import native
from elasticflow_ps.arena import Arena
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import Parcel, parcels_of
from elasticflow_ps.store import Store, Sum

MEGABYTES, ROUNDS = 100, 15
PAUSE_S = 0.2
"""Before each update: threads of torch spin for a while after theirs, where ours would be."""
COMMAND = "python -m benchmarks update"
OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": SGD(),
    "momentum": SGD(momentum=0.9),
    "Nesterov": SGD(momentum=0.9, nesterov=True),
    "Adam": Adam(),
    "AdamW": AdamW(),
    "AMSGrad": Adam(amsgrad=True),
    "Adagrad": Adagrad(),
    "FTRL": Ftrl(l1=0.1),
}


def _parcels() -> list[Parcel]:
    """A server's, of so many megabytes."""
    layout = Layout([Entry("w", (MEGABYTES * 2**20 // 4,), "float32", Rule.UPDATE)])
    return parcels_of(layout, spread(layout, 1)[0])


def _ours(optimizer: Optimizer, parcels: list[Parcel], gradients: list[Array]) -> Callable[[], None]:
    """Makes the next version of a store, parcel by parcel, and lets go of the one before."""
    store = Store(parcels, kernel_for(optimizer))
    sums = [Sum([gradient], parcel.spans) for parcel, gradient in zip(parcels, gradients, strict=True)]
    for parcel, gradient in zip(parcels, gradients, strict=True):
        store.initialise(0, parcel, [gradient])
    version = 0

    def update() -> None:
        nonlocal version
        for parcel, total in zip(parcels, sums, strict=True):
            store.apply(version, parcel, total, lr=optimizer.lr, update=version + 1, scale=1.0)
        version += 1
        store.retire(version)

    return update


def _theirs(
    optimizer: Optimizer, gradients: list[Array], copy: Callable[[Array], Array]
) -> Callable[[], None]:
    """A step of the same optimizer on tensors of the same size, in the same kind of memory."""
    import torch

    parameters = [torch.nn.Parameter(torch.from_numpy(copy(gradient))) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = torch.from_numpy(gradient)
    arguments = optimizer.settings()
    arguments.pop("clip_norm")
    theirs = getattr(torch.optim, arguments.pop("optimizer"))(parameters, fused=True, **arguments)
    theirs.step()
    for state in theirs.state.values():
        for name, slot in state.items():
            if slot.ndim:  # not the number of steps
                state[name] = torch.from_numpy(copy(slot.numpy()))
    return theirs.step  # type: ignore[no-any-return]


def _gb_per_s(update: Callable[[], None]) -> float:
    time.sleep(PAUSE_S)
    since_s = time.perf_counter()
    update()
    return MEGABYTES * 2**20 / 1e9 / (time.perf_counter() - since_s)


def run() -> Iterator[Figure]:
    """For each optimizer and number of threads, in turns."""
    import torch

    chance, arena = np.random.default_rng(0), Arena()

    def copy(array: Array) -> Array:
        to = arena.empty(array.nbytes)[0].view(array.dtype)
        np.copyto(to, array)
        return to

    parcels = _parcels()
    gradients = [copy(chance.standard_normal(len(parcel.spans[0]), np.float32)) for parcel in parcels]
    for name, optimizer in OPTIMIZERS.items():
        peer = Adam() if isinstance(optimizer, Ftrl) else optimizer
        ours, theirs = _ours(optimizer, parcels, gradients), _theirs(peer, gradients, copy)
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            torch.set_num_threads(threads)
            native.set_threads(threads)
            pairs = [(_gb_per_s(ours), _gb_per_s(theirs)) for _ in range(ROUNDS)]
            value, reference = (median(values) for values in zip(*pairs, strict=True))
            what = f"{name}, threads {threads}: server / torch fused {type(peer).__name__}"
            yield figure(what, value, "GB/s", reference, COMMAND, "" if native.available else "NumPy")
