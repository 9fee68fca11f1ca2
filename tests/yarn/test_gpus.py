"""Leases of GPUs, by real processes: nobody has one twice, and those that are killed let go."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from elasticflow.process import gpus
from elasticflow_yarn import gpus as of_yarn

PATIENCE_S = 30.0
HOLDER = """
import sys, time
from elasticflow.process import gpus
leased = gpus.lease(int(sys.argv[2]), sys.argv[3].split(","), lambda text: None, 60.0, sys.argv[1])
print(",".join(leased.devices), flush=True)
sys.stdin.read()
"""
WITH_CHILD = """
import subprocess, sys
from elasticflow.process import gpus
leased = gpus.lease(1, ["0"], lambda text: None, 60.0, sys.argv[1])
leased.share()
child = subprocess.Popen(["sleep", "1000"], close_fds=False)
print(child.pid, flush=True)
sys.stdin.read()
"""
RACER = """
import os, random, sys, time
from elasticflow.process import gpus
folder, marks, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for _ in range(15):
    leased = gpus.lease(count, ["0", "1", "2"], lambda text: None, 60.0, folder)
    assert len(set(leased.devices)) == count
    for device in leased.devices:
        os.close(os.open(f"{marks}/{device}", os.O_CREAT | os.O_EXCL))  # fails if another has it, too
    time.sleep(random.uniform(0, 0.01))
    for device in leased.devices:
        os.unlink(f"{marks}/{device}")
    leased.release()
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "gpus")


