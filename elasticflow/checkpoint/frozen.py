"""Parameters that are not trained: written once, into one file that all checkpoints of a run name.

The file is a ``.safetensors``: its name and all its bytes follow from the tensors, so whoever writes it first
has written it for all. The worker that joins first does, before anybody hears of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import msgspec
import numpy as np

from elasticflow.checkpoint.failures import naming, noting
from elasticflow.checkpoint.hdf5 import bytes_of, read_array, sha256
from elasticflow.step.layout import Array, Frozen
from elasticflow.storage import Storage

_TYPES = {"bool": "BOOL", "float16": "F16", "float32": "F32", "float64": "F64"} | {
    f"{kind}int{bits}": f"{'U' if kind else 'I'}{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)
}
"""What NumPy's types are called there."""


def frozen_of(tensors: Mapping[str, Array]) -> tuple[Frozen, ...]:
    """What there is to know of these tensors, by name."""
    return tuple(Frozen(name, each.shape, each.dtype.name, sha256(each)) for name, each in tensors.items())


def path_of(frozen: Sequence[Frozen]) -> str:
    return f"frozen/{hashlib.sha256(msgspec.json.encode(frozen)).hexdigest()[:32]}.safetensors"


def num_bytes_of(frozen: Sequence[Frozen]) -> int:
    """Of the file."""
    return _ends(frozen)[-1]


def write_frozen(storage: Storage, tensors: Mapping[str, Array]) -> None:
    """Unless the file is there already. Raises CheckpointError if the storage fails."""
    frozen = frozen_of(tensors)
    path = path_of(frozen)
    with naming(path):
        if frozen and not storage.exists(path):
            try:
                with storage.create(path) as file:
                    file.write(_header(frozen))
                    for tensor in tensors.values():
                        file.write(bytes_of(np.ascontiguousarray(tensor)))
            except FileExistsError:
                pass  # another worker has been quicker, with the same bytes


def read_frozen(storage: Storage, frozen: Sequence[Frozen]) -> Iterator[tuple[str, Array]]:
    """Each tensor with its name. Raises CheckpointError if it is not what was written."""
    if not frozen:
        return
    path = path_of(frozen)
    with naming(path):
        file = storage.open(path)
    with file:
        for each, start in zip(frozen, _ends(frozen), strict=False):
            with naming(f"{path}: {each.name!r}"):
                yield each.name, read_array(file, start, each.sha256, each.shape, each.dtype)


def problems_of(storage: Storage, frozen: Sequence[Frozen]) -> list[str]:
    """Everything that is wrong with the file. Reads it all."""
    found: list[str] = []
    if frozen:
        header = _header(frozen)
        with noting(found), naming(f"{path_of(frozen)}: its header"), storage.open(path_of(frozen)) as file:
            if file.read(len(header)) != header:
                raise ValueError("is not what was written")
        with noting(found):
            for _ in read_frozen(storage, frozen):
                pass
    return found


def _header(frozen: Sequence[Frozen]) -> bytes:
    """See https://github.com/huggingface/safetensors#format."""
    ends = [0, *accumulate(map(_bytes_of, frozen))]
    told = {
        each.name: {
            "dtype": _TYPES[each.dtype],
            "shape": each.shape,
            "data_offsets": ends[number : number + 2],
        }
        for number, each in enumerate(frozen)
    }
    text = msgspec.json.encode(told)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _ends(frozen: Sequence[Frozen]) -> list[int]:
    """Where in the file each tensor begins, and the last one ends."""
    return list(accumulate(map(_bytes_of, frozen), initial=len(_header(frozen))))


def _bytes_of(each: Frozen) -> int:
    return int(np.prod(each.shape, dtype=np.int64)) * np.dtype(each.dtype).itemsize
