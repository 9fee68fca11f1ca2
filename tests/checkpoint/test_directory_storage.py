import os

import pytest

from elasticflow.errors import ConfigError
from elasticflow.storage import directory


def write(storage, name, data):
    with storage.create(name) as file:
        file.write(data)


def test_a_file_is_there_whole_and_only_at_the_end(storage):
    with storage.create("a/b/c.bin") as file:
        file.write(b"hello world")
        file.seek(6)
        assert file.read() == b"world"
        file.seek(0)
        file.write(b"J")
        assert not storage.exists("a/b/c.bin")
        assert storage.list("a/b") == []
    assert storage.size("a/b/c.bin") == 11
    with storage.open("a/b/c.bin") as file:
        file.seek(1)
        assert file.read() == b"ello world"
    assert os.listdir(storage.root / "a/b") == ["c.bin"]


def test_a_failed_write_leaves_nothing(storage):
    with pytest.raises(KeyboardInterrupt), storage.create("a/b") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert os.listdir(storage.root / "a") == []


def test_no_file_is_ever_replaced(storage):
    write(storage, "a", b"first")
    with pytest.raises(FileExistsError):
        write(storage, "a", b"second")
    with pytest.raises(FileExistsError), storage.create("b") as file:
        write(storage, "b", b"the faster writer")
        file.write(b"the slower writer")
    with storage.open("a") as a, storage.open("b") as b:
        assert (a.read(), b.read()) == (b"first", b"the faster writer")
    assert os.listdir(storage.root) == ["a", "b"] or os.listdir(storage.root) == ["b", "a"]


def test_works_without_hard_links(storage, monkeypatch):
    def refuse(*_):
        raise PermissionError(directory.errno.EPERM, "no hard links here")

    monkeypatch.setattr(directory.os, "link", refuse)
    write(storage, "a", b"first")
    with pytest.raises(FileExistsError), storage.create("b"):
        write(storage, "b", b"the faster writer")
    assert storage.list() == ["a", "b"]


def test_lists_and_removes(storage):
    for name in ("f/2", "f/10", "f/sub/x", "g"):
        write(storage, name, b"")
    assert storage.list() == ["f", "g"]
    assert storage.list("f") == ["10", "2", "sub"]
    storage.remove("f/2")
    assert storage.list("f") == ["10", "sub"]
    storage.remove("f")
    storage.remove("f")
    assert not storage.exists("f")
    assert storage.list("f") == []


@pytest.mark.parametrize("name", ["/etc/passwd", "..", "../x", "a/../../x", ".", "", "a//b", "a/", "a\0b"])
def test_no_name_leaves_the_root(storage, name):
    for method in (storage.open, storage.size, storage.exists, storage.remove):
        with pytest.raises(ConfigError, match="name"):
            method(name)
    with pytest.raises(ConfigError, match="name"):
        write(storage, name, b"")
    if name:
        with pytest.raises(ConfigError, match="name"):
            storage.list(name)


def test_what_is_not_there(storage):
    with pytest.raises(FileNotFoundError):
        storage.open("x")
    with pytest.raises(FileNotFoundError):
        storage.size("x")
    assert not storage.exists("x")
