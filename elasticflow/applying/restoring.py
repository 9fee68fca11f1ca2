"""A checkpoint's values in a replica of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from elasticflow.checkpoint.unpacked import ARRAYS, UnpackedRows, others
from elasticflow.errors import DataError, ProgramError
from elasticflow.frameworks import Replica
from elasticflow.step.layout import PASSING, Rule
from elasticflow.step.rows import Keys, Values
from elasticflow.storage.file_ids import FileId


def restore(replica: Replica, folder: Path, program: str, files: Sequence[FileId]) -> None:
    """Puts what was unpacked into the replica. Rows that no table has are as before their first update.

    program: its path, for errors. files: what its sources tell of. Raises ProgramError if the model is
    another one, and DataError if values have other ids than those with which it was trained.
    """
    if name := others(folder, files):
        raise DataError(
            f"{program}: the {name} are not those that the model was trained with: the same values have "
            "other ids now, and what it makes of them would be wrong. Put the file back as it was then; and "
            "give each run a file of its own, which stays as it is."
        )
    with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
        for entry in replica.layout.entries:
            if entry.rule in PASSING or entry.rule is Rule.ROWS:
                continue
            if entry.name not in arrays.files or arrays[entry.name].shape != entry.shape:
                raise ProgramError(
                    f"{program}: model() has {entry.name} of shape {list(entry.shape)}, and the checkpoint "
                    "has none such. Does model() follow from what is outside of the program?"
                )
            [mine] = replica.state.tensors([entry])
            np.copyto(mine, arrays[entry.name])
        replica.put_frozen({name: arrays[name] for name in replica.frozen() if name in arrays.files})
    replica.refresh()
    if replica.tables:
        _bind_tables(replica, folder)


def _bind_tables(replica: Replica, folder: Path) -> None:
    first = replica.lookups.read_rows
    tables = [UnpackedRows(folder, number, spec.dim) for number, spec in enumerate(replica.tables)]

    def read(number: int, keys: Keys) -> Callable[[], Values]:
        def wait() -> Values:
            places = tables[number].find(keys)
            found = places >= 0
            values = np.empty((len(keys), replica.tables[number].dim), np.float32)
            values[found] = tables[number].take(places[found])
            if not found.all():
                values[~found] = first(number, keys[~found])()
            return values

        return wait

    replica.lookups.read_rows = replica.lookups.read_next = read
