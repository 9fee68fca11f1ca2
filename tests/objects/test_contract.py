"""What every storage promises, of one in S3."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from elasticflow.process.retry import RemovedError
from tests.storage_contract import *  # noqa: F403
from tests.storage_contract import read, write

WRITER = """
import sys
from elasticflow.storage import storage_of
with storage_of(sys.argv[1]).create("a/c") as file:
    file.write(bytes(50 << 20))
    print("gathered", flush=True)
"""


def test_what_a_killed_writer_left_is_unseen_and_swept(s3, storage, raw, url):
    """It is killed in the midst of its upload, which S3 keeps, and charges for, until it is given up."""
    write(storage, "a/b", b"whole")
    s3.fail("hang", "PUT", "partNumber=3")
    with subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"gathered\n"
        soon = time.monotonic() + 30
        while raw(storage, "a") != ["b", "c"]:
            assert time.monotonic() < soon
        assert storage.list("a") == ["b"]
        writer.send_signal(signal.SIGKILL)
    assert raw(storage, "a") == ["b", "c"]
    storage.sweep("nothing")
    storage.sweep("a/b")  # a file
    assert raw(storage, "a") == ["b", "c"]
    storage.sweep("a")
    assert raw(storage, "a") == ["b"]
    assert not storage.exists("a/c")


def test_an_upload_that_somebody_takes_for_a_dead_ones_leaves_nothing(s3, storage, raw):
    s3.fail("refuse", "POST", "uploadId", times=4)  # so that the other one has time

    def sweep():
        soon = time.monotonic() + 30
        while raw(storage, "a") != ["c"] and time.monotonic() < soon:
            pass
        storage.sweep("a")

    sweeper = threading.Thread(target=sweep)
    with pytest.raises(OSError, match="a/c") as raised, storage.create("a/c") as file:
        file.write(bytes(50 << 20))
        sweeper.start()
    sweeper.join()
    assert not isinstance(raised.value, FileNotFoundError)
    assert raw(storage, "a") == []


def test_a_full_disk_here_is_told_and_leaves_nothing(storage, raw, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: open("/dev/full", "w+b"))
    with pytest.raises(OSError, match="No space left"), storage.create("a/b") as file:
        file.write(bytes(1 << 20))
        file.flush()
    assert raw(storage, "a") == []


def test_a_folder_that_is_removed_is_told_from_one_that_is_empty(storage, fs, url):
    write(storage, "a/b", b"")
    storage.remove("a")
    assert storage.list() == []
    fs.rm(url, recursive=True)
    for act in (
        storage.list,
        lambda: storage.list("a"),
        lambda: storage.open("a/b"),
        lambda: storage.size("a/b"),
        lambda: storage.exists("a/b"),
        lambda: write(storage, "a/b", b""),
    ):
        with pytest.raises(RemovedError, match="is gone"):
            act()


def test_what_another_process_writes_is_seen_at_once(storage, url):
    """Whatever the client remembers of folders that it has listed."""
    script = (
        "import sys\nfrom elasticflow.storage import storage_of\n"
        "with storage_of(sys.argv[1]).create('f/b') as file: file.write(b'theirs')"
    )
    write(storage, "f/a", b"mine")
    assert (storage.list("f"), storage.exists("f/b")) == (["a"], False)
    subprocess.run([sys.executable, "-c", script, url], check=True, env=os.environ)
    assert (storage.list("f"), storage.exists("f/b"), read(storage, "f/b")) == (["a", "b"], True, b"theirs")
