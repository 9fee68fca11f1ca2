import hashlib
import json
import os
import random
import shutil
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
from saving import make_manifest, make_model, save, write_parts

from elasticflow import checkpoint
from elasticflow.errors import CheckpointError, ConfigError
from elasticflow.step.layout import Rule
from elasticflow.storage import DirectoryStorage


def files_of(storage, manifest):
    return [storage.root / manifest.folder / name for name in storage.list(manifest.folder)]


def only_problem(storage, step=1200):
    (problem,) = checkpoint.verify(storage, step)
    return problem


class TestEveryBitCounts:
    """A flipped bit is told, wherever it is."""

    @pytest.mark.parametrize("which", [0, 1, 2], ids=["manifest", "server 0", "server 1"])
    def test_flips(self, storage, model, which):
        manifest = save(storage, model)
        path = files_of(storage, manifest)[which]
        whole = path.read_bytes()
        chance = random.Random(which)
        told = 0
        for position in chance.sample(range(len(whole)), 400):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << chance.randrange(8)
            path.write_bytes(damaged)
            problems = checkpoint.verify(storage, 1200)
            told += bool(problems)
            assert all("step-0000001200" in problem for problem in problems)
        assert told == 400

    def test_bytes_all_over_the_arrays(self, storage, model):
        manifest = save(storage, model, num_servers=1)
        path = storage.root / manifest.folder / "generation-1-server-0.h5"
        whole = path.read_bytes()
        for number in (0, 5):
            for name, array in model.chunk(number).items():
                start = whole.index(array.tobytes())
                for position in range(start, start + array.nbytes, 7):
                    damaged = bytearray(whole)
                    damaged[position] ^= 0x10
                    path.write_bytes(damaged)
                    assert f"generation-1-server-0.h5: chunk {number}, '{name}'" in only_problem(storage)

    @pytest.mark.parametrize("which", [0, 1], ids=["manifest", "part"])
    def test_truncation_anywhere(self, storage, model, which):
        path = files_of(storage, save(storage, model))[which]
        whole = path.read_bytes()
        for length in {0, 1, 7, 100, len(whole) // 2, len(whole) - 1}:
            path.write_bytes(whole[:length])
            assert path.name in only_problem(storage)


class TestDamageIsNamed:
    def test_hash(self, storage, model):
        manifest = save(storage, model, num_servers=1)
        path = storage.root / manifest.folder / "generation-1-server-0.h5"
        value = model.chunk(0)["value"].tobytes()
        path.write_bytes(path.read_bytes().replace(value, bytes(len(value))))
        found, expected = hashlib.sha256(bytes(len(value))).hexdigest(), hashlib.sha256(value).hexdigest()
        text = f"generation-1-server-0.h5: chunk 0, 'value': .*SHA-256 is {found}, expected {expected}"
        with checkpoint.Reader(storage, manifest) as reader:
            reader.read_chunk(1)
            with pytest.raises(CheckpointError, match=text):
                reader.read_chunk(0)
        with pytest.raises(CheckpointError, match=text):
            dict(checkpoint.tensors(storage, manifest))

    def test_missing_file(self, storage, model):
        manifest = save(storage, model)
        storage.remove(f"{manifest.folder}/generation-1-server-1.h5")
        assert "generation-1-server-1.h5 (chunks " in only_problem(storage)

    def test_wrong_size(self, storage, model):
        manifest = save(storage, model)
        with open(storage.root / manifest.folder / "generation-1-server-1.h5", "ab") as file:
            file.write(b"x")
        size = manifest.parts[1].num_bytes
        assert f"{size + 1} bytes, expected {size}" in only_problem(storage)

    @pytest.mark.parametrize("where", ["front", "between", "end"])
    def test_what_hdf5_has_around_the_arrays(self, storage, model, where):
        manifest = save(storage, model, num_servers=1)
        path = storage.root / manifest.folder / "generation-1-server-0.h5"
        first = manifest.parts[0].chunks[0]["value"]
        between = first.start + model.chunk(0)["value"].nbytes + 1
        data = bytearray(path.read_bytes())
        data[{"front": 3, "between": between, "end": -1}[where]] ^= 1
        path.write_bytes(data)
        assert "generation-1-server-0.h5: the HDF5 around its arrays: ValueError" in only_problem(storage)

    def test_arrays_that_cannot_be_where_the_manifest_says(self, storage, model):
        manifest = save(storage, model, num_servers=1)
        (part,) = manifest.parts
        for start in (-5, part.num_bytes - 1, 1 << 62, 1 << 80):
            chunks = {**part.chunks, 0: {**part.chunks[0], "value": checkpoint.Saved(start, "0" * 64)}}
            odd = msgspec.structs.replace(manifest, parts=(msgspec.structs.replace(part, chunks=chunks),))
            with checkpoint.Reader(storage, odd) as reader:
                problems = reader.problems(odd.parts[0])
            assert "generation-1-server-0.h5: chunk 0, 'value': " in problems[0]

    def test_manifest_of_another_step(self, storage, model):
        manifest = save(storage, model)
        shutil.copytree(storage.root / manifest.folder, storage.root / checkpoint.folder_of(1300))
        assert "of step 1200, the folder of step 1300" in only_problem(storage, 1300)

    def test_manifest_of_a_later_format(self, storage, model):
        manifest = save(storage, model)
        path = storage.root / manifest.folder / "manifest.json"
        inner = json.dumps({"format": 9, "unheard of": 1}).encode()
        sealed = {"sha256": hashlib.sha256(inner).hexdigest(), "manifest": msgspec.Raw(inner)}
        path.write_bytes(msgspec.json.encode(sealed))
        assert "format 9, this ElasticFlow reads 2" in only_problem(storage)

    def test_nothing_there(self, storage):
        assert "step-0000000007/manifest.json: FileNotFoundError" in only_problem(storage, 7)
        assert checkpoint.commits(storage) == []
        assert checkpoint.newest_intact(storage) == (None, [])

    def test_a_chunk_that_is_not_kept(self, storage, model):
        manifest = save(storage, model)
        cost = next(c.number for c in model.layout.chunks if model.layout.groups[c.group].rule is Rule.REPORT)
        with checkpoint.Reader(storage, manifest) as reader, pytest.raises(CheckpointError, match="no chunk"):
            reader.read_chunk(cost)


def test_the_newest_intact_one_is_found_and_damages_are_told(storage, model):
    for step in (100, 200, 300):
        save(storage, model, step)
    (storage.root / "checkpoints/step-0000000300/manifest.json").write_bytes(b"{")
    (storage.root / "checkpoints/step-0000000200/generation-1-server-0.h5").write_bytes(b"")
    manifest, damages = checkpoint.newest_intact(storage)
    assert manifest.step == 100
    assert [damage.split(" ")[0] for damage in damages] == [
        "checkpoints/step-0000000300/manifest.json:",
        "checkpoints/step-0000000200/generation-1-server-0.h5",
    ]


class TestCommitRefuses:
    def refuse(self, storage, model, parts, text, **changes):
        with pytest.raises(CheckpointError, match=text):
            checkpoint.commit(storage, make_manifest(model, 1, parts, **changes))
        assert checkpoint.commits(storage) == []

    def test_incomplete_sets_of_parts(self, storage, model):
        parts = write_parts(storage, model, 1, 3)
        replace = msgspec.structs.replace
        self.refuse(storage, model, parts[:2], r"chunks \[.*in no file")
        self.refuse(storage, model, (*parts, replace(parts[0], file="again.h5")), r"chunks \[0.*in several")
        self.refuse(storage, model, (*parts, parts[0]), "occur once")
        self.refuse(storage, model, (replace(parts[0], file="../a.h5"), *parts[1:]), "plain name")
        self.refuse(storage, model, (replace(parts[0], num_bytes=1), *parts[1:]), "its server wrote 1")
        self.refuse(storage, model, (replace(parts[0], file="no.h5"), *parts[1:]), "no.h5: FileNotFound")
        slotless = {number: {"value": names["value"]} for number, names in parts[0].chunks.items()}
        self.refuse(storage, model, (replace(parts[0], chunks=slotless), *parts[1:]), "its group")

    def test_what_does_not_belong_together(self, storage, model):
        parts = write_parts(storage, model, 1, 1)
        self.refuse(storage, model, parts, "signature", signature="0" * 64)
        self.refuse(storage, model, parts, "TypeError", work={"seed": object()})

    def test_a_step_that_is_committed(self, storage, model):
        manifest = save(storage, model)
        before = files_of(storage, manifest)[0].read_bytes()
        with pytest.raises(CheckpointError, match="FileExistsError"):
            checkpoint.commit(storage, msgspec.structs.replace(manifest, epoch=9))
        assert files_of(storage, manifest)[0].read_bytes() == before


class FullDisk(DirectoryStorage):
    """Has room for ``room`` more bytes."""

    room = 0

    @contextmanager
    def create(self, name):
        with super().create(name) as file:
            yield _FullFile(self, file)


class _FullFile:
    def __init__(self, disk, file):
        self.disk, self.file = disk, file

    def write(self, data):
        self.disk.room -= len(data)
        if self.disk.room < 0:
            raise OSError(28, "No space left on device")
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


class TestCrashes:
    @pytest.mark.parametrize("room", [0, 48, 500, 4_000, 8_000])
    def test_a_full_disk_leaves_no_part(self, storage, model, room):
        manifest = save(storage, model, 100)
        digest = checkpoint.digest(storage, manifest)
        disk = FullDisk(storage.root)
        disk.room = room
        with pytest.raises(CheckpointError, match=r"generation-1-server-\d.h5") as error:
            write_parts(disk, model, 200, 2)
        failed = "generation-1-server-0.h5" if "server-0" in str(error.value) else "generation-1-server-1.h5"
        assert not [
            name for name in os.listdir(storage.root / "checkpoints/step-0000000200") if failed in name
        ]
        self.only_100_is_there(storage, digest)

    def test_parts_without_a_manifest_are_no_checkpoint(self, storage, model):
        digest = checkpoint.digest(storage, save(storage, model, 100))
        write_parts(storage, model, 200, 2)
        disk = FullDisk(storage.root)
        disk.room = 10
        with pytest.raises(CheckpointError, match="manifest.json: OSError.*No space left"):
            checkpoint.commit(disk, save_parts_only(storage, model))
        self.only_100_is_there(storage, digest)

    def only_100_is_there(self, storage, digest):
        assert checkpoint.commits(storage) == [100]
        manifest, damages = checkpoint.newest_intact(storage)
        assert (checkpoint.digest(storage, manifest), damages) == (digest, [])

    def test_a_step_comes_again_after_a_crash(self, storage, model):
        save(storage, model, 100)
        write_parts(storage, model, 200, 2)
        assert checkpoint.discard_unfinished(storage) == [200]
        save(storage, make_model(seed=1), 200)
        assert checkpoint.commits(storage) == [100, 200]
        assert checkpoint.verify(storage, 200) == []

    def test_an_array_that_does_not_fit_leaves_no_part(self, storage, model):
        chunk = model.layout.chunks[0]
        good = model.chunk(0)
        bad = [
            {"exp_avg": good["exp_avg"]},
            {"value": good["value"].astype("float64")},
            {"value": good["value"][:-1]},
            good | {"exp_avg": good["exp_avg"].view("int32")},
            good | {"a/b": good["value"]},
            good | {"x": np.repeat(good["value"], 2)[::2]},
        ]
        for arrays in bad:
            with pytest.raises(CheckpointError, match="part.h5: chunk 0: "):
                checkpoint.write_part(storage, "f", "part.h5", model.layout, [(chunk, arrays)])
        assert storage.list() == []


def save_parts_only(storage, model):
    return make_manifest(model, 300, write_parts(storage, model, 300, 2))


class TestPrune:
    def test_keeps_the_newest_and_clears_leftovers_before_it(self, storage, model):
        for step in (100, 300, 500, 700):
            save(storage, model, step)
        for step in (200, 600, 800):
            write_parts(storage, model, step, 1)
        (storage.root / "checkpoints/notes.txt").write_text("a person's")
        assert checkpoint.prune(storage, keep=2) == [100, 200, 300, 600]
        assert checkpoint.commits(storage) == [500, 700]
        assert storage.list("checkpoints") == [
            "notes.txt",
            "step-0000000500",
            "step-0000000700",
            "step-0000000800",
        ]
        assert checkpoint.prune(storage, keep=5) == []

    def test_as_if_there_were_no_later_ones(self, storage, model):
        """Somebody may be reading what was the newest when this was asked for."""
        for step in (100, 300, 500):
            save(storage, model, step)
        assert checkpoint.prune(storage, keep=1, upto_step=300) == [100]
        assert checkpoint.prune(storage, keep=1, upto_step=200) == []
        assert checkpoint.commits(storage) == [300, 500]

    def test_a_crash_in_the_middle_leaves_no_half_checkpoint(self, storage, model, monkeypatch):
        for step in (100, 200):
            save(storage, model, step)
        removed = []

        def remove_once(name):
            if removed:
                raise OSError("killed")
            removed.append(name)
            DirectoryStorage.remove(storage, name)

        monkeypatch.setattr(storage, "remove", remove_once)
        with pytest.raises(CheckpointError, match="step-0000000100: OSError: killed"):
            checkpoint.prune(storage, keep=1)
        monkeypatch.undo()
        assert removed == ["checkpoints/step-0000000100/manifest.json"]
        assert checkpoint.commits(storage) == [200]
        assert checkpoint.prune(storage, keep=1) == [100]

    def test_the_newest_always_stays(self, storage, model):
        assert checkpoint.prune(storage, keep=1) == []
        write_parts(storage, model, 100, 1)
        assert checkpoint.prune(storage, keep=1) == []
        with pytest.raises(ConfigError, match="keep=0"):
            checkpoint.prune(storage, keep=0)
