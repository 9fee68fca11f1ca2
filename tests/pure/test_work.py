"""From which checkpoints a run can go on: those of which the model would be the same."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import elasticflow as ef
from elasticflow.checkpoint import Manifest
from elasticflow.errors import CheckpointError
from elasticflow.master.saving import _check_same_data
from elasticflow.run.config import Config
from elasticflow.run.work import check_same_files, check_same_work, files_told, work_of
from elasticflow.step.schedule import SLICING
from elasticflow.storage.file_ids import FileId, list_id
from elasticflow.wire.messages import Spec

FILE = FileId("/here/a.npz", 1000, "17", "5", "anna", "abc")


def manifest(config: Config, sources: Any = (), **work: Any) -> Manifest:
    """Of a checkpoint of a run with these settings."""
    return Manifest(
        program="digits.py", tick=5, step=5, epoch=0, optimizer={}, fingerprint={}, signature="", entries=(),
        parts=(), work={**work_of(config), "slicing": SLICING, "num_records": 1797, **work}, sources=sources,
    )  # fmt: skip


def spec(*files: FileId) -> Spec:
    return Spec(
        framework="torch", entries=(), optimizer=ef.SGD(lr=1), metrics=(), num_records=1, num_test=0,
        data_signature="", files=files,
    )  # fmt: skip


def test_a_list_of_files_that_came_or_went_is_no_change() -> None:
    """Of those that a program's own dataset has: it may be a cache of its."""
    ours = (FileId("/here/7.npy", 9, "17", sample="abc", of_list="dataset.files[0]"), listed("files"))
    cache = (FileId("/there/7.npy", 9, "18", sample="def", of_list="dataset.cache[0]"), listed("cache"))
    before = manifest(Config(), files_told((FILE, *ours)))
    check_same_files(before, spec(FILE, *cache, *ours))
    other = msgspec.structs.replace(ours[0], sample="abd")
    with pytest.raises(
        CheckpointError, match=r"7\.npy, of 9 bytes, was dataset\.files\[0\]: 7\.npy of 9 bytes"
    ):
        check_same_files(before, spec(FILE, *cache, other, ours[1]))
    check_same_files(before, spec(FILE))
    with pytest.raises(CheckpointError, match="there are 2 files, and were 3"):
        check_same_files(before, spec(FILE, ours[0]))


def listed(name: str) -> FileId:
    return list_id(f"dataset.{name}[0]", 1, ["7.npy"])


@pytest.mark.parametrize(("before", "advice"), [(False, "drop_last: false"), (True, "drop_last: true")])
def test_drop_last_stays(before: bool, advice: str) -> None:
    check_same_work(manifest(Config(drop_last=before)), Config(drop_last=before))
    with pytest.raises(CheckpointError, match=f"drop_last {before}, now it is {not before}.*{advice}"):
        check_same_work(manifest(Config(drop_last=before)), Config(drop_last=not before))


def of_before(config: Config, num_records: int) -> Manifest:
    """As an ElasticFlow wrote it that had other slices."""
    now = manifest(config, num_records=num_records)
    work = {name: value for name, value in now.work.items() if name not in ("slicing", "drop_last")}
    return msgspec.structs.replace(now, work=work)


@pytest.mark.parametrize("num_records", [64, 28 * 64, 28 * 64 + 32, 28 * 64 + 63])
def test_older_runs_go_on_where_their_slices_are_those_of_now(num_records: int) -> None:
    check_same_work(of_before(Config(), num_records), Config())


@pytest.mark.parametrize("num_records", [5, 1797, 28 * 64 + 31])
def test_older_runs_whose_last_batch_was_cut_otherwise_are_refused(num_records: int) -> None:
    with pytest.raises(CheckpointError, match="the model would be another. Go on with that ElasticFlow"):
        check_same_work(of_before(Config(), num_records), Config())


def test_files_may_be_touched_and_moved_but_not_be_others() -> None:
    before = manifest(Config(), files_told((FILE,)))
    touched = msgspec.structs.replace(FILE, name="/there/a.npz", modified="18", inode="9", host="otto")
    check_same_files(before, spec(touched))
    check_same_files(manifest(Config()), spec(FILE))  # nothing is known of them
    changes: list[tuple[dict[str, Any], str]] = [
        ({"num_bytes": 1001}, "of 1,001 bytes, was a.npz of 1,000 bytes"),
        ({"sample": "abd"}, "of 1,000 bytes, was a.npz of 1,000 bytes, but others"),
    ]
    for change, words in changes:
        with pytest.raises(CheckpointError, match=f"data has changed since .* step 5: /here/a.npz, {words}"):
            check_same_files(before, spec(msgspec.structs.replace(FILE, **change)))
    with pytest.raises(CheckpointError, match="there are 2 files, and were 1"):
        check_same_files(before, spec(FILE, FILE))
    check_same_files(before, spec(msgspec.structs.replace(FILE, sample="2:abd")))  # another kind of sample
    with pytest.raises(CheckpointError, match="but others"):
        check_same_files(before, spec(msgspec.structs.replace(FILE, sample="")))


def test_of_records_from_which_an_epoch_is_chosen_the_file_is_named() -> None:
    """A mixture has as many records an epoch whatever its sources have."""
    data = {"num_records": 1, "num_test": 0, "data_signature": "before"}
    with pytest.raises(CheckpointError, match="there are 1 files, and were 2"):
        _check_same_data(manifest(Config(), files_told((FILE, FILE)), **data), spec(FILE))
    with pytest.raises(CheckpointError, match="other columns, or another number of records"):
        _check_same_data(manifest(Config(), files_told((FILE,)), **data), spec(FILE))
