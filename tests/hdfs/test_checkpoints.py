"""Checkpoints and a run's files in HDFS: the same as in a folder, whatever dies beside them."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from elasticflow import checkpoint
from elasticflow.checkpoint import place
from elasticflow.errors import CheckpointError, ConfigError
from elasticflow.master import fence
from elasticflow.storage import DirectoryStorage, RemoteStorage, is_url, storage_of
from elasticflow.storage.hdfs import HdfsPath
from tests.checkpoint.saving import make_manifest, make_model, save, write_parts
from tests.e2e.conftest import PROGRAMS, cli

pytestmark = [pytest.mark.hdfs, pytest.mark.timeout(300)]

WRITER = """
import sys
from elasticflow.storage import storage_of
with storage_of(sys.argv[1]).create("f/a") as file:
    file.write(bytes(3 << 20))
    print("half", flush=True)
    sys.stdin.read()
"""


def test_a_checkpoint_is_the_same_as_in_a_folder(storage, tmp_path):
    local, model = DirectoryStorage(tmp_path), make_model()
    mine, theirs = save(storage, model), save(local, model)
    assert checkpoint.digest(storage, mine) == checkpoint.digest(local, theirs)
    assert mine == theirs
    assert checkpoint.verify(storage, 1200) == []
    assert checkpoint.load_manifest(storage, 1200) == checkpoint.load_manifest(local, 1200)
    assert storage.list(mine.folder) == local.list(mine.folder)
    for name in local.list(mine.folder):
        with storage.open(f"{mine.folder}/{name}") as file:
            assert file.read() == (tmp_path / mine.folder / name).read_bytes()


def test_checkpoints_are_committed_and_pruned(storage, raw):
    model = make_model()
    for step in (100, 200, 300):
        save(storage, model, step)
    write_parts(storage, model, 150, 1)  # begun, and never committed
    assert checkpoint.prune(storage, keep=2) == [100, 150]
    assert checkpoint.commits(storage) == [200, 300]
    write_parts(storage, model, 400, 1)
    assert checkpoint.discard_unfinished(storage) == [400]
    manifest, damages = checkpoint.newest_intact(storage)
    assert (manifest.step, damages) == (300, [])
    checkpoint.commit(storage, manifest)  # a second time: nothing happens
    with pytest.raises(CheckpointError, match="FileExistsError"):
        checkpoint.commit(storage, make_manifest(model, 300, manifest.parts, tick=7))


def test_damage_is_told_and_an_older_checkpoint_serves(storage, url):
    model = make_model()
    for step in (100, 200):
        save(storage, model, step)
    part = next(
        path for path in (HdfsPath(url) / checkpoint.folder_of(200)).iterdir() if path.suffix == ".h5"
    )
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.replace_bytes(bytes(data))
    manifest, damages = checkpoint.newest_intact(storage)
    assert manifest.step == 100
    assert len(damages) == 1 and part.name in damages[0]


def test_from_a_storage_that_does_not_answer_nothing_follows(broken, url):
    storage = RemoteStorage(url, patience_s=0.5)
    save(storage, make_model(), 100)
    for daemon in broken.datanodes:
        broken.kill(daemon)
    with pytest.raises(CheckpointError, match="DataNode"):
        checkpoint.newest_intact(storage)
    broken.kill("namenode")
    with pytest.raises(CheckpointError, match="NameNode"):
        checkpoint.newest_intact(storage)


def test_a_writer_that_is_killed_is_in_nobodys_way(cluster, url, storage, raw):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with writer:
        assert writer.stdout.readline() == "half\n"
        writer.send_signal(signal.SIGKILL)
    assert storage.list("f") == []
    with storage.create("f/a") as file:
        file.write(b"whole")
    storage.sweep("f")
    assert raw(storage, "f") == ["a"]
    assert storage.size("f/a") == 5


def test_of_many_claims_each_gets_a_term_of_its_own(storage):
    terms, lock = [], threading.Lock()

    def claim():
        term = fence.claim(storage)
        with lock:
            terms.append(term)

    threads = [threading.Thread(target=claim) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(terms) == [1, 2, 3]
    assert fence.newest(storage) == 3


def test_a_replaced_file_is_always_whole(broken, url):
    path = HdfsPath(url, patience_s=90) / "journal.json"
    values = [bytes([number]) * (1000 + 100 * number) for number in range(12)]
    path.replace_bytes(values[0])
    seen, done = [], threading.Event()

    def look():
        while not done.is_set():
            seen.append(path.read_bytes())

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number, value in enumerate(values[1:]):
        if number == 5:
            broken.restart("namenode")
        path.replace_bytes(value)
        assert path.read_bytes() == value
    done.set()
    for reader in readers:
        reader.join()
    assert set(seen) <= set(values)
    assert len(set(seen)) > 1
    assert [one.name for one in path.parent.iterdir()] == ["journal.json"]


def test_a_forked_process_reads_and_writes_for_itself(storage):
    with storage.create("a") as file:
        file.write(b"x" * 1000)
    pids = []
    for number in range(3):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                for turn in range(5):
                    with storage.open("a") as file:
                        assert file.read() == b"x" * 1000
                    with storage.create(f"{number}-{turn}") as file:
                        file.write(b"y")
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    for _ in range(5):
        assert storage.size("a") == 1000
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0, 0]
    assert len(storage.list()) == 16


def test_a_path_is_used_as_one_of_this_machine(cluster, url):
    path = HdfsPath(url) / "keys"
    path.mkdir(mode=0o700)
    with pytest.raises(FileExistsError):
        path.mkdir()
    path.mkdir(exist_ok=True)
    with pytest.raises(FileNotFoundError):
        (path / "a" / "b").mkdir()
    (path / "a" / "b").mkdir(parents=True, mode=0o711)
    assert path.stat().st_mode & 0o7777 == 0o700
    assert (path / "a" / "b").stat().st_mode & 0o7777 == 0o711
    file = path / "member.json"
    file.replace_bytes(b"secret", secret=True)
    assert (file.stat().st_mode & 0o7777, file.stat().st_size) == (0o600, 6)
    assert (file.is_file(), file.is_dir(), path.is_dir(), (path / "x").exists()) == (True, False, True, False)
    assert sorted(one.name for one in path.iterdir()) == ["a", "member.json"]
    assert (file.name, file.suffix, str(file.parent)) == ("member.json", ".json", str(path))
    assert (
        file == HdfsPath(f"{url}/keys//member.json/") and is_url(str(file)) and os.fspath(file) == str(file)
    )
    with pytest.raises(IsADirectoryError):
        path.unlink()
    file.unlink()
    with pytest.raises(FileNotFoundError):
        file.unlink()
    file.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (path / "x" / "y").replace_bytes(b"")
    path.remove_tree()
    assert not path.exists()


def test_all_urls_of_a_folder_lead_there(cluster, url):
    path = "/" + url.split("/", 3)[3]
    with storage_of(url).create("a") as file:
        file.write(b"x")
    for other in (f"hdfs://{path}", f"{cluster.webhdfs_url}{path}"):
        assert storage_of(other).list() == ["a"]
        assert (HdfsPath(other) / "a").read_bytes() == b"x"


def test_a_place_for_checkpoints_is_one_runs_alone(url, tmp_path):
    here = place.below(f"{url}/models", str(tmp_path / "night-1"))
    place.settle(here, str(tmp_path / "night-1"))
    save(storage_of(here), make_model(), 100)
    place.check(here, str(tmp_path / "night-1"), "")
    with pytest.raises(ConfigError, match="holds the checkpoints of a run already"):
        place.settle(here, str(tmp_path / "other" / "night-1"))
    place.check(here, str(tmp_path / "moved"), "")  # of the other folder there is nothing
    assert b"moved" in (HdfsPath(here) / place.OWNER).read_bytes()
    place.forsake(here, str(tmp_path / "moved"))
    assert storage_of(here).list() == []


def test_a_run_here_is_named_by_its_url(url, tmp_path):
    """Its folder is lost; the command that began it goes on in another."""
    here = f"{url}/runs/first"
    begin = ("train", PROGRAMS / "small_torch.py", "--run-dir", here, "--checkpoint-every", 20)
    for name, options in (("one", ("--epochs", 1)), ("two", ("--epochs", 2, "--resume"))):
        machine = tmp_path / name
        machine.mkdir()
        done = cli(*begin, *options, cwd=machine)
        assert done.returncode == 0, done.stderr
        assert cli("status", here).stdout.startswith(f"{machine}/runs/first: finished")
        assert not list(machine.glob("runs/first/checkpoints/*"))
        (machine / "runs").rename(machine / "lost")
    assert "holds the checkpoints of" in cli("status", here).stderr
    whole = ("train", PROGRAMS / "small_torch.py", "--run-dir", tmp_path / "whole", "--epochs", 2)
    assert cli(*whole).returncode == 0
    assert cli("checkpoint", "digest", here).stdout == cli("checkpoint", "digest", tmp_path / "whole").stdout
