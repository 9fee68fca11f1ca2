"""Two users of one machine, and one who is in the group: what each may see of a run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import CLI, Run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acts as other users, which takes root")
ADA, BOB, EVE, LAB = 41001, 41002, 41003, 41010
"""Ada's and Bob's group is the lab's; Eve's is not. They need no names."""
OPTIONS = ("--epochs", 3, "--batch-size", 64, "--checkpoint-every", 10)


def as_user(uid: int, *arguments: object, group: int = LAB) -> subprocess.CompletedProcess[str]:
    user = ["setpriv", f"--reuid={uid}", f"--regid={group}", "--clear-groups"]
    command = [*user, *CLI, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": "/"}
    )


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """Which others may enter, as on a cluster's scratch; pytest's own folders they may not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        if as_user(BOB, "--version").returncode:
            pytest.skip("other users may not execute this Python")
        yield Path(name)


def given_to_ada(run: Run) -> None:
    """As if she had begun it: root's own runs are trusted by all."""
    for path in (run.path, *run.path.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # it goes on: a file gets its last name meanwhile
            os.chown(path, ADA, LAB, follow_symlinks=False)


def readable_by(uid: int, path: Path, group: int = LAB) -> list[str]:
    """Files of a run's folder whose bytes somebody gets."""
    script = 'cd "$1" 2>/dev/null || exit 0; find . -type f -readable 2>/dev/null; true'
    user = ["setpriv", f"--reuid={uid}", f"--regid={group}", "--clear-groups"]
    done = subprocess.run([*user, "sh", "-c", script, "sh", path], capture_output=True, text=True, check=True)
    return sorted(line.removeprefix("./") for line in done.stdout.splitlines())


def test_by_default_nobody_sees_anything(shared_folder: Path) -> None:
    with Run(shared_folder / "run", "small_torch.py", *OPTIONS) as run:
        run.finish()
    given_to_ada(run)
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    for uid in (BOB, EVE):
        assert readable_by(uid, run.path) == []
        for command in (["status"], ["report"], ["logs"], ["export"], ["checkpoint", "digest"]):
            done = as_user(uid, *command, run.path, *(["/dev/null"] if command == ["export"] else []))
            assert done.returncode == 1 and "Traceback" not in done.stderr and not done.stdout, done.stderr
            assert done.stderr.count("\n") == 1 and "belongs to" in done.stderr, done.stderr
    assert as_user(ADA, "report", run.path).returncode == 0
    listed = as_user(BOB, "runs", shared_folder)
    assert listed.returncode == 0 and listed.stderr == f"{run.path}: may not be read: not shown\n"


def test_a_group_sees_status_logs_and_report(shared_folder: Path) -> None:
    path = shared_folder / "run"
    with Run(path, "small_torch.py", *OPTIONS, "--share", "group", shut=["step 20"]) as run:
        run.held_at("step 20")
        given_to_ada(run)
        status = json.loads(as_user(BOB, "status", path, "--json").stdout)
        assert status["state"] in ("starting", "running") and status["run"] == str(path)
        assert re.search(f"{path}: (starting|running), ", as_user(BOB, "status", path).stdout)
        assert "under way" in as_user(BOB, "report", path).stdout
        run.open("step 20")
        run.finish()
    given_to_ada(run)
    for command in ("status", "report"):
        assert f"{path}: finished, after" in as_user(BOB, command, path).stdout
    logs = as_user(BOB, "logs", path)
    assert logs.returncode == 0 and "master" in logs.stdout, logs.stderr
    (path / "logs" / "link.log").symlink_to("/etc/hostname")
    linked = as_user(BOB, "logs", path)
    assert linked.returncode == 1 and "link.log: is no file" in linked.stderr and not linked.stdout
    (path / "logs" / "link.log").unlink()
    seen = readable_by(BOB, path)
    assert {"report.json", "status.json", "logs/master.log"} <= set(seen)
    private = ("keys", "checkpoints", "program", "rows")
    assert not [name for name in seen if name.split("/")[0] in private]
    assert readable_by(EVE, path, group=EVE) == []
    for words in (["export", path, "/dev/null"], ["checkpoint", "digest", path], ["stop", path]):
        refused = as_user(BOB, *words)
        assert refused.returncode == 1 and "belongs to" in refused.stderr
        trusting = as_user(BOB, *words, "--trust")
        assert trusting.returncode == 1 and "Traceback" not in trusting.stderr
