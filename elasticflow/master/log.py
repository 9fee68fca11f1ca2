"""What master and supervisor say: into RUN/logs/master.log, for people."""

from __future__ import annotations

import contextlib

from elasticflow.process.texts import sendable


def say(text: str) -> None:
    """A line. A disk that takes no more of them is no reason to end a run."""
    with contextlib.suppress(OSError):
        print(sendable(text), flush=True)
