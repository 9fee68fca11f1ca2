"""Weights that others have written, by name: of a run, and in the files that frameworks and tools write.

Nothing of a file is executed: PyTorch's are read with ``weights_only``, Keras's in its safe mode.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elasticflow.checkpoint.catalog import commits, load_manifest, of_one
from elasticflow.checkpoint.failures import naming
from elasticflow.checkpoint.manifest import Manifest
from elasticflow.checkpoint.reader import tensors
from elasticflow.checkpoint.torch_state import named_state, optimizer_in
from elasticflow.errors import CheckpointError, ConfigError
from elasticflow.step.layout import Array
from elasticflow.storage import storage_of
from elasticflow.storage.copying import COPY_BYTES
from elasticflow.storage.remote import client_of
from elasticflow.storage.urls import is_url

NESTED = ("state_dict", "model_state_dict", "model", "module")
"""Under which training scripts put the weights, beside an optimizer and the like."""


class Weights(NamedTuple):
    """arrays: by name, as ``export`` names them; an optimizer's as ``name#slot``. updates: those that its
    state has seen. sources: what a run's manifest tells of its data."""

    arrays: Mapping[str, Array]
    updates: int = 0
    sources: tuple[tuple[str, int, str], ...] = ()


def read_weights(place: str, slots: bool) -> Weights:
    """All that is there.

    place: a run's folder, or a file. slots: with the optimizer's, which a run, or a ``.pt`` file, may have.
    Raises CheckpointError if it cannot be read, ConfigError if it is of no known kind.
    """
    path = Path(place)
    if is_url(place) and path.suffix in READERS:
        with _fetched(place) as copy:
            return read_weights(copy, slots)
    if is_url(place) or path.is_dir():
        return _of_run(place, slots)
    if not path.is_file():
        raise CheckpointError(f"{place}: there is no such file, and no run in a folder of this name.")
    read = READERS.get(path.suffix)
    if read is None:
        raise ConfigError(
            f"{place}: weights are taken from a run's folder, or a file that ends with {', '.join(READERS)}."
        )
    if slots and read is not _torch:
        raise CheckpointError(
            f"{place}: holds no optimizer's state: a run's folder does, a .keras file of a compiled model, "
            "and a .pt file of {'model': net.state_dict(), 'optimizer': optimizer.state_dict()}."
        )
    with naming(place):
        return _torch_with_state(path) if slots else Weights(dict(read(path)))


@contextmanager
def _fetched(url: str) -> Iterator[str]:
    """A copy of a remote file, as long as it is read."""
    client, path = client_of(url)
    with tempfile.NamedTemporaryFile(suffix=Path(path).suffix) as copy, naming(url):
        with client.open(path) as file:
            shutil.copyfileobj(file, copy, COPY_BYTES)
        copy.flush()
        yield copy.name


def _of_run(folder: str, slots: bool) -> Weights:
    storage = storage_of(folder)

    def newest() -> Manifest:
        if not (steps := commits(storage)):
            raise CheckpointError(f"{folder}: holds no committed checkpoint to begin with.")
        return load_manifest(storage, steps[-1])

    def read(found: Manifest) -> Weights:
        return Weights(dict(tensors(storage, found, slots)), found.updates, found.sources)

    return of_one(storage, newest, read)


def _npz(path: Path) -> Mapping[str, Array]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _safetensors(path: Path) -> Mapping[str, Array]:
    try:
        from safetensors.numpy import load_file
    except ImportError as error:
        raise ValueError("needs the package safetensors: pip install safetensors") from error
    try:
        found: dict[str, Array] = load_file(path)
    except KeyError:  # NumPy has no such type, as bfloat16 is none
        from safetensors.torch import load_file as load_tensors

        return _arrays(load_tensors(path))
    return found


def _hdf5(path: Path) -> Mapping[str, Array]:
    import h5py

    found: dict[str, Array] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "biuf":
            found[name.replace("/", ".")] = item[()]

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return found


def _torch(path: Path) -> Mapping[str, Array]:
    return _arrays(_weights_in(_loaded(path)))


def _torch_with_state(path: Path) -> Weights:
    saved = _loaded(path)
    weights = _weights_in(saved)
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    state, updates = named_state(optimizer_in(saved), list(weights), shapes)
    return Weights(_arrays({**weights, **state}), updates)


def _loaded(path: Path) -> Mapping[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise ValueError("needs PyTorch to be read; export it to .safetensors or .npz") from error
    import pickle

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"holds more than weights, and nothing of it is executed: {first} Save net.state_dict() alone."
        ) from error
    if not isinstance(found, Mapping):
        raise ValueError(f"holds a {type(found).__name__}, and no state dict; save net.state_dict()")
    return found


def _weights_in(saved: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    nested = [saved[name] for name in NESTED if isinstance(saved.get(name), Mapping)]
    found = nested[0] if nested else saved
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _arrays(named: Mapping[str, Any]) -> dict[str, Array]:
    """Of PyTorch's tensors; what NumPy has no type for as float32."""
    import torch

    halves = (torch.bfloat16, torch.float16)
    return {n: (t.float() if t.dtype in halves else t).detach().numpy() for n, t in named.items()}


READERS: dict[str, Callable[[Path], Mapping[str, Array]]] = {
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".h5": _hdf5,
    ".hdf5": _hdf5,
    ".pt": _torch,
    ".pth": _torch,
}
KERAS = (".keras", ".weights.h5")
"""Which Keras itself has to read."""
