"""What comes into being beside its place: whoever is killed over it leaves nothing for good."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from elasticflow.process import new_files
from elasticflow.process.new_files import replacing

KILLED = """
import os, pathlib, signal, sys
from elasticflow.process.new_files import replacing
with replacing(pathlib.Path(sys.argv[1])) as path:
    path.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def folder_of(path: Path, word: str) -> None:
    path.mkdir()
    (path / word).touch()


def test_what_a_killed_one_left_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "model [1].npz"
    subprocess.run([sys.executable, "-c", KILLED, target], check=False, cwd=Path(__file__).parents[2])
    [left] = names(tmp_path)
    assert left.startswith(".model [1].npz.") and left.endswith(".partial")
    with replacing(target) as path:
        assert left not in names(tmp_path)
        path.write_bytes(b"whole")
    assert target.read_bytes() == b"whole"
    assert names(tmp_path) == [target.name]


def test_what_somebody_is_at_work_on_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "model.npz"
    with replacing(target) as first:
        first.write_bytes(b"first")
        with replacing(target) as second:
            second.write_bytes(b"second")
        assert target.read_bytes() == b"second"
    assert target.read_bytes() == b"first"
    assert names(tmp_path) == [target.name]


def test_a_place_that_is_cleared_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_free, looks = new_files._is_free, []

    def cleared(lock: int) -> bool:
        if not looks:  # by another, between the two
            looks.append(lock)
            [folder] = tmp_path.iterdir()
            folder.rmdir()
        return is_free(lock)

    monkeypatch.setattr(new_files, "_is_free", cleared)
    with replacing(tmp_path / "model.npz") as path:
        path.touch()
    assert looks and names(tmp_path) == ["model.npz"]


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(lock: int) -> bool:
        raise OSError("no locks here")

    monkeypatch.setattr(new_files, "_is_free", unknown)
    folder_of(tmp_path / ".model.npz.0.partial", "another's")
    with replacing(tmp_path / "model.npz") as path:
        path.touch()
    assert names(tmp_path) == [".model.npz.0.partial", "model.npz"]


def test_a_folder_takes_a_folders_place(tmp_path: Path) -> None:
    target = tmp_path / "saved"
    for word in ("old", "new"):
        with replacing(target) as path:
            folder_of(path, word)
    assert names(target) == ["new"]
    assert names(tmp_path) == ["saved"]


def test_a_file_does_not_take_a_folders_place(tmp_path: Path) -> None:
    folder_of(tmp_path / "model.pt", "mine")
    with pytest.raises(IsADirectoryError), replacing(tmp_path / "model.pt") as path:
        path.touch()
    assert names(tmp_path / "model.pt") == ["mine"]


def test_many_at_once_into_one_folders_place(tmp_path: Path) -> None:
    target = tmp_path / "saved"
    begin, failures = threading.Barrier(4), []

    def work(word: str) -> None:
        begin.wait()
        try:
            for _ in range(50):
                with replacing(target) as path:
                    folder_of(path, word)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(names(target)) == 1
    assert names(tmp_path) == ["saved"]
