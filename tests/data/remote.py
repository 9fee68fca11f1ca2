"""A folder in the place of HDFS: what the sources ask of WebHdfs, answered at once, and counted."""

import os
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from elasticflow.errors import ConfigError
from elasticflow.storage.webhdfs import FileStatus, split

NUM_ROWS = 1000
X = np.random.default_rng(0).standard_normal((NUM_ROWS, 6), np.float32)
Y = np.arange(NUM_ROWS) % 7
NAMES = np.array([f"row {number % 13}" for number in range(NUM_ROWS)])


def write_files(folder: Path) -> None:
    """The same records in each format, in folders by date where there are several files."""
    columns = {f"f{number}": X[:, number] for number in range(6)}
    table = pa.table({**columns, "y": Y, "name": NAMES})
    for day, (start, stop) in enumerate([(0, 300), (300, 700), (700, 1000)]):
        part = folder / "parts" / f"day={day}"
        part.mkdir(parents=True)
        pq.write_table(table.slice(start, stop - start), part / "part.parquet", row_group_size=90)
        pyarrow.csv.write_csv(table.slice(start, stop - start), part / "part.csv")
    with h5py.File(folder / "plain.h5", "w") as file:
        file["x"], file["y"] = X, Y
    with h5py.File(folder / "chunked.h5", "w") as file:
        file.create_dataset("x", data=X, chunks=(50, 4), compression="gzip")
        file.create_dataset("y", data=Y, chunks=(100,))
        file["name"] = NAMES.astype(object)
    np.savez(folder / "plain.npz", x=X, y=Y.astype(">i8"))
    np.savez(folder / "fortran.npz", x=np.asfortranarray(X), y=Y)
    np.savez_compressed(folder / "compressed.npz", x=X, y=Y)


class FolderAsHdfs:
    """``fail``: raised by the next calls, each once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reads: list[tuple[str, int, int]] = []
        self.fail: list[OSError] = []

    def of(self, url: str, patience_s: float = 0.0) -> tuple["FolderAsHdfs", str]:
        _, authority, path = split(url)
        if not authority:
            raise ConfigError("no default file system")
        return self, path

    def _local(self, path: str) -> Path:
        if self.fail:
            raise self.fail.pop(0)
        return self.root / path.lstrip("/")

    def status(self, path: str) -> FileStatus:
        local = self._local(path)
        there = local.stat()
        return FileStatus(
            path, local.name, there.st_size, local.is_dir(), there.st_mtime, 0o644, "me", there.st_ino
        )

    def find(self, path: str) -> FileStatus | None:
        try:
            return self.status(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, path: str) -> list[FileStatus]:
        return [self.status(os.path.join(path, name)) for name in sorted(os.listdir(self._local(path)))]

    def read_into(self, path: str, offset: int, buffer: memoryview) -> int:
        self.reads.append((path, offset, len(buffer)))
        with open(self._local(path), "rb") as file:
            file.seek(offset)
            return file.readinto(buffer)

    @property
    def bytes_read(self) -> int:
        return sum(size for _, _, size in self.reads)
