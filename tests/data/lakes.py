"""Tables of Delta Lake and Iceberg for tests, and what is in them."""

from __future__ import annotations

import base64
import datetime
import json
import string
import struct
import uuid
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyroaring import BitMap

DAYS = [datetime.date(2026, 11, day) for day in (24, 25, 26)]


def clicks(first: int, count: int = 90) -> Any:
    """Records with these ids, on three days."""
    numbers = np.arange(first, first + count)
    return pa.table(
        {
            "id": numbers,
            "age": pa.array(numbers % 70, pa.int32()),
            "site": pa.array([f"a b={n % 3}/ü%" for n in numbers]),
            "at": pa.array([datetime.datetime(2026, 11, 24, 0, 0, int(n) % 60) for n in numbers]),
            "tags": pa.array([[int(n), int(n) + 1] for n in numbers]),
            "date": pa.array([DAYS[n % 3] for n in numbers]),
        }
    )


def opened(kind: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """With a column of texts as ids."""
    return kind(*args, hashing={"site": None}, **more)


def content(source: Any) -> dict[int, tuple[Any, ...]]:
    """By id, what a record has."""
    rows = source.rows(np.arange(source.num_rows))
    names = [column.name for column in source.columns]
    return {
        int(rows["id"][place]): tuple(np.asarray(rows[name][place]).tolist() for name in names)
        for place in range(source.num_rows)
    }


def only(whole: Mapping[int, Any], wanted: Callable[[int], bool]) -> dict[int, Any]:
    return {number: record for number, record in whole.items() if wanted(number)}


def write_delta(folder: Path) -> None:
    """Three versions; the last has no records of ids below 30."""
    deltalake.write_deltalake(folder, clicks(0), partition_by=["date", "site"])
    deltalake.write_deltalake(folder, clicks(90), mode="append")
    deltalake.DeltaTable(folder).delete("id < 30")


def empty_delta(place: str) -> None:
    """Whose records may be deleted by vectors."""
    deltalake.DeltaTable.create(
        place,
        deltalake.Schema.from_arrow(clicks(0).schema),
        configuration={"delta.enableDeletionVectors": "true"},
    )


def delete_by_vectors(place: str, deleted: Callable[[int], bool], prefix: str | None) -> None:
    """As Spark deletes: a vector for each file, of which the next commit tells. prefix: of the folder of the
    vector's own file; None: it has none, but is in the log."""
    table = deltalake.DeltaTable(place)
    version, actions = table.version() + 1, []
    for action in pa.table(table.get_add_actions(flatten=False)).to_pylist():
        path = action["path"]
        ids = pq.read_table(f"{place}/{path}").column("id").to_pylist()
        places = BitMap([at for at, id in enumerate(ids) if deleted(id)])
        serialized = struct.pack("<IQI", 1681511377, 1, 0) + places.serialize()
        told: dict[str, Any] = {"sizeInBytes": len(serialized), "cardinality": len(places)}
        if prefix is None:
            told |= {"storageType": "i", "pathOrInlineDv": _z85(serialized + b"\0" * (-len(serialized) % 4))}
        else:
            name = uuid.uuid4()
            told |= {"storageType": "u", "pathOrInlineDv": prefix + _z85(name.bytes), "offset": 1}
            file = Path(place, prefix, f"deletion_vector_{name}.bin")
            file.parent.mkdir(exist_ok=True)
            size, check = (struct.pack(">I", number) for number in (len(serialized), zlib.crc32(serialized)))
            file.write_bytes(b"\1" + size + serialized + check)
        common = {"path": path, "partitionValues": {}, "dataChange": True}
        actions.append({"remove": {**common, "deletionTimestamp": 1}})
        stats = json.dumps({"numRecords": len(ids)})
        added = {"size": action["size_bytes"], "modificationTime": 1, "stats": stats, "deletionVector": told}
        actions.append({"add": {**common, **added}})
    log = Path(place) / "_delta_log" / f"{version:020}.json"
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))


def _z85(data: bytes) -> str:
    """ZeroMQ's alphabet, not Python's."""
    ours = string.digits + string.ascii_uppercase + string.ascii_lowercase + "!#$%&()*+-;<=>?@^_`{|}~"
    theirs = string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#"
    return base64.b85encode(data).decode().translate(str.maketrans(ours, theirs))


def write_iceberg(folder: Path, location: str) -> str:
    """Two snapshots, partitioned by date, in a folder that is to lie at a location. Returns where, there, its
    metadata is."""
    catalog = load_catalog(
        "made",
        **{
            "type": "sql",
            "uri": "sqlite:///:memory:",
            "warehouse": location,
            "py-io-impl": f"{__name__}.MappedFiles",
            "mapped.from": location,
            "mapped.to": str(folder),
        },
    )
    catalog.create_namespace("lake")
    table = catalog.create_table("lake.clicks", schema=clicks(0).schema)
    with table.update_spec() as spec:
        spec.add_identity("date")
    table.append(clicks(0))
    table.append(clicks(90))
    return table.metadata_location


class MappedFiles(PyArrowFileIO):
    """Files that are called as they will be elsewhere, and lie in a folder."""

    def new_input(self, location: str) -> InputFile:
        return self._called(location, super().new_input(self._here(location)))

    def new_output(self, location: str) -> OutputFile:
        return self._called(location, super().new_output(self._here(location)))

    def _here(self, location: str) -> str:
        return location.replace(self.properties["mapped.from"], self.properties["mapped.to"])

    def _called(self, location: str, file: PyArrowFile) -> PyArrowFile:
        file._location = location
        return file
