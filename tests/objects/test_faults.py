"""An object store that refuses, loses answers, or is away: passed over, or told, and never guessed at."""

import builtins
import errno
import os
import subprocess
import sys
import threading

import fsspec
import msgspec
import numpy as np
import pytest
import s3fs

from elasticflow import checkpoint
from elasticflow.checkpoint import place
from elasticflow.checkpoint.place import PlaceOwner
from elasticflow.cli import by_url
from elasticflow.errors import CheckpointError, ConfigError, NoRunError, RunError
from elasticflow.process.retry import is_away
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.storage import RemoteStorage, objects, storage_of
from tests.checkpoint.saving import make_model, save
from tests.hdfs.test_checkpoints import test_checkpoints_are_committed_and_pruned
from tests.storage_contract import read, write

__all__ = ["test_checkpoints_are_committed_and_pruned"]

DATA = np.random.default_rng(0).bytes(3 << 20)


def test_a_put_whose_answer_is_lost_is_known_again(s3, storage, raw):
    """The client asks once more, and then there is an object of that name: its own."""
    s3.fail("lose", "PUT", "/a/b")
    write(storage, "a/b", DATA)
    assert s3.heal() == 1
    assert read(storage, "a/b") == DATA
    s3.fail("lose", "POST", "/a/large?uploadId")
    write(storage, "a/large", DATA * 17)
    assert s3.heal() == 1
    assert raw(storage, "a") == ["b", "large"]
    with pytest.raises(FileExistsError):  # and not taken for another's
        write(storage, "a/b", DATA)


@pytest.mark.parametrize("act", ["refuse", "lose", "cut"])
@pytest.mark.parametrize("what", ["GET", "HEAD", "PUT", "POST"])
def test_what_passes_is_passed_over(s3, url, act, what):
    if (act, what) == ("cut", "HEAD"):
        return  # it has no body
    storage = RemoteStorage(url, patience_s=30)
    if what in ("GET", "HEAD"):
        write(storage, "f/large", DATA * 17)
    s3.fail(act, what, "/f/large" if what != "GET" else "", times=2)
    if what in ("PUT", "POST"):
        write(storage, "f/large", DATA * 17)
    assert storage.list("f") == ["large"]
    assert storage.size("f/large") == len(DATA) * 17
    assert read(storage, "f/large") == DATA * 17
    assert s3.heal() == 2


def test_a_store_that_is_away_is_never_an_empty_one(s3, url):
    storage = RemoteStorage(url, patience_s=0.2)
    save(storage, make_model(), 100)
    s3.fail("refuse", "", "", times=1000)
    for act in (
        storage.list,
        lambda: storage.list("checkpoints"),
        lambda: storage.exists("checkpoints"),
        lambda: storage.size("x"),
        lambda: storage.open("x"),
        lambda: storage.remove("x"),
    ):
        with pytest.raises(OSError, match="s3://bucket") as raised:
            act()
        assert is_away(raised.value)
    with pytest.raises(CheckpointError, match="as the test wants it"):
        checkpoint.newest_intact(storage)
    s3.heal()
    assert checkpoint.newest_intact(storage)[0].step == 100


