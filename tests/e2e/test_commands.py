"""What the commands show and do: to a run under way, to one that is over, and against strangers."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
import pytest
import zmq

from elasticflow.run.telling import LiveStatus
from elasticflow.wire.control import control_link
from elasticflow.wire.keys import MemberKeys, read_keys
from elasticflow.wire.messages import StopRequest, encode

from .conftest import CLI, PATIENCE_S, PROGRAMS, Run, cli, digest_in
from .processes import marked, wait_until_gone

OPTIONS = ("--epochs", 3, "--batch-size", 64)
STEPS = 3 * 16


@dataclass
class Seen:
    """A run that strangers bothered, and what was seen of it while it was under way and afterwards."""

    path: Path
    output: str
    status: dict[str, Any]
    text: str
    too_many: subprocess.CompletedProcess[str]
    stranger_was_answered: bool
    refused: int
    watched: list[dict[str, Any]]


def listening_ports(pid: int) -> set[int]:
    """TCP ports at which a process listens, from /proc."""
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(link))
    inodes = {found[1] for link in links if (found := re.fullmatch(r"socket:\[(\d+)\]", link))}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A" and line[9] in inodes}


def bother(run: Run, status: LiveStatus) -> bool:
    """Sends what strangers may send to all ports of a run. Returns whether one of them was answered."""
    keys = read_keys(run.dir.client_keys, MemberKeys)
    public, secret = (half.decode() for half in zmq.curve_keypair())
    forged = msgspec.structs.replace(keys, member_public=public, member_secret=secret)
    endpoint = run.dir.read_address().endpoint
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        plain = context.socket(zmq.DEALER)
        plain.connect(endpoint)
        forger = control_link(context, forged, endpoint)
        strangers = [plain, forger]
        for stranger in strangers:
            with suppress(zmq.Again):  # refused already
                stranger.send(encode(StopRequest(reason="a stranger says so")), zmq.NOBLOCK)
        for server in status.servers:
            (port,) = listening_ports(server.pid)
            talker = context.socket(zmq.DEALER)
            talker.connect(f"tcp://127.0.0.1:{port}")
            with suppress(zmq.Again):
                talker.send_multipart([os.urandom(200), os.urandom(1000)], zmq.NOBLOCK)
            strangers.append(talker)
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall(os.urandom(5000))
        deadline = time.monotonic() + PATIENCE_S
        while not all(server.refused_connections for server in run.status().servers):
            assert time.monotonic() < deadline, run.status()
            time.sleep(0.1)  # heartbeats tell the count, and are no news that one could wait for
        return any(stranger.poll(0) for stranger in strangers)
    finally:
        context.destroy(linger=0)


def secrets_of(run: Run) -> list[str]:
    found = [json.loads(path.read_bytes()) for path in (run.dir.client_keys, run.dir.master_keys)]
    return [each[name] for each in found for name in each if "public" not in name and name != "name"]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    path = tmp_path_factory.mktemp("seen") / "run"
    number = ("--workers", 2, "--servers", 2, "--checkpoint-every", 10, "--keep-checkpoints", 3)
    gates = [f"step {committed + 5}" for committed in (10, 20, 30, 40)]
    with Run(path, "small_torch.py", *OPTIONS, *number, shut=gates) as run:
        command = [*CLI, "status", str(path), "--watch", "--json"]
        run.wait_for_step(1)
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=run.environment) as watch:
            try:
                return look_at(run, watch)
            except BaseException:
                watch.kill()
                raise


def look_at(run: Run, watch: subprocess.Popen[bytes]) -> Seen:
    assert watch.stdout is not None
    first = watch.stdout.readline()
    run.wait_for_workers(2)
    # A checkpoint is left out if the one before is not written yet; here none is to be left out.
    for committed in (10, 20, 30):
        run.wait_until(lambda s, committed=committed: s.checkpoint_step == committed)
        run.open(f"step {committed + 5}")
    status = run.wait_until(lambda s: s.checkpoint_step == 40)
    answered = bother(run, status)
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids_of(status)]
    told = json.loads(cli("status", run.path, "--json").stdout)
    text = cli("status", run.path).stdout
    too_many = cli("scale", run.path, 9)
    secrets = secrets_of(run)
    for file in (run.dir.client_keys, run.dir.master_keys):
        assert file.stat().st_mode & 0o777 == 0o600
    run.open("step 45")
    output = run.finish()
    # Not by communicate(), which passes over what was read ahead with the first line.
    watched = [json.loads(line) for line in (first + watch.stdout.read()).splitlines()]
    assert watch.wait(PATIENCE_S) == 0
    files = [path.read_bytes() for path in run.path.rglob("*") if path.is_file() and "keys" not in path.parts]
    for secret in secrets:
        assert not any(secret.encode() in data for data in (*files, *commands, output.encode()))
    report = run.report()
    refused = sum(server.refused_connections for server in report.servers)
    return Seen(run.path, output, told, text, too_many, answered, refused, watched)


def pids_of(status: LiveStatus) -> list[int]:
    return [member.pid for member in status.members]


# --- a run under way ----------------------------------------------------------------------------------


def test_status_as_json(seen: Seen) -> None:
    status = seen.status
    assert status["state"] == "running" and status["epoch"] in (1, 2, 3)
    assert 2 <= status["step"] <= STEPS and status["steps_total"] == STEPS
    assert 0 < status["loss"] < 3 and status["records_per_s"] > 0 and status["eta_s"] > 0
    assert status["target_workers"] == 2
    members = [status["master"], *status["servers"], *status["workers"]]
    assert [m["name"] for m in members] == ["master", "server-0", "server-1", "worker-1", "worker-2"]
    for member in members:
        assert member["host"] == socket.gethostname() and member["pid"] > 0
        assert member["state"] in ("running", "ready") and 0 <= member["step"] <= STEPS
    assert f"{seen.path}: running" in seen.text
    for word in ("/3  step ", f"/{STEPS}", "records/s", "workers 2/2", "servers 2", "ETA", "server-1", "pid"):
        assert word in seen.text, seen.text


def test_status_watched_until_the_end(seen: Seen) -> None:
    """Each status is newer than the one before; the last is of the end."""
    news = [status["news"] for status in seen.watched]
    assert news == sorted(set(news)) and len(news) > 2
    assert [status["state"] for status in seen.watched][-1] == "finished"
    assert seen.watched[-1]["step"] == STEPS


def test_scale_out_of_range(seen: Seen) -> None:
    assert seen.too_many.returncode == 1
    assert "workers must be from 1 to 8" in seen.too_many.stderr and "not 9" in seen.too_many.stderr


def test_strangers_get_nowhere(seen: Seen, start: Callable[..., Run]) -> None:
    """No answer, no effect, but a count of who was refused; and the digest of a run left alone."""
    assert not seen.stranger_was_answered
    assert seen.refused >= 2 and "stranger says so" not in seen.output
    assert digest_in(seen.output) == start("small_torch.py", *OPTIONS, "--workers", 1).digest()


# --- a run that is over -------------------------------------------------------------------------------


def test_status_of_an_ended_run(seen: Seen) -> None:
    text = cli("status", seen.path)
    assert (
        text.returncode == 0
        and f"{seen.path}: finished" in text.stdout
        and f"step {STEPS}/{STEPS}" in text.stdout
    )
    report = json.loads(cli("status", seen.path, "--json").stdout)
    assert report["state"] == "finished" and report["step"] == report["steps_total"] == STEPS
    assert seen.status.keys() - report.keys() == {"news"}
    for command in (("scale", seen.path, 2), ("stop", seen.path)):
        refused = cli(*command)
        assert refused.returncode == 1 and "this run is over: finished" in refused.stderr
    nowhere = cli("status", seen.path.parent / "nowhere")
    assert nowhere.returncode == 1 and "nowhere: " in nowhere.stderr and "Traceback" not in nowhere.stderr


def test_checkpoint_commands(seen: Seen) -> None:
    """Steps are multiples of --checkpoint-every and the last; the last 3 are kept; one digest everywhere."""
    listed = cli("checkpoint", "list", seen.path).stdout.splitlines()
    told = json.loads(cli("checkpoint", "list", seen.path, "--json").stdout)
    assert [f"step {each['step']}" for each in told] == [line.partition("  ")[0] for line in listed]
    shown = json.loads(cli("checkpoint", "show", seen.path, "--json").stdout)
    assert shown["step"] == told[-1]["step"] and shown["entries"]
    found = json.loads(cli("checkpoint", "verify", seen.path, "--json").stdout)
    assert found == [{"step": each["step"], "problems": []} for each in told]
    assert [line.split("  ")[0] for line in listed] == ["step 30", "step 40", f"step {STEPS}"]
    assert "2 files" in listed[0] and "bytes" in listed[0]
    shown = cli("checkpoint", "show", seen.path, "--step", 40).stdout
    for word in (
        "small_torch.py, step 40",
        "Adam",
        "seed 0",
        "net.1.running_mean",
        "buffer",
        "generation-1-server-1.h5",
    ):
        assert word in shown, shown
    verified = cli("checkpoint", "verify", seen.path)
    assert verified.returncode == 0 and verified.stdout.splitlines()[-1] == f"step {STEPS}: whole"
    assert cli("checkpoint", "digest", seen.path).stdout.strip() == digest_in(seen.output)
    assert cli("checkpoint", "digest", seen.path, "--step", 30).stdout.strip() != digest_in(seen.output)
    missing = cli("checkpoint", "show", seen.path, "--step", 7)
    assert (
        missing.returncode == 1
        and "no checkpoint of step 7" in missing.stderr
        and "30, 40, 48" in missing.stderr
    )


def test_a_copied_checkpoint_is_a_run_of_its_own(seen: Seen, tmp_path: Path) -> None:
    """It goes on from there, with another number of servers, to the same end."""
    copied = cli("checkpoint", "copy", seen.path, tmp_path / "copy", "--step", 30)
    assert copied.returncode == 0 and copied.stdout == f"step 30: {tmp_path / 'copy'}\n", copied.stderr
    resumed = cli("train", "--resume", "--run-dir", tmp_path / "copy", "--servers", 1, "--workers", 1)
    assert digest_in(resumed.stdout) == digest_in(seen.output), resumed.stderr
    again = cli("checkpoint", "copy", seen.path, tmp_path / "copy")
    assert again.returncode == 1 and "is there already" in again.stderr


def test_export_loads_everywhere(seen: Seen, tmp_path: Path) -> None:
    """The same arrays in all formats; PyTorch takes them as they are."""
    import torch
    from safetensors.numpy import load_file

    files = {suffix: tmp_path / f"model{suffix}" for suffix in (".npz", ".safetensors", ".h5")}
    for file in files.values():
        assert cli("export", seen.path, file).stdout == f"{file}\n"
    with np.load(files[".npz"]) as loaded:
        arrays = dict(loaded)
    others = [load_file(files[".safetensors"])]
    with h5py.File(files[".h5"]) as hdf5:
        others.append({name: hdf5[name][()] for name in arrays})
    for other in others:
        assert other.keys() == arrays.keys()
        assert all(np.array_equal(other[name], array) for name, array in arrays.items())
    sys.path.insert(0, str(PROGRAMS))
    try:
        import small_torch
    finally:
        sys.path.remove(str(PROGRAMS))
    net = small_torch.model()["net"]
    net.load_state_dict({n[4:]: torch.from_numpy(a) for n, a in arrays.items() if n.startswith("net.")})
    test = small_torch.data()["test"].rows(np.arange(100))
    params = {"net": net.eval(), "scale": torch.from_numpy(arrays["scale"])}
    x, y = (torch.from_numpy(test[name]) for name in ("x", "y"))
    accuracy = small_torch.metrics(x, y, params)["accuracy"].item()
    (shown,) = set(re.findall(r"epoch 3, step \d+: test cost .* accuracy (\S+)", seen.output))
    assert f"{accuracy:.4f}" == shown
    wrong = cli("export", seen.path, tmp_path / "model.pkl")
    assert wrong.returncode == 1 and ".npz" in wrong.stderr and ".safetensors" in wrong.stderr


def test_modules_beside_the_program_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not their namesakes where the command is given."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/helper.py").write_text("LR = 0.25")
    (tmp_path / "helper.py").write_text("LR = 0.5")
    program = """
        import numpy as np
        import torch
        import elasticflow as ef
        import helper

        def model():
            return {"w": torch.zeros(2), "optimizer": ef.SGD(lr=helper.LR)}

        def forward(x, params):
            return (x @ params["w"]).mean()

        def data():
            return ef.data.Arrays(x=np.ones((64, 2), np.float32))
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    monkeypatch.chdir(tmp_path / "elsewhere")
    trained = cli("train", "../program.py", "--epochs", 1, "--workers", 1, "--run-dir", "run")
    assert trained.returncode == 0, trained.stderr
    assert "lr 0.5" in cli("checkpoint", "show", "run").stdout


