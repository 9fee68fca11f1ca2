"""The master's side: which checkpoints there are, one more, some fewer.

A checkpoint is there from the moment its manifest is. All functions raise CheckpointError if the
storage fails.
"""

from __future__ import annotations

from elasticflow.checkpoint.failures import naming
from elasticflow.checkpoint.manifest import MANIFEST, ROOT, Manifest, decode, encode, folder_of, step_of
from elasticflow.errors import CheckpointError, ConfigError
from elasticflow.storage import Storage


def commit(storage: Storage, manifest: Manifest) -> None:
    """Makes the checkpoint visible, in one act, once all its parts are written.

    Raises CheckpointError, and commits nothing, if a part is missing or short, a chunk is in no
    part or in two, or this step is committed already.
    """
    data = encode(manifest)
    for part in manifest.parts:
        path = f"{manifest.folder}/{part.file}"
        with naming(path):
            if (size := storage.size(path)) != part.num_bytes:
                raise CheckpointError(f"{path}: {size} bytes, its server wrote {part.num_bytes}")
    path = f"{manifest.folder}/{MANIFEST}"
    with naming(path), storage.create(path) as file:
        file.write(data)


def commits(storage: Storage) -> list[int]:
    """Steps of all committed checkpoints, the newest last."""
    return [step for step, committed in _folders(storage) if committed]


def load_manifest(storage: Storage, step: int) -> Manifest:
    """The manifest of the checkpoint at ``step``.

    Raises CheckpointError if there is none, or it is damaged or incomplete.
    """
    path = f"{folder_of(step)}/{MANIFEST}"
    with naming(path), storage.open(path) as file:
        return decode(file.read(), step)


def prune(storage: Storage, keep: int) -> list[int]:
    """Removes all but the ``keep`` >= 1 newest checkpoints, and what crashes left before the newest.

    Returns the steps of the removed folders. A crash on the way leaves no checkpoint in part:
    a manifest goes before what it names.
    """
    if keep < 1:
        raise ConfigError(f"prune(keep={keep}): the newest checkpoint always stays. Use 1 or more.")
    kept = commits(storage)[-keep:]
    old = [step for step, _ in _folders(storage) if kept and step < kept[-1] and step not in kept]
    _remove(storage, old)
    return old


def discard_unfinished(storage: Storage) -> list[int]:
    """Removes all that was begun and not committed, and returns its steps.

    For the start of a run, while nobody writes: a step that comes again finds its folder empty.
    """
    unfinished = [step for step, committed in _folders(storage) if not committed]
    _remove(storage, unfinished)
    return unfinished


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
