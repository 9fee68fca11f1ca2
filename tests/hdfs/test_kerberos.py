"""An HDFS that asks for Kerberos, with a real KDC whose tickets are good for half a minute."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from elasticflow.storage import RemoteStorage
from elasticflow.storage.hdfs import HdfsPath
from tests.clusters import hadoop, kerberos
from tests.clusters.kerberos import LIFE_S, SecureHdfs
from tests.e2e.conftest import Run
from tests.storage_contract import *  # noqa: F403
from tests.storage_contract import write

pytestmark = [pytest.mark.hdfs, pytest.mark.timeout(480)]
PROGRAM = """
import time
import numpy as np
import torch
import elasticflow as ef

def model():
    return {"net": torch.nn.Linear(8, 3), "optimizer": ef.Adam(lr=0.01)}

def forward(x, y, params):
    time.sleep(%s)
    return torch.nn.functional.cross_entropy(params["net"](x), y)
"""
WORK = {"epochs": 4, "batch_size": 64, "slices": 4, "checkpoint_every": 10, "workers": "2", "servers": 2}
"""64 steps."""


@pytest.fixture(scope="module")
def secure_hdfs() -> Iterator[SecureHdfs]:
    reason = kerberos.skip_reason()
    if not reason and not importlib.util.find_spec("requests_kerberos"):
        reason = "there is no requests-kerberos here: .ci/kerberos builds it"
    if reason and os.environ.get("ELASTICFLOW_REQUIRE_KERBEROS") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    hadoop.require()
    with SecureHdfs() as cluster:
        yield cluster


@pytest.fixture
def client(secure_hdfs: SecureHdfs, monkeypatch: pytest.MonkeyPatch) -> SecureHdfs:
    """This process, without a ticket."""
    for name, value in secure_hdfs.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("HADOOP_USER_NAME", "KRB5_CLIENT_KTNAME"):
        monkeypatch.delenv(name, raising=False)
    Path(os.environ["KRB5CCNAME"].removeprefix("FILE:")).unlink(missing_ok=True)
    return secure_hdfs


@pytest.fixture
def url(client: SecureHdfs, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a folder that is there; tickets are fetched by keytab."""
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(client.keytab))
    folder = HdfsPath(f"{client.hdfs_url}/user/{client.user}/{time.monotonic_ns()}", patience_s=60)
    folder.mkdir(parents=True)
    yield str(folder)
    folder.remove_tree()


@pytest.fixture
def storage(url: str) -> RemoteStorage:
    return RemoteStorage(url)


def _listed(url: str) -> str:
    """What another process, which has no cookie yet, comes to."""
    script = (
        "import sys; from elasticflow.storage import RemoteStorage as R; print(R(sys.argv[1], 0.5).list())"
    )
    done = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, timeout=60)
    return done.stdout or done.stderr.splitlines()[-1]


def test_without_a_ticket_and_when_it_has_expired(client: SecureHdfs) -> None:
    """It is said what to do. A keytab is all that it takes to go on."""
    url = f"{client.hdfs_url}/user/{client.user}"
    words = "it asks for Kerberos, and there is no ticket that is good: run kinit"
    assert words in _listed(url)
    client.kinit()
    got_s = time.monotonic()
    assert _listed(url).startswith("[")
    time.sleep(max(0.0, got_s + LIFE_S + 2 - time.monotonic()))  # tickets end by the clock
    assert words in _listed(url)
    os.environ["KRB5_CLIENT_KTNAME"] = str(client.keytab)
    assert _listed(url).startswith("[")


def test_as_whom(client: SecureHdfs, url: str) -> None:
    assert HdfsPath(url).whoami() == client.user


def test_a_run_outlives_its_tickets(client: SecureHdfs, url: str, tmp_path: Path) -> None:
    """Records and checkpoints are there. The NameNode restarts, and so knows nobody any more; a worker is
    killed, and the one in its place begins when the first tickets have long expired."""
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "made.npz", x=draw.random((1000, 8), np.float32), y=draw.integers(0, 3, 1000))
    write(RemoteStorage(url), "made.npz", (tmp_path / "made.npz").read_bytes())
    (tmp_path / "conf.yaml").write_text(yaml.safe_dump(WORK))
    digests = []
    for name, pause_s, options in (
        ("here", 0.0, ("--data", tmp_path / "made.npz")),
        ("there", 0.35, ("--data", f"{url}/made.npz", "--checkpoint-dir", f"{url}/models")),
    ):
        program = tmp_path / f"{name}.py"
        program.write_text(PROGRAM % pause_s)
        with Run(tmp_path / name, str(program), "--config", tmp_path / "conf.yaml", *options) as run:
            if pause_s:
                began_s = time.monotonic()
                run.wait_for_step(12)
                client.restart("namenode")
                time.sleep(max(0.0, began_s + LIFE_S + 5 - time.monotonic()))
                run.kill("worker-1")
                run.wait_until(
                    lambda s: [w.name for w in s.workers if w.state == "ready"] == ["worker-2", "worker-3"]
                )
            digests.append(run.digest())
            if pause_s:
                assert time.monotonic() - began_s > LIFE_S, "it ended before its tickets did"
    assert digests[0] == digests[1]
