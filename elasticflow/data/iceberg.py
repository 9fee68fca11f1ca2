"""Records of a table of Apache Iceberg, as one of its snapshots has them.

``pyiceberg`` asks the catalog and reads what says which files there are; these are read as those of
``Parquet`` are, their columns found by ids, whatever they were called when a file was written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from elasticflow.data.blocks import CACHE_BYTES
from elasticflow.data.files import existing_file, is_url, path_of
from elasticflow.data.listing import Listing, TableFile
from elasticflow.data.parquet import TableSource, selection_of
from elasticflow.data.pins import version_of
from elasticflow.data.ragged import Pad
from elasticflow.data.tables import Selection
from elasticflow.data.threads import map_ahead
from elasticflow.data.typed import rules_of
from elasticflow.errors import DataError, UnreadableError
from elasticflow.process.packages import require
from elasticflow.storage.file_ids import FileId

_OUR_FILES = {"py-io-impl": "elasticflow.data.iceberg_files.Files"}
_METADATA = ".metadata.json"


class _Snapshot(msgspec.Struct, frozen=True):
    """Of a table. metadata: where the file lies that was the newest when it was chosen. schema: the id of
    that by which it is read: columns may have been renamed since it was made."""

    metadata: str
    snapshot: int
    schema: int


class Iceberg(TableSource):
    """Records of a table of Apache Iceberg.

    ``Iceberg("lake.clicks", ["site", "age", "y"], catalog="prod", filters=[("date", ">=", "2026-11-01")])``

    table: its name in the catalog; without one, its folder, or a file of its metadata, also on HDFS or in a
    store. catalog: by its name in pyiceberg's own settings (``~/.pyiceberg.yaml``, or variables such as
    ``PYICEBERG_CATALOG__PROD__URI``). snapshot: the id of one; None: the current one when the run began,
    which all its workers, and whoever resumes it, read. The rest is as of ``Parquet``.

    Raises DataError if there is no such table or snapshot, or as Parquet does; ConfigError if pyiceberg is
    not installed.
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        columns: Sequence[str] | Selection | None = None,
        *,
        catalog: str = "",
        snapshot: int | None = None,
        vocabularies: Mapping[str, Sequence[Any]] | None = None,
        hashing: Mapping[str, int | None] | None = None,
        defaults: Mapping[str, Any] | None = None,
        pad: Mapping[str, Pad | float] | None = None,
        filters: Any = None,
        cache_bytes: int = CACHE_BYTES,
        **named: str | Sequence[str],
    ) -> None:
        listing = self.listing_of(os.fspath(table), catalog, snapshot)
        rules = rules_of(listing.what, vocabularies, hashing, defaults, pad)
        super().__init__(listing, selection_of(listing.what, columns, named), rules, filters, cache_bytes)

    @staticmethod
    def listing_of(table: str, catalog: str = "", snapshot: int | None = None) -> Listing:
        """The files of a snapshot. Raises DataError."""
        require("pyiceberg", "ef.data.Iceberg", "iceberg")
        if not catalog and not is_url("Iceberg", table):
            table = os.path.abspath(table)
        name = f"{catalog}:{table}" if catalog else table

        def find() -> _Snapshot:
            return _chosen(name, _opened(name, table, catalog), snapshot)

        pinned = version_of(name, _Snapshot, find) if snapshot is None else find()
        return _listing(name, table, catalog, pinned)


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Turns what pyiceberg, and the clients of catalogs, raise into a DataError."""
    try:
        yield
    except (DataError, UnreadableError):
        raise
    except FileNotFoundError as error:
        raise DataError(f"Iceberg {name}: {error}") from error
    except OSError as error:  # those of requests, too
        raise UnreadableError(f"Iceberg {name}: does not answer: {error}") from error
    except Exception as error:  # each catalog has a library of its own
        raise DataError(f"Iceberg {name}: {type(error).__name__}: {error}") from error


def _opened(name: str, table: str, catalog: str) -> Any:
    """pyiceberg's table, as it is now."""
    with _told(name):
        if catalog:
            from pyiceberg.catalog import load_catalog

            return load_catalog(catalog, **_OUR_FILES).load_table(table)
        from pyiceberg.table import StaticTable

        try:
            return StaticTable.from_metadata(table.rstrip("/"), _OUR_FILES)
        except FileNotFoundError as error:
            if table.endswith(_METADATA):
                raise
            raise DataError(
                f"Iceberg {name}: no version-hint.text says which of its metadata is the newest. Name the "
                f"table in a catalog (catalog=), or a file of its metadata, *{_METADATA}."
            ) from error


def _chosen(name: str, table: Any, snapshot: int | None) -> _Snapshot:
    found = table.current_snapshot() if snapshot is None else table.snapshot_by_id(snapshot)
    if found is None and snapshot is None:
        raise DataError(f"Iceberg {name}: has no record.")
    if found is None:
        there = ", ".join(str(each.snapshot_id) for each in table.snapshots()) or "none"
        raise DataError(f"Iceberg {name}: there is no snapshot {snapshot}. There are: {there}.")
    schema = table.schema().schema_id if snapshot is None else found.schema_id
    if schema is None:  # made before snapshots said so
        schema = table.schema().schema_id
    return _Snapshot(table.metadata_location, found.snapshot_id, schema)


