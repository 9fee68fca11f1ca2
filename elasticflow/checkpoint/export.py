"""A checkpoint's parameters and buffers in a file that other tools load.

The files hold what ``tensors`` yields: every parameter and buffer by its name, and no slots. One
line loads each; for the module that ``model()`` returned as ``"net"``, whose tensors are named
``net.0.weight``:

    NumPy       arrays = dict(numpy.load("model.npz"))
    PyTorch     net.load_state_dict({name.removeprefix("net."): torch.from_numpy(array)
                                     for name, array in numpy.load("model.npz").items()
                                     if name.startswith("net.")})
    or          net.load_state_dict({name.removeprefix("net."): tensor for name, tensor in
                                     safetensors.torch.load_file("model.safetensors").items()
                                     if name.startswith("net.")})
    Keras       net.set_weights([array for name, array in numpy.load("model.npz").items()
                                 if name.startswith("net.")])
    HDF5        weight = h5py.File("model.h5")["net.0.weight"][()]

An embedding table named ``"words"`` is two arrays, ``words.ids`` (n,) and ``words.rows`` (n, dim):

    NumPy       rows = dict(zip(arrays["words.ids"], arrays["words.rows"]))
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import numpy as np

from elasticflow.checkpoint.failures import naming
from elasticflow.checkpoint.manifest import Manifest
from elasticflow.checkpoint.reader import tensors
from elasticflow.errors import CheckpointError, ConfigError
from elasticflow.process.new_files import replacing, writing
from elasticflow.step.layout import Array
from elasticflow.storage import Storage

_Named: TypeAlias = Iterable[tuple[str, Array]]


def export(
    storage: Storage, manifest: Manifest, path: str | os.PathLike[str], averages: bool = False
) -> None:
    """Writes ``path`` on this machine, as ``.npz``, ``.safetensors`` or ``.h5`` as its ending tells.

    averages: see ``tensors``. An existing file is replaced, at the end and whole. Raises ConfigError for
    another ending, CheckpointError if the checkpoint is damaged or the file cannot be written.
    """
    target = Path(path)
    write = _WRITERS.get(target.suffix)
    if write is None:
        raise ConfigError(
            f"cannot export to {str(target)!r}: the ending must be one of {', '.join(_WRITERS)}."
        )
    with naming(str(target)), replacing(target) as path:
        write(path, tensors(storage, manifest, averages=averages))


def _write_npz(path: Path, named: _Named) -> None:
    """What ``numpy.savez`` writes, but tensor by tensor, with any name, and the same bytes each time."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in named:
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _write_safetensors(path: Path, named: _Named) -> None:
    """Holds the whole model in memory."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError as error:
        raise CheckpointError(
            "a .safetensors file needs the package safetensors: pip install safetensors, or export to .npz"
        ) from error
    try:
        save_file(dict(named), path)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def _write_hdf5(path: Path, named: _Named) -> None:
    """One dataset a name. A ``/`` in a name makes a group, and the whole name still finds the dataset."""
    import h5py

    with writing(path) as raw, h5py.File(raw, "w") as file:
        for name, array in named:
            with naming(f"{path.name}: {name!r}"):
                file.create_dataset(name, data=array)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


_WRITERS: dict[str, Callable[[Path, _Named], None]] = {
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
    ".h5": _write_hdf5,
}
