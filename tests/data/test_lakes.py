"""Tables of Delta Lake and Iceberg: a version's records, as their own libraries read them, and no others."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
import pyarrow.parquet as pq  # noqa: E402
from pyiceberg.catalog import load_catalog  # noqa: E402
from pyiceberg.types import DoubleType, LongType  # noqa: E402
from pyiceberg.utils.config import Config  # noqa: E402

from elasticflow.data import Delta, Iceberg, Parquet, open_path, pins  # noqa: E402
from elasticflow.data.describing import describe  # noqa: E402
from elasticflow.data.kept import KeptColumns  # noqa: E402
from elasticflow.data.pins import Pins  # noqa: E402
from elasticflow.errors import DataError, UnreadableError  # noqa: E402
from elasticflow.storage import DirectoryStorage  # noqa: E402

from .lakes import DAYS, clicks, content, delete_by_vectors, empty_delta, only, opened, write_delta  # noqa: E402


@pytest.fixture(autouse=True)
def no_run() -> Iterator[None]:
    yield
    pins.keep(Pins())


@pytest.fixture
def delta(tmp_path: Path) -> str:
    write_delta(tmp_path / "clicks of delta")
    return str(tmp_path / "clicks of delta")


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYICEBERG_CATALOG__TESTS__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__TESTS__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__TESTS__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which it reads once, when it is imported
    made = load_catalog("tests")
    made.create_namespace("lake")
    return made


@pytest.fixture
def iceberg(catalog: Any) -> Any:
    """Partitioned by date; two snapshots."""
    table = catalog.create_table("lake.clicks", schema=clicks(0).schema)
    with table.update_spec() as spec:
        spec.add_identity("date")
    table.append(clicks(0))
    table.append(clicks(90))
    return table


@pytest.fixture
def whole(tmp_path: Path) -> dict[int, tuple[Any, ...]]:
    """All that both tables ever held, by id, from a plain file."""
    pq.write_table(pa.concat_tables([clicks(0), clicks(90)]), tmp_path / "whole.parquet")
    return content(opened(Parquet, tmp_path / "whole.parquet"))


# --- Delta --------------------------------------------------------------------------------------------


def test_a_version_of_delta(delta: str, whole: dict[int, Any]) -> None:
    assert content(opened(Delta, delta)) == only(whole, lambda n: n >= 30)
    assert content(opened(Delta, delta, version=1)) == whole
    assert content(opened(Delta, delta, version=0)) == only(whole, lambda n: n < 90)
    assert opened(Delta, delta).files[0].name == f"{delta}@2"
    some = opened(Delta, delta, filters=[("id", "<", 90)])
    assert some.files[0].name == f"{delta}@2 where (id < 90)", "other records have another name"
    long = [[1000, *range(30, 60), each, *range(70, 90)] for each in (61, 62)]
    told = [opened(Delta, delta, filters=[("id", "not in", ids)]).files[0].name for ids in long]
    assert told[0] != told[1] and all(name.isprintable() for name in told), "of long lists, too"
    for version in -1, True, 1.0, "1":
        with pytest.raises(DataError, match="is a whole number from 0 on"):
            Delta(delta, version=version)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="version 7"):
        Delta(delta, version=7)
    with pytest.raises(DataError, match="is no table of Delta Lake"):
        Delta(os.path.dirname(delta))


NAMES = """
import sys
import pyarrow.dataset as ds
from elasticflow.data import Delta
sites = {f"a b={n}/ü%" for n in range(3)} | {f"site {n}" for n in range(int(sys.argv[2]))}
site, fewer = ds.field("site"), sites - {"site 1"}
for filters in [("site", "in", sites)], site.isin(sites), site.isin(fewer):
    print(Delta(sys.argv[1], ["id"], filters=filters).files[0].name)
