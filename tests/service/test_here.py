"""A run of this machine's, as the service follows it."""

from __future__ import annotations

from pathlib import Path

import zmq

from elasticflow.local.forkserver import ForkServers
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
