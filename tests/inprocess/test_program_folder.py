"""What of a program's folder a cluster is sent."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from elasticflow.errors import ConfigError
from elasticflow.program import folder
from elasticflow.program.folder import copy_folder, files_in, pack_folder

KEPT = ["lib/a.py", "p.py", "shared/b.py", "words.txt"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Its folder, with what belongs to no program, and links to elsewhere and to itself."""
    for name in (
        "p.py",
        "lib/a.py",
        "lib/__pycache__/a.pyc",
        ".git/HEAD",
        "runs/r/run.json",
        "env/pyvenv.cfg",
        "env/x",
        "../words",
        "../elsewhere/b.py",
    ):
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "folder" / "words.txt").symlink_to(tmp_path / "words")
    (tmp_path / "folder" / "shared").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder" / "lib" / "up").symlink_to(tmp_path / "folder")
    (tmp_path / "folder" / "nowhere").symlink_to(tmp_path / "gone")
    return tmp_path / "folder"


def test_an_archive_of_it(program: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(pack_folder(program))) as tar:
        assert sorted(tar.getnames()) == KEPT
        words = tar.extractfile("words.txt")
        assert words and words.read() == b"../words"


def test_a_copy_of_it(program: Path, tmp_path: Path) -> None:
    """Again, too: a run that goes on has the program as it is by then."""
    copy_folder(program, tmp_path / "copy")
    (program / "p.py").write_text("changed")
    copy_folder(program, tmp_path / "copy")
    found = sorted(path for path in (tmp_path / "copy").rglob("*") if path.is_file())
    assert [str(path.relative_to(tmp_path / "copy")) for path in found] == KEPT
    assert not any(path.is_symlink() for path in found)
    assert (tmp_path / "copy" / "p.py").read_text() == "changed"
    assert sorted(files_in(tmp_path / "copy")) == found


def test_a_folder_that_holds_more_than_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(folder, "LARGE_BYTES", 1000)
    (tmp_path / "p.py").write_text("")
    pack_folder(tmp_path)
    assert not capsys.readouterr().err
    (tmp_path / "data").write_bytes(bytes(1500))
    pack_folder(tmp_path)
    assert "the program's folder, which each container is sent" in capsys.readouterr().err
    (tmp_path / "more").write_bytes(bytes(1500))
    with pytest.raises(ConfigError, match="keep data elsewhere, on HDFS"):
        pack_folder(tmp_path)
