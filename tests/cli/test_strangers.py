"""Folders in which somebody else has a hand: nothing of them is read, let alone executed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from elasticflow.cli.main import main
from elasticflow.process.stamps import unstamped

from ..yarn.local_hdfs import LocalHdfs
from .fake_master import new_run

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="makes folders of another user, which takes root")
STRANGER = 65534
COMMANDS = [
    ["status"],
    ["status", "--json"],
    ["report"],
    ["attach"],
    ["logs"],
    ["scale", "RUN", "2"],
    ["stop"],
    ["chaos"],
    ["checkpoint", "list"],
    ["checkpoint", "show"],
    ["checkpoint", "verify"],
    ["checkpoint", "digest"],
    ["checkpoint", "copy", "RUN", "to"],
    ["export", "RUN", "model.npz"],
    ["train", "--resume", "--run-dir"],
    ["train", "some.py", "--run-dir"],
    ["submit", "--resume", "--on", "slurm", "--run-dir"],
    ["lead", "some.py", "--resume", "--run-dir"],
]


@AS_ROOT
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_strangers_folder(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its files are pipes: a command that opened one would wait for ever."""
    monkeypatch.chdir(tmp_path)
    Path("some.py").write_text("def model(): return {}\ndef forward(x, params): return 0\n")
    folder = Path("theirs")
    folder.mkdir()
    for name in ("run.json", "job.json", "master.json", "report.json", "lock"):
        os.mkfifo(folder / name)
    for path in (folder, *folder.iterdir()):
        os.chown(path, STRANGER, STRANGER)
    words = [str(folder) if word == "RUN" else word for word in command]
    assert main(words if words != command else [*command, str(folder)]) == 1
    said = unstamped(capsys.readouterr().err)
    assert said.startswith("Error: theirs") and said.count("\n") == 1
    assert (
        "is no file" if command[0] in ("status", "report") else "belongs to nobody, and not to you or root"
    ) in said


@AS_ROOT
def test_a_strangers_file_in_ones_own_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path / "run")
    os.chown(run.settings, STRANGER, STRANGER)
    for trust, said in ([], "run.json: belongs to nobody"), (["--trust"], "this run is over"):
        assert main(["stop", str(run.path), *trust]) == 1
        assert said in capsys.readouterr().err


@AS_ROOT
def test_a_folder_of_roots_is_fine_but_not_if_all_may_write_it() -> None:
    """By the command itself, for another user, who may not enter pytest's own folders."""
    command = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
    command += [sys.executable, "-m", "elasticflow.cli", "report"]
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        run = new_run(Path(name, "run")).folder
        for mode, told in (0o755, "there is no report"), (0o777, "may be written by everybody (mode 0777;"):
            run.chmod(mode)
            done = subprocess.run([*command, str(run)], capture_output=True, text=True, check=False)
            assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr


def test_a_strangers_folder_in_hdfs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hdfs = LocalHdfs(tmp_path)
    monkeypatch.setattr("elasticflow.storage.webhdfs.WebHdfs", hdfs)
    (tmp_path / "run").mkdir()
    for owner, said in ("mallory", "belongs to mallory, and not to you (anna)"), ("anna", "this run is over"):
        hdfs.owner = owner
        assert main(["stop", "hdfs://nn/run"]) == 1
        assert said in capsys.readouterr().err
