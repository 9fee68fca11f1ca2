"""Storage that fails: an error that names the file, nothing committed changes, and a later try succeeds."""

import errno
import os
import shutil
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
from faults import Faults, all_of, never, often, once
from msgspec.structs import replace
from saving import make_manifest, make_model, save, write_parts
from saving_tables import Servers, Table, make_spec

from elasticflow import checkpoint
from elasticflow.errors import CheckpointError
from elasticflow.step.layout import Entry, Rule, spread
from elasticflow.storage import DirectoryStorage, directory
from elasticflow.storage.background import Background

SMALL = (Entry("w", (40, 5), "float32", Rule.UPDATE), Entry("seen", (), "int64", Rule.FIRST))


def every_file(root):
    return {
        os.path.relpath(os.path.join(folder, name), root): open_bytes(os.path.join(folder, name))
        for folder, _, names in os.walk(root)
        for name in names
    }


def open_bytes(path):
    with open(path, "rb") as file:
        return file.read()


class Saving:
    """The checkpoint of step 200 is written by two servers, committed, and the rest tidied up.

    Step 100 is committed already; steps 50 and 150 were begun once, and so was 200, by a server that is lost.
    A table has its row files of step 100, and gets deltas.
    """

    def __init__(self, root):
        self.root, self.parts, self.table = root, {}, Table(make_spec(2))
        if TEMPLATE:
            shutil.copytree(TEMPLATE[0], root)
        else:
            root.mkdir()
        self.storage = DirectoryStorage(root)
        self.servers = Servers(self.storage, {"t": self.table}, dense=SMALL)
        self.model = self.servers.model
        self.table.update(range(9), 99, np.random.default_rng(0))
        if not TEMPLATE:
            self._prepare()
        self.manifest = checkpoint.load_manifest(self.storage, 100)
        self.table.update([3], 199, np.random.default_rng(1))
        self.before = every_file(self.root)

    def _prepare(self):
        self.servers.save(100)
        everything = spread(self.model.layout, 1)[0]
        for step in (50, 150):
            self._write(step, "server-0", everything)
            self._write_rows(step, "server-0", everything)
        self._write(200, "server-9", everything)
        self._write_rows(200, "server-9", everything)
        for folder in (checkpoint.folder_of(200), "rows/step-0000000200"):
            (self.root / folder / ".generation-1-server-9.h5.0123.partial").write_bytes(b"killed")

    def _write(self, step, server, numbers):
        return checkpoint.write_part(
            self.storage,
            checkpoint.folder_of(step),
            checkpoint.part_name(1, server),
            self.model.layout,
            [
                (self.model.layout.chunks[number], self.model.chunk(number))
                for number in numbers
                if self.model.layout.table_of(self.model.layout.chunks[number]) is None
            ],
        )

    def _write_rows(self, step, server, numbers):
        chunks = [self.model.layout.chunks[number] for number in numbers]
        return checkpoint.write_rows(
            self.storage,
            checkpoint.row_file_name(step, 1, server),
            [
                (chunk, self.table.changed(chunk.start, 100, step))
                for chunk in chunks
                if self.model.layout.table_of(chunk) is not None
            ],
            step=step,
            whole=False,
        )

    def jobs(self):
        for server, numbers in enumerate(self.servers.shares):
            name, chain = f"server-{server}", checkpoint.chain_of(self.manifest, numbers)
            yield lambda name=name, numbers=numbers: self.parts.update(
                {name: self._write(200, name, numbers)}
            )
            yield lambda name=name, numbers=numbers, chain=chain: self.parts.update(
                {name: replace(self.parts[name], rows=(*chain, self._write_rows(200, name, numbers)))}
            )
        yield lambda: checkpoint.commit(
            self.storage, self.servers.manifest(200, tuple(self.parts[n] for n in sorted(self.parts)))
        )
        yield lambda: checkpoint.prune(self.storage, keep=2)

    def run(self, faults, tries=1000):
        """Each job until it succeeds. Returns the errors."""
        errors = []
        for job in self.jobs():
            for _ in range(tries):
                try:
                    job()
                    break
                except CheckpointError as error:
                    errors.append(str(error))
                    self.check_visible(faults)
            else:
                pytest.fail(f"never: {errors[-1]}")
        return errors

    def check_visible(self, faults):
        """Looks past the faults: what is there has not changed, and what is new and visible is whole."""
        reference = REFERENCE[0]
        for name, data in every_file(self.root).items():
            assert name.endswith(".partial") or data == reference.get(name, self.before.get(name)), name
        for name, data in self.before.items():
            if "0000000100" in name:  # parts and row files
                assert open_bytes(self.root / name) == data

    def check_done(self):
        assert every_file(self.root) == REFERENCE[0]
        manifest, damages = checkpoint.newest_intact(self.storage)
        assert (manifest.step, damages, checkpoint.commits(self.storage)) == (200, [], [100, 200])


