"""Which version of a table a run reads: found by whoever comes first, and kept in the run's folder.

Tables grow while a run is under way. All its workers, and those of its resumption, read the same records: of
the version that is written down here, once, where no other is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from elasticflow.errors import DataError, UnreadableError
from elasticflow.process.decoding import from_json
from elasticflow.storage import Storage
from elasticflow.storage.copying import copy_file

T = TypeVar("T")
FOLDER = "tables"
MOST_BYTES = 1 << 26
"""Of a table of very many partitions."""


class _Pin(msgspec.Struct, frozen=True):
    table: str
    version: msgspec.Raw


class Pins(NamedTuple):
    """storage: of the run's folder; None: there is no run, and tables are read as they are now. has_begun:
    whether the run has a checkpoint, which is of the version that was written down."""

    storage: Storage | None = None
    has_begun: Callable[[], bool] = lambda: False

    def version(self, table: str, kind: type[T], find: Callable[[], T]) -> T:
        """Of a table. find: the newest one there is, where none is written down. Raises DataError, also where
        one was, and is gone."""
        if self.storage is None:
            return find()
        name = f"{FOLDER}/{hashlib.blake2b(table.encode(), digest_size=16).hexdigest()}.json"
        try:
            if not self.storage.exists(name):
                # Asked in this order: another worker may have written it meanwhile, and come so far.
                if self.has_begun() and not self.storage.exists(name):
                    raise DataError(
                        f"{table}: the run has checkpoints, and which version they are of is written down no "
                        f"more: {name} in its folder is gone. Put it back; or name it in the program "
                        "('elasticflow checkpoint show --json' has it among the sources); or begin a new run "
                        "with these weights: --init-from and its folder."
                    )
                self._write(name, _Pin(table, msgspec.Raw(msgspec.json.encode(find()))))
            with self.storage.open(name) as file:
                pin = from_json(file.read(MOST_BYTES), _Pin)
            found = from_json(pin.version, kind)
        except (OSError, msgspec.MsgspecError) as error:
            raise UnreadableError(
                f"{table}: which version this run reads cannot be told by {name} in its folder: {error}"
            ) from error
        if pin.table != table:
            raise DataError(f"{name} in the run's folder: is of {pin.table}, and not of {table}.")
        return found

    def _write(self, name: str, pin: _Pin) -> None:
        assert self.storage is not None
        try:
            with self.storage.create(name) as file:
                file.write(msgspec.json.encode(pin))
        except FileExistsError:  # another worker was faster
            pass


_current = Pins()


def keep(pins: Pins) -> None:
    """Before a program's ``data()`` is called: what its tables follow."""
    global _current
    _current = pins


def version_of(table: str, kind: type[T], find: Callable[[], T]) -> T:
    """See ``Pins.version``."""
    return _current.version(table, kind, find)


def copy(source: Storage, target: Storage) -> None:
    """To a run that goes on from another's checkpoint. Raises OSError."""
    for name in source.list(FOLDER):
        copy_file(source, target, f"{FOLDER}/{name}")
