"""Records of a table of Delta Lake, as one of its versions has them.

Its log says which files there are, what they are partitioned by, and which of their records were deleted:
``deltalake`` reads that, here or from a copy of the log on this machine, so that a store, or HDFS, is asked
by the one client that reads the records too. Files are read as those of ``Parquet`` are.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from elasticflow.data.blocks import CACHE_BYTES
from elasticflow.data.files import PATIENCE_S, existing_file, is_url, path_of
from elasticflow.data.listing import Listing, TableFile
from elasticflow.data.parquet import TableSource, selection_of
from elasticflow.data.pins import version_of
from elasticflow.data.ragged import Pad
from elasticflow.data.tables import Selection
from elasticflow.data.threads import map_ahead
from elasticflow.data.typed import rules_of
from elasticflow.errors import ConfigError, DataError, UnreadableError
from elasticflow.process.packages import require
from elasticflow.storage.file_ids import FileId
from elasticflow.storage.remote import ABSENT, RemoteClient, client_of

LOG, SIDECARS = "_delta_log", "_sidecars"
_PHYSICAL = "delta.columnMapping.physicalName"
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:(\d{10})\.(\d{10})\.)?")
"""Of a version; of several parts, the number of one, and how many there are."""
_DELETIONS = re.compile(r"deletion_vector_.*\.bin")


class _DeltaVersion(msgspec.Struct, frozen=True):
    """id: of the table: another one may take its place."""

    version: int
    id: str


class Delta(TableSource):
    """Records of a table of Delta Lake.

    ``Delta("s3://lake/clicks", ["site", "age", "y"], filters=[("date", ">=", "2026-11-01")])``

    path: the table's folder, also on HDFS or in a store. version: one of its versions; None: the newest one
    when the run began, which all its workers, and whoever resumes it, read. The rest is as of ``Parquet``.

    Raises DataError if it is no such table, has no such version or files of it are gone, or as Parquet does;
    ConfigError if deltalake is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | Selection | None = None,
        *,
        version: int | None = None,
        vocabularies: Mapping[str, Sequence[Any]] | None = None,
        hashing: Mapping[str, int | None] | None = None,
        defaults: Mapping[str, Any] | None = None,
        pad: Mapping[str, Pad | float] | None = None,
        filters: Any = None,
        cache_bytes: int = CACHE_BYTES,
        **named: str | Sequence[str],
    ) -> None:
        listing = self.listing_of(path, version)
        rules = rules_of(listing.what, vocabularies, hashing, defaults, pad)
        super().__init__(listing, selection_of(listing.what, columns, named), rules, filters, cache_bytes)

    @staticmethod
    def listing_of(path: str | os.PathLike[str], version: int | None = None) -> Listing:
        """The files of a version. Raises DataError."""
        require("deltalake", "ef.data.Delta", "delta")
        place = os.fspath(path).rstrip("/") or "/"
        if not is_url("Delta", place):
            place = os.path.abspath(place)
        if version is not None:
            if isinstance(version, bool) or not isinstance(version, int) or version < 0:
                raise DataError(f"Delta {place}: version is {version!r}; it is a whole number from 0 on.")
            return _listing(place, version)
        chosen = version_of(place, _DeltaVersion, lambda: _newest(place))
        return _listing(place, chosen.version, chosen.id)

    @classmethod
    def names_in(cls, path: str) -> list[str]:
        """What the table calls its columns. Raises DataError."""
        return list(cls.listing_of(path).types or ())


def is_delta(path: str) -> bool:
    """Whether a folder, or a URL, is that of such a table. Raises DataError for a URL that cannot be used."""
    if not is_url("data", path):
        return os.path.isdir(os.path.join(path, LOG))
    client, folder = _client("data", path)
    try:
        return client.find(posixpath.join(folder, LOG)) is not None
    except OSError as error:
        raise UnreadableError(f"data: {path} cannot be read: {error}") from error


