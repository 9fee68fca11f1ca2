"""Checkpoints in an object store, of a run on the cluster."""

from __future__ import annotations

from collections.abc import Callable

import fsspec
import pytest

from tests.clusters.s3 import S3Server
from tests.e2e.conftest import cli

from .conftest import SlurmRun, ready

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