@pytest.fixture
def start(folder: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    begun: list[subprocess.Popen[str]] = []

    def begin(text: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", text, folder, *map(str, arguments)]
        begun.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return begun[-1]

    yield begin
    for each in begun:
        each.kill()
        each.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def lease(folder: str, count: int = 1, devices: str = "0,1", patience_s: float = 0.0) -> tuple[str, ...]:
    """What would be leased now, and is let go."""
    leased = gpus.lease(count, devices.split(","), patience_s=patience_s, folder=folder)
    leased.release()
    return leased.devices


def test_nobody_gets_what_another_has(folder: str, start: Callable[..., subprocess.Popen[str]]) -> None:
    first, second = start(HOLDER, 1, "0,1"), start(HOLDER, 1, "0,1")
    assert sorted([said(first), said(second)]) == ["0", "1"]
    with pytest.raises(gpus.NoGpu, match="they did not come free") as refused:
        lease(folder)
    assert f"by process {first.pid}" in str(refused.value) and f"by process {second.pid}" in str(
        refused.value
    )


def test_kill_9_lets_go_at_once(folder: str, start: Callable[..., subprocess.Popen[str]]) -> None:
    holder = start(HOLDER, 2, "0,1")
    assert said(holder) == "0,1"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert lease(folder, 2) == ("0", "1")


def test_a_lease_lives_as_long_as_the_child(folder: str, start: Callable[..., subprocess.Popen[str]]) -> None:
    parent = start(WITH_CHILD)
    child = int(said(parent))
    parent.kill()
    parent.wait()
    try:
        with pytest.raises(gpus.NoGpu):
            lease(folder, devices="0")
    finally:
        os.kill(child, signal.SIGKILL)
    assert lease(folder, devices="0", patience_s=PATIENCE_S) == ("0",)


def test_who_waits_gets_it_and_is_told_what_for(
    folder: str, start: Callable[..., subprocess.Popen[str]]
) -> None:
    holder = start(HOLDER, 1, "0")
    assert said(holder) == "0"
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        holder.kill()

    leased = gpus.lease(1, ["0"], tell, PATIENCE_S, folder)
    leased.release()
    assert leased.devices == ("0",) and len(told) == 1
    assert "waiting 30 s more for a GPU" in told[0] and f"GPU 0 by process {holder.pid}" in told[0]


def test_several_at_once_or_none(folder: str, start: Callable[..., subprocess.Popen[str]]) -> None:
    """Who wants two and finds one does not keep that one from others."""
    holder = start(HOLDER, 1, "1")
    assert said(holder) == "1"
    waiting = start(HOLDER, 2, "0,1")
    assert lease(folder, 1, "0", PATIENCE_S) == ("0",)
    holder.kill()
    assert said(waiting) == "0,1"


def test_many_processes_that_come_and_go_never_share(tmp_path: Path, folder: str) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    command = [sys.executable, "-c", RACER, folder, str(marks)]
    racers = [subprocess.Popen([*command, str(1 + i % 2)], stderr=subprocess.PIPE) for i in range(6)]
    errors = [racer.communicate(timeout=100)[1].decode() for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 6, errors


def test_all_users_of_a_host_may_use_the_folder(folder: str) -> None:
    before = os.umask(0o077)
    try:
        assert lease(folder) == ("0",)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o1777
    assert stat.S_IMODE(os.stat(f"{folder}/gpu-0").st_mode) == 0o444


@pytest.mark.skipif(os.getuid() != 0, reason="needs to be another user for a moment")
def test_another_user_is_kept_out_of_a_lease_too(
    folder: str, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    for each in (tmp_path, *takewhile(lambda folder: folder.name != "tmp", tmp_path.parents)):
        each.chmod(0o755)
    holder = start(HOLDER, 1, "0")
    assert said(holder) == "0"
    text = """if True:
        import os, sys
        from elasticflow.process import gpus
        os.setuid(65534)
        print(*gpus.lease(1, ["0", "1"], folder=sys.argv[1]).devices)
    """
    done = subprocess.run([sys.executable, "-c", text, folder], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_link_in_place_of_a_lock_is_not_followed(folder: str, tmp_path: Path) -> None:
    lease(folder)
    Path(folder, "gpu-0").unlink()
    Path(folder, "gpu-0").symlink_to(tmp_path / "victim")
    with pytest.raises(gpus.NoGpu, match="gpu-0: this GPU's lock cannot be opened"):
        lease(folder)
    Path(folder, "gpu-0").unlink()
    os.mkfifo(f"{folder}/gpu-0")
    with pytest.raises(gpus.NoGpu, match="is no file"):
        lease(folder)
    Path(f"{folder}-link").symlink_to(folder)
    with pytest.raises(gpus.NoGpu, match="mode 1777"):
        lease(f"{folder}-link")
    assert not (tmp_path / "victim").exists()


def test_a_lock_that_is_removed_while_it_is_taken_is_worth_nothing(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would lock the new file."""
    file, real, removed = Path(folder, "gpu-0"), fcntl.flock, []
    assert lease(folder, devices="0") == ("0",)

    def flock(descriptor: int, how: int) -> None:
        if not removed and os.fstat(descriptor).st_ino == file.stat().st_ino:
            removed.append(file.unlink())
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    leased = gpus.lease(1, ["0"], patience_s=PATIENCE_S, folder=folder)
    with pytest.raises(gpus.NoGpu):
        lease(folder, devices="0")
    leased.release()
    assert removed


def test_more_than_there_are(folder: str) -> None:
    begun_s = time.monotonic()
    with pytest.raises(gpus.NoGpu, match="3 GPUs are wanted, and this host has 2: 0, 1"):
        lease(folder, 3, patience_s=1000.0)
    assert time.monotonic() - begun_s < 500
    with pytest.raises(ValueError, match="is no number of a GPU"):
        lease(folder, devices="../x")


def found(environ: dict[str, str], folder: str) -> dict[str, str]:
    environment, leased = of_yarn.environment_of(environ, print, 0.0, folder)
    if leased:
        leased.release()
    return environment


def test_what_a_program_is_told(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "DEV", str(tmp_path))
    one, both = {of_yarn.COUNT: "1"}, {of_yarn.COUNT: "2"}
    assert found(one, folder) == {}, "no GPU on this host: they are only counted"
    for name in ("nvidia0", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert found(both, folder) == {**order, "CUDA_VISIBLE_DEVICES": "0,1"}
    assert found({**one, of_yarn.DEVICES: "3, 10"}, folder) == {**order, "CUDA_VISIBLE_DEVICES": "3"}
    assert found({of_yarn.COUNT: "0"}, folder) == {"CUDA_VISIBLE_DEVICES": ""}
    assert found({}, folder) == {}
    with pytest.raises(ValueError, match="ELASTICFLOW_GPUS: 'many' is no number"):
        found({of_yarn.COUNT: "many"}, folder)


def test_where_the_cluster_isolates_nothing_is_leased(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "DEV", str(tmp_path))
    (tmp_path / "nvidia0").touch()
    one = {of_yarn.COUNT: "1"}
    assert found({**one, "CUDA_VISIBLE_DEVICES": "5"}, folder) == {}
    assert found({**one, "NVIDIA_VISIBLE_DEVICES": "GPU-5"}, folder) == {}
    assert found({**one, "NVIDIA_VISIBLE_DEVICES": "all"}, folder)["CUDA_VISIBLE_DEVICES"] == "0"
    monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("nvidia1"))
    (tmp_path / "nvidia1").touch()
    assert found(one, folder) == {}, "a cgroup denies one of them"


def test_a_folder_that_somebody_has_locked_alone_is_not_waited_for_without_end(folder: str) -> None:
    """Whoever hangs there is named, with what is known of it."""
    gpus.lease(1, ["0"], folder=folder).release()
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(root, fcntl.LOCK_EX)
        with pytest.raises(gpus.NoGpu) as refused:
            gpus.lease(1, ["0"], patience_s=0.5, folder=folder)
    finally:
        os.close(root)
    assert f"the folder {folder} by process {os.getpid()} (" in str(refused.value)
    assert "since 20" in str(refused.value)
    gpus.lease(1, ["0"], folder=folder).release()


def test_a_holder_that_hangs_is_named(start: Callable[..., subprocess.Popen[str]], folder: str) -> None:
    holder = start(HOLDER, 1, "0")
    assert holder.stdout is not None and holder.stdout.readline() == "0\n"
    holder.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(gpus.NoGpu, match=rf"GPU 0 by process {holder.pid} \(.*, stopped, since 20"):
        gpus.lease(1, ["0"], patience_s=0.5, folder=folder)


SHARER = """
import sys
from elasticflow.process import gpus
gpus.DEV = sys.argv[2]
visible, _ = gpus.lease_one({"CUDA_VISIBLE_DEVICES": sys.argv[3]} if sys.argv[3:] else {}, sys.argv[1])
print(visible.get("CUDA_VISIBLE_DEVICES"), flush=True)
sys.stdin.read()
"""


def test_workers_of_one_host_share_as_little_as_they_can(
    folder: str, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Whatever runs they are of; who is killed lets go, and who holds one for itself is left alone first."""
    for name in ("nvidia0", "nvidia1", "nvidia2"):
        (tmp_path / name).touch()
    alone = gpus.lease(1, ["1"], folder=folder)
    sharers, taken = list[subprocess.Popen[str]](), list[str]()
    for _ in range(6):
        sharers.append(start(SHARER, tmp_path))
        taken.append(said(sharers[-1]))
    assert taken == ["0", "2", "0", "1", "2", "0"]
    alone.release()
    sharers[1].kill()
    sharers[1].wait()
    assert [said(start(SHARER, tmp_path)) for _ in range(2)] == ["1", "2"]
    assert said(start(SHARER, tmp_path, "2,MIG-7/1/0")) == "MIG-7/1/0"


def test_where_there_is_no_gpu_or_no_folder_none_is_leased(
    folder: str, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    assert said(start(SHARER, tmp_path)) == said(start(SHARER, tmp_path, "0")) == "None"
    (tmp_path / "nvidia0").touch()
    assert said(start(SHARER, tmp_path, "")) == "None"
    Path(folder).touch()
    assert said(start(SHARER, tmp_path)) == "None"
