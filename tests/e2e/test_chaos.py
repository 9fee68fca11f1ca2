"""The chaos tool on real processes."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticflow.cli.killing import Hand, Victim

from .conftest import CLI, Run, cli

HERE = socket.gethostname()
OPTIONS = ("--epochs", 8, "--batch-size", 64, "--slices", 8)


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", "victim"])
    yield process
    process.kill()
    process.wait()


def _meant(process: subprocess.Popen[bytes], mark: str = "victim", host: str = HERE) -> Victim:
    return Victim("worker-1", host, process.pid, mark)


def _is_stopped(process: subprocess.Popen[bytes]) -> bool:
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def _wait(what: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)  # another process's state cannot be waited for


def test_who_is_frozen_goes_on_when_the_tool_ends(victim: subprocess.Popen[bytes]) -> None:
    _wait(lambda: "victim" in Path(f"/proc/{victim.pid}/cmdline").read_text())
    with pytest.raises(KeyboardInterrupt), Hand() as hand:
        assert hand.strike(_meant(victim), frozen_s=60.0, now_s=100.0) == ""
        _wait(lambda: _is_stopped(victim))
        assert hand.next_s == 160.0
        assert hand.strike(_meant(victim), frozen_s=1.0, now_s=100.0) == "is frozen already"
        assert hand.thaw(159.9) == []
        raise KeyboardInterrupt
    _wait(lambda: not _is_stopped(victim))


def test_a_number_that_is_another_processes_by_now_is_left_alone(victim: subprocess.Popen[bytes]) -> None:
    with Hand() as hand:
        assert hand.strike(_meant(victim, mark="ef-worker-1"), 0.0, 0.0) == "has ended"
        assert hand.strike(_meant(victim, host="elsewhere"), 0.0, 0.0) == "is on elsewhere, not here"
        assert victim.poll() is None
        _wait(lambda: "victim" in Path(f"/proc/{victim.pid}/cmdline").read_text())
        assert hand.strike(_meant(victim), 0.0, 0.0) == ""
        assert victim.wait() == -signal.SIGKILL
        assert hand.strike(_meant(victim), 0.0, 0.0) == "has ended"
        assert hand.next_s == math.inf


def _told(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def test_chaos_on_a_run(start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells what it did, and the model is the same."""
    undisturbed = start("small_torch.py", *OPTIONS, "--workers", 1).digest()
    monkeypatch.setenv("SLICE_S", "0.05")
    run = start("small_torch.py", *OPTIONS, "--workers", 3)
    run.wait_for_workers(3)
    # Not so often that workers, which start slowly on a busy machine, all die before they are ready; and the
    # run lasts longer than the tool takes to start there.
    done = cli("chaos", run.path, "--seed", 5, "--rate", 40, "--kinds", "worker,freeze-worker,workers")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{run.path}: seed 5, 40 a minute of worker, freeze-worker, workers\n")
    assert done.stdout.rstrip().endswith(str(run.path / "chaos-5.jsonl"))
    assert run.digest() == undisturbed
    struck = [each for each in _told(run.path / "chaos-5.jsonl") if "strike" in each]
    assert {name.rpartition("-")[0] for each in struck for name in each["hit"]} == {"worker"}
    over = cli("chaos", run.path)
    assert over.returncode == 1
    assert "this run is over: finished" in over.stderr


def test_ctrl_c(start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the tool, not the run; who was frozen goes on."""
    monkeypatch.setenv("SLICE_S", "0.01")
    run = start("small_torch.py", *OPTIONS, "--workers", 2)
    run.wait_for_workers(2)
    command = [*CLI, "chaos", str(run.path), "--rate", "600", "--kinds", "freeze-worker", "--seed", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tool:
        assert tool.stdout is not None
        struck = next(line for line in tool.stdout if "frozen for" in line)
        tool.send_signal(signal.SIGINT)
        tool.communicate()
    assert tool.returncode == 130
    pid = int(struck.partition("(pid ")[2].partition(")")[0])
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"
    run.finish()


@pytest.mark.parametrize(
    ("options", "fragment"),
    [(("--kinds", "wrokers"), "'wrokers' is unknown"), (("--rate", "0"), "rate: 0.0 is not allowed")],
)
def test_wrong_options(tmp_path: Path, options: tuple[str, ...], fragment: str) -> None:
    done = cli("chaos", tmp_path, *options)
    assert done.returncode == 1
    assert fragment in done.stderr
    assert not os.listdir(tmp_path)