"""


@pytest.mark.parametrize("more", [3, 40])
def test_filters_by_sets_have_one_name_in_all_processes(delta: str, more: int) -> None:
    """A set comes in another order in each, and workers whose files differ are refused."""
    told = set()
    for seed in range(4):
        command = [sys.executable, "-c", NAMES, delta, str(more)]
        variables = {**os.environ, "PYTHONHASHSEED": str(seed)}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        told.add(done.stdout)
    (names,) = told
    _, one, other = names.splitlines()
    assert one.isprintable() and (more > 20 or one != other)


def test_a_folder_that_its_own_library_takes_for_another(tmp_path: Path) -> None:
    """It reads the log of A there, where %41 is meant."""
    write_delta(tmp_path / "A#?")
    deltalake.write_deltalake(tmp_path / "plain", clicks(500))
    (tmp_path / "plain").rename(tmp_path / "%41#?")
    assert sorted(content(opened(Delta, tmp_path / "%41#?"))) == list(range(500, 590))


def test_filters_of_delta_open_no_file_of_another_partition(delta: str, whole: dict[int, Any]) -> None:
    source = opened(Delta, delta, filters=[("date", ">=", "2026-11-26"), ("id", "<", 100)])
    assert content(source) == only(whole, lambda n: n % 3 == 2 and 30 <= n < 100)
    assert all("date=2026-11-26" in file.name for file in source.files[1:])
    others = [path for path in Path(delta).rglob("*.parquet") if "date=2026-11-24" in str(path)]
    assert others
    for path in others:
        path.write_bytes(b"no Parquet any more")
    assert content(opened(Delta, delta, filters=[("date", "=", "2026-11-26")], version=1)) == only(
        whole, lambda n: n % 3 == 2
    )
    with pytest.raises(DataError, match="leave no record"):
        opened(Delta, delta, filters=[("date", ">", "2027-01-01")])


def test_files_that_were_vacuumed(delta: str) -> None:
    deltalake.DeltaTable(delta).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert opened(Delta, delta).num_rows == 150
    with pytest.raises(DataError, match="version 1: a file of it is gone; was it vacuumed since"):
        Delta(delta, version=1)


def test_a_log_that_was_cleaned_up(delta: str) -> None:
    """As writers do with what is older than ``delta.logRetentionDuration``."""
    table = deltalake.DeltaTable(delta)
    newest = table.version()
    table.create_checkpoint()
    for version in range(newest):
        (Path(delta) / "_delta_log" / f"{version:020}.json").unlink()
    assert opened(Delta, delta).num_rows
    with pytest.raises(DataError, match=rf"version 1: its log was cleaned up .*begins with version {newest}"):
        Delta(delta, version=1)


def test_columns_that_came_later_and_have_a_larger_type(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    deltalake.write_deltalake(place, pa.table({"id": pa.array([1, 2], pa.int64())}))
    later = pa.table({"id": pa.array([3], pa.int64()), "new": pa.array([0.5])})
    deltalake.write_deltalake(place, later, mode="append", schema_mode="merge")
    found = Delta(place)
    rows = found.rows(np.arange(3))
    values = dict(zip(rows["id"].tolist(), rows["new"].tolist(), strict=True))
    assert values[3] == 0.5 and np.isnan(values[1]) and np.isnan(values[2])


@pytest.mark.parametrize("prefix", [None, "", "aB"])
def test_records_that_vectors_delete_are_never_read(prefix: str | None, tmp_path: Path) -> None:
    """Within the log, in a file, or in one in a folder whose name was drawn by lot."""
    place = str(tmp_path / "t")
    empty_delta(place)
    deltalake.write_deltalake(place, clicks(0), mode="append")
    delete_by_vectors(place, lambda id: id % 4 == 1, prefix)
    left = [n for n in range(90) if n % 4 != 1]
    assert sorted(content(opened(Delta, place))) == left
    old = opened(Delta, place, filters=[("age", ">=", 40)])
    assert sorted(content(old)) == [n for n in left if n % 70 >= 40]
    assert KeptColumns(place, ["id"]).num_rows == len(left)
    assert sorted(content(opened(Delta, place, version=1))) == list(range(90))


# --- Iceberg ------------------------------------------------------------------------------------------


def test_a_snapshot_of_iceberg(iceberg: Any, whole: dict[int, Any]) -> None:
    source = opened(Iceberg, "lake.clicks", catalog="tests")
    assert content(source) == whole
    first, second = (each.snapshot_id for each in iceberg.snapshots())
    assert source.files[0].name.endswith(f"@{second}")
    old = opened(Iceberg, "lake.clicks", catalog="tests", snapshot=first)
    assert content(old) == only(whole, lambda n: n < 90)
    metadata = iceberg.metadata_location
    assert content(opened(Iceberg, metadata)) == content(opened(Iceberg, metadata.removeprefix("file://")))
    with pytest.raises(DataError, match=f"no snapshot 17.*{first}, {second}"):
        Iceberg("lake.clicks", catalog="tests", snapshot=17)
    with pytest.raises(DataError, match="lake.none"):
        Iceberg("lake.none", catalog="tests")
    with pytest.raises(DataError, match="nowhere"):
        Iceberg("lake.clicks", catalog="nowhere")


def test_filters_of_iceberg_open_no_file_of_another_partition(iceberg: Any, whole: dict[int, Any]) -> None:
    for task in iceberg.scan().plan_files():
        if task.file.partition[0] != (DAYS[2] - datetime.date(1970, 1, 1)).days:
            Path(task.file.file_path.removeprefix("file://")).write_bytes(b"no Parquet any more")
    source = opened(
        Iceberg, "lake.clicks", catalog="tests", filters=[("date", ">=", "2026-11-26"), ("id", "<", 100)]
    )
    assert content(source) == only(whole, lambda n: n % 3 == 2 and n < 100)


def test_columns_of_iceberg_are_found_by_their_ids(iceberg: Any, whole: dict[int, Any]) -> None:
    """One was renamed; another one now has the name of a third that was dropped."""
    with iceberg.update_schema() as change:
        change.update_column("age", LongType())
        change.rename_column("age", "years")
        change.delete_column("tags")
    with iceberg.update_schema() as change:
        change.add_column("tags", DoubleType())
    later = clicks(180, 3).drop_columns(["age", "tags"])
    later = later.append_column("years", pa.array([1, 2, 3])).append_column("tags", pa.array([0.25] * 3))
    iceberg.append(later.select([field.name for field in iceberg.schema().fields]))
    source = Iceberg("lake.clicks", ["id", "years", "tags"], catalog="tests")
    rows = source.rows(np.arange(source.num_rows))
    years = dict(zip(rows["id"].tolist(), rows["years"].tolist(), strict=True))
    tags = dict(zip(rows["id"].tolist(), rows["tags"].tolist(), strict=True))
    assert years == {n: n % 70 for n in range(180)} | {180: 1, 181: 2, 182: 3}
    assert all(np.isnan(tags[n]) for n in range(180)) and tags[181] == 0.25
    some = Iceberg("lake.clicks", ["id"], catalog="tests", filters=[("years", ">", 60)])
    assert sorted(some.rows(np.arange(some.num_rows))["id"]) == [n for n in range(180) if n % 70 > 60]


def test_the_newest_schema_is_that_of_the_newest_snapshot(iceberg: Any) -> None:
    """Though nothing was written since columns changed their names: two of them theirs for one another."""
    first = iceberg.current_snapshot().snapshot_id
    with iceberg.update_schema() as change:
        change.rename_column("id", "other")
    with iceberg.update_schema() as change:
        change.rename_column("age", "id")
        change.add_column("new", DoubleType())
    with iceberg.update_schema() as change:
        change.rename_column("other", "age")
    found = Iceberg("lake.clicks", ["id", "age", "new"], catalog="tests")
    rows = found.rows(np.arange(found.num_rows))
    assert sorted(rows["age"]) == list(range(180)) and (rows["id"] == rows["age"] % 70).all()
    assert np.isnan(rows["new"]).all()
    old = Iceberg("lake.clicks", ["id", "age"], catalog="tests", snapshot=first)
    assert sorted(old.rows(np.arange(old.num_rows))["id"]) == list(range(180)), "as it was then"


def test_what_older_files_have_of_a_column_by_its_first_default(catalog: Any, tmp_path: Path) -> None:
    """Of version 3, which pyiceberg reads and does not write."""
    table = catalog.create_table("lake.third", schema=pa.schema([("id", pa.int64()), ("a", pa.float64())]))
    table.append(pa.table({"id": [0, 1, 2], "a": [1.0, 2.0, 3.0]}))
    told = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    (before,) = told["schemas"]
    added = {"id": 3, "name": "n", "type": "double", "required": False}
    added |= {"initial-default": 7.5, "write-default": 7.5}
    told["schemas"].append({**before, "schema-id": 1, "fields": [*before["fields"], added]})
    told |= {"format-version": 3, "next-row-id": 0, "current-schema-id": 1, "last-column-id": 3}
    for snapshot in told["snapshots"]:
        snapshot |= {"first-row-id": 0, "added-rows": 3}
    (tmp_path / "third.metadata.json").write_text(json.dumps(told))
    source = Iceberg(tmp_path / "third.metadata.json")
    assert source.rows(np.arange(3))["n"].tolist() == [7.5, 7.5, 7.5]
    for filters, count in (("=", 7.5), 3), (("<", 8), 3):
        assert Iceberg(tmp_path / "third.metadata.json", filters=[("n", *filters)]).num_rows == count
    with pytest.raises(DataError, match="leave no record"):
        Iceberg(tmp_path / "third.metadata.json", filters=[("n", ">", 8)])


def test_files_that_were_there_before_the_table(catalog: Any, tmp_path: Path) -> None:
    """They know no ids: the table's mapping of names does."""
    table = catalog.create_table("lake.added", schema=pa.schema([("id", pa.int64()), ("a", pa.float64())]))
    pq.write_table(pa.table({"id": [0, 1, 2], "a": [10.0, 11.0, 12.0]}), tmp_path / "old.parquet")
    table.add_files([f"file://{tmp_path}/old.parquet"])
    with table.update_schema() as change:
        change.rename_column("a", "old")
    table.append(pa.table({"id": [3], "old": [13.0]}))
    source = Iceberg("lake.added", catalog="tests")
    rows = source.rows(np.arange(4))
    assert dict(zip(rows["id"], rows["old"], strict=True)) == {0: 10, 1: 11, 2: 12, 3: 13}
    some = Iceberg("lake.added", catalog="tests", filters=[("old", "<", 12.5)])
    assert sorted(some.rows(np.arange(some.num_rows))["id"]) == [0, 1, 2]