def _as_pinned(name: str, table: str, catalog: str, pinned: _Snapshot) -> Any:
    """The table with this snapshot: as it was when that was chosen, or, if that is gone, as it is now."""
    from pyiceberg.table import StaticTable

    with _told(name):
        try:
            found: Any = StaticTable.from_metadata(pinned.metadata, _OUR_FILES)
        except FileNotFoundError:
            found = _opened(name, table, catalog)
    _chosen(name, found, pinned.snapshot)
    return found


def _listing(name: str, table: str, catalog: str, pinned: _Snapshot) -> Listing:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    what = f"Iceberg {name}, snapshot {pinned.snapshot}"
    opened = _as_pinned(name, table, catalog, pinned)
    with _told(name):
        tasks = list(opened.scan(snapshot_id=pinned.snapshot).plan_files())
        schema = opened.schemas()[pinned.schema]
        mapping = opened.name_mapping()
        types = {
            field.name: _small(field.type) for field in schema_to_pyarrow(schema, include_field_ids=False)
        }
    if not tasks:
        raise DataError(f"{what}: has no record.")
    if other := next((each for each in tasks if each.file.file_format.name != "PARQUET"), None):
        raise DataError(
            f"{what}: {other.file.file_path} is a file of {other.file.file_format.name}; only Parquet is "
            "read here. Rewrite the table's files."
        )
    try:
        files = list(map_ahead(lambda each: existing_file("Iceberg", path_of(each.file.file_path)), tasks))
    except UnreadableError:
        raise
    except DataError as error:
        raise DataError(f"{what}: a file of it is gone; was the snapshot expired? {error}") from error
    deleted = _deleted(what, tasks)
    partitions = _partitions_of(opened, schema)
    found = [
        TableFile(file, partitions(each.file), {}, deleted(each))
        for file, each in zip(files, tasks, strict=True)
    ]
    found.sort(key=lambda each: each.file.name)
    return Listing(
        what,
        found,
        {},
        types,
        FileId(f"{opened.metadata.location}@{pinned.snapshot}", 0, ""),
        {field.name: field.field_id for field in schema.fields},
        {name: each.field_id for each in mapping.root for name in each.names} if mapping else None,
        {field.name: field.initial_default for field in schema.fields if field.initial_default is not None},
    )


def _small(kind: Any) -> Any:
    """As files have it: with offsets of 32 bits."""
    import pyarrow as pa

    if pa.types.is_large_list(kind):
        return pa.list_(_small(kind.value_type))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def _partitions_of(table: Any, schema: Any) -> Callable[[Any], dict[str, Any]]:
    """Of a file, the columns of which it has one value, by which it need not be opened."""
    from pyiceberg.transforms import IdentityTransform

    names = {field.field_id: field.name for field in schema.fields}
    specs = table.specs()

    def of(file: Any) -> dict[str, Any]:
        fields = specs[file.spec_id].fields
        return {
            names[field.source_id]: file.partition[number]
            for number, field in enumerate(fields)
            if isinstance(field.transform, IdentityTransform) and field.source_id in names
        }

    return of


def _deleted(what: str, tasks: Sequence[Any]) -> Callable[[Any], Any]:
    """Of a file that is to be read, which of its records are left; None: all."""
    read: dict[str, dict[str, Any]] = {}
    for each in (file for task in tasks for file in task.delete_files):
        if each.file_path not in read:
            read[each.file_path] = _positions(what, each)

    def of(task: Any) -> Any:
        path = task.file.file_path
        places = [read[each.file_path][path] for each in task.delete_files if path in read[each.file_path]]
        if not places:
            return None
        kept = np.ones(task.file.record_count, bool)
        kept[np.concatenate(places)] = False
        return kept

    return of


def _positions(what: str, file: Any) -> dict[str, Any]:
    """Of a file of deletes: by the file that they are of, which of its records."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from pyiceberg.manifest import DataFileContent
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile

    if file.content != DataFileContent.POSITION_DELETES or file.file_format.name not in ("PARQUET", "PUFFIN"):
        raise DataError(
            f"{what}: {file.file_path} deletes records in a way that is not read here ({file.content.name}, "
            f"{file.file_format.name}). Rewrite the table's files (rewrite_data_files)."
        )
    opened = existing_file("Iceberg", path_of(file.file_path))
    with _told(what), opened.unchanged(), opened.open() as source:
        if file.file_format.name == "PUFFIN":
            vectors = deletion_vectors_from_puffin_file(PuffinFile(source.read()))
            return {each.referenced_data_file: each.to_vector().to_numpy() for each in vectors}
        rows = pq.read_table(source, columns=["file_path", "pos"], use_threads=False)
    paths = pc.unique(rows.column("file_path")).to_pylist()
    return {
        path: rows.filter(pc.equal(rows.column("file_path"), path)).column("pos").to_numpy() for path in paths
    }
