"""Tables by their names in a real metastore of Hive: which partitions, where they lie, how they look."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("thrift")
pytest.importorskip("pyiceberg")
import pyarrow.parquet as pq  # noqa: E402
from hive_metastore import ttypes  # noqa: E402
from hive_metastore.ThriftHiveMetastore import Client  # noqa: E402
from thrift.protocol import TBinaryProtocol  # noqa: E402
from thrift.transport import TSocket, TTransport  # noqa: E402

from elasticflow.data import Hive, hive, pins  # noqa: E402
from elasticflow.data.pins import Pins  # noqa: E402
from elasticflow.errors import DataError, UnreadableError  # noqa: E402
from elasticflow.storage import DirectoryStorage  # noqa: E402
from tests.clusters.hive import HiveMetastore  # noqa: E402

PARQUET = "org.apache.hadoop.hive.ql.io.parquet"
DAYS = ("2026-11-24", "2026-11-25", "2026-11-26")
COLUMNS = (("id", "bigint"), ("x", "array<float>"), ("price", "decimal(10,2)"), ("site", "varchar(20)"))


class Create(Protocol):
    def __call__(self, name: str, **changes: Any) -> None: ...


@pytest.fixture(autouse=True)
def no_run() -> Iterator[None]:
    yield
    pins.keep(Pins())


@pytest.fixture
def client(hive_metastore: HiveMetastore) -> Iterator[Any]:
    """An empty database ``sales``."""
    host, port = hive_metastore.uri.removeprefix("thrift://").split(":")
    transport = TTransport.TBufferedTransport(TSocket.TSocket(host, int(port)))
    transport.open()
    found = Client(TBinaryProtocol.TBinaryProtocol(transport))
    found.create_database(ttypes.Database(name="sales", parameters={}))
    yield found
    found.drop_database("sales", False, True)
    transport.close()


def stored(location: str, serde: str = f"{PARQUET}.serde.ParquetHiveSerDe", columns: Any = COLUMNS) -> Any:
    return ttypes.StorageDescriptor(
        cols=[ttypes.FieldSchema(name, kind, None) for name, kind in columns],
        location=location,
        inputFormat=f"{PARQUET}.MapredParquetInputFormat",
        outputFormat=f"{PARQUET}.MapredParquetOutputFormat",
        serdeInfo=ttypes.SerDeInfo(serializationLib=serde, parameters={}),
        bucketCols=[],
        sortCols=[],
        parameters={},
        numBuckets=-1,
    )


@pytest.fixture
def create(client: Any, tmp_path: Path) -> Create:
    def make(name: str, **changes: Any) -> None:
        table = ttypes.Table(
            tableName=name,
            dbName="sales",
            owner="x",
            sd=stored(f"file://{tmp_path}/{name}"),
            partitionKeys=[ttypes.FieldSchema("day", "date", None)],
            parameters={"EXTERNAL": "TRUE"},
            tableType="EXTERNAL_TABLE",
        )
        for field, value in changes.items():
            setattr(table, field, value)
        (tmp_path / name).mkdir(exist_ok=True)
        client.create_table(table)

    return make


def write(folder: Path, first: int, count: int = 40, **columns: Any) -> None:
    """Records with these ids; the file calls its columns as whoever wrote it did."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.arange(first, first + count)
    made = {
        "Id": numbers,
        "x": pa.array([[float(n), 1.0] for n in numbers], pa.list_(pa.float32())),
        "PRICE": pa.array([Decimal(100 * int(n)) for n in numbers], pa.decimal128(10, 2)),
        "site": [f"site {n % 3}" for n in numbers],
        **columns,
    }
    pq.write_table(pa.table(made), folder / "part-0.parquet")


def add_partition(client: Any, table: str, value: str, place: Path) -> None:
    client.add_partition(
        ttypes.Partition(
            values=[value], dbName="sales", tableName=table, sd=stored(f"file://{place}"), parameters={}
        )
    )


