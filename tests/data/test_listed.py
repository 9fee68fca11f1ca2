"""Files that a dataset of a program's own reads, one for each record."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset

from elasticflow.data import Indexed, Transform, listed
from elasticflow.data.opening import open_source
from elasticflow.errors import CheckpointError, UnreadableError
from elasticflow.run.work import check_same_files, files_told
from elasticflow.storage import file_ids
from elasticflow.storage.file_ids import FileId, first_change, folded

COUNT = 12


class Files(Dataset[Any]):
    """Reads what it was given the names of. where: what a dataset keeps, by attribute."""

    def __init__(self, paths: list[Path], **where: Any) -> None:
        self.where = [str(path.parent.parent) for path in paths]  # no files
        self.__dict__.update(where)
        self._read = lambda number: np.load(paths[number])

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> Any:
        return self._read(number)


class Within(Dataset[Any]):
    def __init__(self, inner: Dataset[Any]) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> Any:
        return -self.inner[number]


def labels(paths: list[Path]) -> list[int]:
    return [number % 3 for number in range(len(paths))]


def frame(paths: list[Path]) -> pd.DataFrame:
    return pd.DataFrame({"label": labels(paths), "file": [path.name for path in paths]})


KINDS: dict[str, Callable[[list[Path]], Any]] = {
    "paths": lambda paths: Files(paths, files=paths),
    "texts": lambda paths: Files(paths, files=tuple(map(str, paths))),
    "array": lambda paths: Files(paths, files=np.array([str(path) for path in paths])),
    "samples": lambda paths: Files(paths, samples=list(zip(map(str, paths), labels(paths), strict=True))),
    "names": lambda paths: Files(paths, names=[path.name for path in paths], root=paths[0].parent),
    "frame": lambda paths: Files(paths, table=frame(paths), folder=str(paths[0].parent)),
    "series": lambda paths: Files(paths, table=frame(paths)["file"], folder=str(paths[0].parent)),
    "subset": lambda paths: Subset(
        Files(paths, files=[*paths, paths[0].with_name("other.npy")]), list(range(COUNT))
    ),
    "within": lambda paths: Within(Files(paths, files=paths)),
    "concat": lambda paths: ConcatDataset([Files(paths, files=paths)]),
    "stack": lambda paths: StackDataset(x=Files(paths, files=paths)),
}
UNALIGNED = ("concat", "stack")
"""Whose records are of which files is not known."""


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    (tmp_path / "records").mkdir()
    found = [tmp_path / "records" / f"{number}.npy" for number in range(COUNT)]
    for number, path in enumerate(found):
        np.save(path, np.full(3, number, np.float32))
    return found


@pytest.fixture(params=list(KINDS))
def dataset(request: pytest.FixtureRequest, paths: list[Path]) -> Any:
    np.save(paths[0].with_name("other.npy"), np.zeros(3, np.float32))
    return KINDS[request.param](paths)


def change(path: Path) -> None:
    """One value: as many bytes, and in its place."""
    values, changed_ns = np.load(path), path.stat().st_mtime_ns
    values[1] += 1
    with path.open("r+b") as file:
        np.save(file, values)
    os.utime(path, ns=(0, changed_ns + 10**9))  # some kernels' clocks go by ten milliseconds


def test_whoever_comes_later_finds_that_one_has_changed(dataset: Any, paths: list[Path]) -> None:
    before = Indexed(dataset).files
    assert before and first_change(before, Indexed(dataset).files) == ""
    change(paths[7])
    after = Indexed(dataset).files
    assert "7.npy has changed: it has as many bytes as before, but others" in first_change(before, after)
    assert files_told(before) != files_told(after)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in UNALIGNED])
def test_who_reads_it_again_does_so_too(kind: str, paths: list[Path]) -> None:
    source = Indexed(KINDS[kind](paths)) if kind != "subset" else open_source(Files(paths, files=paths))[0]
    source = Transform(source, lambda record: record)  # as it is mostly used
    source.rows(np.arange(COUNT))
    os.utime(paths[3], ns=(0, 0))
    source.rows(np.array([2, 4]))
    with pytest.raises(UnreadableError, match=r"3\.npy has changed: it was written to, touched or replaced"):
        source.rows(np.array([2, 3]))
    paths[4].unlink()
    with pytest.raises(UnreadableError, match=r"4\.npy is gone\. A run's data must stay as it is"):
        source.rows(np.array([4]))


def test_a_file_of_which_no_sample_was_taken_is_looked_at_when_it_is_read(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listed, "MOST_FILES", 3)
    source = Indexed(Files(paths, files=paths))
    assert len(source.files) == 3 + 1
    change(paths[7])
    assert source.rows(np.array([7]))["0"][0, 1] == 8, "nobody has read it before"
    change(paths[7])
    with pytest.raises(UnreadableError, match=r"7\.npy has changed"):
        source.rows(np.array([7]))


def test_files_may_be_touched_between_two_runs_and_moved_together(paths: list[Path], tmp_path: Path) -> None:
    before = files_told(Indexed(Files(paths, files=paths)).files)
    os.utime(paths[3], ns=(0, 0))
    shutil.copytree(tmp_path / "records", tmp_path / "moved")
    moved = [tmp_path / "moved" / path.name for path in paths]
    assert files_told(Indexed(Files(moved, files=moved)).files) == before


ALONE: dict[str, Callable[[Path], Any]] = {
    "text": str,
    "path": lambda path: path,
    "mapped": lambda path: np.load(path, mmap_mode="r"),
    "opened": lambda path: path.open("rb"),
    "opened as text": lambda path: path.open("rt", encoding="latin-1"),
    "hdf5": lambda path: h5py.File(path.with_suffix(".h5")),
}


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever there is was there as this process began."""
    monkeypatch.setattr(listed, "process_began_s", lambda: time.time() + 1)


