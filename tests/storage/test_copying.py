"""What is copied is written again where a storage did not take it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elasticflow.storage import DirectoryStorage
from elasticflow.storage.copying import copy_file


class Flaky(DirectoryStorage):
    """Fails to create files, with these errors, one after the other. late: once they are there."""

    def __init__(self, root: Path, *codes: int, late: bool = False) -> None:
        super().__init__(root)
        self.codes, self.late = list(codes), late

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        with super().create(name) as file:
            yield file
            if self.codes and not self.late:
                raise OSError(self.codes.pop(0), "away")
        if self.codes:
            raise OSError(self.codes.pop(0), "away")


@pytest.fixture
def source(tmp_path: Path) -> DirectoryStorage:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    storage = DirectoryStorage(tmp_path / "source")
    with storage.create("a/b") as file:
        file.write(b"text")
    return storage


@pytest.mark.parametrize("late", [False, True])
def test_a_storage_that_is_away_for_a_moment(source: DirectoryStorage, tmp_path: Path, late: bool) -> None:
    target = Flaky(tmp_path / "target", errno.ECONNRESET, errno.EIO, late=late)
    copy_file(source, target, "a/b")
    assert (tmp_path / "target" / "a" / "b").read_bytes() == b"text"
    assert len(target.codes) == late, "what is there is not written anew"


@pytest.mark.parametrize("code, patience_s", [(errno.ENOSPC, 30.0), (errno.EIO, 0.0)])
def test_what_passes_not_is_told(
    source: DirectoryStorage, tmp_path: Path, code: int, patience_s: float
) -> None:
    target = Flaky(tmp_path / "target", code)
    with pytest.raises(OSError, match="away"):
        copy_file(source, target, "a/b", patience_s)
    assert not target.exists("a/b")
