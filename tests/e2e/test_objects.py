"""Runs whose checkpoints, and records, are in an object store: the same model, whatever dies or falters."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from tests.clusters.s3 import S3Server

from .conftest import PROGRAMS, Run, cli

OPTIONS = ("--epochs", 6, "--batch-size", 64, "--slices", 8, "--checkpoint-every", 20)
MODELS = "s3://models/nightly"
PROGRAM = """
import torch
import elasticflow as ef

def model():
    return {"net": torch.nn.Linear(8, 3), "optimizer": ef.Adam(lr=0.01)}

def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x), y)
"""

PREDICTING = """
import torch
import elasticflow as ef

def model():
    return {"net": torch.nn.Linear(3, 1), "optimizer": ef.SGD(lr=0.01)}

def forward(a, b, c, age, params):
    return torch.nn.functional.mse_loss(predict(a, b, c, params), age)

def predict(a, b, c, params):
    return params["net"](torch.stack([a, b, c], 1)).squeeze(1)
"""


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    store = fsspec.filesystem("s3")
    if store.exists("models"):
        store.rm("models", recursive=True)
    store.mkdir("models")
    yield s3_server
    s3_server.heal()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    with Run(tmp_path_factory.mktemp("undisturbed") / "run", "small_torch.py", *OPTIONS) as run:
        return run.digest()


def _objects() -> list[str]:
    store = fsspec.filesystem("s3")
    store.invalidate_cache()
    return [name.removeprefix("models/nightly/") for name in store.find("models/nightly")]


def test_whatever_dies_and_falters(start: Callable[..., Run], s3: S3Server, undisturbed: str) -> None:
    """A worker, a server and the master are killed; the store refuses, and loses answers of what it did."""
    run = start(
        "small_torch.py", *OPTIONS, "--servers", 2, "--checkpoint-dir", MODELS, name="first", shut=["step 30"]
    )
    run.held_at("step 30")
    run.wait_until(lambda status: (status.checkpoint_step or 0) >= 20)
    s3.fail("refuse", "PUT", "models/nightly", times=6)
    s3.fail("lose", "PUT", "models/nightly", times=6)
    for name in ("worker-1", "server-1"):
        run.kill(name)
    master = run.status().master.pid
    run.open("step 30")
    run.wait_for_step(31)
    os.kill(master, signal.SIGKILL)
    assert run.digest() == undisturbed
    there = _objects()
    assert "first/owner.json" in there
    assert sum(name.endswith("manifest.json") for name in there) == 3, "keep_checkpoints"
    assert not list(run.path.glob("checkpoints/*")) and not list(run.path.glob("rows/*"))
    for where in (run.path, f"{MODELS}/first"):
        assert cli("checkpoint", "digest", where).stdout.strip() == undisturbed
        assert cli("checkpoint", "verify", where).stdout.count(": whole") == 3
        assert cli("checkpoint", "list", where).stdout.count("\n") == 3
    exported = cli("export", run.path, run.path / "model.npz")
    assert exported.returncode == 0, exported.stderr
    assert f"checkpoint: {MODELS}/first/checkpoints/step-" in run.output()


def test_a_store_in_which_nothing_may_be_removed(
    start: Callable[..., Run], s3: S3Server, undisturbed: str
) -> None:
    """It is said, and holds nothing up."""
    for method in ("DELETE", "POST"):
        s3.fail("deny", method, "models/nightly" if method == "DELETE" else "?delete", times=1_000_000)
    options = (*OPTIONS, "--keep-checkpoints", 1, "--checkpoint-dir", MODELS)
    run = start("small_torch.py", *options, name="first", shut=["step 30"])
    run.held_at("step 30")
    run.wait_until(lambda status: (status.checkpoint_step or 0) >= 20)
    run.open("step 30")
    assert run.digest() == undisturbed
    assert "old checkpoints cannot be removed" in run.output()
    assert sum(name.endswith("manifest.json") for name in _objects()) > 1


def test_it_waits_while_the_store_is_away(start: Callable[..., Run], s3: S3Server, undisturbed: str) -> None:
    """The last checkpoint cannot be written, until it can."""
    run = start("small_torch.py", *OPTIONS, "--checkpoint-dir", MODELS, name="first", shut=["step 30"])
    run.held_at("step 30")
    run.wait_until(lambda status: (status.checkpoint_step or 0) >= 20)
    s3.fail("refuse", "", "/models", times=1_000_000)
    run.open("step 30")
    run.wait_until(lambda status: status.storage_trouble and status.state == "finishing")
    assert s3.heal() > 0
    assert run.digest() == undisturbed


def test_it_ends_at_once_where_its_checkpoints_are_removed(start: Callable[..., Run], s3: S3Server) -> None:
    """All that it could still compute would be lost."""
    run = start(
        "small_torch.py", *OPTIONS, "--checkpoint-dir", MODELS, name="first", shut=["step 30", "step 90"]
    )
    run.held_at("step 30")
    run.wait_until(lambda status: (status.checkpoint_step or 0) >= 20)
    store = fsspec.filesystem("s3")
    store.invalidate_cache()
    store.rm("models/nightly", recursive=True)
    run.open("step 30")
    code, output = run.wait()
    assert code == 1, output
    assert f"{MODELS}/first, where its checkpoints lay, was removed while it ran" in run.report().text


def test_it_goes_on_where_its_checkpoints_are(
    start: Callable[..., Run], s3: S3Server, undisturbed: str
) -> None:
    """Also under another name; a copy of its folder does not, as these are the original's."""
    run = start("small_torch.py", *OPTIONS, "--checkpoint-dir", MODELS, name="first", shut=["step 30"])
    run.held_at("step 30")
    assert run.stop("step 30").returncode == 0
    other = cli("train", "--resume", "--run-dir", run.path, "--checkpoint-dir", "s3://models/other")
    assert other.returncode == 1
    assert f"are in {MODELS}/first, and stay there" in other.stderr
    copied = run.path.with_name("copied")
    shutil.copytree(run.path, copied)
    refused = cli("train", "--resume", "--run-dir", copied)
    assert refused.returncode == 1
    assert f"holds the checkpoints of {run.path}" in refused.stderr and "checkpoint copy" in refused.stderr
    made = cli("checkpoint", "copy", run.path, run.path.with_name("second"))
    assert made.returncode == 0, made.stderr
    shutil.rmtree(copied)
    run.path.rename(copied)
    assert start("small_torch.py", "--resume", name="copied").digest() == undisturbed
    assert start("small_torch.py", "--resume", name="second").digest() == undisturbed
    assert {name.split("/")[0] for name in _objects()} == {"first", "second"}


