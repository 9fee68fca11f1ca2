"""Records of a table of Hive, by the name that it has in the metastore.

The metastore says which partitions there are, and where each lies, wherever that is; their files are read as
those of ``Parquet`` are, their columns by name, in whatever case they were written.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit
from xml.etree import ElementTree

import msgspec

from elasticflow.data.blocks import CACHE_BYTES
from elasticflow.data.files import data_files, path_of
from elasticflow.data.listing import NO_VALUE, Listing, TableFile, satisfiable
from elasticflow.data.parquet import TableSource, expression_of, selection_of
from elasticflow.data.pins import version_of
from elasticflow.data.ragged import Pad
from elasticflow.data.tables import Selection
from elasticflow.data.threads import map_ahead
from elasticflow.data.typed import rules_of
from elasticflow.errors import DataError, UnreadableError
from elasticflow.process.packages import require
from elasticflow.storage.file_ids import FileId

T = TypeVar("T")
TIMEOUT_S = 30.0
AT_ONCE = 500
"""Partitions that are asked for together."""
_SIMPLE = {
    "tinyint": "int8", "smallint": "int16", "int": "int32", "integer": "int32", "bigint": "int64",
    "float": "float32", "double": "float64", "boolean": "bool", "string": "string", "varchar": "string",
    "char": "string", "binary": "binary", "date": "date32",
}  # fmt: skip


class _Partition(msgspec.Struct, frozen=True):
    values: tuple[str, ...]
    place: str


class _Table(msgspec.Struct, frozen=True):
    """As the metastore told of it. columns, keys: (name, type) in Hive's words; keys: of its partitions."""

    columns: tuple[tuple[str, str], ...]
    keys: tuple[tuple[str, str], ...]
    partitions: tuple[_Partition, ...]


class Hive(TableSource):
    """Records of a table that Hive's metastore knows, whose files are Parquet.

    ``Hive("sales.clicks", ["site", "age", "y"], filters=[("day", ">=", "2026-11-01")])``

    table: its database and name. metastore: such as ``thrift://host:9083``, or several with commas between
    them; default: that of ``hive-site.xml`` in ``HIVE_CONF_DIR`` or ``HADOOP_CONF_DIR``. All workers of a
    run, and whoever resumes it, read the partitions that there were when it began. Filters on them leave out
    folders that are not even listed. The rest is as of ``Parquet``.

    Raises DataError if there is no such table, or it is none of files of Parquet, or as Parquet does;
    ConfigError if pyiceberg and thrift, by which the metastore is asked, are not installed.
    """

    def __init__(
        self,
        table: str,
        columns: Sequence[str] | Selection | None = None,
        *,
        metastore: str = "",
        vocabularies: Mapping[str, Sequence[Any]] | None = None,
        hashing: Mapping[str, int | None] | None = None,
        defaults: Mapping[str, Any] | None = None,
        pad: Mapping[str, Pad | float] | None = None,
        filters: Any = None,
        cache_bytes: int = CACHE_BYTES,
        **named: str | Sequence[str],
    ) -> None:
        listing = _listing(table, metastore or _configured(), filters)
        rules = rules_of(listing.what, vocabularies, hashing, defaults, pad)
        super().__init__(listing, selection_of(listing.what, columns, named), rules, filters, cache_bytes)


