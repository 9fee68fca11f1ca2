"""A member's process, before it is a worker or a server."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

import elasticflow_ps.server
from elasticflow import launch
from elasticflow.run import config
from elasticflow.run.settings import MemberSettings


def test_who_is_interrupted_is_killed_and_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody catches would be a failure of its own, of which a run bears few."""

    def interrupted(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    monkeypatch.setattr(launch, "read_keys", lambda *_: None)
    monkeypatch.setattr(elasticflow_ps.server, "main", interrupted)
    chosen = config.make(None, {"program": "program.py"})
    settings = MemberSettings.of(
        chosen, name="server-0", role="server", host="", master="", run_dir="/nowhere"
    )
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            launch.run(settings)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGINT
