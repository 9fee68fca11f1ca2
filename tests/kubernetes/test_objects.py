"""Checkpoints in an object store, whose credentials are in a Secret."""

from __future__ import annotations

import json
from collections.abc import Iterator

import fsspec
import pytest

from tests.clusters.kubernetes import API_SERVER, KubernetesCluster
from tests.clusters.s3 import S3Server
from tests.e2e.conftest import cli
from tests.e2e.on_clusters import ready

from .conftest import LEADER
from .test_faults import Submit, ends_well
from .test_leader import comes_again

MODELS = "s3://models/nightly"


@pytest.fixture
def secret(kubernetes: KubernetesCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What is in it. Pods and this machine reach the store at the same address."""
    with S3Server(API_SERVER) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("models")
        literals = [f"--from-literal={name}={value}" for name, value in store.environment.items()]
        kubernetes.kubectl("create", "secret", "generic", "store", *literals)
        yield store.environment
        kubernetes.kubectl("delete", "secret", "store")


def test_the_leader_is_lost_and_its_successor_finds_them(
    submit: Submit, secret: dict[str, str], undisturbed: str, kubernetes: KubernetesCluster
) -> None:
    settings = {"checkpoint_dir": MODELS}
    run = submit(
        "small_torch.py", "--workers", 2, "--checkpoint-every", 8, shut=["step 20"],
        section={"env_secrets": ["store"]}, settings=settings,
    )  # fmt: skip
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.held_at("step 20")
    run.wait_until(lambda s: s.checkpoint_step)
    before = run.uids()
    run.cluster.kubectl("delete", "pod", run.pods()[LEADER]["metadata"]["name"], "--wait=false")
    comes_again(run, before)
    shown = json.dumps(run.pods()) + json.dumps(run.job())
    assert '"secretRef": {"name": "store"}' in shown
    assert secret["AWS_SECRET_ACCESS_KEY"] not in shown
    ends_well(run, undisturbed)
    assert not list(run.path.glob("checkpoints/*"))
    assert cli("checkpoint", "digest", f"{MODELS}/{run.path.name}").stdout.strip() == undisturbed
    assert cli("checkpoint", "digest", run.path).stdout.strip() == undisturbed


def test_a_secret_that_is_not_there_is_named(submit: Submit) -> None:
    run = submit(
        "small_torch.py", "--workers", 1, section={"env_secrets": ["nowhere"]}, settings={"start_s": 20}
    )
    run.wait_for_output('secret "nowhere" not found')
