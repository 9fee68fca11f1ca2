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

BETWEEN = """
import os, pathlib, signal, sys
from elasticflow.process.new_files import replacing
rename = pathlib.Path.rename
pathlib.Path.rename = lambda path, to: (rename(path, to), os.kill(os.getpid(), signal.SIGKILL))
with replacing(pathlib.Path(sys.argv[1])) as path:
    path.mkdir()
    (path / "new").touch()
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


def test_one_that_was_killed_between_two_acts_has_lost_nothing(tmp_path: Path) -> None:
    """The next one puts in its place what is whole, and only then begins, and may fail."""
    target = tmp_path / "saved"
    folder_of(target, "old")
    subprocess.run([sys.executable, "-c", BETWEEN, target], check=False, cwd=Path(__file__).parents[2])
    assert len(names(tmp_path)) == 1 and not target.exists()
    with pytest.raises(OSError, match="full"), replacing(target):
        raise OSError("the disk is full")
    assert names(tmp_path) == ["saved"] and names(target) == ["new"]


def test_a_ctrl_c_between_two_acts_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, rename = tmp_path / "saved", Path.rename
    folder_of(target, "old")

    def interrupted(path: Path, to: Path) -> Path:
        rename(path, to)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), replacing(target) as path:
        folder_of(path, "new")
        monkeypatch.setattr(Path, "rename", interrupted)
    assert names(tmp_path) == ["saved"] and names(target) == ["new"]


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
