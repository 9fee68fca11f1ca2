"""Checkpoints in an object store, of a run on the cluster."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
import yaml

from tests.clusters.processes import wait
from tests.clusters.s3 import S3Server
from tests.clusters.slurm import SlurmCluster
from tests.e2e.conftest import PROGRAMS, cli
from tests.e2e.processes import CLI

from .conftest import SMALL, WORK, SlurmRun, ready

MODELS = "s3://slurm-models/nightly"


def test_the_leader_is_requeued_and_finds_them(
    submit: Callable[..., SlurmRun],
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: str,
) -> None:
    """What leads to the store is in the environment of whoever submits, which SLURM hands down."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").mkdir("slurm-models")
    options = ("--workers", 2, "--checkpoint-every", 8, "--checkpoint-dir", MODELS)
    run = submit("small_torch.py", *options, shut=["step 20"])
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.held_at("step 20")
    run.wait_until(lambda s: s.checkpoint_step)
    run.cluster.run("scontrol", "requeue", str(run.job))
    run.wait_until(lambda s: s.master.incarnation == 2 and len(ready(s)) == 2)
    run.open("step 20")
    assert run.digest() == undisturbed
    run.leaves_nothing()
    assert not list(run.path.glob("checkpoints/*"))
    assert cli("checkpoint", "digest", f"{MODELS}/{run.path.name}").stdout.strip() == undisturbed


def test_a_run_is_named_by_its_url(
    submit: Callable[..., SlurmRun],
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    undisturbed: str,
) -> None:
    """Its folder is where it was submitted. That is lost, with the job; the command goes on elsewhere."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").mkdir("slurm-runs")
    url = "s3://slurm-runs/nightly/first"
    options = ("--workers", 2, "--checkpoint-every", 8, "--run-dir", url)
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here / "runs", there / "runs"):
        folder.mkdir(parents=True)
    run = submit("small_torch.py", *options, name="here/runs/first", cwd=here, shut=["step 20"])
    run.held_at("step 20")
    run.wait_until(lambda s: s.checkpoint_step)
    run.cluster.run("scancel", str(run.job))
    run.open("step 20")
    run.leaves_nothing()
    run.wait()
    run.path.rename(tmp_path / "lost")
    run = submit("small_torch.py", *options, "--resume", name="there/runs/first", cwd=there)
    assert run.digest() == undisturbed
    run.leaves_nothing()
    assert cli("checkpoint", "digest", url).stdout.strip() == undisturbed
    assert cli("status", url).stdout.startswith(f"{run.path}: finished")


def test_a_batch_script_of_ones_own_names_it_so(
    cluster: SlurmCluster,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    undisturbed: str,
) -> None:
    """Its job is requeued, and finds the folder, and the place, again."""
    cluster.reset()
    for name, value in {**s3_server.environment, "SLICE_S": "0.02"}.items():
        monkeypatch.setenv(name, value)
    store = fsspec.filesystem("s3")
    store.mkdir("slurm-batch")
    url = "s3://slurm-batch/first"
    section = {"leader": {"partition": "cpu"}, "workers": [{"partition": "cpu"}], "gpus": 0, **SMALL}
    conf, script, output = (tmp_path / name for name in ("conf.yaml", "job.sbatch", "job.out"))
    conf.write_text(yaml.safe_dump({"backend": "slurm", **WORK, "workers": 1, "slurm": section}))
    options = ("--config", str(conf), "--run-dir", url, "--checkpoint-every", "8")
    lead = shlex.join([*CLI, "lead", *options, str(PROGRAMS / "small_torch.py")])
    script.write_text(f"#!/bin/bash\nexec {lead}\n")
    where = (f"--chdir={tmp_path}", f"--output={output}", "--open-mode=append")
    job = cluster.run("sbatch", "--parsable", "--mem=1G", "--requeue", *where, str(script)).strip()

    def until(what: Callable[[], object], words: str) -> None:
        wait(what, words, 120, lambda: output.read_text(), every_s=0.2)

    def is_saved() -> bool:
        store.invalidate_cache()
        return any(name.endswith("manifest.json") for name in store.find("slurm-batch"))

    until(is_saved, "it has a checkpoint")
    cluster.run("scontrol", "requeue", job)
    folder = tmp_path / "runs" / "first"
    until(lambda: cli("status", url).stdout.startswith(f"{folder}: finished"), "it has finished")
    assert "go on from step" in output.read_text()
    assert cli("checkpoint", "digest", url).stdout.strip() == undisturbed
    cluster.wait_until_idle()