def test_two_runs_of_one_name_and_a_store_that_is_not_there(
    start: Callable[..., Run], s3: S3Server, tmp_path: Path
) -> None:
    """Each is told before anything begins, and leaves nothing behind."""
    start("small_torch.py", *OPTIONS, "--checkpoint-dir", MODELS, name="first").finish()
    program = PROGRAMS / "small_torch.py"
    for options, words in (
        (
            ("--checkpoint-dir", MODELS),
            f"{MODELS}/first: holds the checkpoints of a run already, {tmp_path}/first",
        ),
        (("--checkpoint-dir", "s3://no-such-bucket/x"), "s3://no-such-bucket/x/first: cannot be used"),
        (("--checkpoint-dir", "nonsense://x"), "nonsense://x is a URL that cannot be read"),
        (("--checkpoint-dir", "s3://me:secret@x/y"), "holds a secret"),
    ):
        refused = cli("train", program, "--run-dir", tmp_path / "elsewhere" / "first", *options)
        assert refused.returncode == 1, refused.stdout
        assert words in refused.stderr and "me:secret" not in refused.stderr
        assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "conf.yaml").write_text(f"checkpoint_place: {MODELS}/first\nport: 1\n")
    cli("train", program, "--config", tmp_path / "conf.yaml", "--run-dir", tmp_path / "sly", "--epochs", 1)
    assert "first/owner.json" in _objects(), "that place is another run's"
    for url, words in (
        ("s3://models", "name a folder in it, such as s3://bucket/runs/night-1"),
        ("s3://models/", "name a folder in it, such as s3://bucket/runs/night-1"),
        (f"{MODELS}/first", f"{MODELS}/first: holds the checkpoints of a run already, {tmp_path}/first"),
        ("s3://me:secret@x/y/z", "holds a secret"),
    ):
        refused = cli("train", program, "--run-dir", url, cwd=tmp_path / "elsewhere")
        assert refused.returncode == 1, refused.stdout
        assert words in refused.stderr and "me:secret" not in refused.stderr
        assert not list((tmp_path / "elsewhere").iterdir())
    both = ("--run-dir", f"{MODELS}/second", "--checkpoint-dir", "s3://models/other")
    refused = cli("train", program, *both, cwd=tmp_path / "elsewhere")
    assert f"with run_dir {MODELS}/second checkpoints lie there" in refused.stderr


