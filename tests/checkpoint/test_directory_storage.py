import os

import pytest

from elasticflow.storage import directory
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
