"""What people do without a thought: close a stream, press Ctrl-C at once, change the optimizer."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import CLI, digest_in
from .processes import Outcome

PROGRAM = """
import numpy as np, torch, elasticflow as ef

def model():
    torch.manual_seed(0)
    return {"net": torch.nn.Linear(4, 1), "optimizer": ef.SGD(lr=0.1)}

def data():
    x = np.arange(256, dtype=np.float32).reshape(64, 4) / 256
    return {"x": x, "y": x[:, :1]}

def forward(x, y, params):
    return ((params["net"](x) - y) ** 2).mean()
"""
TRAIN = ("train", "program.py", "--epochs", "1", "--batch-size", "16", "--run-dir")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def in_shell(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", script, "sh", *CLI, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams(folder: Path, closed: str) -> None:
    for arguments in ([*TRAIN, "run"], ["status", "run"], ["report", "run"], ["logs", "run"]):
        done = in_shell(f'exec "$@" {closed}', *arguments)
        assert done.returncode == 0 and "Traceback" not in done.stderr, (arguments, done.stderr)
    assert in_shell(f'exec "$@" {closed}', "status", "nothing").returncode == 1


@pytest.mark.parametrize("library", ["msgspec", "zmq"])
def test_ctrl_c_while_it_starts(folder: Path, library: str) -> None:
    """As soon as this library is loaded: there is always one that is being loaded just then."""
    with subprocess.Popen([*CLI, *TRAIN, "run"], stderr=subprocess.PIPE, text=True) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        deadline = time.monotonic() + 30
        while library not in maps.read_text() and time.monotonic() < deadline:
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 130, 3) and "Traceback" not in errors, errors


def test_names_that_are_not_utf8(folder: Path) -> None:
    odd = os.fsdecode(b"odd\xff")
    (folder / f"{odd}.py").write_text(PROGRAM)
    for arguments in (
        ("train", f"{odd}.py"),
        (*TRAIN, odd),
        (*TRAIN, "run", "--data", odd),
        ("status", f"./{odd}"),
    ):
        done = in_shell('exec "$@"', *arguments)
        assert done.returncode == 1 and "Traceback" not in done.stderr and r"odd\udcff" in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / f"{odd}.py").touch()
    (folder / "program.py").write_text(f"import package\n{PROGRAM}")
    done = in_shell('exec "$@"', *TRAIN, "run")
    assert done.returncode == 1 and "not UTF-8; rename the file" in done.stderr


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("Adam(lr=0.1)", ["SGD(", "Adam(", "exp_avg, exp_avg_sq"]),
        ("SGD(lr=0.1, momentum=0.9)", ["SGD(momentum=0.0)", "SGD(momentum=0.9)", "momentum_buffer"]),
    ],
)
def test_another_optimizer(folder: Path, changed: str, words: list[str]) -> None:
    assert Outcome(folder, *TRAIN, "run").code == 0
    (folder / "program.py").write_text(PROGRAM.replace("SGD(lr=0.1)", changed))
    more = ("train", "--resume", "--run-dir", "run", "--program", "program.py", "--epochs", "2")
    Outcome(folder, *more).refused("step 4", *words, "Put the optimizer back to go on, or begin a new run")
    (folder / "program.py").write_text(PROGRAM.replace("lr=0.1", "lr=0.2"))
    assert Outcome(folder, *more).code == 0, "another number is the same optimizer"


def test_what_was_left_by_who_was_killed_while_writing(folder: Path) -> None:
    assert Outcome(folder, *TRAIN, "run").code == 0
    (folder / "run" / ".journal.json.0123abcd").write_text("{")
    (folder / "run" / ".mine").touch()
    assert Outcome(folder, "train", "--resume", "--run-dir", "run", "--epochs", "2").code == 0
    assert [path.name for path in (folder / "run").glob(".*")] == [".mine"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk, which takes root")
def test_shared_memory_that_is_full(folder: Path) -> None:
    """Blocks are files without names, which no limit of /dev/shm concerns."""
    full = 'mount -t tmpfs -o size=4k none /dev/shm && ! cat /dev/zero > /dev/shm/full 2>&-; exec "$@"'
    script = ["unshare", "--mount", "sh", "-c", full, "sh", *CLI, *TRAIN, "run", "--workers", "2"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    calm = Outcome(folder, *TRAIN, "calm", "--workers", "2")
    assert re.search("digest: .*", done.stdout) and digest_in(done.stdout) == digest_in(calm.out)


FILL = """
import os
def fill(full):
    with open(full, "ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
"""
ON_A_SMALL_DISK = 'mkdir small && mount -t tmpfs -o size=8m none small && exec "$@"'
RESERVED = f"""
{FILL}
from pathlib import Path
from elasticflow.run import reserve
from elasticflow.run.folder import publish
folder = Path("small")
reserve.keep(folder)
fill("small/full")
report = {{"text": "x" * 500_000}}
try:
    publish(folder / "report.json", report)
except OSError as error:
    print(error.strerror)
for _ in range(3):  # an old one goes when a new one is there
    reserve.spend(folder, lambda: publish(folder / "report.json", report))
    fill("small/full")
print(sorted(path.name for path in folder.iterdir()), (folder / "report.json").stat().st_size)
"""


def on_a_small_disk(*command: str) -> subprocess.CompletedProcess[str]:
    script = ["unshare", "--mount", "sh", "-c", ON_A_SMALL_DISK, "sh", *command]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(done.stderr)
    return done


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk, which takes root")
def test_what_is_reserved_can_be_written_on_a_full_disk(folder: Path) -> None:
    done = on_a_small_disk(sys.executable, "-c", RESERVED)
    left = "['.reserve', 'full', 'report.json']"
    assert done.stdout.splitlines() == ["No space left on device", f"{left} 500016"], done


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk, which takes root")
def test_a_disk_that_is_full_at_the_end(folder: Path) -> None:
    """The run is stopped, not failed or killed, and goes on once there is room; nothing half is left."""
    filling = PROGRAM.replace("def forward(x, y, params):", "def forward(x, y, params):\n    full()")
    full = f"{FILL}\ndef full():\n    os.path.exists('room') or fill('small/full')\n"
    (folder / "program.py").write_text(filling + full)
    (folder / "settings.yaml").write_text("storage_patience_s: 0.5\n")
    shown = 'c=$?; echo "code $c"; ls small/run/checkpoints/*/manifest.json; "$@" status small/run --json'
    again = '"$@" train --resume --run-dir small/run --config settings.yaml && echo went on'
    train = " ".join(TRAIN)
    script = f'"$@" {train} small/run --config settings.yaml; {shown}; touch room; rm small/full; {again}'
    done = on_a_small_disk("sh", "-c", script, "sh", *CLI)
    ended, told = done.stdout.partition("code 3\n")[::2]
    assert told, done
    status = json.loads(told[: told.index("\n}\n") + 2])
    assert status["state"] == "stopped", "no checkpoint is listed before it"
    assert "final checkpoint is missing" in ended and "4 of 4 steps are missing, go on with --resume" in ended
    assert "went on" in told, done
    assert digest_in(told) == digest_in(Outcome(folder, *TRAIN, "calm").out)


REMOVED = "was removed while it ran, or moved: nothing more can be saved there"
REMOVES = """

def remove():
    while os.path.exists("run"):  # others write there
        shutil.rmtree("run", ignore_errors=True)

def freeze_the_master_and_remove():
    with open("run/master.json") as file:
        pid = json.load(file)["pid"]
    subprocess.Popen(["sh", "-c", f"sleep 6; kill -CONT {pid}"])
    os.kill(pid, signal.SIGSTOP)
    remove()
"""
"""Where the master is frozen, the command sees that the folder is gone before the master can say so."""


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("os.rename('run', 'moved')", ["was moved to", "moved while it ran; go on there by --resume"]),
        ("remove()", [REMOVED]),
        ("freeze_the_master_and_remove()", [REMOVED]),
    ],
)
def test_a_runs_folder_that_is_moved_or_removed_ends_it(folder: Path, act: str, words: list[str]) -> None:
    """At once, and not when ``storage_patience_s`` are over: it is no outage."""
    # Two workers may come to it at the same time.
    saved = "    if glob.glob('run/checkpoints/*/manifest.json'):\n"
    ends_folder = f"{saved}        with contextlib.suppress(OSError): {act}\n"
    modules = "contextlib, glob, json, os, shutil, signal, subprocess, numpy"
    hit = PROGRAM.replace("import numpy", f"import {modules}").replace(
        "def forward(x, y, params):\n", f"def forward(x, y, params):\n{ends_folder}"
    )
    (folder / "program.py").write_text(hit + REMOVES)
    run = ("train", "program.py", "--epochs", "100000", "--batch-size", "16", "--run-dir", "run")
    done = Outcome(folder, *run, "--checkpoint-every", "4 steps", timeout_s=150)
    assert not done.left
    assert done.code == 1 and all(word in done.err for word in words), done.out[-1500:] + done.err
    assert ("moved" in done.found) == ("rename" in act) and "run" not in done.found
    if "moved" in done.found:
        report = json.loads((folder / "moved" / "report.json").read_text())
        assert report["state"] == "failed" and words[0] in report["text"]
        (folder / "program.py").write_text(PROGRAM)
        more = ("train", "--resume", "--run-dir", "moved", "--program", "program.py", "--max-steps", "400")
        again = Outcome(folder, *more, "--epochs", "100000")
        assert again.code == 0 and "going on from step" in again.err + again.out, again.err