def test_a_run_is_named_by_its_url_and_outlives_its_machine(
    s3: S3Server, tmp_path: Path, undisturbed: str
) -> None:
    """The command that began it goes on elsewhere with --resume. If the master lives on after all, on a
    machine that had been cut off, it ends at its next checkpoint, and changes nothing."""
    url, program = f"{MODELS}/first", PROGRAMS / "small_torch.py"
    begin = ("train", str(program), "--run-dir", url, *map(str, OPTIONS))
    here, there = tmp_path / "here", tmp_path / "there"
    for machine in (here, there):
        machine.mkdir()
    with Run(here / "runs/first", "", command=begin, cwd=here, shut=["step 30"]) as run:
        run.held_at("step 30")
        run.wait_until(lambda status: (status.checkpoint_step or 0) >= 20)
        assert cli("status", url).stdout.startswith("runs/first: running")
        (run.path / "owner.json").rename(here / "owner.json")  # what lies at the place names another folder
        for command, words in (
            (("status", url), f"holds the checkpoints of {run.path}"),
            (("status", url, "--json"), "and that folder is not here"),
            (("train", "--resume", "--run-dir", url), "name its program, and its settings"),
            ((*begin, "--resume", "--seed", 1), "was made with seed 0, now it is 1"),
            (("train", PROGRAMS / "swept_torch.py", *begin[2:], "--resume"), "is not the program of the"),
        ):
            refused = cli(*command, cwd=there)
            assert refused.returncode == 1 and words in refused.stderr, refused.stderr
            assert not refused.stdout or json.loads(refused.stdout)["state"] == "elsewhere"
            assert not list(there.iterdir())
        done = cli(*begin, "--resume", cwd=there)
        assert done.returncode == 0, done.stderr
        (here / "owner.json").rename(run.path / "owner.json")
        run.open("step 30")
        code, output = run.wait()
    assert code == 1, output
    story = (
        f"{url}: {there}/runs/first (begun on {socket.gethostname()}) goes on with these checkpoints by now"
    )
    assert story in run.report().text
    assert cli("checkpoint", "digest", url).stdout.strip() == undisturbed
    assert cli("status", url).stdout.startswith(f"{there}/runs/first: finished")
    refused = cli("train", "--resume", "--run-dir", run.path)
    assert refused.returncode == 1 and "and this run not any more" in refused.stderr


def test_a_machine_is_lost_before_the_first_checkpoint(
    s3: S3Server, tmp_path: Path, undisturbed: str
) -> None:
    begin = ("train", str(PROGRAMS / "small_torch.py"), "--run-dir", f"{MODELS}/first", *map(str, OPTIONS))
    here, there = tmp_path / "here", tmp_path / "there"
    for machine in (here, there):
        machine.mkdir()
    with Run(here / "runs/first", "", command=begin, cwd=here, shut=["step 10"]) as run:
        run.held_at("step 10")
    shutil.rmtree(here)
    refused = cli(*begin, cwd=there)
    assert refused.returncode == 1 and "holds the checkpoints of a run already" in refused.stderr
    assert "--resume" in refused.stderr
    done = cli(*begin, "--resume", cwd=there)
    assert done.returncode == 0, done.stderr
    assert cli("checkpoint", "digest", f"{MODELS}/first").stdout.strip() == undisturbed


def test_weights_of_another_run_there(start: Callable[..., Run], s3: S3Server) -> None:
    first = start("small_torch.py", *OPTIONS, "--checkpoint-dir", MODELS, name="first")
    first.finish()
    digests = [
        start("small_torch.py", *OPTIONS, "--seed", 1, "--init-from", where).digest()
        for where in (first.path, f"{MODELS}/first")
    ]
    assert digests[0] == digests[1]


