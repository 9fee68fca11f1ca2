"""Files as pyiceberg reads them: by this project's own clients: HDFS and stores are reached in one way.

Imported by pyiceberg, which is told its name.
"""

from __future__ import annotations

import os
from typing import Any, cast

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile

from elasticflow.data.files import RemoteFile, existing_file, is_url, path_of
from elasticflow.errors import DataError, UnreadableError


class _Input(InputFile):
    def __len__(self) -> int:
        file = self._file()
        return file.length if isinstance(file, RemoteFile) else os.path.getsize(file.name)

    def exists(self) -> bool:
        try:
            self._file()
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return cast(InputStream, self._file().open())

    def _file(self) -> Any:
        path = path_of(self.location)
        try:
            return existing_file("Iceberg", path)
        except UnreadableError:
            raise
        except DataError as error:
            if is_url("Iceberg", path) or not os.path.exists(path):
                raise FileNotFoundError(str(error)) from error
            raise


class Files(FileIO):
    """Only to read."""

    def new_input(self, location: str) -> InputFile:
        return _Input(location)

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError("tables are only read")

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise NotImplementedError("tables are only read")