TEMPLATE = []
"""A folder as a save finds it."""
REFERENCE = []
"""All files after a save without faults, and its calls."""


@pytest.fixture(scope="module", autouse=True)
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    TEMPLATE.append(Saving(folder / "template").root)
    with pytest.MonkeyPatch.context() as patch:
        saving = Saving(folder / "storage")
        faults = Faults(patch, directory)
        assert saving.run(faults) == []
        REFERENCE[:] = [every_file(saving.root), faults.calls]
    files = {"generation-1-server-0.h5", "generation-1-server-1.h5"}
    # Row files of the newest step may be those of servers that go on from them: they stay until the next.
    others = {"generation-1-server-9.h5", ".generation-1-server-9.h5.0123.partial"}
    assert set(REFERENCE[0]) == {
        f"{folder}/{name}"
        for folder, names in {
            "checkpoints/step-0000000100": {*files, "manifest.json"},
            "checkpoints/step-0000000200": {*files, "manifest.json"},
            "rows/step-0000000100": files,
            "rows/step-0000000200": files | others,
        }.items()
        for name in names
    }
    yield
    TEMPLATE.clear()
    REFERENCE.clear()


@pytest.mark.parametrize(
    ("code", "late"),
    [(errno.EIO, True), (errno.ENOSPC, False), (errno.ESTALE, True)],
    ids=["EIO, and it was done", "ENOSPC", "ESTALE, and it was done"],
)
def test_each_call_fails_once(tmp_path, monkeypatch, code, late):
    told = 0
    for number in range(len(REFERENCE[1])):
        saving = Saving(tmp_path / str(number))
        with monkeypatch.context() as patch:
            faults = Faults(patch, directory, late, once(number, code))
            told += len(saving.run(faults))
        saving.check_done()
    assert told > len(REFERENCE[1]) / 2


@pytest.mark.parametrize(
    "call", ["write", "flush", "fsync", "close", "link", "create", "open", "mkdir", "stat"]
)
@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS], ids=lambda code: errno.errorcode[code])
def test_a_call_fails_until_the_storage_is_mended(tmp_path, monkeypatch, call, code):
    saving = Saving(tmp_path / "storage")
    if call == "mkdir":
        shutil.rmtree(saving.root / checkpoint.folder_of(200))
    with monkeypatch.context() as patch:
        faults = Faults(patch, directory, fails=all_of(call, code))
        for _ in range(3):
            with pytest.raises(
                CheckpointError, match="checkpoints/step-0000000200/generation-1-server-0.h5: .*OSE"
            ):
                next(saving.jobs())()
            saving.check_visible(faults)
        faults.fails = never
        saving.run(faults)
    saving.check_done()


@pytest.mark.parametrize("seed", range(60))
def test_anything_fails_at_any_time(tmp_path, monkeypatch, seed):
    saving = Saving(tmp_path / "storage")
    with monkeypatch.context() as patch:
        faults = Faults(patch, directory, late=seed % 2 == 1, fails=often(seed, 0.04))
        saving.run(faults)
        faults.fails = never
        checkpoint.prune(saving.storage, keep=2)
    saving.check_done()