def delete_by_positions(table: Any, deleted: Callable[[int], bool]) -> None:
    """As Spark deletes when it merges on reading: a file that names places in others."""
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
    )
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _FastAppendFiles
    from pyiceberg.typedef import Record

    paths, places = [], []
    for task in table.scan().plan_files():
        ids = pq.read_table(task.file.file_path.removeprefix("file://")).column("id").to_pylist()
        mine = [at for at, id in enumerate(ids) if deleted(id)]
        paths += [task.file.file_path] * len(mine)
        places += mine
    where = f"{table.location()}/data/deletes.parquet"
    rows = pa.table({"file_path": paths, "pos": pa.array(places, pa.int64())})
    pq.write_table(rows, where.removeprefix("file://"))

    class DeletesWriter(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    class Deletes(_FastAppendFiles):
        def _manifests(self) -> list[Any]:
            output = table.io.new_output(f"{table.location()}/metadata/deletes.avro")
            spec = table.specs()[0]
            with DeletesWriter(spec, table.schema(), output, self._snapshot_id, "null") as writer:
                file = DataFile.from_args(
                    content=DataFileContent.POSITION_DELETES,
                    file_path=where,
                    file_format=FileFormat.PARQUET,
                    partition=Record(),
                    record_count=len(places),
                    file_size_in_bytes=os.path.getsize(where.removeprefix("file://")),
                    column_sizes={},
                    value_counts={},
                    null_value_counts={},
                    nan_value_counts={},
                    lower_bounds={},
                    upper_bounds={},
                )
                file._spec_id = 0
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=file,
                )
                writer.add_entry(entry)
            return [writer.to_manifest_file(), *self._existing_manifests()]

    with table.transaction() as transaction:
        with Deletes(Operation.DELETE, transaction, table.io):
            pass