@pytest.mark.parametrize("kind", list(ALONE))
@pytest.mark.parametrize("within", [False, True])
def test_one_file_of_all_records(paths: list[Path], later: None, kind: str, within: bool) -> None:
    """Whoever comes later finds that it has changed."""
    one = paths[3].with_suffix(".h5" if kind == "hdf5" else ".npy")
    with h5py.File(paths[3].with_suffix(".h5"), "w") as file:
        file["x"] = np.zeros(3, np.float32)

    def found() -> tuple[FileId, ...]:
        kept = Files(paths, opened=ALONE[kind](paths[3]))
        files = Indexed(Within(kept) if within else kept).files
        getattr(kept.opened, "close", int)()
        return files

    before = found()
    assert [Path(each.name) for each in before] == [one] and first_change(before, found()) == ""
    with one.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        opened.write(b"\1")
    change = first_change(before, found())
    where = f"dataset.{'inner.' * within}opened"
    assert change.startswith(f"{one} has changed: it has as many bytes as before, but others ({where} names")
    assert "keep its name in a dict" in change


def test_one_that_is_written_is_none_of_records(paths: list[Path], tmp_path: Path, later: None) -> None:
    cache = np.memmap(tmp_path / "cache", "u1", "w+", shape=(9,))
    with (tmp_path / "log").open("w") as log:
        assert Indexed(Files(paths, log=log, cache=cache, number=3, odd="a\0b")).files == ()


def test_nor_one_that_was_written_since_the_process_began(paths: list[Path]) -> None:
    assert Indexed(Files(paths, path=paths[3])).files == ()


def test_one_that_is_unpacked_meanwhile_leaves_what_is_read_of_another_as_it_is(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: None
) -> None:
    """Who comes later, as a process that reads ahead, finds both."""
    monkeypatch.setattr(file_ids, "SAMPLE_BYTES", 16 << 10)
    packed, unpacked = tmp_path / "packed", tmp_path / "unpacked"
    packed.write_bytes(bytes(range(256)) * 256)
    dataset = Files(paths, packed=packed, unpacked=unpacked)
    before = Indexed(dataset).files
    unpacked.write_bytes(b"1")
    now = Indexed(dataset).files
    assert (len(before), len(now)) == (1, 2) and first_change(before, now) == ""