def test_reading_that_fails_is_told_and_no_crash(tmp_path, monkeypatch):
    root = tmp_path / "storage"
    root.mkdir()
    storage = DirectoryStorage(root)
    save(storage, make_model(SMALL), 100)
    save(storage, make_model(SMALL, 1), 200)
    with monkeypatch.context() as patch:
        faults = Faults(patch, directory)
        checkpoint.commits(storage)
        looks = len(faults.calls)
        faults.calls.clear()
        assert checkpoint.newest_intact(storage)[0].step == 200
        calls = list(faults.calls)
        assert {"read", "open file", "stat", "listdir"} <= set(calls)
        for number, call in enumerate(calls):
            if call == "close":
                continue  # what was read is right all the same
            # A bad block is damage. A storage that is away is not: nothing is known of the checkpoint.
            faults.calls.clear()
            faults.fails = once(number, errno.EIO)
            if number < looks:
                with pytest.raises(CheckpointError, match="Input/output error"):
                    checkpoint.newest_intact(storage)
            else:
                manifest, damages = checkpoint.newest_intact(storage)
                assert manifest.step == 100 and "step-0000000200" in damages[0]
            faults.calls.clear()
            faults.fails = once(number, errno.ESTALE)
            with pytest.raises(CheckpointError, match="[Ss]tale"):
                checkpoint.newest_intact(storage)
    assert checkpoint.newest_intact(storage)[1] == []


def test_a_storage_that_is_moved_away_and_back(tmp_path):
    saving = Saving(tmp_path / "storage")
    away = tmp_path / "away"
    os.rename(saving.root, away)
    for _ in range(2):
        for job in list(saving.jobs())[:1]:
            with pytest.raises(CheckpointError, match="storage's folder .* is gone"):
                job()
        for look in (checkpoint.commits, checkpoint.newest_intact, checkpoint.discard_unfinished):
            with pytest.raises(CheckpointError, match="is gone"):
                look(saving.storage)
        with pytest.raises(CheckpointError, match="is gone"):
            checkpoint.prune(saving.storage, 1)
        with pytest.raises(CheckpointError, match="is gone"):
            checkpoint.verify(saving.storage, 100)
    assert not saving.root.exists(), "nothing is made where the storage was"
    os.rename(away, saving.root)
    assert saving.run(None) == []
    saving.check_done()


def test_a_storage_that_is_moved_away_during_a_write(tmp_path):
    saving = Saving(tmp_path / "storage")
    away = tmp_path / "away"
    create = saving.storage.create

    @contextmanager
    def interrupted(name):
        with create(name) as file:
            os.rename(saving.root, away)
            yield file

    saving.storage.create = interrupted
    with pytest.raises(CheckpointError, match="is gone"):
        next(saving.jobs())()
    del saving.storage.create
    os.rename(away, saving.root)
    assert saving.run(None) == []
    saving.check_done()


def test_slow_storage_holds_up_nobody(tmp_path, monkeypatch):
    """A write that hangs in fsync, and goes on later."""
    import threading

    saving = Saving(tmp_path / "storage")
    begun, go = threading.Event(), threading.Event()

    def hang(number, call):
        if call == "fsync" and not begun.is_set():
            begun.set()
            go.wait()

    with monkeypatch.context() as patch:
        Faults(patch, directory, fails=hang)
        background = Background(60)
        told = []
        background.submit(next(saving.jobs()), lambda *what: told.append(what), told.append)
        assert begun.wait(30)
        background.turn()
        assert (told, background.busy) == ([], 1)
        assert checkpoint.commits(saving.storage) == [100]
        go.set()
        wait_for(background)
        assert told == [(None, "")]
        background.close()
        saving.run(None)
    saving.check_done()


def wait_for(background):
    import select

    while background.busy:
        assert select.select([background.fd], [], [], 30)[0]
        background.turn()


