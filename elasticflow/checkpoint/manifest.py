"""The manifest: what a checkpoint is of, where it was in training, and the hash of every array.

It is written last. A folder without one is no checkpoint, only the start of one. Its file is
``{"sha256": <of the next value's bytes>, "manifest": {...}}``, so damage to it is noticed as well.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from elasticflow.checkpoint.failures import naming
from elasticflow.errors import CheckpointError
from elasticflow.layout import Chunk, Entry, Layout, Rule

FORMAT = 2
ROOT = "checkpoints"
MANIFEST = "manifest.json"
VALUE = "value"
"""The name of a chunk's own array, beside those of the optimizer's slots."""

_FOLDER = re.compile(r"step-(\d{10,})")
_PART = re.compile(r"[\w-][\w.-]*\.h5")
_SHOWN_DIFFERENCES = 5


class Saved(msgspec.Struct, frozen=True):
    """Where in its file an array begins, in bytes, and the SHA-256 (hex) of its bytes."""

    start: int
    sha256: str


class Part(msgspec.Struct, frozen=True):
    """One server's file. Sent to the master by the server that wrote it; then part of the manifest.

    chunks: by chunk number, each array by its name: ``value`` and those of the slots.
    frame: the SHA-256 of the other bytes, with which HDF5 surrounds the arrays.
    """

    file: str
    num_bytes: int
    chunks: dict[int, dict[str, Saved]]
    frame: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a checkpoint, besides the arrays. Dicts hold what JSON can.

    tick: the internal position, counted like steps but through evaluation too.
    work: what fixes the work to do, such as seed, batch_size, slices, epochs, num_records.
    quarantined: (row, first tick in which it was left out).
    signature: of the layout of ``entries``.
    """

    format: int = FORMAT
    program: str
    tick: int
    step: int
    epoch: int
    optimizer: dict[str, Any]
    work: dict[str, Any]
    fingerprint: dict[str, Any]
    quarantined: tuple[tuple[int, int], ...] = ()
    signature: str
    entries: tuple[Entry, ...]
    parts: tuple[Part, ...]

    @property
    def folder(self) -> str:
        """Where the checkpoint lies in its storage."""
        return folder_of(self.step)

    def layout(self) -> Layout:
        """The layout of the model that was saved."""
        with naming(f"{self.folder}/{MANIFEST}"):
            return Layout(self.entries)


class _Version(msgspec.Struct):
    format: int


class _Sealed(msgspec.Struct):
    sha256: str
    manifest: msgspec.Raw


def folder_of(step: int) -> str:
    """The folder of the checkpoint at ``step``, such as ``checkpoints/step-0000001200``."""
    return f"{ROOT}/step-{step:010d}"


def step_of(folder_name: str) -> int | None:
    """The step that a folder's last name tells; None if it is not a checkpoint's."""
    match = _FOLDER.fullmatch(folder_name)
    return int(match[1]) if match else None


def part_name(generation: int, server: str) -> str:
    """The name of a server's file in the folder: no two servers, and no two lives of the row, share one."""
    return f"generation-{generation}-{server}.h5"


def is_part_name(name: str) -> bool:
    """Whether a file of this name can be a part."""
    return _PART.fullmatch(name) is not None


def kept_chunks(layout: Layout) -> list[Chunk]:
    """The chunks that a checkpoint holds: all but the cost and the metrics."""
    return [chunk for chunk in layout.chunks if layout.groups[chunk.group].rule is not Rule.REPORT]


def encode(manifest: Manifest) -> bytes:
    """The file's bytes. Raises CheckpointError if the manifest is incomplete or holds what JSON cannot."""
    with naming(f"{manifest.folder}/{MANIFEST}"):
        _check_complete(manifest)
        inner = msgspec.json.encode(manifest)
        return msgspec.json.encode(_Sealed(hashlib.sha256(inner).hexdigest(), msgspec.Raw(inner)))