def _listing(name: str, metastore: str, filters: Any) -> Listing:
    require("thrift", "ef.data.Hive", "hive")
    require("pyiceberg", "ef.data.Hive", "hive")
    what = f"Hive {name}"
    database, dot, plain = name.lower().rpartition(".")
    if not dot or not plain:
        raise DataError(f"{what}: is no name of a table; write DATABASE.TABLE, such as default.clicks.")

    where = ",".join(sorted(each.strip() for each in metastore.split(",")))
    table = version_of(
        f"{where}/{database}.{plain}", _Table, lambda: _asked(what, metastore, database, plain)
    )
    keys = {key: _type_of(kind) for key, kind in table.keys}
    if unknown := [f"{key!r} of {kind}" for key, kind in table.keys if keys[key] is None]:
        raise DataError(f"{what}: is partitioned by {unknown[0]}, a type that is not read here.")
    types = {column: _type_of(kind) for column, kind in table.columns} | keys
    types = {column: kind for column, kind in types.items() if kind is not None}
    values = [_values(what, each, keys) for each in table.partitions]
    left = satisfiable(values, types, expression_of(what, filters, types))
    found = list(map_ahead(lambda n: data_files(what, path_of(table.partitions[n].place), empty=True), left))
    inner = _nested([path_of(each.place).rstrip("/") for each in table.partitions])
    files = [
        TableFile(file, values[number])
        for number, each in zip(left, found, strict=True)
        for file in each
        if not file.name.startswith(inner[number])
    ]
    if not files:
        raise DataError(f"{what}: {'the filters leave' if filters is not None else 'has'} no record.")
    files.sort(key=lambda each: each.file.name)
    digest = hashlib.blake2b(msgspec.json.encode(table), digest_size=4).hexdigest()
    version = FileId(f"{database}.{plain}@{digest}", 0, "")
    return Listing(what, files, keys, types, version, any_case=True)


def _nested(places: Sequence[str]) -> list[tuple[str, ...]]:
    """Of each partition's folder, folders of others within it: what lies there is theirs."""
    ordered = sorted((f"{place}/", number) for number, place in enumerate(places))
    found: list[list[str]] = [[] for _ in places]
    around: list[tuple[str, int]] = []
    for place, number in ordered:
        while around and not place.startswith(around[-1][0]):
            around.pop()
        for other, outer in around:
            if other != place:
                found[outer].append(place)
        around.append((place, number))
    return [tuple(each) for each in found]


def _values(what: str, partition: _Partition, keys: Mapping[str, Any]) -> dict[str, Any]:
    import pyarrow as pa

    try:
        return {
            key: None if text == NO_VALUE else pa.scalar(text).cast(kind).as_py()
            for (key, kind), text in zip(keys.items(), partition.values, strict=True)
        }
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{what}: a partition {partition.values}: {error}.") from error


def _type_of(words: str) -> Any:
    """Arrow's type for one in Hive's words; None: such columns cannot be read here."""
    import pyarrow as pa

    if found := re.fullmatch(r"array<(.*)>", words):
        inner = _type_of(found[1])
        return None if inner is None else pa.list_(inner)
    if found := re.fullmatch(r"decimal(?:\((\d+)(?:,\s*(\d+))?\))?", words):
        return pa.decimal128(int(found[1] or 10), int(found[2] or 0))
    if words == "timestamp":
        return pa.timestamp("us")
    name = _SIMPLE.get(words.partition("(")[0])
    return getattr(pa, {"bool": "bool_"}.get(name, name))() if name else None


# --- the metastore ------------------------------------------------------------------------------------


def _configured() -> str:
    """Raises DataError if there is no file that says where it is."""
    folders = _folders()
    for folder in folders:
        if uris := _properties(os.path.join(folder, "hive-site.xml")).get("hive.metastore.uris"):
            return uris
    where = " or ".join(folders) or "HIVE_CONF_DIR and HADOOP_CONF_DIR are not set"
    raise DataError(
        f"Hive: no hive-site.xml names hive.metastore.uris ({where}). Give metastore='thrift://host:9083'."
    )


def _folders() -> list[str]:
    """Where settings of Hive may lie."""
    return [os.environ[name] for name in ("HIVE_CONF_DIR", "HADOOP_CONF_DIR") if os.environ.get(name)]


def _properties(path: str) -> dict[str, str]:
    try:
        root = ElementTree.parse(path).getroot()
    except FileNotFoundError:
        return {}
    except (OSError, ElementTree.ParseError) as error:
        raise DataError(f"Hive: {path}: cannot be read: {error}.") from error
    return {each.findtext("name", "").strip(): each.findtext("value", "").strip() for each in root}


