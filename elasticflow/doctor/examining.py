"""Runs all groups of checks, each in a process of its own, and waits no longer than it says."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping

import msgspec

from elasticflow.doctor.finding import Diagnosis, broken
from elasticflow.doctor.matters import MATTERS
from elasticflow.process.decoding import from_json
from elasticflow.run.config import Config

CHECK = "elasticflow.doctor.checking"
LIMIT_S = 30.0


def examine(
    config: Config, matters: Iterable[str] = tuple(MATTERS), limit_s: float = LIMIT_S, check: str = CHECK
) -> list[Diagnosis]:
    """All findings, in the order of the groups. check: the module that makes them.

    What has not answered in time is told as broken; its process is ended, and not waited for: it may be
    stuck in the kernel.
    """
    processes = {matter: _begun(check, matter, config) for matter in matters}
    said = dict.fromkeys(processes, b"")
    waiting = {process.stdout.fileno(): matter for matter, process in processes.items() if process.stdout}
    until_s = time.monotonic() + limit_s
    poller = select.poll()
    for fd in waiting:
        poller.register(fd, select.POLLIN)
    while waiting and (left_s := until_s - time.monotonic()) > 0:
        for fd, _ in poller.poll(left_s * 1000):
            piece = os.read(fd, 1 << 16)
            said[waiting[fd]] += piece
            if not piece:
                poller.unregister(fd)
                del waiting[fd]
    return [
        finding
        for matter, process in processes.items()
        for finding in _findings(matter, process, said[matter], limit_s, late=matter in waiting.values())
    ]


def _begun(check: str, matter: str, config: Config) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", check, matter],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(os.environ),
    )
    assert process.stdin
    try:
        with process.stdin:
            process.stdin.write(msgspec.json.encode(config))  # less than a pipe holds
    except BrokenPipeError:
        pass  # it has ended, which its findings will show
    return process


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {**environ, "TF_CPP_MIN_LOG_LEVEL": "3"}


def _findings(
    matter: str, process: subprocess.Popen[bytes], said: bytes, limit_s: float, *, late: bool
) -> list[Diagnosis]:
    whole = said[: said.rfind(b"\n") + 1]
    found = [from_json(line, Diagnosis) for line in whole.splitlines()]
    if late:
        process.kill()
        process.returncode = -9  # nobody waits for it
        cure = (
            "Something there hangs: a file system that is mounted, a daemon, a network. See what it is by "
            "hand."
        )
        found.append(broken(matter, f"no answer within {limit_s:g} s", cure))
    elif code := process.wait():
        found.append(broken(matter, f"the check ended with exit code {code}", "Tell us: that is a defect."))
    if process.stdout:
        process.stdout.close()
    return found
