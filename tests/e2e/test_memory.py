"""A model that does not fit is told before the first step, on a host that seems to have little memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .processes import CLI, assert_told, new_mark, wait_until_gone

PROGRAM = """
import numpy as np
import torch
import elasticflow as ef

def model():
    return {"w": torch.zeros(5_000_000), "optimizer": ef.Adam()}

def forward(x, params):
    return (params["w"][:2] * x).sum(1).mean()

def data():
    return {"x": np.ones((64, 2), np.float32)}
"""


def on_a_small_host(folder: Path) -> list[str]:
    """What to put before a command for it to find 82 MB of memory. Skips where nobody may do that."""
    (folder / "meminfo").write_text("MemTotal: 200000 kB\nMemAvailable: 80000 kB\n")
    script = f'mount --bind {folder}/meminfo /proc/meminfo && exec "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounts in a namespace of one's own are not allowed here")
    return command


def test_a_model_that_does_not_fit(tmp_path: Path) -> None:
    before = on_a_small_host(tmp_path)
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "large.py").write_text(PROGRAM)

    def train(*options: str) -> subprocess.CompletedProcess[str]:
        environment = new_mark()
        command = [*before, *CLI, "train", "large.py", "--workers", "1", "--epochs", "1", *options]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
        )
        assert not wait_until_gone(environment)
        return done

    refused = train()
    assert refused.returncode == 1
    assert_told(
        refused.stderr,
        "the model does not fit into the memory of its servers",
        "server-0 and server-1",
        "needs 100.0 MB (parameters 60.0 MB, slots 40.0 MB)",
        "the host has 81.9 MB left",
    )
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {"large.py", "runs"}
    (kept,) = (folder / "runs").iterdir()
    assert not list(kept.glob("checkpoints/*/*")) and (kept / "logs" / "master.log").exists()
    (folder / "large.py").write_text(PROGRAM.replace("5_000_000", "1_000_000"))
    told = train()
    assert told.returncode == 0, told.stderr
    for fragment in ("the model may not fit", "may need 84.0 MB", "snapshot_s: 0"):
        assert fragment in told.stdout + told.stderr
