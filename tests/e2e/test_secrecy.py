"""The keys of a job are in two files that only its owner can read, and nowhere else."""

from __future__ import annotations

import base64
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticflow.run.folder import RunDir
from elasticflow.wire.keys import CLIENT, MasterKeys, read_keys

from .conftest import Run
from .processes import MARK, marked


def secrets_in(run: RunDir) -> set[bytes]:
    """All that nobody else may know, in every form in which it might be written down."""
    keys = read_keys(run.master_keys, MasterKeys)
    texts = {keys.master_secret, keys.member_secret}
    names = (CLIENT, "worker-1", "worker-2", "worker-3", "server-0")
    of_members = {keys.of(name).own for name in names}
    passes = [keys.of("server-0").pass_for(name, 1) for name in names[1:4]]
    raw = {keys.root, *of_members, *(each.key for each in passes)}
    data = {form for key in raw for form in (key, key.hex().encode(), base64.b64encode(key))}
    data |= {each.password for each in passes}
    return data | {text.encode() for text in texts} | {repr(text)[1:-1].encode() for text in texts}


def places(run: Run, pids: list[int]) -> Iterator[tuple[str, bytes]]:
    """What others can see, or may be shown: names and contents."""
    for pid in pids:
        for name in ("cmdline", "environ"):
            yield f"/proc/{pid}/{name}", Path(f"/proc/{pid}/{name}").read_bytes()
    for path in run.path.rglob("*"):
        if path.is_file() and run.dir.client_keys.parent not in path.parents:
            yield str(path), path.read_bytes()


def assert_secret(run: Run, pids: list[int]) -> None:
    hidden = secrets_in(run.dir)
    assert len(hidden) >= 7
    for name, content in places(run, pids):
        assert not any(secret in content for secret in hidden), f"there is a key in {name}"


def test_keys_are_in_their_files_and_nowhere_else(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = secrets.token_hex(8)
    monkeypatch.setenv(MARK, mark)
    run = start("small_torch.py", "--workers", 2, "--epochs", 500, "--checkpoint-every", 20)
    run.wait_for_step(30)
    folder = run.dir.client_keys.parent
    assert folder.stat().st_mode & 0o777 == 0o700
    members = [run.dir.keys_of(name) for name in ("worker-1", "worker-2", "server-0")]
    keys = (run.dir.client_keys, run.dir.master_keys, *members)
    assert not [path.name for path in keys if path.stat().st_mode & 0o077]
    running = marked({MARK: mark})
    assert len(running) >= 4
    assert_secret(run, running)
    run.kill("worker-1")
    run.wait_until(lambda status: [each.name for each in status.workers][-1:] == ["worker-3"])
    run.process.send_signal(signal.SIGINT)
    _, output = run.wait()
    assert_secret(run, [])
    assert not any(secret in output.encode() for secret in secrets_in(run.dir))