def test_check() -> None:
    done = cli("check", PROGRAMS / "small_torch.py")
    assert done.returncode == 0 and not done.stderr, done.stderr
    for word in (
        "net.0.weight  parameter  [32, 20]  float32",
        "838 parameters",
        "3,352 bytes",
        "cost 1.0",
        "Adam",
    ):
        assert word in done.stdout, done.stdout


def test_check_shows_tables() -> None:
    done = cli("check", PROGRAMS / "tables_torch.py")
    assert done.returncode == 0 and not done.stderr, done.stderr
    for words in (
        "words  table  any number of rows of 8  float32  Normal(mean=0.0, std=0.1), min_count 2, "
        "evict_after_steps 12, the model's optimizer\n",
        "users  table  50 rows of 8  float32  Uniform(low=-0.05, high=0.05), optimizer SGD, lr 0.05",
        "434 parameters in 4 tensors",
    ):
        assert words in done.stdout, done.stdout


def test_check_as_json(tmp_path: Path) -> None:
    """Whatever the program prints is not among it."""
    for name in ("gates.py", "tables_data.py"):
        shutil.copy(PROGRAMS / name, tmp_path)
    (tmp_path / "tables_torch.py").write_text(
        "import os\nprint('loaded', flush=True)\nos.write(1, b'by itself')\n"
        + (PROGRAMS / "tables_torch.py").read_text()
    )
    done = cli("check", tmp_path / "tables_torch.py", "--json")
    assert done.returncode == 0 and done.stderr == "loaded\nby itself", done.stderr
    found = json.loads(done.stdout)
    entries = {entry["name"]: entry for entry in found["entries"]}
    assert (entries["words"]["kind"], entries["words"]["shape"]) == ("table", [None, 8])
    assert (entries["users"]["shape"], entries["users"]["dtype"]) == ([50, 8], "float32")
    parameters = [entry for entry in entries.values() if entry["kind"] == "parameter"]
    assert sum(prod(entry["shape"]) for entry in parameters) == 434
    assert all(each["cost"] > 0 and each["num_records"] for each in found["slices"])
    assert found["num_slices"] in {each["num_slices"] for each in found["slicing"]}