def _newest(place: str) -> _DeltaVersion:
    with _opened(place, None) as (table, _):
        return _DeltaVersion(table.version(), table.metadata().id)


@contextmanager
def _opened(place: str, version: int | None) -> Iterator[tuple[Any, str]]:
    """deltalake's table, and the folder that it takes for the table's. Raises DataError."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    what = f"Delta {place}"
    with tempfile.TemporaryDirectory(prefix="elasticflow-delta-") as folder:
        here = place
        if is_url("Delta", place):
            here = folder
            _copy_log(what, place, Path(folder), version)
        elif not os.path.isdir(os.path.join(place, LOG)):
            raise DataError(f"{what}: is no table of Delta Lake: there is no folder {LOG} in it.")
        elif "%" in place:  # which deltalake takes for the beginning of a character's number
            here = folder
            for path in (*Path(place, LOG).rglob("*"), *Path(place).rglob("deletion_vector_*.bin")):
                if path.is_file():
                    copy = Path(folder, path.relative_to(place))
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, copy)
        try:
            yield DeltaTable(here, version=version), here
        except (DeltaError, OSError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            wanted = "" if version is None else f", version {version}"
            raise DataError(f"{what}{wanted}: {_cleaned(here, version)}{error}") from error


def _cleaned(here: str, version: int | None) -> str:
    """What to do about a version that the log does not tell of any more; "": it may still do so."""
    names = [path.name for path in Path(here, LOG).glob("*")]
    first = min((int(name[:20]) for name in names if name[:20].isdecimal()), default=0)
    if version is None or first <= version:
        return ""
    return (
        f"its log was cleaned up since, and begins with version {first}: a new run can read that, or a later "
        "one. Have the table keep its log for as long as runs last (delta.logRetentionDuration). "
    )


def _listing(place: str, version: int, id: str = "") -> Listing:
    """id: of the table that is meant; "": whichever lies there."""
    import pyarrow as pa

    what = f"Delta {place}, version {version}"
    with _opened(place, version) as (table, here):
        if id and table.metadata().id != id:
            raise DataError(f"{what}: another table lies there now than when this run began.")
        schema = pa.schema(table.schema().to_arrow())
        physical = {field.name: field.metadata.get(_PHYSICAL, field.name) for field in table.schema().fields}
        added = pa.table(table.get_add_actions(flatten=False))
        partitions = table.metadata().partition_columns
        kept = {}
        if "deletionVectors" in (table.protocol().reader_features or ()):
            if is_url("Delta", place):
                _copy_vectors(what, place, Path(here))
            kept = _kept(table, place, here)
    types = {field.name: field.type for field in schema}
    values = (
        added.column("partition").to_pylist() if partitions and "partition" in added.column_names else None
    )
    paths = [_path(place, text) for text in added.column("path").to_pylist()]
    if not paths:
        raise DataError(f"{what}: has no record.")
    try:
        files = list(map_ahead(lambda path: existing_file("Delta", path), paths))
    except UnreadableError:
        raise
    except DataError as error:
        raise DataError(f"{what}: a file of it is gone; was it vacuumed since? {error}") from error
    if kept.keys() - set(paths):  # never without them
        raise DataError(
            f"{what}: deletes records of {min(kept.keys() - set(paths))}, which is no file of it."
        )
    names = {name: own for name, own in physical.items() if own != name and name not in partitions}
    found = [
        TableFile(file, _of_partition(values, number, partitions, physical), names, kept.get(path))
        for number, (file, path) in enumerate(zip(files, paths, strict=True))
    ]
    found.sort(key=lambda each: each.file.name)
    return Listing(
        what, found, {name: types[name] for name in partitions}, types, FileId(f"{place}@{version}", 0, "")
    )


def _of_partition(
    values: Any, number: int, partitions: Sequence[str], physical: Mapping[str, str]
) -> dict[str, Any]:
    if not partitions:
        return {}
    mine = values[number]
    return {name: mine[name] if name in mine else mine[physical[name]] for name in partitions}


def _path(place: str, text: str) -> str:
    """Of a file; a shallow copy of a table has files of the other one's, by their whole names."""
    path = path_of(unquote(text))
    return path if is_url("Delta", path) or path.startswith("/") else f"{place}/{path}"