def test_the_background_gets_over_a_failure(tmp_path, monkeypatch):
    saving = Saving(tmp_path / "storage")
    with monkeypatch.context() as patch:
        Faults(patch, directory, fails=often(5, 0.03))
        background = Background(60, first_s=0.001)
        ends, troubles = [], []
        for job in saving.jobs():
            background.submit(job, lambda result, error: ends.append(error), troubles.append)
            wait_for(background)
        assert ends == [""] * 6
        assert len(set(troubles)) > 1 and troubles[-1] == ""
        background.close()
    checkpoint.prune(saving.storage, keep=2)
    saving.check_done()


# --- real file systems -------------------------------------------------------------------------------


@pytest.fixture
def tmpfs(tmp_path):
    """Mounts a file system of some bytes; skips where that is not permitted."""
    mounted = []

    def mount(options):
        target = tmp_path / "mounted"
        target.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "elasticflow-test", str(target)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if ended.returncode:
            pytest.skip(f"may not mount a tmpfs: {ended.stderr.strip()}")
        mounted.append(target)
        return target

    yield mount
    for target in mounted:
        subprocess.run(["umount", str(target)], check=True)


BIG = (Entry("w", (1 << 18,), "float32", Rule.UPDATE),)
"""1 MB, 3 MB with the slots."""


def test_a_full_disk(tmpfs):
    root = tmpfs("size=8m")
    storage, model = DirectoryStorage(root), make_model(BIG)
    save(storage, model, 100)
    before = every_file(root)
    filling = root / "somebody's"
    filling.write_bytes(bytes(3 << 20))
    for _ in range(3):
        with pytest.raises(CheckpointError, match="generation-1-server-.*No space left on device"):
            write_parts(storage, model, 200, 2)
    assert {name: every_file(root)[name] for name in before} == before
    assert not [name for name in every_file(root) if name.endswith(".partial")]
    assert checkpoint.newest_intact(storage)[1] == []
    filling.unlink()
    parts = write_parts(storage, model, 200, 2)
    filling.write_bytes(bytes(os.statvfs(root).f_bavail * os.statvfs(root).f_frsize))
    manifest = make_manifest(model, 200, parts)
    with pytest.raises(CheckpointError, match="manifest.json.*No space left on device"):
        checkpoint.commit(storage, manifest)
    assert checkpoint.commits(storage) == [100]
    filling.unlink()
    checkpoint.commit(storage, manifest)
    assert checkpoint.newest_intact(storage)[0].step == 200
    assert {name: every_file(root)[name] for name in before} == before


def test_a_disk_that_becomes_read_only(tmpfs):
    root = tmpfs("size=16m")
    storage, model = DirectoryStorage(root), make_model(BIG)
    save(storage, model, 100)
    before = every_file(root)
    subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
    with pytest.raises(CheckpointError, match="Read-only file system"):
        write_parts(storage, model, 200, 2)
    with pytest.raises(CheckpointError, match="Read-only file system"):
        save(storage, model, 300)
    assert checkpoint.newest_intact(storage)[0].step == 100
    subprocess.run(["mount", "-o", "remount,rw", str(root)], check=True)
    save(storage, model, 200)
    assert checkpoint.newest_intact(storage)[0].step == 200
    assert {name: every_file(root)[name] for name in before} == before


def script(text, *arguments):
    """Runs a program; it must print "end", and end well, without a word of the libraries below."""
    code = "import sys; sys.path.insert(0, sys.argv[1])\n" + textwrap.dedent(text)
    here = os.path.dirname(__file__)
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, here, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")


def test_a_process_ends_well_after_writes_that_failed(tmpfs):
    """HDF5 is known to crash when it closes a file that it could not write."""
    script(
        """
        from saving import make_model, write_parts
        from test_storage_faults import BIG
        from elasticflow.errors import CheckpointError
        from elasticflow.storage import DirectoryStorage
        storage = DirectoryStorage(sys.argv[2])
        for _ in range(5):
            try:
                write_parts(storage, make_model(BIG), 1, 1)
            except CheckpointError as error:
                assert "No space left" in str(error)
            else:
                raise AssertionError
        print("end")
        """,
        tmpfs("size=2m"),
    )


