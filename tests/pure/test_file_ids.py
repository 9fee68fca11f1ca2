"""Whether a file is the one that was found before."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from elasticflow.storage.file_ids import (
    MOST_TOLD,
    PIECE_BYTES,
    FileId,
    changed,
    first_change,
    folded,
    of_local,
    sampled,
)

FOUND = FileId("/here/a.npz", 1000, "17", "5", "anna", "abc")


def other(**changes: object) -> FileId:
    return msgspec.structs.replace(FOUND, **changes)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (other(), ""),
        (other(name="/there/a.npz"), ""),
        (other(name="/here/b.npz"), "/here/b.npz where /here/a.npz was"),
        (other(num_bytes=1001), "1,001 bytes, and it had 1,000"),
        (other(sample="abd"), "as many bytes as before, but others"),
        (other(modified="18"), "written to, touched or replaced"),
        (other(inode="6"), ""),  # as in file systems that number files anew
        (other(host="otto"), ""),
        (other(host="otto", modified="18"), "written to, touched"),  # the same inode: a shared folder
        (other(host="otto", modified="18", inode="6"), ""),  # a copy on the other machine
        (other(host="otto", modified="18", inode="6", sample="abd"), "but others"),
        (other(sample="2:abd"), ""),  # by an ElasticFlow that takes others
        (other(sample="2:abd", modified="18"), "written to, touched"),
    ],
)
def test_what_counts(now: FileId, words: str) -> None:
    change = changed(FOUND, now)
    assert words in change and bool(words) == bool(change)


def test_on_hdfs_the_time_counts() -> None:
    assert changed(other(host="", sample=""), other(host="", sample="", modified="18", inode="6"))


def test_the_first_change_is_told() -> None:
    files = [other(name=name) for name in "abc"]
    assert first_change(files, files) == ""
    assert (
        first_change(files, [files[0], other(name="b", num_bytes=1), other(name="c", num_bytes=1)])[0] == "b"
    )
    assert first_change(files, files[:2]) == "there are 2 files, and were 3"


@pytest.mark.parametrize("count", [1, MOST_TOLD, MOST_TOLD + 1, 10 * MOST_TOLD + 3])
@pytest.mark.parametrize("field", ["modified", "sample", "num_bytes"])
def test_of_very_many_files_each_counts(count: int, field: str) -> None:
    files = [other(name=f"/here/part-{number:05}") for number in range(count)]
    told = folded(files)
    assert len(told) <= MOST_TOLD and sum(each.num_bytes for each in told) == 1000 * count
    assert folded(list(files)) == told
    for place in {0, count // 2, count - 1}:
        value = 1001 if field == "num_bytes" else "other"
        now = [*files[:place], msgspec.structs.replace(files[place], **{field: value}), *files[place + 1 :]]
        assert first_change(told, folded(now))


@pytest.mark.parametrize(
    ("size", "num_files", "places"),
    [
        (0, 1, ()),
        (1000, 1, (0, 999)),
        (3 << 20, 1, (0, 1 << 20, (3 << 20) - 1)),
        (3 << 20, 10_000, ((3 << 20) - PIECE_BYTES // 2,)),
        (65 << 20, 1, (0, (65 << 20) - 1)),
    ],
)
def test_a_sample_of_a_file(tmp_path: Path, size: int, num_files: int, places: tuple[int, ...]) -> None:
    """Of all that are not large it is the whole; of others the beginning and the end are in it."""
    path = tmp_path / "a"
    path.write_bytes(bytes(size))
    found = sampled(of_local(str(path), "anna"), num_files)
    assert sampled(of_local(str(path), "anna"), num_files).sample == found.sample
    for place in places:
        with open(path, "r+b") as file:
            file.seek(place)
            file.write(b"x")
        now = sampled(of_local(str(path), "anna"), num_files)
        assert changed(found, now) == f"{path} has changed: it has as many bytes as before, but others"
        path.write_bytes(bytes(size))
        os.utime(path, ns=(0, int(found.modified)))
        assert changed(found, sampled(of_local(str(path), "anna"), num_files)) == ""