def test_a_folder_of_this_machines_does_as_well(
    start: Callable[..., Run], tmp_path: Path, undisturbed: str
) -> None:
    run = start("small_torch.py", *OPTIONS, "--checkpoint-dir", tmp_path / "models", name="first")
    assert run.digest() == undisturbed
    assert sorted(path.name for path in (tmp_path / "models" / "first").iterdir()) == [
        "checkpoints",
        "owner.json",
    ]
    assert cli("checkpoint", "digest", run.path).stdout.strip() == undisturbed


def test_records_from_there(start: Callable[..., Run], s3: S3Server, tmp_path: Path) -> None:
    """The store falters meanwhile."""
    (tmp_path / "program.py").write_text(PROGRAM)
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "made.npz", x=draw.random((1000, 8), np.float32), y=draw.integers(0, 3, 1000))
    fsspec.filesystem("s3").put_file(str(tmp_path / "made.npz"), "models/data/made.npz")
    s3.fail("cut", "GET", "made.npz", times=3)
    digests = [
        start(str(tmp_path / "program.py"), *OPTIONS, "--data", where, "--workers", 2).digest()
        for where in (tmp_path / "made.npz", "s3://models/data/made.npz")
    ]
    assert digests[0] == digests[1]
    assert s3.heal() == 3


def test_trials_of_a_sweep_have_places_of_their_own(s3: S3Server, tmp_path: Path) -> None:
    """Each below the sweep's name, or those of another sweep would be in their way."""
    program = PROGRAMS / "swept_torch.py"
    options = ("--epochs", 1, "--batch-size", 20, "--workers", 1, "--checkpoint-dir", MODELS)
    grid = ("--space", "width=4|8", "--sampler", "grid", "--metric", "cost")
    for name in ("one", "two"):
        done = cli("sweep", program, "--folder", tmp_path / name, *options, *grid)
        assert done.returncode == 0, done.stderr
    assert {name.rpartition("/checkpoints/")[0] for name in _objects() if name.endswith("manifest.json")} == {
        f"{sweep}/trial-{number}" for sweep in ("one", "two") for number in range(2)
    }


def test_predictions_go_there(s3: S3Server, tmp_path: Path) -> None:
    """Whole, or not at all: also where the command is killed, or the store is away, while it puts them."""
    draw = np.random.default_rng(0)
    columns = {name: draw.random(600, np.float32) for name in ("a", "b", "c", "age")}
    np.savez(tmp_path / "given.npz", **columns)
    program = tmp_path / "program.py"
    program.write_text(PREDICTING)
    run = tmp_path / "run"
    trained = cli("train", program, "--data", tmp_path / "given.npz", "--run-dir", run, "--epochs", 1)
    assert trained.returncode == 0, trained.stderr
    command = ("predict", run, "--data", tmp_path / "given.npz", "--part-records", 100, "--workers", 1)
    assert cli(*command, "--out", tmp_path / "local.parquet").returncode == 0
    assert cli(*command, "--out", tmp_path / "folder").returncode == 0
    done = cli(*command, "--out", "s3://models/scores/today.parquet")
    assert done.returncode == 0 and done.stdout == "s3://models/scores/today.parquet\n", done.stderr
    store = fsspec.filesystem("s3")
    assert store.cat_file("models/scores/today.parquet") == (tmp_path / "local.parquet").read_bytes()
    refused = cli(*command, "--out", "s3://models/scores/today.parquet")
    assert refused.returncode == 1 and "is there already" in refused.stderr
    s3.fail("deny", "PUT", "part-000003", times=1_000_000)
    failed = cli(*command, "--out", "s3://models/scores/days/")
    assert failed.returncode == 1 and "give the same command again" in failed.stderr, failed.stderr
    store.invalidate_cache()
    assert [name.rpartition("/")[2] for name in store.ls("models/scores/days", detail=False)] == [
        f"part-{number:06}.parquet" for number in range(3)
    ]
    s3.heal()
    done = cli(*command, "--out", "s3://models/scores/days/")
    assert done.returncode == 0 and "7 of them from before" in done.stderr, done.stderr
    store.invalidate_cache()
    there = {name.rpartition("/")[2]: store.cat_file(name) for name in store.find("models/scores/days")}
    assert there.pop("_SUCCESS") == b""
    assert there == {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()}
    again = cli(*command, "--out", "s3://models/scores/days")
    assert again.returncode == 1 and "is there already" in again.stderr
