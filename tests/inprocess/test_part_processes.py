"""Where the processes that compute parts come from, also if the one that is to fork them cannot."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import pytest

from elasticflow.applying import part_processes
from elasticflow.applying.part_processes import PartProcess, PartProcesses
from elasticflow.process.fingerprint import environment
from tests.clusters.processes import parent_of

THREADED = """import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
WAIT_S = 60.0


class Begun:
    """One process, that waits for an order."""

    def __init__(self, origin: PartProcesses, folder: Path, name: str) -> None:
        self.pipe: Connection[bytes, bytes]
        self.pipe, theirs = Pipe()
        with theirs:
            self.process: PartProcess = origin.begin(name, theirs.fileno(), folder / f"{name}.log")

    def end(self) -> int:
        """By itself."""
        self.pipe.close()
        return self.process.wait(WAIT_S)


@pytest.fixture
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PartProcesses]:
    """Of a program that imports a framework of this text."""
    framework = tmp_path / "lib" / "torch" / "__init__.py"
    framework.parent.mkdir(parents=True)
    framework.write_text(request.param)
    (tmp_path / "lib" / "heavy").mkdir()
    (tmp_path / "lib" / "heavy" / "__init__.py").touch()
    (tmp_path / "lib" / "heavy" / "part.py").write_text("print('heavy.part', flush=True)\n")
    (tmp_path / "program.py").write_text("import torch\nfrom heavy import part\n")
    paths = [str(tmp_path / "lib"), os.environ.get("PYTHONPATH", "")]
    variables = {**environment(1), "PYTHONPATH": ":".join(filter(None, paths))}
    origin = PartProcesses(str(tmp_path / "program.py"), tmp_path / "forker.log", variables)
    yield origin
    origin.close()


@pytest.mark.parametrize("origin", [""], indirect=True)
def test_they_are_forked_and_end_each_in_its_way(origin: PartProcesses, tmp_path: Path) -> None:
    well, killed, waits = (Begun(origin, tmp_path, name) for name in ("well", "killed", "waits"))
    killed.process.kill()
    with pytest.raises(subprocess.TimeoutExpired):
        waits.process.wait(0.1)
    assert well.end() == 0, "though the end of the other is told first"
    assert killed.process.wait(WAIT_S) == -signal.SIGKILL
    assert not any(isinstance(each.process, subprocess.Popen) for each in (well, killed, waits))
    assert waits.end() == 0


@pytest.mark.parametrize("origin", [""], indirect=True)
def test_what_the_program_imports_is_there_before_they_are_forked(
    origin: PartProcesses, tmp_path: Path
) -> None:
    assert Begun(origin, tmp_path, "begun").end() == 0
    assert (tmp_path / "forker.log").read_text() == "heavy.part\n"


@pytest.mark.parametrize("origin", [""], indirect=True)
def test_all_end_with_the_one_that_forks_them_and_the_next_begin_anew(
    origin: PartProcesses, tmp_path: Path
) -> None:
    first, other = Begun(origin, tmp_path, "first"), Begun(origin, tmp_path, "other")
    os.kill(origin.forker_pid, signal.SIGKILL)
    assert [each.process.wait(WAIT_S) for each in (first, other)] == [-signal.SIGKILL] * 2
    for each in (first, other):
        with pytest.raises((EOFError, ConnectionResetError)):
            each.pipe.recv_bytes()
    again = Begun(origin, tmp_path, "again")
    assert isinstance(again.process, subprocess.Popen) and parent_of(again.process.pid) == os.getpid()
    assert again.end() == 0


@pytest.mark.parametrize("origin", [""], indirect=True)
def test_nobody_waits_for_ever_for_one_that_is_stuck(
    origin: PartProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_processes, "STUCK_S", 0.1)
    begun = Begun(origin, tmp_path, "begun")
    os.kill(origin.forker_pid, signal.SIGSTOP)
    begun.process.kill()
    assert begun.process.wait() == -signal.SIGKILL
    again = Begun(origin, tmp_path, "again")
    assert isinstance(again.process, subprocess.Popen) and again.end() == 0


@pytest.mark.parametrize("origin", [THREADED, "import os\nos.abort()"], indirect=True)
def test_where_nothing_can_be_forked_each_begins_anew(origin: PartProcesses, tmp_path: Path) -> None:
    begun = [Begun(origin, tmp_path, name) for name in ("first", "other")]
    assert all(isinstance(each.process, subprocess.Popen) for each in begun)
    assert [each.end() for each in begun] == [0, 0]
