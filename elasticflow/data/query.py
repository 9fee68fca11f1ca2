"""Records that an SQL query makes of files: joined, counted, windowed, as DuckDB does it.

A query is computed once, by whoever comes first, and kept as a Parquet file whose name follows from the
query, from what the files are and from DuckDB's version. All others read that file, so records have numbers,
as a run's must. One thread computes it: several add up floats in an order of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from elasticflow.data.blocks import CACHE_BYTES
from elasticflow.data.files import File, data_files
from elasticflow.data.parquet import Parquet, Paths
from elasticflow.data.ragged import Pad
from elasticflow.data.tables import Selection, arrow_errors
from elasticflow.errors import DataError
from elasticflow.process.locked_files import hold, wait_until_free
from elasticflow.process.packages import require
from elasticflow.storage.file_ids import FileId

MEMORY_BYTES = 2 << 30
GROUP_ROWS = 1 << 16
"""Of a row group, which is what is read at once."""
LOOK_AGAIN_S = 3600.0
SAMPLED = "a sample"
OF_THE_CLOCK = frozenset(
    "age current_date current_localtime current_localtimestamp current_time current_timestamp "
    "get_current_time get_current_timestamp localtime localtimestamp now today transaction_timestamp".split()
)
"""Which DuckDB does not call volatile, since they give the same all through a query."""


class Query(Parquet):
    """Records that ``sql`` makes of tables, in its order.

    ``Query("SELECT age, count(*) AS n, y FROM clicks JOIN users USING (user) GROUP BY ALL ORDER BY ALL",
    {"clicks": "clicks/*.parquet", "users": "users.csv"})``

    sql: one SELECT of DuckDB's SQL; it reads nothing but ``tables``. tables: by name, a Parquet file or CSV
    file, a folder, a pattern, or a list of these, on this machine or a file system that is mounted here;
    folders named ``date=2026-11-20`` are a column. folder: where results are kept; default: below
    ``~/.cache/elasticflow``, which is best where all nodes see it. memory_bytes: that the query may take;
    beyond, it writes to ``folder`` what it has to. The rest is as of ``Parquet``.

    Raises DataError where DuckDB refuses it, or where what it gives would not be the same each time;
    ConfigError if DuckDB is not installed.
    """

    def __init__(
        self,
        sql: str,
        tables: Mapping[str, Paths],
        columns: Sequence[str] | Selection | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        memory_bytes: int = MEMORY_BYTES,
        vocabularies: Mapping[str, Sequence[Any]] | None = None,
        hashing: Mapping[str, int | None] | None = None,
        defaults: Mapping[str, Any] | None = None,
        pad: Mapping[str, Pad | float] | None = None,
        cache_bytes: int = CACHE_BYTES,
        **named: str | Sequence[str],
    ) -> None:
        require("duckdb", "ef.data.Query", "sql")
        path, key = _result(sql, tables, Path(folder) if folder else _default_folder(), memory_bytes)
        super().__init__(
            path,
            columns,
            vocabularies=vocabularies,
            hashing=hashing,
            defaults=defaults,
            pad=pad,
            cache_bytes=cache_bytes,
            **named,
        )
        # By what stays so where tables are touched, moved or copied: then a resumed run has another result,
        # of the same records.
        name = f"Query of {', '.join(tables)} ({key})"
        result, *others = self.files
        self.files = (msgspec.structs.replace(result, name=name), *others)


def _default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elasticflow" / "queries"


def _result(sql: str, tables: Mapping[str, Paths], folder: Path, memory_bytes: int) -> tuple[Path, str]:
    """The file with the records, which this process makes unless there is one, and what query and tables have
    in common wherever these lie, and whenever they were written. Raises DataError."""
    found = {name: _local_files(name, paths) for name, paths in tables.items()}
    read = {name: [_told(each.identity(len(files))) for each in files] for name, files in found.items()}
    path = folder / f"{_key(sql, read)}.parquet"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(path.with_suffix(".lock")):
            if not path.exists():
                _compute(sql, found, path, memory_bytes)
    except OSError as error:
        raise DataError(f"Query: {folder}: {error.strerror}. Name another folder=.") from error
    lasting = {
        name: [(os.path.basename(of), size, sample) for of, size, _, sample in files]
        for name, files in read.items()
    }
    return path, _key(sql, lasting)


def _key(sql: str, read: Mapping[str, Sequence[tuple[object, ...]]]) -> str:
    """read: what is told of each table's files."""
    import duckdb

    key = msgspec.json.encode((duckdb.__version__, sql, sorted(read.items())))
    return hashlib.blake2b(key, digest_size=16).hexdigest()


