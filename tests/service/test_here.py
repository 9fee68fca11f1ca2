"""A run of this machine's, as the service follows it."""

from __future__ import annotations

import os
from pathlib import Path

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