@pytest.fixture
def clicks(create: Create, client: Any, tmp_path: Path) -> Path:
    """A table of three days, of which the last lies elsewhere, and one without a day."""
    create("clicks")
    for number, day in enumerate(DAYS):
        place = tmp_path / ("elsewhere" if number == 2 else f"clicks/day={day}")
        write(place, 100 * number)
        add_partition(client, "clicks", day, place)
    write(tmp_path / "clicks" / "unknown", 300, 5)
    add_partition(client, "clicks", "__HIVE_DEFAULT_PARTITION__", tmp_path / "clicks" / "unknown")
    write(tmp_path / "clicks" / "day=2026-11-27", 900)  # of which the metastore was not told
    (tmp_path / "clicks" / "empty").mkdir()
    add_partition(client, "clicks", "2026-11-01", tmp_path / "clicks" / "empty")
    return tmp_path


def ids(source: Hive) -> list[int]:
    return sorted(source.rows(np.arange(source.num_rows))["id"].tolist())


def test_partitions_wherever_they_lie(clicks: Path, hive_metastore: HiveMetastore) -> None:
    source = Hive("Sales.clicks", ["id", "x", "price"], metastore=hive_metastore.uri)
    expected = [*range(40), *range(100, 140), *range(200, 240), *range(300, 305)]
    assert ids(source) == expected
    rows = source.rows(np.arange(source.num_rows))
    assert rows["x"].shape == (125, 2) and rows["x"].dtype == np.float32
    assert rows["price"].tolist() == [float(n * 100) for n in rows["id"]]
    recent = Hive(
        "sales.clicks",
        ["id"],
        metastore=hive_metastore.uri,
        filters=[("day", ">=", "2026-11-26"), ("id", "<", 210)],
    )
    assert ids(recent) == list(range(200, 210))
    with_days = Hive(
        "sales.clicks", ["id", "day"], metastore=hive_metastore.uri, defaults={"day": date(1970, 1, 1)}
    )
    days = with_days.rows(np.arange(with_days.num_rows))
    by_id = dict(zip(days["id"].tolist(), days["day"].tolist(), strict=True))
    assert by_id[301] == 0 and by_id[200] - by_id[100] == 1


def test_filters_leave_out_folders_that_are_not_there(clicks: Path, hive_metastore: HiveMetastore) -> None:
    shutil.rmtree(clicks / "clicks" / "day=2026-11-24")
    recent = Hive("sales.clicks", ["id"], metastore=hive_metastore.uri, filters=[("day", ">", "2026-11-24")])
    assert ids(recent) == [*range(100, 140), *range(200, 240)]
    with pytest.raises(DataError, match="day=2026-11-24"):
        Hive("sales.clicks", ["id"], metastore=hive_metastore.uri)
    with pytest.raises(DataError, match="the filters leave no record"):
        Hive("sales.clicks", ["id"], metastore=hive_metastore.uri, filters=[("day", ">", "2027-01-01")])


def test_all_of_a_run_read_the_partitions_that_the_first_one_found(
    clicks: Path, client: Any, hive_metastore: HiveMetastore, tmp_path: Path
) -> None:
    """Others need not even reach the metastore; a table of that name in another one is another."""
    (tmp_path / "run").mkdir()
    pins.keep(Pins(DirectoryStorage(tmp_path / "run")))
    first = Hive("sales.clicks", ["id"], metastore=hive_metastore.uri)
    write(tmp_path / "late", 400)
    add_partition(client, "clicks", "2026-11-28", tmp_path / "late")
    hive_metastore.freeze()
    again = Hive("sales.clicks", ["id"], metastore=hive_metastore.uri)
    hive_metastore.thaw()
    assert ids(again) == ids(first) and again.files == first.files
    with pytest.raises(UnreadableError, match="does not answer"):
        Hive("sales.clicks", ["id"], metastore="thrift://127.0.0.1:1")
    pins.keep(Pins())
    assert Hive("sales.clicks", ["id"], metastore=hive_metastore.uri).num_rows == first.num_rows + 40


