"""What every storage promises, as tests: import them all where there is a fixture ``storage``.

``raw(storage, folder)`` gives the names that really are in a folder, those that are unseen too.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from elasticflow.errors import ConfigError


def write(storage, name, data):
    with storage.create(name) as file:
        file.write(data)


def read(storage, name):
    with storage.open(name) as file:
        return file.read()


def test_a_file_is_there_whole_and_only_at_the_end(storage, raw):
    with storage.create("a/b/c.bin") as file:
        assert file.write(b"hello ") == 6
        file.write(b"world")
        assert not storage.exists("a/b/c.bin")
        assert storage.list("a/b") == []
    assert storage.size("a/b/c.bin") == 11
    with storage.open("a/b/c.bin") as file:
        file.seek(1)
        assert file.read() == b"ello world"
    assert raw(storage, "a/b") == ["c.bin"]


def test_arrays_are_written_from_their_memory_and_read_into_it(storage):
    large = np.arange(300_000, dtype=np.float64)
    with storage.create("a") as file:
        for piece in (
            b"head",
            large.data,
            b"",
            memoryview(b"between"),
            large[:5].data,
            large[::-1].copy().data,
        ):
            file.write(piece)
    expected = b"head" + large.tobytes() + b"between" + large[:5].tobytes() + large[::-1].tobytes()
    assert storage.size("a") == len(expected)
    assert read(storage, "a") == expected
    found = np.empty_like(large)
    with storage.open("a") as file:
        file.seek(4)
        assert file.readinto(found.view(np.uint8).data) == found.nbytes
        assert file.tell() == 4 + found.nbytes
        assert (found == large).all()
        assert file.read(7) == b"between"
        assert file.seek(-8, 2) == len(expected) - 8
        assert file.read(100) == np.float64(0).tobytes()
        assert (file.read(1), file.readinto(bytearray(1))) == (b"", 0)
        file.seek(len(expected) + 10)
        assert file.read(1) == b""
        file.seek(2)
        assert file.read(2) == b"ad"


def test_an_empty_file_is_a_file(storage):
    write(storage, "a", b"")
    assert (storage.size("a"), read(storage, "a"), storage.exists("a")) == (0, b"", True)


def test_a_failed_write_leaves_nothing(storage, raw):
    for size in (4, 1 << 18):
        with pytest.raises(KeyboardInterrupt), storage.create("a/b") as file:
            file.write(b"half" * (size // 4))
            raise KeyboardInterrupt
        assert raw(storage, "a") == []


def test_no_file_is_ever_replaced(storage, raw):
    write(storage, "a", b"first")
    with pytest.raises(FileExistsError):
        write(storage, "a", b"second")
    with pytest.raises(FileExistsError), storage.create("b") as file:
        write(storage, "b", b"the faster writer")
        file.write(b"the slower writer")
    assert (read(storage, "a"), read(storage, "b")) == (b"first", b"the faster writer")
    assert raw(storage, "") == ["a", "b"]


def test_of_many_writers_of_one_name_one_wins(storage, raw):
    barrier, won = threading.Barrier(4), []

    def contend(number):
        barrier.wait()
        try:
            write(storage, "terms/1", str(number).encode())
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert read(storage, "terms/1") == str(won[0]).encode()
    assert raw(storage, "terms") == ["1"]


def test_lists_and_removes(storage):
    for name in ("f/2", "f/10", "f/sub/x", "g"):
        write(storage, name, b"")
    assert storage.list() == ["f", "g"]
    assert storage.list("f") == ["10", "2", "sub"]
    storage.remove("f/2")
    assert storage.list("f") == ["10", "sub"]
    storage.remove("f")
    storage.remove("f")
    storage.remove("g/x")
    assert not storage.exists("f")
    assert not storage.exists("g/x")
    assert storage.list("f") == []
    assert storage.list() == ["g"]


@pytest.mark.parametrize("name", ["a b", "ü", "100%", "a+b&c=d;e", "#LATEST", "what?", "~", "a\\b"])
def test_names_are_what_they_are(storage, name):
    write(storage, f"{name}/{name}", name.encode())
    assert (storage.list(), storage.list(name)) == ([name], [name])
    assert read(storage, f"{name}/{name}") == name.encode()
    storage.remove(name)
    assert storage.list() == []


@pytest.mark.parametrize("pattern", ["night*", "night?", "night[12]"])
def test_a_name_is_no_pattern(storage, pattern):
    for name in ("night1", "night2", pattern):
        write(storage, f"{name}/a", name.encode())
    assert storage.list(pattern) == ["a"]
    storage.sweep(pattern)
    storage.remove(f"{pattern}/a")
    storage.remove(pattern)
    assert storage.list() == ["night1", "night2"]
    assert read(storage, "night1/a") == b"night1"


def test_what_a_killed_writer_left_is_unseen_and_swept(storage, raw):
    write(storage, "a/b", b"whole")
    writing = storage.create("a/c")
    writing.__enter__().write(b"half" * 100_000)  # and nothing more is heard of it
    soon = time.monotonic() + 10
    while len(raw(storage, "a")) < 2:  # it is another process that begins the file
        assert time.monotonic() < soon
        time.sleep(0.01)
    assert storage.list("a") == ["b"]
    storage.sweep("a")
    storage.sweep("nothing")
    storage.sweep("a/b")  # a file
    assert raw(storage, "a") == ["b"]
    with pytest.raises(OSError):
        writing.__exit__(None, None, None)
    assert raw(storage, "a") == ["b"]


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
    write(storage, "f/a", b"")
    with pytest.raises(IsADirectoryError):
        storage.open("f")
    with pytest.raises(OSError):
        write(storage, "f/a/b", b"")