def _asked(what: str, metastore: str, database: str, name: str) -> _Table:
    with _told(what):
        return _from_any(what, metastore, lambda client: _read(what, client, database, name))


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turns what the metastore answers into a DataError."""
    from hive_metastore.ttypes import MetaException, NoSuchObjectException
    from thrift.Thrift import TException

    try:
        yield
    except (NoSuchObjectException, MetaException) as error:
        raise DataError(f"{what}: {error.message}") from error
    except (TException, OSError, EOFError) as error:
        raise UnreadableError(f"{what}: the metastore does not answer: {error}") from error


def _from_any(what: str, metastore: str, ask: Callable[[Any], T]) -> T:
    """Of several metastores, the first that answers."""
    from hive_metastore.ThriftHiveMetastore import Client
    from thrift.protocol import TBinaryProtocol
    from thrift.transport import TSocket, TTransport

    uris = [each.strip() for each in metastore.split(",") if each.strip()]
    for number, uri in enumerate(uris):
        parts = urlsplit(uri)
        if parts.scheme != "thrift" or not parts.hostname:
            raise DataError(f"{what}: metastore {uri!r} is no address; write thrift://host:9083.")
        socket = TSocket.TSocket(parts.hostname, parts.port or 9083)
        socket.setTimeout(1000 * TIMEOUT_S)
        transport = _secured(parts.hostname, socket) or TTransport.TBufferedTransport(socket)
        try:
            transport.open()
        except (TTransport.TTransportException, OSError):
            if number + 1 == len(uris):
                raise
            continue
        try:
            return ask(Client(TBinaryProtocol.TBinaryProtocol(transport)))
        finally:
            transport.close()
    raise DataError(f"{what}: metastore {metastore!r} names none.")


def _secured(host: str, socket: Any) -> Any:
    """By Kerberos, where ``hive-site.xml`` says so; None: not."""
    from thrift.transport import TTransport

    for folder in _folders():
        found = _properties(os.path.join(folder, "hive-site.xml"))
        if found.get("hive.metastore.sasl.enabled", "").lower() == "true":
            service = found.get("hive.metastore.kerberos.principal", "hive/").partition("/")[0]
            require("puresasl", "ef.data.Hive with Kerberos", "hive")
            return TTransport.TSaslClientTransport(socket, host=host, service=service)
    return None


def _read(what: str, client: Any, database: str, name: str) -> _Table:
    from hive_metastore.ttypes import GetTableRequest
    from thrift.Thrift import TApplicationException

    try:
        found = client.get_table_req(GetTableRequest(dbName=database, tblName=name)).table
    except TApplicationException:  # one of Hive 2
        found = client.get_table(database, name)
    _check(what, found)
    keys = tuple((key.name.lower(), key.type) for key in found.partitionKeys or ())
    partitions: list[_Partition] = [] if keys else [_Partition((), found.sd.location)]
    names = client.get_partition_names(database, name, -1) if keys else []
    for start in range(0, len(names), AT_ONCE):
        for each in client.get_partitions_by_names(database, name, names[start : start + AT_ONCE]):
            _check_format(f"{what}, partition {'/'.join(each.values)}", each.sd)
            partitions.append(_Partition(tuple(each.values), each.sd.location))
    columns = tuple((column.name.lower(), column.type) for column in found.sd.cols)
    return _Table(columns, keys, tuple(sorted(partitions, key=lambda each: each.values)))


def _check(what: str, table: Any) -> None:
    """Raises DataError for what is no table of files of Parquet."""
    said = {name.lower(): str(value) for name, value in (table.parameters or {}).items()}
    if table.tableType == "VIRTUAL_VIEW":
        raise DataError(f"{what}: is a view. Name the tables behind it, or have Hive write its records.")
    if said.get("table_type", "").upper() == "ICEBERG":
        raise DataError(
            f"{what}: is a table of Iceberg. Read it by ef.data.Iceberg, with a catalog of Hive's."
        )
    if said.get("spark.sql.sources.provider", "").lower() == "delta":
        raise DataError(f"{what}: is a table of Delta Lake. Read it by ef.data.Delta({table.sd.location!r}).")
    if said.get("transactional", "").lower() == "true":
        raise DataError(
            f"{what}: is transactional: which of its files count its folders do not tell. Have Hive write "
            "its records to an external table."
        )
    _check_format(what, table.sd)


def _check_format(what: str, storage: Any) -> None:
    kind = storage.serdeInfo.serializationLib or ""
    if "parquet" not in kind.lower():
        raise DataError(f"{what}: is not of Parquet, but of {kind.rpartition('.')[2] or 'nothing known'}.")
