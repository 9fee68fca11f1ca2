"""An HDFS in a folder of this machine, for what is not about HDFS itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO


class LocalHdfs:
    """As ``WebHdfs``, as far as a run's folder needs it. refused: raised by whatever writes; away: by
    all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.refused: OSError | None = None
        self.away: OSError | None = None
        self.owner = "anna"

    def of(self, url: str, patience_s: float = 0.0) -> tuple[LocalHdfs, str]:
        return self, "/" + url.partition("://")[2].partition("/")[2]

    def tree(self) -> list[str]:
        """All that is there."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))

    def whoami(self) -> str:
        return "anna"

    def find(self, path: str) -> Any:
        file = self._at(path)
        return self._status(file) if file.exists() else None

    def status(self, path: str) -> Any:
        return self._status(self._at(path))

    def exists(self, path: str) -> bool:
        return self._at(path).exists()

    def list(self, path: str) -> list[Any]:
        return [self._status(file) for file in sorted(self._at(path).iterdir())]

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._at(path).read_bytes()[offset : None if length is None else offset + length]

    def write(self, path: str, data: bytes, overwrite: bool = False, permission: int | None = None) -> None:
        self._check()
        file = self._at(path)
        if file.exists() and not overwrite:
            raise FileExistsError(path)
        file.write_bytes(data)
        file.chmod(permission or 0o644)

    @contextmanager
    def create(self, path: str, **_: Any) -> Iterator[BinaryIO]:
        self._check()
        with self._at(path).open("xb") as file:
            yield file

    def mkdirs(self, path: str, permission: int | None = None) -> None:
        self._check()
        self._at(path).mkdir(parents=True, exist_ok=True, mode=permission or 0o755)

    def mkdir(self, path: str, permission: int | None = None) -> None:
        self._check()
        self._at(path).mkdir(mode=permission or 0o755)

    def remove(self, path: str, recursive: bool = True) -> None:
        file = self._at(path)
        if file.is_dir():
            shutil.rmtree(file) if recursive else file.rmdir()
        else:
            file.unlink(missing_ok=True)

    def _check(self) -> None:
        if self.refused:
            raise self.refused

    def _at(self, path: str) -> Path:
        if self.away:
            raise self.away
        return self.root / path.lstrip("/")

    def _status(self, file: Path) -> Any:
        found = os.stat(file)
        return SimpleNamespace(
            path=f"/{file.relative_to(self.root)}",
            name=file.name,
            length=found.st_size,
            is_dir=file.is_dir(),
            modified_at=found.st_mtime,
            permission=found.st_mode & 0o7777,
            owner=self.owner,
        )
