"""Has a process make the first checkpoint of a run that begins with the weights of another."""

from __future__ import annotations

import os
import subprocess
import sys

from elasticflow.errors import CheckpointError
from elasticflow.process.decoding import from_json
from elasticflow.process.fingerprint import environment
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.taken import Taken
from elasticflow.worker.trial import how_it_ended

CHILD = "elasticflow.worker.warm"


def warm_start(run: RunDir, config: Config) -> Taken:
    """Returns once the checkpoint of step 0 is committed. Raises CheckpointError, with the reason, if it is
    not.

    In a process of its own: the program is loaded there, of which this one is to know nothing.
    """
    hears, says = os.pipe()
    with os.fdopen(hears, "rb") as pipe:
        child = subprocess.Popen(
            [sys.executable, "-m", CHILD, str(run.path), str(says), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            pass_fds=(says,),
            env=environment(config.threads),
        )
        os.close(says)
        told = pipe.read()
    status = child.wait()
    if not told:
        raise CheckpointError(
            f"--init-from {config.init_from}: the process that was to take the weights "
            f"{how_it_ended(status)}; the last words of {run.path}/logs/master.log are its own."
        )
    taken = from_json(told, Taken)
    if taken.error:
        raise CheckpointError(taken.error)
    return taken