def test_one_for_tests_may_be_unpacked_where_that_for_training_was_there(
    paths: list[Path], tmp_path: Path, later: None
) -> None:
    """Both are at one place of their datasets. One of another name is still another."""
    train, test = tmp_path / "train", tmp_path / "test"
    train.write_text("1")
    datasets = [Files(paths, path=train), Files(paths, path=test)]
    before = [file for each in datasets for file in Indexed(each).files]
    test.write_text("2")
    now = [file for each in datasets for file in Indexed(each).files]
    assert (len(before), len(now)) == (1, 2)
    assert first_change(before, now) == first_change(now, before) == ""
    spec: Any = SimpleNamespace(files=now)
    manifest: Any = SimpleNamespace(step=1, sources=files_told(tuple(before)))
    check_same_files(manifest, spec)
    assert f"{test} where {train} was" in first_change(before, Indexed(datasets[1]).files)
    train.write_text("3")
    spec.files = [file for each in datasets for file in Indexed(each).files]
    assert f"{train} has changed" in first_change(before, spec.files)
    with pytest.raises(CheckpointError, match="the data has changed"):
        check_same_files(manifest, spec)


def test_an_empty_one_is_none_of_records(paths: list[Path], tmp_path: Path, later: None) -> None:
    """Such as one that is locked, which makes its time another."""
    (tmp_path / "lock").touch()
    assert Indexed(Files(paths, lock=tmp_path / "lock")).files == ()


def test_one_beside_a_list_leaves_what_is_read_of_that_as_it_is(paths: list[Path], later: None) -> None:
    """A run goes on that was begun when such were not looked at."""
    alone, *rest = Indexed(Files(paths, table=paths[3], files=paths)).files
    assert tuple(rest) == Indexed(Files(paths, files=paths)).files
    assert alone.of_list == "dataset.table" and first_change(rest, [alone, *rest]) == ""


def other_names(paths: list[Path]) -> Files:
    paths[5].rename(paths[5].with_name("new.npy"))
    return Files(paths, files=[*paths[:5], paths[5].with_name("new.npy"), *paths[6:]])


def other_classes(paths: list[Path]) -> Files:
    return Files(paths, files=[(str(path), int(number == 5)) for number, path in enumerate(paths)])


