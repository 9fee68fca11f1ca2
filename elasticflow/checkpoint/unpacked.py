"""A checkpoint as plain files of this machine, from which many processes take what they need.

``arrays.npz`` has all parameters and buffers by name; of each table, by its number, ``N.keys`` has the keys
of its rows, ascending, and ``N.rows`` the rows: both are mapped into memory, which all processes share.
``vocabularies.json`` tells of what the columns' values became ids by, as the manifest does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from elasticflow.checkpoint.export import _sync, _write_npz
from elasticflow.checkpoint.failures import naming
from elasticflow.checkpoint.frozen import read_frozen
from elasticflow.checkpoint.manifest import Manifest
from elasticflow.checkpoint.reader import Reader, _Tables, _Tensors
from elasticflow.process.decoding import from_json
from elasticflow.step.layout import PASSING, Array, Rule
from elasticflow.step.rows import Keys, Places, Values, keys_of
from elasticflow.storage import Storage
from elasticflow.storage.file_ids import VOCABULARIES, FileId, other_vocabularies

ARRAYS, TOLD = "arrays.npz", "vocabularies.json"


def unpack(storage: Storage, manifest: Manifest, folder: Path) -> None:
    """Writes a checkpoint into a new folder: holds one tensor, or bucket of rows, at a time.

    Raises CheckpointError if it is damaged, or cannot be written.
    """
    with naming(str(folder)), Reader(storage, manifest) as reader:
        folder.mkdir(parents=True)
        _write_npz(folder / ARRAYS, _arrays(storage, reader))
        _sync(folder / ARRAYS)
        told = [each for each in manifest.sources if each[0].startswith(VOCABULARIES)]
        (folder / TOLD).write_bytes(msgspec.json.encode(told))
        _sync(folder / TOLD)
        tables = _Tables(reader)
        for number, entry in enumerate(reader.layout.tables):
            with (
                (folder / f"{number}.keys").open("wb") as keys,
                (folder / f"{number}.rows").open("wb") as rows,
            ):
                for bucket in tables.buckets(entry):
                    keys.write(keys_of(bucket[f"{entry.name}.ids"].view(np.int64)).tobytes())
                    rows.write(np.ascontiguousarray(bucket[f"{entry.name}.rows"], np.float32).tobytes())
                for file in (keys, rows):
                    file.flush()
                    os.fsync(file.fileno())


def _arrays(storage: Storage, reader: Reader) -> Iterator[tuple[str, Array]]:
    cut = _Tensors(reader)
    for entry in reader.layout.entries:
        if entry.rule is not Rule.ROWS and entry.rule not in PASSING:
            yield from cut.tensors(entry, slots=False)
    yield from read_frozen(storage, reader.manifest.frozen)


def others(folder: Path, files: Sequence[FileId]) -> str:
    """See ``other_vocabularies``. files: what the program's sources tell of."""
    if not (folder / TOLD).exists():  # unpacked before these were told
        return ""
    told = from_json((folder / TOLD).read_bytes(), list[tuple[str, int, str]])
    return other_vocabularies(told, files)


class UnpackedRows:
    """The rows of one table, found by their keys. dim: numbers in a row."""

    def __init__(self, folder: Path, number: int, dim: int) -> None:
        self._keys: Keys = _mapped(folder / f"{number}.keys").view(np.uint64)
        self._rows: Values = _mapped(folder / f"{number}.rows").view(np.float32).reshape(-1, dim)

    def find(self, keys: Keys) -> Places:
        """Where the rows of ascending keys are; -1: the table has none."""
        places = np.searchsorted(self._keys, keys)
        if not len(self._keys):
            return np.full(len(keys), -1)
        known = self._keys[np.minimum(places, len(self._keys) - 1)] == keys
        return np.where(known, places, -1)

    def take(self, places: Places) -> Values:
        """The rows at these places, in memory of their own."""
        found: Values = np.array(self._rows[places])
        return found


def _mapped(path: Path) -> Array:
    """The bytes of a file that may be empty, which cannot be mapped."""
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