def _kept(table: Any, place: str, here: str) -> dict[str, Any]:
    """By file, which of its records were not deleted."""
    import numpy as np

    found = {}
    root = Path(here).as_uri()
    for batch in table.deletion_vectors():
        names, masks = (batch.column(name).to_pylist() for name in ("filepath", "selection_vector"))
        for name, mask in zip(names, masks, strict=True):
            path = name[len(root) :].lstrip("/") if name.startswith(f"{root}/") else name
            found[_path(place, path)] = np.array(mask, bool)
    return found


# --- a log that is elsewhere --------------------------------------------------------------------------


def _client(what: str, url: str) -> tuple[RemoteClient, str]:
    try:
        return client_of(url, PATIENCE_S)
    except ConfigError as error:
        raise DataError(f"{what}: {error}") from error


def _copy_log(what: str, url: str, target: Path, version: int | None) -> None:
    """What of the log a version needs."""
    client, root = _client(what, url)
    log = posixpath.join(root, LOG)
    try:
        found = client.list(log)
        wanted = [f"{LOG}/{name}" for name in _needed([each.name for each in found], version)]
        if SIDECARS in (each.name for each in found):
            wanted += [f"{LOG}/{SIDECARS}/{each.name}" for each in client.list(posixpath.join(log, SIDECARS))]
    except ABSENT as error:
        raise DataError(f"{what}: is no table of Delta Lake: there is no folder {LOG} in it.") from error
    except PermissionError as error:
        raise DataError(f"{what}: may not be read: {error}") from error
    except OSError as error:
        raise UnreadableError(f"{what}: cannot be read: {error}") from error
    _fetch(what, client, root, wanted, target)


def _copy_vectors(what: str, url: str, target: Path) -> None:
    """The files that say which records were deleted; they may lie in folders with names drawn by lot."""
    client, root = _client(what, url)
    try:
        there = client.list(root)
        folders = [each.name for each in there if each.is_dir and "=" not in each.name]
        folders = [name for name in folders if not name.startswith(("_", "."))]
        below = map_ahead(lambda name: client.list(posixpath.join(root, name)), folders)
        names = [each.name for each in there]
        names += [f"{name}/{each.name}" for name, found in zip(folders, below, strict=True) for each in found]
    except OSError as error:
        raise UnreadableError(f"{what}: cannot be read: {error}") from error
    vectors = [name for name in names if _DELETIONS.fullmatch(posixpath.basename(name))]
    _fetch(what, client, root, vectors, target)


def _fetch(what: str, client: RemoteClient, root: str, names: Sequence[str], target: Path) -> None:
    def fetch(name: str) -> None:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with client.open(posixpath.join(root, name)) as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy)

    try:
        for _ in map_ahead(fetch, names):
            pass
    except OSError as error:  # a part that is gone, too: the log may have been cleaned up just now
        raise UnreadableError(f"{what}: its log cannot be read: {error}") from error


def _needed(names: Sequence[str], version: int | None) -> list[str]:
    """The last whole checkpoint up to a version, and all commits from there on."""
    parts: dict[int, list[tuple[int, int]]] = {}
    for name in names:
        if found := _CHECKPOINT.match(name):
            number, total = int(found[2] or 1), int(found[3] or 1)
            parts.setdefault(int(found[1]), []).append((number, total))
    whole = [
        each
        for each, there in parts.items()
        if any(len([1 for _, total in there if total == wanted]) >= wanted for _, wanted in there)
    ]
    begins = max((each for each in whole if version is None or each <= version), default=0)
    return [name for name in names if re.match(r"\d{20}\.", name) and int(name[:20]) >= begins]