def test_records_that_positions_delete_are_never_read(catalog: Any, whole: dict[int, Any]) -> None:
    table = catalog.create_table("lake.merged", schema=clicks(0).schema)
    table.append(clicks(0))
    table.append(clicks(90))
    delete_by_positions(table, lambda id: id % 5 == 2)
    left = only(whole, lambda n: n % 5 != 2)
    table = catalog.load_table("lake.merged")
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == sorted(left), "as pyiceberg reads it"
    assert content(opened(Iceberg, "lake.merged", catalog="tests")) == left
    some = opened(Iceberg, "lake.merged", catalog="tests", filters=[("id", ">=", 100)])
    assert content(some) == only(left, lambda n: n >= 100)


# --- a run's version ----------------------------------------------------------------------------------


def test_all_of_a_run_read_the_version_that_the_first_one_found(
    delta: str, iceberg: Any, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    storage = DirectoryStorage(tmp_path / "run")
    pins.keep(Pins(storage))
    first = Delta(delta), Iceberg("lake.clicks", catalog="tests")
    deltalake.write_deltalake(delta, clicks(180), mode="append")
    iceberg.append(clicks(180))
    for found, other in zip(first, (Delta(delta), Iceberg("lake.clicks", catalog="tests")), strict=True):
        assert content(found) == content(other) and found.files == other.files
    pins.keep(Pins())
    assert Delta(delta).num_rows == 240, "who looks at the run later reads what there is"
    (tmp_path / "copy").mkdir()
    pins.copy(storage, DirectoryStorage(tmp_path / "copy"))
    pins.keep(Pins(DirectoryStorage(tmp_path / "copy")))
    assert Iceberg("lake.clicks", catalog="tests").num_rows == 180
    pins.keep(Pins(DirectoryStorage(tmp_path / "gone")))
    with pytest.raises(UnreadableError, match="which version this run reads"):
        Delta(delta)


def test_a_version_that_is_written_down_no_more(delta: str, tmp_path: Path) -> None:
    """The newest one does not take its place: the run's checkpoints are of another."""
    (tmp_path / "run").mkdir()
    storage = DirectoryStorage(tmp_path / "run")
    pins.keep(Pins(storage))
    rows = Delta(delta).num_rows
    pins.keep(Pins(storage, lambda: True))
    assert Delta(delta).num_rows == rows
    (pin,) = (tmp_path / "run" / "tables").iterdir()
    pin.unlink()
    with pytest.raises(DataError, match=f"tables/{pin.name} in its folder is gone. Put it back"):
        Delta(delta)
    assert not pin.exists()
    assert Delta(delta, version=0).num_rows, "as long as the program says which"


def test_a_snapshot_whose_metadata_file_is_gone_is_found_by_the_catalog(iceberg: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    pins.keep(Pins(DirectoryStorage(tmp_path / "run")))
    Iceberg("lake.clicks", catalog="tests")
    old = iceberg.metadata_location.removeprefix("file://")
    iceberg.append(clicks(180))
    os.remove(old)
    assert Iceberg("lake.clicks", catalog="tests").num_rows == 180


def test_another_table_in_its_place(delta: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    pins.keep(Pins(DirectoryStorage(tmp_path / "run")))
    assert Delta(delta).num_rows == 150
    shutil.rmtree(delta)
    write_delta(Path(delta))
    with pytest.raises(DataError, match="another table lies there now"):
        Delta(delta)
    (name,) = (tmp_path / "run" / "tables").iterdir()
    name.write_text('{"table": "/elsewhere", "version": {"version": 1, "id": ""}}')
    with pytest.raises(DataError, match="is of /elsewhere"):
        Delta(delta)
    for damaged in "{", "", json.dumps({"table": delta, "version": "new"}):
        name.write_text(damaged)
        with pytest.raises(UnreadableError, match=f"cannot be told by tables/{name.name} in its folder"):
            Delta(delta)


# --- folders ------------------------------------------------------------------------------------------


def test_a_folder_of_a_lake_is_not_taken_for_one_of_files(delta: str, iceberg: Any) -> None:
    with pytest.raises(DataError, match=r"is a table of Delta. Read it by ef.data.Delta\('"):
        Parquet(delta)
    for pattern in "*/*/*.parquet", "**/*.parquet", "date=2026-11-24", "date=2026-11-24/*/*.parquet":
        with pytest.raises(DataError, match=r"is a table of Delta\. Read it by ef.data.Delta\('"):
            Parquet(f"{delta}/{pattern}")
    plain = Path(delta).parent / "plain.parquet"
    pq.write_table(clicks(0), plain)
    inside = min(str(path) for path in Path(delta).rglob("*.parquet"))
    with pytest.raises(DataError, match="is a table of Delta"):
        Parquet([str(plain), inside, f"{plain.parent}/plai?.parquet"])
    with pytest.raises(
        DataError, match="is a table of Iceberg. Read it by ef.data.Iceberg, by its name in a catalog"
    ):
        Parquet(iceberg.location().removeprefix("file://"))
    with pytest.raises(DataError, match="no version-hint.text .* Name the table in a catalog"):
        Iceberg(iceberg.location().removeprefix("file://"))


def test_what_data_means_on_the_command_line(delta: str, whole: dict[int, Any]) -> None:
    narrow = Delta(delta, ["id", "age"])
    assert isinstance(narrow.over(delta, None), Delta)
    assert [column.name for column in Delta(delta, ["id"]).columns] == ["id"]
    assert isinstance(open_path(delta), Delta)
    kept = KeptColumns(delta, ["id", "site", "date"])
    rows = kept.rows(0, kept.num_rows)
    assert sorted(rows["id"].to_pylist()) == sorted(only(whole, lambda n: n >= 30))
    assert set(rows["date"].to_pylist()) == set(DAYS)
    stories = {story.name: story for story in describe(delta)}
    assert stories["id"].records == 150 and stories["site"].values and len(stories["site"].values) == 3