def test_nobody_there(s3, url, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        with pytest.raises(OSError, match=r"127.0.0.1:1.*s3://bucket") as raised:
            RemoteStorage(url, patience_s=0.1).list()
        assert is_away(raised.value)
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


def test_who_may_not_is_told_so(s3, storage):
    write(storage, "f/a", b"")
    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        s3.fail("deny", method, "", times=1000)
    for act in (storage.list, lambda: storage.open("f/a"), lambda: storage.remove("f/a")):
        with pytest.raises(PermissionError) as raised:
            act()
        assert raised.value.errno == errno.EACCES
    s3.heal()
    s3.fail("deny", "PUT", "")
    with pytest.raises(PermissionError, match="as the test wants it"):
        write(storage, "f/b", b"")


def test_where_s3_says_of_expired_credentials_but_bad_request(storage):
    def refused(fs):
        raise OSError(errno.EINVAL, "Bad Request")

    with pytest.raises(PermissionError, match="Bad Request, as where credentials have expired"):
        storage._client._retried("/a", refused)


def test_without_credentials(s3, url, monkeypatch):
    s3fs.S3FileSystem.clear_instance_cache()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    try:
        with pytest.raises(PermissionError, match="credentials"):
            RemoteStorage(url, patience_s=30).list()
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


def test_what_clients_log_is_not_printed():
    """gcsfs and azure-identity log each failure with a traceback, which Python prints if nobody listens."""
    code = (
        "import logging, elasticflow.storage.objects\n"
        "for name in ('gcsfs', 'azure.identity', 's3fs'):\n"
        "    logging.getLogger(name).error('not found: %s', name)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_what_is_not_installed_and_what_nobody_knows(monkeypatch):
    real = builtins.__import__

    def without(*names):
        def imported(name, *arguments, **options):
            if name.split(".")[0] in names:
                raise ImportError(f"No module named {name!r}", name=name)
            return real(name, *arguments, **options)

        return imported

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "__import__", without("fsspec"))
        with pytest.raises(
            ConfigError, match=r"s3://b: needs fsspec. Run: pip install 'elasticflow-trainer\[s3\]'"
        ):
            storage_of("s3://b/c")
    with pytest.raises(ConfigError, match=r"smb://host.*Run: pip install"):
        storage_of("smb://host/c")
    with pytest.raises(ConfigError, match=r"nonsense://b is a URL that cannot be read. Allowed are hdfs://"):
        storage_of("nonsense://b/c")
    for url in ("s3://me:hidden@b/c", "s3://me:hid/hidden@b/c", "https://h/c?X-Amz-Signature=hidden"):
        with pytest.raises(ConfigError, match=r"this URL holds a secret") as raised:
            storage_of(url)
        assert "hidden" not in str(raised.value)
        for name in ("data", "checkpoint_dir", "init_from"):  # before anything of it is written down
            with pytest.raises(ConfigError, match=f"{name}: .*this URL holds a secret"):
                Config(**{name: url})
    for wrong in ("s3:/bucket/x", "simplecache::s3://bucket/x"):
        with pytest.raises(ConfigError, match="has lost a slash|is no URL"):
            Config(checkpoint_dir=wrong)
    with pytest.raises(ConfigError, match="names no bucket"):
        storage_of("s3:///x")
    for fine in (
        "s3://b/a:b@c",
        "hdfs://nn:8020/x",
        "hdfs://[::1]:8020/x",
        "abfs://c@a.dfs.core.windows.net/x",
    ):
        Config(checkpoint_dir=fine)


def test_damage_is_told_and_an_older_checkpoint_serves(storage, fs, url):
    model = make_model()
    for step in (100, 200):
        save(storage, model, step)
    folder = f"{url}/{checkpoint.folder_of(200)}"
    part = next(one for one in fs.ls(folder, detail=False) if one.endswith(".h5"))
    data = bytearray(fs.cat_file(part))
    data[len(data) // 2] ^= 1
    fs.pipe_file(part, bytes(data))
    manifest, damages = checkpoint.newest_intact(storage)
    assert manifest.step == 100
    assert len(damages) == 1 and os.path.basename(part) in damages[0]


def test_a_commit_whose_answer_is_lost_is_committed(s3, storage):
    model = make_model()
    s3.fail("lose", "PUT", "manifest.json")
    save(storage, model, 100)
    assert s3.heal() == 1
    assert checkpoint.commits(storage) == [100]


def test_ranges_that_are_none(storage, monkeypatch):
    """Bytes that are not those of a range are never taken for it."""
    write(storage, "f/a", DATA)
    client, path = storage._client, f"{storage.root}/f/a"
    monkeypatch.setattr(objects, "PIECE_BYTES", 1 << 20)
    buffer = memoryview(bytearray(len(DATA)))
    assert client.read_into(path, 0, buffer) == len(DATA) and buffer == DATA
    monkeypatch.setattr(client, "_ranges", lambda path, full, starts, ends: [DATA for _ in starts])
    with pytest.raises(OSError, match="other bytes than the range") as raised:
        client.read_into(path, 1 << 20, buffer[: 2 << 20])
    assert not is_away(raised.value)

    def cut(path, full, starts, ends):
        pieces = [DATA[start:end] for start, end in zip(starts, ends, strict=True)]
        return [pieces[0], pieces[1][:5], pieces[2]]

    monkeypatch.setattr(client, "_ranges", cut)
    buffer = memoryview(bytearray(len(DATA)))
    assert client.read_into(path, 0, buffer) == (1 << 20) + 5
    assert buffer[: (1 << 20) + 5] == DATA[: (1 << 20) + 5] and not any(buffer[(1 << 20) + 5 :])
    with pytest.raises(OSError, match="ends after"):
        read(storage, "f/a")


def test_a_place_is_one_runs_alone(fs, url, tmp_path):
    here = place.below(f"{url}/models/", tmp_path / "night-1")
    assert here == f"{url}/models/night-1"
    place.settle(here, str(tmp_path / "night-1"))
    place.settle(here, str(tmp_path / "night-1"))  # it was killed before it began
    with pytest.raises(ConfigError, match=r"holds the checkpoints of a run already, .*/night-1 \(begun on "):
        place.settle(here, str(tmp_path / "other" / "night-1"))
    save(storage_of(here), make_model(), 100)
    with pytest.raises(ConfigError, match="holds the checkpoints of a run already"):
        place.settle(here, str(tmp_path / "night-1"))
    place.forsake(here, str(tmp_path / "other" / "night-1"))
    assert fs.exists(here), "that is not theirs"
    place.forsake(here, str(tmp_path / "night-1"))
    assert not fs.exists(here)
    fs.pipe_file(f"{url}/models/night-2/thesis.tex", b"...")
    with pytest.raises(ConfigError, match="is not empty: there is 'thesis.tex'"):
        place.settle(f"{url}/models/night-2", str(tmp_path / "night-2"))
    fs.pipe_file(f"{url}/models/night-3/.there.partial", b"")
    save(storage_of(f"{url}/models/night-3"), make_model(), 100)
    with pytest.raises(ConfigError, match="holds the checkpoints of a run already, an unknown run"):
        place.settle(f"{url}/models/night-3", str(tmp_path / "night-3"))
    for name in ("night-2", "night-3"):
        assert not fs.exists(f"{url}/models/{name}/owner.json"), "who was refused has claimed nothing"


def test_a_run_goes_on_where_its_place_is(fs, url, tmp_path):
    here, folder = f"{url}/models/a", tmp_path / "a"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    place.settle(here, str(folder))
    place.check(here, str(folder), "")
    (tmp_path / "link").symlink_to(tmp_path)
    place.check(here, str(tmp_path / "link" / "a"), "")
    with pytest.raises(ConfigError, match=f"holds the checkpoints of {folder}"):
        place.check(here, str(tmp_path / "copy"), "")
    folder.rename(tmp_path / "moved")
    place.check(here, str(tmp_path / "moved"), "")  # nothing is saved yet
    place.check(here, str(tmp_path / "moved"), "")
    fs.rm_file(f"{here}/owner.json")
    with pytest.raises(ConfigError, match="there is nothing of this run any more. Is it the right store"):
        place.check(here, str(tmp_path / "moved"), "")
    with pytest.raises(ConfigError, match="in this process's memory"):
        place.settle("memory://x/a", str(folder))


def test_a_place_is_taken_over(fs, url, tmp_path):
    """By a run in another folder; the one before, wherever it was, is told so, also where both are called
    alike on two machines."""
    here, folder = f"{url}/models/a", tmp_path / "a"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    assert place.owner_of(here) is None
    first = place.settle(here, str(folder))
    assert place.check(here, str(folder), first.id) == first == place.owner_of(here)
    assert place.lost_to(here, first.id) is None
    for there in (tmp_path / "b", folder):
        second = place.take_over(here, str(there))
        assert place.owner_of(here) == place.lost_to(here, first.id) == second
        assert place.lost_to(here, second.id) is None
        assert place.check(here, str(there), second.id) == second
        with pytest.raises(ConfigError, match=f"{there} .* goes on with these checkpoints, and this run not"):
            place.check(here, str(folder), first.id)
    save(storage_of(here), make_model(), 100)
    fs.rm_file(f"{here}/owner.json")
    assert place.lost_to(here, first.id) is None, "somebody has removed it, as people are advised to"
    assert str(place.owner_of(here)) == "an unknown run (begun on an unknown host)"


def test_a_claim_whose_answer_is_lost_is_ones_own(s3, fs, url, tmp_path):
    here = f"{url}/models/a"
    s3.fail("lose", "PUT", "owner.json", times=2)
    first = place.settle(here, str(tmp_path / "a"))
    assert place.owner_of(here) == first
    s3.fail("lose", "PUT", "owner.json", times=2)
    s3.fail("lose", "POST", "?delete", times=1)
    assert place.take_over(here, str(tmp_path / "b")) == place.owner_of(here)


def test_a_place_whose_owner_is_no_run(fs, url, tmp_path):
    """What a store says of whose its checkpoints are leads nowhere else, and keeps nobody out."""
    here = f"{url}/models/a"
    place.settle(here, str(tmp_path / "a"))
    save(storage_of(here), make_model(), 100)
    other = RunDir(tmp_path / "other")
    other.path.mkdir()
    other.write_settings(Config(checkpoint_dir=f"{url}/models", checkpoint_place=here))
    for said in (
        b"",
        b'{"run": "\xff", "host": "h"}',
        b'{"x": ' + b"[" * 40_000,
        *(
            msgspec.json.encode(PlaceOwner(run, "h", "id"))
            for run in ("", "/a\0b", "/" + "a" * 5000, here, "s3://a:b@c/d", "://", str(other.path))
        ),
    ):
        fs.pipe_file(f"{here}/owner.json", said)
        with pytest.raises(NoRunError, match="that folder is not here"):
            by_url.run_of(here)


def test_of_two_that_go_on_in_one_folder_one_has_it(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = f"{url}/models/a"
    place.settle(here, "/gone/a")
    chosen = Config(run_dir=here, program="a.py")

    def meanwhile(*arguments):
        with pytest.raises(RunError, match="another run is using this folder|is not empty"):
            by_url.resumed(chosen.run_dir, lambda: chosen, "runs", anew=False, only_look=False)
        return place.take_over(*arguments)

    monkeypatch.setattr(by_url, "take_over", meanwhile)
    run = by_url.resumed(chosen.run_dir, lambda: chosen, "runs", anew=False, only_look=False)
    assert place.owner_of(here) == place.check(here, str(run.path), run.claim_id())
    assert by_url.run_of(here).config().program == "a.py"


@pytest.mark.parametrize("is_there", [False, True])
def test_a_take_over_that_fails_leaves_the_folder_as_it_was(s3, url, tmp_path, monkeypatch, is_there):
    monkeypatch.chdir(tmp_path)
    here = f"{url}/models/a"
    first = place.settle(here, "/gone/a")
    if is_there:
        (tmp_path / "runs" / "a").mkdir(parents=True)
    s3.fail("deny", "POST", "?delete", times=9)
    s3.fail("deny", "DELETE", "owner.json", times=9)
    with pytest.raises(ConfigError, match=r"owner.json may not be removed, .*Try again as somebody who may"):
        by_url.resumed(
            here, lambda: Config(run_dir=here, program="a.py"), "runs", anew=False, only_look=False
        )
    s3.heal()
    assert place.owner_of(here) == first
    assert list(tmp_path.rglob("runs/*")) == ([tmp_path / "runs" / "a"] if is_there else [])


def test_a_take_over_that_was_killed_is_made_again(url, tmp_path, monkeypatch):
    """Its settings are written last: until then there is no run in the folder."""
    monkeypatch.chdir(tmp_path)
    here = f"{url}/models/a"
    place.settle(here, "/gone/a")
    run = RunDir(tmp_path / "runs" / "a")
    os.close(run.hold())
    run.claim.write_text("{}")
    again = by_url.resumed(
        here, lambda: Config(run_dir=here, program="a.py"), "runs", anew=False, only_look=False
    )
    assert again.claim_id() == place.owner_of(here).id


def test_of_two_runs_that_settle_at_once_one_has_the_place(url, tmp_path):
    barrier, refused = threading.Barrier(2), []

    def settle(number):
        barrier.wait()
        try:
            place.settle(f"{url}/models/a", str(tmp_path / str(number) / "a"))
        except ConfigError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=settle, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1


def test_a_store_without_conditional_puts():
    """Such as sftp: under a hidden name first, which is renamed."""
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/here/.there.partial", b"")
    storage = storage_of("memory://here")
    seen = []
    with storage.create("f/a") as file:
        file.write(b"whole")
        seen.append(storage.exists("f/a"))
    assert (seen, read(storage, "f/a"), storage.list("f")) == ([False], b"whole", ["a"])
    with pytest.raises(FileExistsError):
        write(storage, "f/a", b"other")
    with pytest.raises(FileExistsError), storage.create("f/b"):
        write(storage, "f/b", b"the faster writer")
    assert sorted(fs.ls("/here/f", detail=False)) == ["/here/f/a", "/here/f/b"]
    save(storage, make_model(), 100)
    assert checkpoint.verify(storage, 100) == []
    storage.remove("f")
    assert storage.list("f") == []
