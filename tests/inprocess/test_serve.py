"""A master's whole life, as far as its run's folder is concerned."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from elasticflow.master import server
from elasticflow.master.actions import EndAction
from elasticflow.master.members import RunState
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir


def test_a_run_that_is_over_stays_so_though_its_address_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, end = RunDir(tmp_path), EndAction(RunState.FINISHED, "all steps are done")
    run.create(Config(program="digits.py"))

    class Master:
        endpoint = "tcp://127.0.0.1:1"

        def __init__(self, *_: object) -> None:
            """Of one who has done its work."""

        def run(self, client_fd: int | None) -> EndAction:
            run.address.unlink()
            run.address.mkdir()
            return end

    monkeypatch.setattr(server, "Master", Master)
    with zmq.Context() as context:  # a master's ends with its process
        monkeypatch.setattr(zmq, "Context", lambda: context)
        assert server.serve(str(tmp_path), resume=False, again=False, ready=lambda _: None) is end
