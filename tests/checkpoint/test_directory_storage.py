import os

import pytest

from elasticflow.process.retry import RemovedError, is_curable
from elasticflow.storage import DirectoryStorage, directory
from tests.storage_contract import *  # noqa: F403
from tests.storage_contract import write


@pytest.fixture
def raw():
    """Names that are really in a folder."""
    return lambda storage, folder: sorted(os.listdir(storage.root / folder))


def test_works_without_hard_links(storage, monkeypatch):
    def refuse(*_):
        raise PermissionError(directory.errno.EPERM, "no hard links here")

    monkeypatch.setattr(directory.os, "link", refuse)
    write(storage, "a", b"first")
    with pytest.raises(FileExistsError), storage.create("b"):
        write(storage, "b", b"the faster writer")
    assert storage.list() == ["a", "b"]


def test_a_name_that_was_taken_and_is_free_again_was_taken(storage, monkeypatch):
    """Whoever had it has removed it, right after it was in the way."""

    def refuse(*_):
        raise FileExistsError(directory.errno.EEXIST, "it was there")

    monkeypatch.setattr(directory.os, "link", refuse)
    with pytest.raises(FileExistsError):
        write(storage, "a", b"second")


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError, IsADirectoryError])
def test_of_leftovers_one_that_cannot_be_removed_keeps_no_other(storage, monkeypatch, error):
    """It may be another user's, or another process may sweep as well."""
    write(storage, "a/b", b"whole")
    for name in ("1", "2", "3"):
        (storage.root / "a" / f".c.{name}.partial").touch()

    def unlink(path, unlink=os.unlink):
        if path.name == ".c.2.partial":
            raise error(path)
        unlink(path)

    monkeypatch.setattr(directory.os, "unlink", unlink)
    storage.sweep("a")
    assert sorted(os.listdir(storage.root / "a")) == [".c.2.partial", "b"]


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_was_moved_is_told_from_one_that_is_away(tmp_path, again):
    """A mount is away with all that is below it. What is still there, and has another name, will not come."""
    share = tmp_path / "share"
    (share / "runs" / "a").mkdir(parents=True)
    storage = DirectoryStorage(share / "runs" / "a")
    (share / "runs" / "a").rename(share / "runs" / "b")
    with pytest.raises(RemovedError, match="is gone") as removed:
        storage.list()
    share.rename(tmp_path / "away")
    share.mkdir()
    if again:  # the mount point has a folder of that name
        (share / "runs").mkdir()
    for one in (storage, DirectoryStorage(share / "runs" / "a")):
        with pytest.raises(OSError, match="is gone") as away:
            one.list()
        assert type(away.value) is OSError and is_curable(away.value) and not is_curable(removed.value)
