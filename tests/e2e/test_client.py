"""The one who started a run goes, looks away, or looks again; and what is told of the run afterwards."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticflow.errors import EXIT_UNKNOWN

from .conftest import CLI, PROGRAMS, Run, cli, digest_in
from .processes import marked, new_mark, wait_until_gone

OPTIONS = ("--epochs", 6, "--batch-size", 64, "--servers", 2, "--snapshot-s", 0.2)
STEPS = 6 * 16


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICE_S", "0.02")


class Command:
    """A command that goes on for a while."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [*CLI, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []

    def wait_for(self, words: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if words in line:
                return
        pytest.fail("".join(self.lines))

    def wait(self) -> tuple[int, str]:
        assert self.process.stdout is not None  # communicate() passes over what was read ahead with a line
        with self.process.stdout as stdout:
            rest = stdout.read()
        return self.process.wait(60), "".join(self.lines) + rest


def test_a_run_whose_master_is_just_starting_is_not_over(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told so, nor to go on by --resume, while the interpreter of a slow machine starts."""
    slowly = "import sys, time\n\nif 'elasticflow.master' in sys.orig_argv:\n    time.sleep(3)\n"
    (tmp_path / "sitecustomize.py").write_text(slowly)
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), before])))
    run = start("small_torch.py", *OPTIONS)
    deadline = time.monotonic() + 60
    while not (run.path / "run.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    asked = subprocess.run([*CLI, "scale", str(run.path), "2"], capture_output=True, text=True, timeout=60)
    assert asked.returncode in (0, EXIT_UNKNOWN), asked.stderr  # it waits for a while, or says that it starts
    run.finish()


def test_the_client_is_killed_and_others_look_on(
    start: Callable[..., Run], slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One looks away again; the other sees a worker, a server and the master die, and the same end."""
    run = start("small_torch.py", *OPTIONS)
    run.wait_for_workers(2)
    run.process.kill()
    run.process.wait()
    run.wait_for_step(run.status().step + 2)
    attached, looking = Command("attach", run.path), Command("attach", run.path)
    attached.wait_for("its client is gone; 'elasticflow attach")
    looking.wait_for("epoch ")
    looking.process.send_signal(signal.SIGINT)
    code, output = looking.wait()
    assert code == 130 and "goes on" in output and "elasticflow stop" in output, output
    for name in ("worker-1", "server-1", "master"):
        run.kill(name)
        run.wait_for_step(run.status().step + 5)
    run.wait_for_workers(2)
    code, output = attached.wait()
    assert code == 0, output
    assert output.splitlines()[-1] == f"finished: all {STEPS} steps are done"

    report = json.loads(cli("report", run.path, "--json").stdout)
    assert report == json.loads(run.dir.report.read_bytes())
    assert report["master"]["incarnation"] == 2 and report["generation"] == 2
    faults = {fault["role"]: fault for fault in report["faults"]}
    assert report["num_faults"] == len(faults) == 3 and faults.keys() == {"worker", "server", "master"}
    assert faults["worker"]["member"] == "worker-1" and faults["server"]["member"] == "server-1"
    assert faults["server"]["seconds"] > 0 and faults["server"]["steps"] == report["steps_redone"]
    assert faults["master"]["steps"] == faults["worker"]["steps"] == 0
    assert all(fault["lasted_s"] is not None for fault in faults.values())
    assert report["records_covered"] == report["records_total"] == 6000
    assert 0 < report["goodput"] < 1 and min(report["workers_seconds"].values()) >= 0
    page = cli("report", run.path).stdout
    for words in (f"steps    {STEPS} of {STEPS}", "6,000 of 6,000 covered", "Faults: 3", "Goodput"):
        assert words in page, page

    monkeypatch.setenv("SLICE_S", "0")
    assert digest_in(output) == start("small_torch.py", *OPTIONS, "--workers", 1).digest()


def test_the_terminal_is_closed(tmp_path: Path, slow: None) -> None:
    """The run ends with a checkpoint, as it was asked to; nothing is left; --resume goes on."""
    environment = new_mark()
    ours, theirs = pty.openpty()

    def own_terminal() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests may ignore it
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    path = tmp_path / "run"
    program = PROGRAMS / "small_torch.py"
    arguments = ("train", program, "--run-dir", path, *OPTIONS, "--client-gone", "stop")
    client = subprocess.Popen(
        [*CLI, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        preexec_fn=own_terminal,
    )
    os.close(theirs)
    shown = b""
    while not re.search(rb"step [1-9]", shown):  # on a busy machine the first that is shown is a later one
        shown += os.read(ours, 4096)
    assert b"elasticflow attach" in shown
    os.close(ours)
    assert client.wait(30) == -signal.SIGHUP
    assert wait_until_gone(environment, timeout_s=30) == []
    report = json.loads((path / "report.json").read_bytes())
    assert report["state"] == "stopped" and "its client is gone" in report["text"]
    assert 0 < report["checkpoint_step"] == report["step"] < STEPS
    again = cli("attach", path)
    assert again.returncode == 1 and "stopped, its client is gone" in again.stderr


def test_nobody_reads_the_output(tmp_path: Path) -> None:
    """As with ``elasticflow train ... | head -1``: the run goes on, and its exit code is told."""
    arguments = ("train", PROGRAMS / "small_torch.py", "--run-dir", tmp_path / "run", "--epochs", 2)
    client = subprocess.Popen(
        [*CLI, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert client.stdout is not None and client.stderr is not None
    client.stdout.readline()
    client.stdout.close()
    errors = client.stderr.read()
    client.stderr.close()
    assert client.wait(60) == 0 and errors == ""
    assert json.loads((tmp_path / "run" / "report.json").read_bytes())["state"] == "finished"


def test_everything_is_killed(start: Callable[..., Run], slow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the master wrote down is told; and a supervisor that is asked to end, ends all."""
    for name, value in (environment := new_mark()).items():
        monkeypatch.setenv(name, value)
    run = start("small_torch.py", *OPTIONS)
    run.wait_for_workers(2)
    run.kill("worker-2")
    seen = run.wait_until(lambda s: s.num_faults and [w.state for w in s.workers] == ["ready"] * 2)
    run.wait_for_step(seen.step + 5)  # long after it is written down
    for pid in marked(environment):
        os.kill(pid, signal.SIGKILL)
    assert wait_until_gone(environment) == []
    page = cli("report", run.path).stdout
    assert f"{run.path}: killed, after" in page and "--resume" in page
    assert "worker-2  was killed by SIGKILL" in page, page
    told = cli("status", run.path)
    assert told.returncode == 0 and "killed: this run is over, and left no report" in told.stdout, told
    over = cli("attach", run.path)
    assert over.returncode == 1 and "processes were killed" in over.stderr
    run.process.wait()
    run.dir.address.unlink()  # what the killed left behind is not to be taken for the next one's

    again = start("small_torch.py", "--resume", name=run.path.name)
    again.wait_for_step(1)
    parent = int(Path(f"/proc/{again.pid('master')}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGTERM)
    code, output = again.wait()
    assert code == 1 and "left no report" in output, output
    assert wait_until_gone(environment) == []


def test_the_master_and_who_would_begin_another_are_killed(
    start: Callable[..., Run], slow: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks on is told how it goes on; and the members, who wait for a master, end by themselves."""
    for name, value in (environment := new_mark()).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "settings.yaml").write_text("lost_s: 10\n")
    run = start("small_torch.py", *OPTIONS, "--config", tmp_path / "settings.yaml")
    run.wait_for_step(3)
    master = run.pid("master")
    parent = int(Path(f"/proc/{master}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    os.kill(master, signal.SIGKILL)
    code, output = run.wait()
    assert code == 1 and "the master was killed by SIGKILL, and left no report" in output, output
    assert f"go on with --resume: elasticflow train --resume --run-dir {run.path}" in output, output
    assert wait_until_gone(environment) == []
    again = start("small_torch.py", "--resume", name=run.path.name)
    assert "all 96 steps are done" in again.finish()
