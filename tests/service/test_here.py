"""A run of this machine's, as the service follows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import zmq

from elasticflow.local.forkserver import ForkServers
from elasticflow.run.config import make
from elasticflow.run.folder import RunDir
from elasticflow.service import happenings as hp
from elasticflow.service.follower import TRIES
from elasticflow.service.here import FollowerHere
from elasticflow.service.state import Granted
from elasticflow.wire.sockets import Context


def test_a_run_that_was_removed_before_it_began_has_failed_and_is_not_made_anew(tmp_path: Path) -> None:
    context: Context = zmq.Context()
    run = tmp_path / "run"
    follower = FollowerHere(context, "1-run", str(run), 30.0, ForkServers(tmp_path / "forkservers"))
    granted = Granted(workers=1, number=1, why="", until_s=None)
    (over,) = [each for turn in range(TRIES) for each in follower.turn(granted, 0, float(turn))]
    assert isinstance(over, hp.Over) and over.state == "failed"
    assert "is not the folder of a run" in over.text
    assert not run.exists()
    follower.close()
    context.term()


def test_a_pipe_in_the_place_of_a_log_holds_nobody_up(tmp_path: Path) -> None:
    context: Context = zmq.Context()
    run = RunDir(tmp_path / "run")
    run.create(make(None, {"program": "x.py"}))
    run.logs.mkdir(exist_ok=True)
    run.master_log.unlink(missing_ok=True)
    os.mkfifo(run.master_log)
    follower = FollowerHere(context, "1-run", str(run.path), 30.0, ForkServers(tmp_path / "forkservers"))
    granted = Granted(workers=1, number=1, why="", until_s=None)
    (over,) = [each for turn in range(TRIES) for each in follower.turn(granted, 0, float(turn))]
    assert isinstance(over, hp.Over) and over.state == "failed" and "master.log" in over.text
    follower.close()
    context.term()


@pytest.mark.parametrize("what", ["folder", "mark", "report"])
def test_a_run_in_whose_place_something_else_is_holds_no_workers_for_good(tmp_path: Path, what: str) -> None:
    context: Context = zmq.Context()
    run = RunDir(tmp_path / "run")
    if what == "folder":
        (tmp_path / "run").touch()
    else:
        run.create(make(None, {"program": "x.py"}))
        (tmp_path / "run" / "mark").write_text("its")
        (tmp_path / "run" / getattr(run, what).name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / "run" / getattr(run, what).name)
    servers = ForkServers(tmp_path / "forkservers")
    follower = FollowerHere(context, "1-run", str(run.path), 30.0, servers, mark="its")
    granted = Granted(workers=1, number=1, why="", until_s=None)
    if what != "folder":
        lock = run.hold()
        assert not follower.turn(granted, 1, 0.0), "somebody is there"
        os.close(lock)
    (over,) = follower.turn(granted, 1, 1.0)
    assert isinstance(over, hp.Over) and over.state == "failed" and "cannot be looked at" in over.text
    follower.close()
    context.term()
