"""The manifest: what a checkpoint is of, where it was in training, and the hash of every array.

It is written last. A folder without one is no checkpoint, only the start of one. Its file is
``{"sha256": <of the next value's bytes>, "manifest": {...}}``, so damage to it is noticed as well.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from typing import Any

import msgspec

from elasticflow.checkpoint.chains import RowFile, TableSize, check_chains, joined, size_of
from elasticflow.checkpoint.failures import naming
from elasticflow.checkpoint.frozen import num_bytes_of, path_of
from elasticflow.checkpoint.names import MANIFEST, VALUE, folder_of, is_part_name
from elasticflow.embedding import TableSpec
from elasticflow.errors import CheckpointError
from elasticflow.process.decoding import from_json
from elasticflow.step.layout import PASSING, Chunk, Entry, Frozen, Layout, Rule
from elasticflow.training.freezing import told
from elasticflow.training.programs import ProgramUse
from elasticflow.training.standing import WatchStanding

FORMAT, OF_FROZEN = 3, 4
READABLE = (2, FORMAT, OF_FROZEN)
"""2 is of models without tables. 4 has parameters that are not trained in a file of their own."""

_SHOWN_DIFFERENCES = 5


class Saved(msgspec.Struct, frozen=True):
    """Where in its file an array begins, in bytes, and the SHA-256 (hex) of its bytes."""

    start: int
    sha256: str


class Part(msgspec.Struct, frozen=True):
    """One server's file. Sent to the master by the server that wrote it; then part of the manifest.

    chunks: by chunk number, each array by its name: ``value`` and those of the slots.
    frame: the SHA-256 of the other bytes, with which HDF5 surrounds the arrays.
    rows: the chain of the server's buckets of all tables, oldest file first; files that it wrote and those
    that it took over, of which it names its own buckets.
    """

    file: str
    num_bytes: int
    chunks: dict[int, dict[str, Saved]]
    frame: str = ""
    rows: tuple[RowFile, ...] = ()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a checkpoint, besides the arrays. Dicts hold what JSON can.

    tick: the internal position, counted like steps but through evaluation too.
    work: what fixes the work to do, such as seed, batch_size, slices, epochs, num_records.
    quarantined: (row, first tick in which it was left out).
    sources: files of the records, by name, number of bytes, and hash of a sample; see ``run.work``.
    programs: those that the run went by so far, the present one last; see ``program.copy``.
    signature: of the layout of ``entries``. tables: in the order of their entries.
    frozen: parameters that are not trained, see ``checkpoint.frozen``.
    also, passing: of PyTorch's state dicts, see ``Spec``.
    standing: what evaluations have decided by then; None: there are no rules.
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
    tables: tuple[TableSpec, ...] = ()
    parts: tuple[Part, ...]
    programs: tuple[ProgramUse, ...] = ()
    sources: tuple[tuple[str, int, str], ...] = ()
    frozen: tuple[Frozen, ...] = ()
    also: tuple[tuple[str, str], ...] = ()
    passing: tuple[str, ...] = ()
    standing: WatchStanding | None = None

    @property
    def folder(self) -> str:
        """Where the checkpoint lies in its storage."""
        return folder_of(self.step)

    @property
    def updates_before(self) -> int:
        """Those that the optimizer's state had seen when the run began. Raises CheckpointError if damaged."""
        with naming(f"{self.folder}/{MANIFEST}"):
            count = (self.work.get("init") or {}).get("updates", 0)
            if type(count) is not int or not 0 <= count < 1 << 53:
                raise ValueError(f"{count!r} updates before the first")
            return count

    @property
    def updates(self) -> int:
        """Those that its optimizer's state has seen."""
        each = int(self.work.get("slices", 1)) if self.work.get("mode") == "async" else 1
        return self.updates_before + self.step * each

    @property
    def files(self) -> dict[str, int]:
        """Number of bytes of all files by their path, without the manifest's own."""
        parts = {f"{self.folder}/{part.file}": part.num_bytes for part in self.parts}
        parts |= {path_of(self.frozen): num_bytes_of(self.frozen)} if self.frozen else {}
        return parts | {file.path: file.num_bytes for part in self.parts for file in part.rows}

    def layout(self) -> Layout:
        """The layout of the model that was saved."""
        with naming(f"{self.folder}/{MANIFEST}"):
            return Layout(self.entries)


class _Version(msgspec.Struct):
    format: int


class _Sealed(msgspec.Struct):
    sha256: str
    manifest: msgspec.Raw


def is_kept(layout: Layout, chunk: Chunk) -> bool:
    """Whether a part holds this chunk. What is of one step is not kept; tables are in row files."""
    return layout.groups[chunk.group].rule not in (*PASSING, Rule.ROWS)


def kept_chunks(layout: Layout) -> list[Chunk]:
    """The chunks that the parts of a checkpoint hold: all but what is of one step, and those of tables."""
    return [chunk for chunk in layout.chunks if is_kept(layout, chunk)]


def chain_of(manifest: Manifest, chunk_numbers: Container[int]) -> tuple[RowFile, ...]:
    """The chain of row files for a server that takes over these chunks, oldest first."""
    return joined((part.rows for part in manifest.parts), chunk_numbers)


