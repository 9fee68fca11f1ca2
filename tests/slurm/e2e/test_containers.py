"""Workers and servers in containers. What Apptainer does bubblewrap does here, by the same system calls."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SlurmRun, ready

Submit = Callable[..., SlurmRun]
CONTAINER = shlex.join(
    ["bwrap", "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc", "--tmpfs", "/opt"]
    + ["--bind", "/tmp", "/tmp", "--setenv", "IN_THE_CONTAINER", "1"]
)


@pytest.fixture
def run(submit: Submit) -> SlurmRun:
    """Two workers in containers, held at step 20."""
    if not shutil.which("bwrap") and os.environ.get("ELASTICFLOW_REQUIRE_CLUSTERS") != "1":
        pytest.skip("there is no bwrap here: .ci/slurm installs it")
    slurm = {"container": CONTAINER, "container_python": sys.executable}
    run = submit("small_torch.py", "--workers", 2, "--checkpoint-every", 8, slurm=slurm, shut=["step 20"])
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.held_at("step 20")
    run.wait_until(lambda s: s.checkpoint_step)
    return run


def namespaces(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/mnt")


def test_members_are_in_containers_and_the_leader_is_not(run: SlurmRun, undisturbed: str) -> None:
    """A worker and a server are killed there; SLURM ends what is left."""
    for name in ("worker-1", "worker-2", "server-0", "server-1"):
        pid = run.pid(name)
        assert namespaces(pid) != namespaces(os.getpid())
        assert b"IN_THE_CONTAINER=1" in Path(f"/proc/{pid}/environ").read_bytes()
    assert namespaces(run.pid("master")) == namespaces(os.getpid())
    run.kill("worker-1")
    run.wait_until(lambda s: sorted(ready(s)) == ["worker-2", "worker-3"])
    run.kill("server-0")
    run.wait_until(lambda s: s.generation == 2 and not s.regrouping)
    run.open("step 20")
    assert run.digest() == undisturbed
    run.leaves_nothing()


def test_a_worker_in_a_container_is_preempted(run: SlurmRun, undisturbed: str) -> None:
    """The notice reaches it there: it leaves at a step's end, and counts as no fault."""
    run.cluster.run("scancel", "--signal=TERM", run.jobs()["worker-1"])
    run.open("step 20")
    run.wait_until(lambda s: "worker-1" not in ready(s))
    assert run.digest() == undisturbed
    run.leaves_nothing()


def test_a_runtime_that_is_not_there_is_named(submit: Submit) -> None:
    slurm = {"container": "no-such-runtime exec image", "launch_failures": 2}
    run = submit("small_torch.py", "--workers", 1, slurm=slurm)
    code, output = run.wait()
    assert code != 0
    assert "no-such-runtime" in output, output