def test_a_process_ends_well_after_a_write_that_the_kernel_stops_in_the_middle(tmp_path):
    script(
        """
        import resource
        from saving import make_model, write_parts
        from test_storage_faults import BIG
        from elasticflow.errors import CheckpointError
        from elasticflow.storage import DirectoryStorage
        storage = DirectoryStorage(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, resource.RLIM_INFINITY))
        try:
            write_parts(storage, make_model(BIG), 1, 1)
        except CheckpointError as error:
            assert "File too large" in str(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        write_parts(storage, make_model(BIG), 1, 1)
        print("end")
        """,
        tmp_path,
    )


def test_a_process_ends_well_whose_writing_hangs(tmp_path):
    script(
        """
        import threading
        from contextlib import contextmanager
        from saving import make_model, write_parts
        from test_storage_faults import BIG
        from elasticflow.storage import DirectoryStorage
        from elasticflow.storage.background import Background

        begun = threading.Event()

        class File:
            def __init__(self, file):
                self.file = file
            def write(self, data):
                if len(data) < 100_000:
                    return self.file.write(data)
                begun.set()
                threading.Event().wait()

        class Storage(DirectoryStorage):
            @contextmanager
            def create(self, name):
                with super().create(name) as file:
                    yield File(file)

        model = make_model(BIG)
        background = Background(60)
        background.submit(lambda: write_parts(Storage(sys.argv[2]), model, 1, 1), print, print)
        assert begun.wait(30)
        background.close()
        print("end")
        """,
        tmp_path,
    )


@pytest.mark.parametrize("hangs", [False, True])
def test_a_process_ends_well_whose_reading_fails_or_hangs(tmp_path, hangs):
    save(DirectoryStorage(tmp_path), make_model(BIG), 1, num_servers=1)
    script(
        """
        import errno, threading
        from contextlib import suppress
        from elasticflow import checkpoint
        from elasticflow.errors import CheckpointError
        from elasticflow.storage import DirectoryStorage

        begun = threading.Event()

        class File:
            reads = 0
            def __init__(self, file):
                self.file = file
            def readinto(self, buffer):
                File.reads += 1
                if len(buffer) > 100_000:
                    begun.set()
                    if sys.argv[3] == "True":
                        threading.Event().wait()
                    raise OSError(errno.EIO, "Input/output error")
                return self.file.readinto(buffer)
            def __enter__(self):
                return self
            def __exit__(self, *exception):
                self.file.close()
            def __getattr__(self, name):
                return getattr(self.file, name)

        class Storage(DirectoryStorage):
            def open(self, name):
                return File(super().open(name)) if name.endswith("h5") else super().open(name)

        def read():
            storage = Storage(sys.argv[2])
            reader = checkpoint.Reader(storage, checkpoint.load_manifest(storage, 1))
            readers.append(reader)
            with suppress(CheckpointError):
                reader.read_chunk(0)

        readers = []
        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        assert begun.wait(30)
        if sys.argv[3] == "False":
            thread.join()
        print("end")
        """,
        tmp_path,
        hangs,
    )


# --- what comes twice --------------------------------------------------------------------------------


