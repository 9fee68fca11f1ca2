"""How a run's report gets into its folder."""

from __future__ import annotations

import time
from collections.abc import Callable

import zmq

from elasticflow.master.log import say
from elasticflow.run import reserve
from elasticflow.run.folder import RunDir, publish
from elasticflow.run.telling import Report
from elasticflow.storage.background import Background
from elasticflow.wire.sockets import poll_ms


def leave_report(run: RunDir, report: Report, patience_s: float, has_left: Callable[[], bool]) -> None:
    """Writes it, as patiently as a checkpoint: without it the run would seem to have been killed.

    In a thread of its own, and not behind what is still asked of a slow store.

    has_left: asked before each try, whether the folder is gone, or another run's, which would take this for
    its own end.
    """
    outcome: list[str] = []
    background = Background(patience_s)

    def write() -> None:
        if not has_left():
            reserve.spend(run.path, lambda: publish(run.report, report))

    background.submit(
        write,
        lambda _, error: outcome.append(error),
        lambda text: say(f"warning: {run.report} is tried again: {text}") if text else None,
    )
    drain(background, patience_s)
    background.close()
    if outcome != [""]:
        why = outcome[0] if outcome else "the storage does not answer"
        say(f"warning: {run.report} cannot be written: {why}")
    reserve.give_up(run.path)


def drain(background: Background, patience_s: float) -> None:
    """Waits for what is still under way there, such as old checkpoints that are removed."""
    deadline = time.monotonic() + patience_s
    poller = zmq.Poller()
    poller.register(background.fd, zmq.POLLIN)
    while background.busy and (left_s := deadline - time.monotonic()) > 0:
        poller.poll(poll_ms(left_s))
        background.turn()