def table_sizes(manifest: Manifest) -> dict[str, TableSize]:
    """Of each table by its name."""
    layout = manifest.layout()
    numbers = {
        entry.name: {chunk.number for chunk in layout.chunks if chunk.group == layout.places[entry.name][0]}
        for entry in layout.tables
    }
    return {name: size_of(chain_of(manifest, mine)) for name, mine in numbers.items()}


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
        sealed = from_json(data, _Sealed)
        found = hashlib.sha256(sealed.manifest).hexdigest()
        if found != sealed.sha256:
            raise ValueError(f"damaged: SHA-256 is {found}, not {sealed.sha256}")
        version = from_json(sealed.manifest, _Version).format
        if version not in READABLE:
            known = " and ".join(map(str, READABLE))
            raise ValueError(f"format {version}, this ElasticFlow reads {known}. Use the one that wrote it")
        manifest = from_json(sealed.manifest, Manifest)
        if manifest.step != step:
            raise ValueError(f"the manifest is of step {manifest.step}, the folder of step {step}")
        _check_complete(manifest)
        return manifest


def _check_complete(manifest: Manifest) -> None:
    """Raises ValueError unless each chunk that must be kept is in one, decently named file, or one chain."""
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
    check_chains([part.rows for part in manifest.parts], layout, manifest.tables, manifest.step)


def _check_arrays(manifest: Manifest, layout: Layout) -> None:
    """Raises ValueError unless all chunks of a group have a value, and the same slots."""
    names: dict[int, set[str]] = {}
    for part in manifest.parts:
        for number, arrays in part.chunks.items():
            expected = names.setdefault(layout.chunks[number].group, set(arrays))
            if VALUE not in arrays or set(arrays) != expected:
                found, wanted = sorted(arrays), sorted(expected | {VALUE})
                raise ValueError(f"{part.file}: chunk {number} has {found}, its group {wanted}")


def check_model(
    manifest: Manifest, layout: Layout, tables: Iterable[TableSpec] = (), frozen: Iterable[Frozen] = ()
) -> None:
    """Raises CheckpointError, with the first differences, if the checkpoint is of another model.

    tables: the model's, in the order of their entries; all that is set of them counts. frozen: its parameters
    that are not trained. Cost and metrics are not kept in a checkpoint, and may differ.
    """
    differences = list(_differences(_kept(manifest.entries), _kept(layout.entries)))
    differences += _frozen_differences(manifest.frozen, tuple(frozen))
    differences += _table_differences(_by_name(manifest.layout(), manifest.tables), _by_name(layout, tables))
    if not differences and _numbers(manifest.layout()) != _numbers(layout):
        differences = ["cost and metrics lie before other tensors"]
    if not differences:
        return
    shown = "; ".join(differences[:_SHOWN_DIFFERENCES])
    more = len(differences) - _SHOWN_DIFFERENCES
    raise CheckpointError(
        f"{manifest.folder}: of another model (program {manifest.program!r}): {shown}"
        f"{f'; and {more} more' if more > 0 else ''}. Use the program that wrote it, or "
        "begin a new run with what fits of it: --init-from and this folder."
    )


def _frozen_differences(saved: Iterable[Frozen], model: Iterable[Frozen]) -> Iterator[str]:
    mine = {each.name: each for each in model}
    for each in saved:
        now = mine.pop(each.name, None)
        if now is None:
            yield f"{each.name!r} is not trained in the checkpoint, and is otherwise in the model"
        elif now != each:
            yield f"{each.name!r}, which is not trained, has other values now: is it read from another file?"
    yield from (f"{name!r} of the model is not trained, and not so in the checkpoint" for name in mine)


def _kept(entries: Iterable[Entry]) -> dict[str, Entry]:
    return {entry.name: entry for entry in entries if entry.rule not in PASSING}


def _numbers(layout: Layout) -> list[Chunk]:
    return [chunk for chunk in layout.chunks if layout.groups[chunk.group].rule not in PASSING]


def _by_name(layout: Layout, tables: Iterable[TableSpec]) -> dict[str, TableSpec]:
    return {entry.name: spec for entry, spec in zip(layout.tables, tables, strict=True)}


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


def _table_differences(saved: dict[str, TableSpec], model: dict[str, TableSpec]) -> Iterator[str]:
    """What else differs of tables that both have: their rows would go on otherwise than they began."""
    for name in filter(model.__contains__, saved):
        for setting in ("initializer", "optimizer", "min_count", "evict_after_steps"):
            old, new = getattr(saved[name], setting), getattr(model[name], setting)
            if old != new:
                yield f"table {name!r} has {setting} {old} in the checkpoint, {new} in the model"


def _describe(entry: Entry) -> str:
    if entry.rule is Rule.ROWS:
        return f"a table of {entry.shape[0] or 'any'} rows of {entry.shape[1]}"
    kind = "parameter" if entry.rule is Rule.UPDATE else f"buffer ({entry.rule.value})"
    when = f", {told(entry.toggles)}" if entry.toggles else ""
    return (
        f"a {entry.dtype} {kind} of shape {entry.shape}" + f" in group {entry.part}" * (entry.part > 0) + when
    )