def test_where_the_metastore_is(
    clicks: Path, hive_metastore: HiveMetastore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIVE_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with pytest.raises(DataError, match="no hive-site.xml names hive.metastore.uris"):
        Hive("sales.clicks")
    several = f"thrift://127.0.0.1:1, {hive_metastore.uri}"
    (tmp_path / "hive-site.xml").write_text(
        "<configuration><property><name>hive.metastore.uris</name>"
        f"<value>{several}</value></property></configuration>"
    )
    assert Hive("sales.clicks", ["id"]).num_rows == 125
    with pytest.raises(UnreadableError, match="does not answer"):
        Hive("sales.clicks", metastore="thrift://127.0.0.1:1")
    with pytest.raises(DataError, match="write thrift://host:9083"):
        Hive("sales.clicks", metastore="127.0.0.1")
    monkeypatch.setattr(hive, "TIMEOUT_S", 0.5)
    hive_metastore.freeze()
    try:
        with pytest.raises(UnreadableError, match="does not answer"):
            Hive("sales.clicks", ["id"])
    finally:
        hive_metastore.thaw()


def test_what_is_no_table_of_parquet_files(create: Create, hive_metastore: HiveMetastore) -> None:
    orc = "org.apache.hadoop.hive.ql.io.orc.OrcSerde"
    create("of_orc", sd=stored("file:///nowhere", orc))
    create("iceberg", parameters={"EXTERNAL": "TRUE", "table_type": "ICEBERG"})
    create("delta", parameters={"EXTERNAL": "TRUE", "spark.sql.sources.provider": "delta"})
    create("plain", partitionKeys=[])
    for table, words in (
        ("sales.none", "none"),
        ("clicks", "write DATABASE.TABLE"),
        ("sales.of_orc", "is not of Parquet, but of OrcSerde"),
        ("sales.iceberg", "ef.data.Iceberg"),
        ("sales.delta", "ef.data.Delta"),
        ("sales.plain", "has no record"),
    ):
        with pytest.raises(DataError, match=words):
            Hive(table, metastore=hive_metastore.uri)


def test_a_partition_within_the_folder_of_another(
    create: Create, client: Any, hive_metastore: HiveMetastore, tmp_path: Path
) -> None:
    create("nested")
    outer = tmp_path / "nested" / "one"
    for place, first, day in (
        (outer, 0, DAYS[0]),
        (outer / "two", 100, DAYS[1]),
        (tmp_path / "nested" / "one2", 200, DAYS[2]),
    ):
        write(place, first, 5)
        add_partition(client, "nested", day, place)
    source = Hive("sales.nested", ["id", "day"], metastore=hive_metastore.uri)
    rows = source.rows(np.arange(source.num_rows))
    days = {int(id): int(day) for id, day in zip(rows["id"], rows["day"], strict=True)}
    assert len(rows["id"]) == 15 and days[101] - days[1] == 1 and days[201] - days[1] == 2


def test_names_that_differ_in_their_case_alone(
    create: Create, client: Any, hive_metastore: HiveMetastore, tmp_path: Path
) -> None:
    create("cases", partitionKeys=[])
    write(tmp_path / "cases", 0, 2, id=pa.array([7, 8]), SITE=["a", "b"])
    exact = Hive("sales.cases", ["id"], metastore=hive_metastore.uri)
    assert ids(exact) == [7, 8], "the one that is written as the table has it"
    write(tmp_path / "cases", 0, 2, ID=pa.array([7, 8]))
    with pytest.raises(DataError, match="column 'id' may be 'Id' or 'ID' there"):
        Hive("sales.cases", ["id"], metastore=hive_metastore.uri)


def test_old_timestamps_beyond_what_nanoseconds_hold(
    create: Create, hive_metastore: HiveMetastore, tmp_path: Path
) -> None:
    location = tmp_path / "dated"
    create("dated", partitionKeys=[], sd=stored(f"file://{location}", columns=[("at", "timestamp")]))
    moments = pa.array([datetime(9999, 12, 31), datetime(2026, 11, 28)], pa.timestamp("us"))
    pq.write_table(pa.table({"at": moments}), location / "0.parquet", use_deprecated_int96_timestamps=True)
    source = Hive("sales.dated", metastore=hive_metastore.uri)
    assert source.rows(np.arange(2))["at"].tolist() == [253402214400.0, 1795824000.0]


def test_a_table_without_partitions_whose_columns_grew(
    create: Create, hive_metastore: HiveMetastore, tmp_path: Path
) -> None:
    create("plain", partitionKeys=[])
    write(tmp_path / "plain", 0)
    (tmp_path / "plain" / "part-0.parquet").rename(tmp_path / "plain" / "old.parquet")
    write(tmp_path / "plain", 50, Id=pa.array(range(50, 90), pa.int32()))  # and that was smaller once
    source = Hive("sales.plain", ["id", "site"], metastore=hive_metastore.uri, hashing={"site": None})
    assert ids(source) == [*range(40), *range(50, 90)]