class TestCommittingAgain:
    def test_the_same_is_a_success(self, storage, model):
        manifest = save(storage, model)
        before = every_file(storage.root)
        checkpoint.commit(storage, manifest)
        checkpoint.commit(storage, msgspec.structs.replace(manifest, parts=manifest.parts[::-1]))
        assert every_file(storage.root) == before

    def test_another_is_an_error(self, storage, model):
        manifest = save(storage, model)
        before = every_file(storage.root)
        (renamed, *others) = manifest.parts
        os.link(
            storage.root / manifest.folder / renamed.file,
            storage.root / manifest.folder / "generation-2-server-0.h5",
        )
        parts = (msgspec.structs.replace(renamed, file="generation-2-server-0.h5"), *others)
        for other in (
            msgspec.structs.replace(manifest, parts=parts),
            msgspec.structs.replace(manifest, tick=9),
        ):
            with pytest.raises(CheckpointError, match="manifest.json: FileExistsError"):
                checkpoint.commit(storage, other)
        assert {name: every_file(storage.root)[name] for name in before} == before

    def test_who_follows_finds_that_its_predecessor_has_committed_the_same(self, storage, model):
        """By other servers, whose parts have other names; its own may have been tidied away."""
        manifest = save(storage, model)
        parts = tuple(replace(part, file=f"generation-9-{part.file}") for part in manifest.parts)
        mine = replace(manifest, parts=parts)
        assert checkpoint.is_committed(storage, mine, exactly=True)
        number, arrays = next(iter(parts[0].chunks.items()))
        (name, saved), *_ = arrays.items()
        chunks = {**parts[0].chunks, number: {**arrays, name: replace(saved, sha256="0" * 64)}}
        other = replace(mine, parts=(replace(parts[0], chunks=chunks), *parts[1:]))
        assert not checkpoint.is_committed(storage, other, exactly=True)
        assert checkpoint.is_committed(storage, other, exactly=False), "asynchronously there is no other"
        for odd in (replace(mine, tick=9), replace(mine, quarantined=((1, 0),)), replace(mine, step=9)):
            assert not checkpoint.is_committed(storage, odd, exactly=False)
        path = storage.root / manifest.folder / manifest.parts[0].file
        path.write_bytes(path.read_bytes()[:-1])
        assert not checkpoint.is_committed(storage, mine, exactly=False), "it is not whole"

    def test_a_damaged_one_is_an_error(self, storage, model):
        manifest = save(storage, model)
        (storage.root / manifest.folder / "manifest.json").write_bytes(b"{}")
        with pytest.raises(CheckpointError, match="manifest.json"):
            checkpoint.commit(storage, manifest)


class TestAdopting:
    def test_steps_that_servers_write_are_left_alone(self, storage, model):
        save(storage, model, 100)
        for step in (50, 150, 200, 300):
            write_parts(storage, model, step, 1)
        assert checkpoint.discard_unfinished(storage, keep=range(200, sys.maxsize)) == [50, 150]
        assert checkpoint.discard_unfinished(storage, keep={300}) == [200]
        assert checkpoint.discard_unfinished(storage) == [300]
        assert checkpoint.commits(storage) == [100]

    def test_prune_leaves_newer_steps_alone(self, storage, model):
        save(storage, model, 100)
        folder = storage.root / checkpoint.folder_of(200)
        folder.mkdir()
        (folder / ".x.h5.1.partial").write_bytes(b"in work")
        assert checkpoint.prune(storage, keep=1) == []
        assert os.listdir(folder) == [".x.h5.1.partial"]

    def test_what_is_not_ours_stays_in_a_checkpoint(self, storage, model):
        manifest = save(storage, model)
        (storage.root / manifest.folder / "notes.txt").write_text("a person's")
        write_parts_of_another_generation(storage, model)
        checkpoint.prune(storage, keep=1)
        assert storage.list(manifest.folder) == [
            "generation-1-server-0.h5",
            "generation-1-server-1.h5",
            "manifest.json",
            "notes.txt",
        ]

    def test_a_damaged_checkpoint_is_not_tidied(self, storage, model):
        manifest = save(storage, model)
        write_parts_of_another_generation(storage, model)
        (storage.root / manifest.folder / "manifest.json").write_bytes(b"{}")
        checkpoint.prune(storage, keep=1)
        assert len(storage.list(manifest.folder)) == 4


def write_parts_of_another_generation(storage, model):
    numbers = spread(model.layout, 1)[0]
    chunks = [(model.layout.chunks[number], model.chunk(number)) for number in numbers]
    folder = checkpoint.folder_of(1200)
    checkpoint.write_part(storage, folder, checkpoint.part_name(2, "server-3"), model.layout, chunks)