# --- Ctrl-C, and a terminal ---------------------------------------------------------------------------


def test_interrupted_twice_and_resumed(
    start: Callable[..., Run], seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One Ctrl-C commits a checkpoint; two leave at once, and no process; --resume goes on from either."""
    (tmp_path / "often.yaml").write_text("checkpoint-every: 0.2s\nepochs: 2\nservers: 2\n")
    monkeypatch.setenv("SLICE_S", "0.02")  # a step takes 0.08 s or more
    options = (*OPTIONS, "--config", tmp_path / "often.yaml")
    run = start("small_torch.py", *options, name="run", shut=["step 20"])
    status = run.wait_until(lambda s: s.checkpoint_step)
    run.wait_for_output("worker-1 has joined")  # from then on Ctrl-C is no longer the end at once
    assert status.steps_total == STEPS and len(status.servers) == 2  # command line beats file beats default
    os.kill(run.process.pid, signal.SIGINT)
    run.wait_until(lambda s: s.state == "finishing")
    run.open("step 20")
    code, output = run.wait()
    assert code == 3, output
    assert output.splitlines()[-1].startswith("stopped: stopped by Ctrl-C: ") and "--resume" in output
    committed = int(cli("checkpoint", "list", run.path).stdout.splitlines()[-1].split()[1])
    assert f"step-{committed:010}" in output and status.checkpoint_step <= committed < STEPS

    again = start("small_torch.py", "--resume", name="run", shut=[f"step {committed + 1}"])
    again.wait_for_step(committed + 1)
    again.wait_for_output("going on from")
    assert len(marked(again.environment)) >= 5
    os.kill(again.process.pid, signal.SIGINT)
    again.wait_for_output("\nCtrl-C: ")
    os.kill(again.process.pid, signal.SIGINT)
    code, output = again.wait()
    assert code == 1 and "ended at once" in output and "--resume" in output and "Traceback" not in output, (
        output
    )
    assert wait_until_gone(again.environment) == []
    over = cli("status", run.path)
    assert over.returncode == 0 and "go on with --resume" in over.stdout

    monkeypatch.setenv("SLICE_S", "0")
    resumed = on_a_terminal(
        "train", PROGRAMS / "small_torch.py", "--resume", "--run-dir", run.path, "--workers", 3
    )
    assert f"going on from step {committed}" in resumed
    assert digest_in(resumed) == digest_in(seen.output)
    assert "━" in resumed and f"step {STEPS}/{STEPS}" in resumed  # the bar


def on_a_terminal(*arguments: object) -> str:
    """What a command that ends well shows on a terminal, without the codes that move the cursor."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    command = [*CLI, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 4096):
            parts.append(part)
    except OSError:  # Linux says EIO where the other end is closed
        pass
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", b"".join(parts).decode()).replace("\r", "\n")
    assert process.wait() == 0, text
    return text
