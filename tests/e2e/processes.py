"""Which processes a command has left behind: found by a mark in their environment."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from .forking import forked
from .programs.gates import MARK

CLI = [sys.executable, "-m", "elasticflow.cli"]


def new_mark() -> dict[str, str]:
    """This process's environment, and a mark that all children of a command inherit, also forked ones."""
    return {**os.environ, MARK: secrets.token_hex(8)}


def marked(environment: dict[str, str]) -> list[int]:
    """Processes with this mark that live."""
    wanted = f"{MARK}={environment[MARK]}".encode()
    sessions = forked(environment)
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            pid = int(entry.name)
            if wanted in (entry / "environ").read_bytes().split(b"\0") or os.getsid(pid) in sessions:
                found.append(pid)
    return found


def wait_until_gone(environment: dict[str, str], timeout_s: float = 30) -> list[int]:
    """Waits until no marked process lives; returns those that still do, after ending them."""
    deadline = time.monotonic() + timeout_s
    while (left := marked(environment)) and time.monotonic() < deadline:
        time.sleep(0.02)  # processes that are no children of ours cannot be waited for
    end_all(environment)
    return left


def remove_under_way(folder: Path) -> None:
    """Removes a folder in which others write meanwhile."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def end_all(environment: dict[str, str]) -> None:
    """Ends all marked processes, also those that one of them starts meanwhile."""
    while left := marked(environment):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


class Outcome:
    """How a command ended. left: processes that outlived it. found: what is in its folder now."""

    def __init__(self, folder: Path, *arguments: object, timeout_s: float = 240) -> None:
        environment = new_mark()
        done = subprocess.run(
            [*CLI, *map(str, arguments)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        self.folder = folder
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.left = wait_until_gone(environment)
        self.found = sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")

    def refused(self, *fragments: str) -> None:
        """Asserts one clear message with these fragments, exit code 1, and no process left."""
        assert self.code == 1, (self.code, self.out, self.err)
        assert_told(self.err, *fragments)
        assert "Traceback" not in self.out
        assert not self.left, self.err


def assert_told(errors: str, *fragments: str) -> None:
    """One clear message with these fragments, and nothing else, above all no traceback."""
    assert errors.startswith("Error: ") and errors.count("\n") == 1 and errors.endswith("\n"), errors
    for fragment in fragments:
        assert fragment in errors, errors
