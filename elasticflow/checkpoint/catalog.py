"""The master's side: which checkpoints there are, one more, some fewer.

A checkpoint is there from the moment its manifest is. All functions raise CheckpointError if the
storage fails.

Checkpoints share row files, so these are removed when no manifest names them any more. Those of the newest
checkpoint's step, which another generation may have written anew, and newer ones stay: the next checkpoint
may name them. An older one that it does not name no later one will, since a server's chain only grows, or
begins anew. A manifest that cannot be read may name any.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import TypeVar

import msgspec

from elasticflow.checkpoint.failures import naming
from elasticflow.checkpoint.manifest import Manifest, decode, encode
from elasticflow.checkpoint.names import (
    MANIFEST,
    ROOT,
    ROWS,
    folder_of,
    is_part_name,
    rows_folder_of,
    step_of,
)
from elasticflow.errors import CheckpointError, ConfigError
from elasticflow.storage import Storage
from elasticflow.storage.copying import copy_file, while_away

T = TypeVar("T")
Chosen = TypeVar("Chosen")
TRIES = 10
"""So many checkpoints may be removed while they are read, before it counts as an error."""
MOST_MANIFEST_BYTES = 256 << 20
"""Enough for a model of terabytes. A longer file is none."""


def commit(storage: Storage, manifest: Manifest) -> None:
    """Makes the checkpoint visible, in one act, once all its parts are written.

    May be done again: a checkpoint that is committed already, with the same parts, stays as it is.
    Raises CheckpointError, and commits nothing, if a file is missing or short, a chunk is in no
    part or in two, or another checkpoint is committed at this step.
    """
    data = encode(manifest)
    for path, num_bytes in manifest.files.items():
        with naming(path):
            if (size := storage.size(path)) != num_bytes:
                raise CheckpointError(f"{path}: {size} bytes, its server wrote {num_bytes}")
    path = f"{manifest.folder}/{MANIFEST}"
    with naming(path):
        try:
            with storage.create(path) as file:
                file.write(data)
        except FileExistsError:
            there, meant = _read(storage, manifest.step), decode(data, manifest.step)
            if _sorted(there) != _sorted(meant):
                raise


def copy(source: Storage, manifest: Manifest, target: Storage) -> None:
    """Commits the same checkpoint in another storage, where nobody else writes; one that does not answer is
    asked again, for seconds. What was copied is not looked at: see ``verify``."""
    for path in manifest.files:
        with naming(path):
            copy_file(source, target, path)
    while_away(partial(commit, target, manifest))


def commits(storage: Storage) -> list[int]:
    """Steps of all committed checkpoints, the newest last."""
    return [step for step, committed in _folders(storage) if committed]


def of_one(storage: Storage, choose: Callable[[], Chosen], act: Callable[[Chosen], T]) -> T:
    """What ``act`` makes of the checkpoint that is chosen; of the next choice where a run that goes on has
    removed checkpoints meanwhile. Raises CheckpointError."""
    for _ in range(TRIES - 1):
        before = set(commits(storage))
        try:
            return act(choose())
        except CheckpointError:
            if before <= set(commits(storage)):
                raise
    return act(choose())


def load_manifest(storage: Storage, step: int) -> Manifest:
    """The manifest of the checkpoint at ``step``.

    Raises CheckpointError if there is none, or it is damaged or incomplete.
    """
    with naming(f"{folder_of(step)}/{MANIFEST}"):
        return _read(storage, step)


def load_best(storage: Storage) -> Manifest:
    """The manifest of the best checkpoint, as evaluations have decided by the newest one.

    Raises CheckpointError if nobody asked for it, or there is none.
    """
    if not (steps := commits(storage)):
        raise CheckpointError("there is no committed checkpoint yet, and so none that is the best.")
    standing = load_manifest(storage, steps[-1]).standing
    if standing is None or standing.rules.best is None:
        raise CheckpointError(
            "no checkpoint is kept as the best one; the program can ask for it: "
            "keep_best = ef.keep_best(METRIC, MODE)."
        )
    if standing.best.step not in steps:
        metric, step = standing.rules.best.metric, standing.best.step
        why = f"that of step {step} is not there: its storage had failed" if step else "none was a number"
        raise CheckpointError(f"there is no checkpoint of the best {metric}: {why}.")
    return load_manifest(storage, standing.best.step)


def prune(storage: Storage, keep: int, upto_step: int = sys.maxsize, best: int = 0) -> list[int]:
    """Removes all but the ``keep`` >= 1 newest checkpoints, and what crashes left up to the newest.

    upto_step: as if there were no later ones, which stay as well. best: the step of one that stays, too.
    Returns the steps of the removed folders. A crash on the way leaves no checkpoint in part:
    a manifest goes before what it names. Nothing of a checkpoint that is kept is touched, and nothing
    that is newer, where servers may be writing. Row files go once all that stay are known to need none.
    """
    if keep < 1:
        raise ConfigError(f"prune(keep={keep}): the newest checkpoint always stays. Use 1 or more.")
    there = commits(storage)
    kept = [step for step in there if step <= upto_step]
    kept = [step for step in kept if step in (*kept[-keep:], best)]
    old = [step for step, _ in _folders(storage) if kept and step < kept[-1] and step not in kept]
    _remove(storage, old)
    later = [step for step in there if step > upto_step]
    manifests = [_tidy(storage, step) for step in kept] + [_manifest_of(storage, step) for step in later]
    _tidy_rows(storage, manifests, lambda step: not kept or step >= kept[-1])
    return old


def discard_unfinished(storage: Storage, keep: Container[int] = ()) -> list[int]:
    """Removes all that was begun and not committed, and returns its steps.

    For the start of a run, while nobody writes: a step that comes again finds its folder empty.
    keep: steps to leave alone, since servers may be writing them, or have written row files that are still
    to be named; such as ``range(1200, sys.maxsize)``.
    """
    folders = _folders(storage)
    unfinished = [step for step, committed in folders if not committed and step not in keep]
    _remove(storage, unfinished)
    manifests = [_manifest_of(storage, step) for step, committed in folders if committed]
    _tidy_rows(storage, manifests, keep.__contains__)
    return unfinished


def _read(storage: Storage, step: int) -> Manifest:
    path = f"{folder_of(step)}/{MANIFEST}"
    if (size := storage.size(path)) > MOST_MANIFEST_BYTES:
        raise ValueError(f"{size} bytes, more than any manifest has")
    with storage.open(path) as file:
        return decode(file.read(size), step)


def _sorted(manifest: Manifest) -> Manifest:
    """The same, whichever server's word came first."""
    return msgspec.structs.replace(manifest, parts=tuple(sorted(manifest.parts, key=lambda part: part.file)))