def decode(data: bytes, step: int) -> Manifest:
    """The manifest of the checkpoint at ``step`` from its file's bytes.

    Raises CheckpointError if it is damaged, incomplete, of another step or of another format.
    """
    with naming(f"{folder_of(step)}/{MANIFEST}"):
        sealed = msgspec.json.decode(data, type=_Sealed)
        found = hashlib.sha256(sealed.manifest).hexdigest()
        if found != sealed.sha256:
            raise ValueError(f"damaged: SHA-256 is {found}, not {sealed.sha256}")
        version = msgspec.json.decode(sealed.manifest, type=_Version).format
        if version != FORMAT:
            raise ValueError(f"format {version}, this ElasticFlow reads {FORMAT}. Use the one that wrote it")
        manifest = msgspec.json.decode(sealed.manifest, type=Manifest)
        if manifest.step != step:
            raise ValueError(f"the manifest is of step {manifest.step}, the folder of step {step}")
        _check_complete(manifest)
        return manifest


def _check_complete(manifest: Manifest) -> None:
    """Raises ValueError unless each chunk that must be kept is in exactly one, decently named file."""
    layout = Layout(manifest.entries)
    if layout.signature != manifest.signature:
        raise ValueError(f"signature {manifest.signature}, but its entries make {layout.signature}")
    files = Counter(part.file for part in manifest.parts)
    for file, count in files.items():
        if not is_part_name(file) or count > 1:
            raise ValueError(f"file {file!r}: must be a plain name that ends with .h5, and occur once")
    wanted = Counter(chunk.number for chunk in kept_chunks(layout))
    found = Counter(number for part in manifest.parts for number in part.chunks)
    if wanted != found:
        odd = sorted(((wanted - found) + (found - wanted)).keys())
        raise ValueError(f"chunks {odd}: in no file, in several, or not to be kept. Each must be in one")
    _check_arrays(manifest, layout)


def _check_arrays(manifest: Manifest, layout: Layout) -> None:
    """Raises ValueError unless all chunks of a group have a value, and the same slots."""
    names: dict[int, set[str]] = {}
    for part in manifest.parts:
        for number, arrays in part.chunks.items():
            expected = names.setdefault(layout.chunks[number].group, set(arrays))
            if VALUE not in arrays or set(arrays) != expected:
                found, wanted = sorted(arrays), sorted(expected | {VALUE})
                raise ValueError(f"{part.file}: chunk {number} has {found}, its group {wanted}")


def check_model(manifest: Manifest, layout: Layout) -> None:
    """Raises CheckpointError, with the first differences, if the checkpoint is of another model.

    Cost and metrics are not kept in it, and may differ.
    """
    differences = list(_differences(_kept(manifest.entries), _kept(layout.entries)))
    if not differences and kept_chunks(manifest.layout()) != kept_chunks(layout):
        differences = ["cost and metrics lie before other tensors"]
    if not differences:
        return
    shown = "; ".join(differences[:_SHOWN_DIFFERENCES])
    more = len(differences) - _SHOWN_DIFFERENCES
    raise CheckpointError(
        f"{manifest.folder}: of another model (program {manifest.program!r}): {shown}"
        f"{f'; and {more} more' if more > 0 else ''}. Use the program that wrote it, or a new run."
    )


def _kept(entries: Iterable[Entry]) -> dict[str, Entry]:
    return {entry.name: entry for entry in entries if entry.rule is not Rule.REPORT}


def _differences(saved: dict[str, Entry], model: dict[str, Entry]) -> Iterator[str]:
    """What differs, each a phrase that names a tensor; the saved one is told first."""
    for name, entry in saved.items():
        if name not in model:
            yield f"{name!r} is missing in the model"
        elif model[name] != entry:
            yield f"{name!r} is {_describe(entry)} in the checkpoint, {_describe(model[name])} in the model"
    for name in model:
        if name not in saved:
            yield f"{name!r} of the model is not in the checkpoint"
    if saved.keys() == model.keys() and list(saved) != list(model):
        moved = next(pair for pair in zip(saved, model, strict=True) if pair[0] != pair[1])
        yield f"the checkpoint has {moved[0]!r} where the model has {moved[1]!r}"


def _describe(entry: Entry) -> str:
    kind = "parameter" if entry.rule is Rule.UPDATE else f"buffer ({entry.rule.value})"
    return f"a {entry.dtype} {kind} of shape {entry.shape}"