def _told(found: FileId) -> tuple[str, int, str, str]:
    """What of a file is the same on all nodes that see it, or have a copy of the same time."""
    return found.name, found.num_bytes, found.modified, found.sample


def _local_files(name: str, paths: Paths) -> list[File]:
    files = data_files(f"Query, table {name!r}", paths)
    if far := next((each for each in files if each.is_remote), None):
        raise DataError(
            f"Query: table {name!r}: {far}: is not on this machine, nor mounted here, and DuckDB reads "
            "nothing else here. Copy it, or read it by ef.data.Parquet, which has filters."
        )
    return files


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Of all processes of this machine, and of others that see the folder where its file system has locks."""
    while True:
        try:
            descriptor = hold(lock)
            break
        except BlockingIOError:
            wait_until_free(lock, LOOK_AGAIN_S)
    try:
        yield
    finally:
        os.close(descriptor)


def _compute(sql: str, tables: Mapping[str, list[File]], path: Path, memory_bytes: int) -> None:
    """Raises DataError, OSError."""
    import duckdb
    import pyarrow.parquet as pq

    # On this machine nobody else computes it now: whoever left that has been killed.
    aside = path.with_name(f".{path.stem}-{socket.gethostname()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(mode=0o700)
    settings: dict[str, Any] = {
        "threads": 1,
        "memory_limit": f"{memory_bytes // 1000}KB",
        "temp_directory": str(aside),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    temporary = aside / path.name
    try:
        with duckdb.connect(":memory:", config=settings) as connection:
            _open(connection, tables)
            _check(connection, sql)
            records = connection.sql(sql).to_arrow_reader(GROUP_ROWS)
            count = 0
            with arrow_errors("Query", "Cast such columns in the query."):
                with pq.ParquetWriter(temporary, records.schema) as writer:
                    for batch in records:
                        writer.write_batch(batch)
                        count += len(batch)
            if not count:
                raise DataError(f"Query: leaves no record: {sql}")
        for file in (file for files in tables.values() for file in files):
            with file.unchanged():  # since its name was made
                pass
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.rename(path)
    except duckdb.Error as error:
        raise DataError(f"Query: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _open(connection: Any, tables: Mapping[str, list[File]]) -> None:
    """Views of the tables, beside which nothing can be read or written."""
    names = [str(Path(file.name).absolute()) for files in tables.values() for file in files]
    connection.execute("SET TimeZone = 'UTC'")  # whatever this machine's is
    connection.execute(f"SET allowed_paths = {_texts(names)}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    for name, files in tables.items():
        paths = _texts([str(Path(file.name).absolute()) for file in files])
        is_csv = Path(files[0].name).suffix.lower() in (".csv", ".tsv", ".txt")
        reader = "read_csv" if is_csv else "read_parquet"
        quoted = '"' + name.replace('"', '""') + '"'
        connection.execute(f"CREATE VIEW {quoted} AS SELECT * FROM {reader}({paths}, union_by_name = true)")


def _texts(values: Sequence[str]) -> str:
    """As SQL has a list of them."""
    return "[" + ", ".join("'" + value.replace("'", "''") + "'" for value in values) + "]"


def _check(connection: Any, sql: str) -> None:
    """Raises DataError unless it is one SELECT, which gives the same each time."""
    (told,) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone()
    parsed = json.loads(told)
    if parsed["error"]:
        is_other = parsed["error_type"] == "not implemented"
        raise DataError(f"Query: {'is no SELECT' if is_other else parsed['error_message']}: {sql}")
    if len(parsed["statements"]) != 1:
        raise DataError(f"Query: wants one SELECT, and has {len(parsed['statements'])}: {sql}")
    volatile = "SELECT function_name FROM duckdb_functions() WHERE stability = 'VOLATILE'"
    fickle = OF_THE_CLOCK | {name for (name,) in connection.execute(volatile).fetchall()}
    for name in _called(parsed["statements"]):
        if name in fickle or name == SAMPLED:
            raise DataError(
                f"Query: {name} gives something else each time, so another process could not have the same "
                "records. Give what it is to be as a value, of ef.args() for example, or choose by hash()."
            )


def _called(node: Any) -> Iterator[str]:
    """All functions in a parsed query, those that are written like columns among them; and samples."""
    if isinstance(node, dict):
        name = node.get("function_name", "")
        given = node.get("arguments") or node.get("children") or ()  # before DuckDB 2
        if name and not (name == "age" and len(given) > 1):  # of two it is their difference
            yield name.lower()
        if len(names := node.get("column_names") or []) == 1 and names[0].lower() in OF_THE_CLOCK - {"age"}:
            yield names[0].lower()
        if node.get("sample"):
            yield SAMPLED
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from _called(each)