@pytest.mark.parametrize("other", [other_names, other_classes])
def test_their_names_and_what_stands_beside_them_count(
    paths: list[Path], other: Callable[[list[Path]], Files], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of those of which no samples are taken."""
    monkeypatch.setattr(listed, "MOST_FILES", 2)
    before = Indexed(Files(paths, files=[(str(path), 0) for path in paths])).files
    assert "the list of 12 files has changed" in first_change(before, Indexed(other(paths)).files)


def test_classes_may_be_numpys(paths: list[Path]) -> None:
    def found(odd: int) -> Any:
        rows = [(path, np.int64(number == odd)) for number, path in enumerate(paths)]
        return files_told(Indexed(Files(paths, files=rows)).files)

    assert found(5) == found(5) != found(6)


@pytest.mark.parametrize("count", [COUNT, 1000])
def test_files_that_a_dataset_writes_meanwhile_are_no_change(
    paths: list[Path], tmp_path: Path, count: int
) -> None:
    """Such as a cache, of which nothing is there as the run begins, and all as another worker joins."""
    cache = [tmp_path / f"cache-{number}" for number in range(count)]
    first = folded(Indexed(Files(paths, cache=cache, files=paths)).files)
    for path in cache:
        path.write_text("")
    dataset = Files(paths, cache=cache, files=paths)
    now = folded(Indexed(dataset).files)
    assert len(now) > len(first) == COUNT + 1
    assert first_change(first, now) == first_change(now, first) == first_change((), now) == ""
    cache[5].unlink()
    assert folded(Indexed(dataset).files) == first, "it is half full: it does not count"
    change(paths[7])
    assert "7.npy has changed" in first_change(first, folded(Indexed(dataset).files))
    assert "7.npy has changed" in first_change(now, folded(Indexed(dataset).files))


@pytest.mark.parametrize("beside", [False, True])
def test_nor_do_they_change_of_which_others_samples_are_taken(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Where there are more files than samples: those of a cache have their share before they are there."""
    monkeypatch.setattr(listed, "MOST_FILES", COUNT)
    monkeypatch.setattr(file_ids, "SAMPLE_BYTES", COUNT * (16 << 10))
    for path in paths:
        np.save(path, np.arange(8192))
    (tmp_path / "cache").mkdir()
    cache = [Path("" if beside else tmp_path, "cache", str(number)) for number in range(9)]
    folder = tmp_path if beside else ""
    dataset = Files(paths, files=paths, cache=cache, labels=["a/b", "c d."], folder=folder)
    before = Indexed(dataset).files
    for number in range(9):
        (tmp_path / "cache" / str(number)).touch()
    now = Indexed(dataset).files
    assert len(now) > len(before) and first_change(before, now) == ""


@pytest.mark.parametrize("odd", ["a\0b", "\ud800", "records/1.npy", "/proc/self/mem", ""], ids=ascii)
def test_any_text_may_stand_among_the_names(
    paths: list[Path], odd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is no file's, a relative one, or that of a file which cannot be read. Of such a list only who
    reads one again finds that it has changed."""
    monkeypatch.chdir(paths[0].parents[1])
    source = Indexed(Files(paths, files=[*paths[:3], odd, *paths[4:]]))
    assert len(source.files) == (COUNT + 1) * (odd == "records/1.npy")
    assert len(source.rows(np.arange(COUNT))["0"]) == COUNT
    change(paths[7])
    with pytest.raises(UnreadableError, match=r"7\.npy has changed"):
        source.rows(np.array([7]))


def test_one_list_by_two_names_counts_once(paths: list[Path]) -> None:
    """ImageFolder has one."""
    once = Indexed(Files(paths, samples=paths)).files
    assert Indexed(Files(paths, samples=paths, imgs=paths)).files == once


def test_many_lists_share_what_is_read(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed, "MOST_FILES", COUNT)
    lists = {f"list{number}": list(paths) for number in range(4)}
    assert len(Indexed(Files(paths, **lists)).files) == 4 * (COUNT // 4 + 1)


def test_a_subset_may_be_empty_or_of_what_has_no_length(paths: list[Path]) -> None:
    files = Files(paths, files=paths)
    source = Indexed(ConcatDataset([files, Subset(files, [])]))
    assert len(source.files) == COUNT + 1

    class Endless(Dataset[Any]):
        def __init__(self) -> None:
            self.files = paths

        def __getitem__(self, number: int) -> Any:
            return np.load(self.files[number])

    assert len(Indexed(Subset(Endless(), [1, 2])).rows(np.arange(2))["0"]) == 2


@pytest.mark.parametrize(
    "kept",
    [
        ["cat", "dog"],
        [],
        [("cat", 1), "dog"],
        ["x" * 10_000, "a\0b"],
        np.zeros((2, 2, 2)),
        {"a": "b"},
        [torch.zeros(2)],
        pd.DataFrame(),
        pd.DataFrame({"a": [1, 2]}),
    ],
    ids=str,
)
def test_what_names_no_files_is_left_alone(paths: list[Path], kept: Any) -> None:
    source = Indexed(Files(paths, kept=kept))
    assert source.files == () and len(source.rows(np.arange(COUNT))["0"]) == COUNT


def test_what_a_dataset_raises_is_left_as_it_is(paths: list[Path]) -> None:
    dataset = Files(paths, files=paths)
    source = Indexed(dataset)
    dataset._read = lambda number: [][number]
    with pytest.raises(IndexError):
        source.rows(np.array([3]))
