"""Runs one member, a worker or a parameter server, in this process.

``python -m elasticflow.launch SETTINGS`` takes MemberSettings as JSON; there is no secret among them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import sys
import time
from pathlib import Path

import msgspec

from elasticflow.process.decoding import from_json
from elasticflow.process.stamps import stamp_output
from elasticflow.process.texts import bear_any_text
from elasticflow.run.config import PARAMETER_SERVER
from elasticflow.run.folder import RunDir
from elasticflow.run.settings import MemberSettings
from elasticflow.storage import storage_of
from elasticflow.wire.keys import MemberKeys, read_keys


def run(settings: MemberSettings) -> int:
    """A member's whole life; returns its exit code."""
    faulthandler.enable()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as SIGTERM: who is ended from outside has not failed
    bear_any_text()
    stamp_output(settings.log_format, settings.name)
    with contextlib.suppress(OSError):  # what ps and top call it
        Path("/proc/self/comm").write_text(f"ef-{settings.name}", encoding="utf-8")
    run_dir = RunDir(settings.run_dir)
    keys = read_keys(run_dir.keys_of(settings.name), MemberKeys)
    place = settings.checkpoint_place or settings.run_dir
    if settings.role == "worker":
        from elasticflow.worker import life
        from elasticflow.worker.carrying import Carrying, PorterProcess, forks_with_framework

        carries = settings.strategy != PARAMETER_SERVER and not settings.asynchronous
        needs_porter = carries or forks_with_framework()
        carrying = Carrying(settings.name, PorterProcess(settings, run)) if needs_porter else None
        return life.main(settings, keys, lambda: storage_of(place), carrying)
    from elasticflow_ps import server

    server.main(settings, keys, storage_of(place))
    return 0


def main(argv: list[str] | None = None) -> int:
    """See the module's docstring."""
    (text,) = sys.argv[1:] if argv is None else argv
    settings = from_json(text, MemberSettings)
    return run(msgspec.structs.replace(settings, started_s=settings.started_s or time.time()))


if __name__ == "__main__":
    sys.exit(main())
