"""A short piece of ``python -m benchmarks forged``: files of somebody who means harm, and what they cost."""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path

import msgspec
import pytest

from benchmarks.forged import KINDS, STEP, _manifest, endure_apart
from elasticflow import checkpoint
from elasticflow.checkpoint.hdf5 import read_array
from elasticflow.checkpoint.manifest import encode
from elasticflow.errors import CheckpointError, RunError
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir, publish
from elasticflow.step.layout import Entry, Layout, Rule
from elasticflow.storage import DirectoryStorage

GROWN_MB = 64


@pytest.mark.parametrize("number", range(len(KINDS)), ids=[kind[0] for kind in KINDS])
def test_forged_files_are_refused_or_fine(number: int) -> None:
    """The HDF5 library may crash, which nobody here can mend; nothing else does."""
    seed = secrets.randbits(32)
    print(f"seed: {seed}")  # shown if this fails
    told = endure_apart(number, seed, 1000)
    assert not told.odd and told.forged == 1000
    assert told.crashes == 0 or KINDS[number][0] == "records in HDF5"
    assert told.refused > 100 or told.crashes
    assert told.grown_mb < GROWN_MB


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ((Entry("w", (2**50,), "float32", Rule.UPDATE),), "at most 1,048,576 chunks"),
        ((Entry("w", (2**40, 2**40), "int64", Rule.FIRST),), "at most 1,048,576 chunks"),
        (tuple(Entry(f"w{n}", (1,), "float32", Rule.UPDATE) for n in range(200_000)), "200,000 tensors"),
        ((Entry("w", (2,), "O", Rule.UPDATE),), "'O', which is none of numbers"),
        ((Entry("w", (2,), "f8,(1000000000,)f8", Rule.UPDATE),), "which is none of numbers"),
        ((Entry("w", (-(2**50),), "float32", Rule.UPDATE),), "shape"),
        ((Entry("t", (), "float32", Rule.ROWS),), "shape"),
    ],
)
def test_a_layout_that_cannot_be(entries: tuple[Entry, ...], words: str) -> None:
    begin_s = time.process_time()
    with pytest.raises(ValueError, match=words):
        Layout(entries)
    assert time.process_time() - begin_s < 5  # for ever, that is, or until memory ends


def test_a_manifest_with_a_right_hash_of_a_tensor_that_cannot_be(tmp_path: Path) -> None:
    import hashlib

    storage = DirectoryStorage(tmp_path)
    folder = tmp_path / checkpoint.folder_of(STEP)
    folder.mkdir(parents=True)
    whole = json.loads(encode(_manifest()))["manifest"]
    whole["entries"][0]["shape"] = [2**50]
    whole["signature"] = hashlib.sha256(msgspec.json.encode(whole["entries"])).hexdigest()
    inner = msgspec.json.encode(whole)
    sealed = {"sha256": hashlib.sha256(inner).hexdigest(), "manifest": msgspec.Raw(inner)}
    (folder / "manifest.json").write_bytes(msgspec.json.encode(sealed))
    with pytest.raises(CheckpointError, match=r"manifest\.json: ValueError: a model of 4,503,599,627,"):
        checkpoint.load_manifest(storage, STEP)


def test_an_array_for_which_there_is_no_memory(tmp_path: Path) -> None:
    """As long as its file, which is sparse."""
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 42)
    with (
        open(path, "rb") as file,
        pytest.raises(MemoryError, match="4,398,046,511,104 bytes, and"),
    ):
        read_array(file, 0, "0" * 64, (1 << 40,), "float32")


@pytest.mark.parametrize("name", ["run.json", "report.json", "manifest.json"])
def test_pipes_and_endless_files(tmp_path: Path, name: str) -> None:
    run = RunDir(tmp_path)
    publish(run.settings, Config())
    folder = tmp_path / checkpoint.folder_of(STEP)
    folder.mkdir(parents=True)
    path = folder / name if name == "manifest.json" else tmp_path / name
    read = {
        "run.json": run.config,
        "report.json": run.read_report,
        "manifest.json": lambda: checkpoint.load_manifest(run.storage(), STEP),
    }[name]
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises((RunError, CheckpointError, OSError), match="is no file"):
        read()
    path.unlink()
    path.touch()
    os.truncate(path, 1 << 42)
    with pytest.raises((RunError, CheckpointError, OSError), match="4,?398,?046,?511,?104 bytes, more than"):
        read()