def _folders(storage: Storage) -> list[tuple[int, bool]]:
    """Step of each checkpoint's folder, ascending, and whether it has a manifest."""
    with naming(ROOT):
        steps = sorted(step for name in storage.list(ROOT) if (step := step_of(name)) is not None)
        return [(step, storage.exists(f"{folder_of(step)}/{MANIFEST}")) for step in steps]


def _remove(storage: Storage, steps: list[int]) -> None:
    for step in steps:
        with naming(folder_of(step)):
            storage.remove(f"{folder_of(step)}/{MANIFEST}")
            storage.remove(folder_of(step))


def _manifest_of(storage: Storage, step: int) -> Manifest | None:
    """None if it is damaged. Raises CheckpointError if the storage cannot be asked."""
    with naming(folder_of(step)):
        try:
            return _read(storage, step)
        except (ValueError, CheckpointError):
            return None


def _tidy(storage: Storage, step: int) -> Manifest | None:
    """Removes parts that a committed checkpoint does not name: of servers that were lost over it.

    A damaged one is left as it is, for a person to look at. Returns its manifest, None if that is damaged.
    """
    manifest = _manifest_of(storage, step)
    if manifest:
        with naming(manifest.folder):
            _keep_only(storage, manifest.folder, {part.file for part in manifest.parts})
    return manifest


def _tidy_rows(storage: Storage, manifests: Iterable[Manifest | None], spares: Callable[[int], bool]) -> None:
    """Removes row files that no manifest names, but for steps that ``spares`` is true of.

    None among the manifests is a damaged one, which may name any.
    """
    named: set[str] = set()
    for manifest in manifests:
        if manifest is None:
            return
        named.update(manifest.files)
    with naming(ROWS):
        steps = [step for name in storage.list(ROWS) if (step := step_of(name)) is not None]
        for folder in (rows_folder_of(step) for step in steps if not spares(step)):
            if needed := {name.removeprefix(f"{folder}/") for name in named if name.startswith(f"{folder}/")}:
                _keep_only(storage, folder, needed)
            else:
                storage.remove(folder)


def _keep_only(storage: Storage, folder: str, needed: Container[str]) -> None:
    """Removes all servers' files of a folder that are not needed, and what killed writers left."""
    storage.sweep(folder)
    for name in storage.list(folder):
        if is_part_name(name) and name not in needed:
            storage.remove(f"{folder}/{name}")
