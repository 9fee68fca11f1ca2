"""A copy of a run's folder, made by ``cp -a`` while the run goes on, is another run."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from .conftest import Run, digest_in

OPTIONS = ("--epochs", 6, "--batch-size", 64, "--checkpoint-every", 60, "--snapshot-s", 0)
"""One checkpoint before the end: none is left out since the one before is still being written."""


def test_the_copy_goes_on_and_leaves_the_originals_processes_alone(
    start: Callable[..., Run],
) -> None:
    original = start("small_torch.py", *OPTIONS, name="original", shut=["step 60"])
    original.held_at("step 60")
    before = original.wait_until(lambda status: (status.checkpoint_step or 0) >= 60)
    place = original.path.with_name("copy")
    copied = subprocess.run(["cp", "-a", original.path, place], capture_output=True, text=True, check=False)
    # Files that are just being written are renamed under its hands; there is nothing to be missed in them.
    passing = re.compile(r"cp: cannot (stat|open) '.*/\.[^/']+'.*: No such file or directory")
    assert all(passing.fullmatch(line) for line in copied.stderr.splitlines()), copied.stderr
    assert list((place / "keys" / "members").iterdir()), "the copy names the original's processes"
    (place / "master.json").unlink()  # or this test would ask the original's master
    copy = start("small_torch.py", "--resume", name="copy", shut=["step 70"])
    copy.held_at("step 70")
    now = original.status()
    assert now.num_faults == 0 and now.master.pid == before.master.pid
    assert [worker.pid for worker in now.workers] == [worker.pid for worker in before.workers]
    copy.open("step 70")
    original.open("step 60")
    assert digest_in(copy.finish()) == original.digest()
    assert Path(original.path, "report.json").exists() and Path(copy.path, "report.json").exists()
