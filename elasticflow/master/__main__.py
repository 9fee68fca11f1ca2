"""``python -m elasticflow.master RUN_DIR [--resume] [--ready-fd N] [--client-fd N] [--lock-fd N]``

A run's master: this process becomes its supervisor. When the first master listens, or cannot, a line is
written to the descriptor: empty, or what is wrong. ``--client-fd`` is a pipe that closes with the client;
``--lock-fd`` the run's lock, where whoever starts this has it already.
Exit codes: see ``elasticflow.master.supervisor``; 0 finished, 1 failed, 3 stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys

from elasticflow.cluster.contract import load_backend
from elasticflow.errors import ElasticFlowError, RunError
from elasticflow.master.log import say
from elasticflow.master.supervisor import Supervisor
from elasticflow.master.tracking import await_tracking
from elasticflow.process.fingerprint import one_thread
from elasticflow.process.stamps import stamp_output
from elasticflow.process.texts import bear_any_text, sendable
from elasticflow.run.folder import EXIT_CODES, RunDir
from elasticflow.run.whereabouts import Whereabouts


def main(argv: list[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="elasticflow.master")
    parser.add_argument("run_dir")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--ready-fd", type=int, default=1)
    parser.add_argument("--client-fd", type=int)
    parser.add_argument("--lock-fd", type=int)
    arguments = parser.parse_args(argv)
    bear_any_text()
    stamp_output()
    for descriptor in (arguments.ready_fd, arguments.client_fd, arguments.lock_fd):
        if descriptor is not None and descriptor > 2:
            os.set_inheritable(descriptor, False)
    ready = _Ready(arguments.ready_fd)
    run = RunDir(arguments.run_dir)
    try:
        if arguments.lock_fd is None:
            run.hold()  # the master forked from here shares it
        config = run.config()
        stamp_output(config.log_format, "master")
        backend = load_backend(config.backend)
    except ElasticFlowError as error:
        return ready.failed(error)
    with one_thread():
        from elasticflow.master.server import serve

    whereabouts = Whereabouts(run)

    def master(again: bool) -> int:
        try:
            if again and whereabouts.is_anothers():  # whose members it would take for its own
                raise RunError(f"{run.path}: {whereabouts.story()}")
            end = serve(
                arguments.run_dir,
                resume=arguments.resume,
                again=again,
                ready=ready,
                client_fd=arguments.client_fd,
            )
        except ElasticFlowError as error:
            return ready.failed(error)
        return EXIT_CODES[end.state.value]

    def clear() -> None:
        if whereabouts.is_anothers():
            return
        backend.clear(arguments.run_dir)
        with contextlib.suppress(OSError):
            run.address.unlink(missing_ok=True)
        run.sweep()

    run.journal.unlink(missing_ok=True)  # of a run before this one
    gc.freeze()
    code = Supervisor(master, clear).run()
    await_tracking(run)
    return code


class _Ready:
    """Tells the client once; it listens no longer when it knows."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def __call__(self, error: str) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(BrokenPipeError):  # a master before this one has told it
                os.write(self._descriptor, sendable(error.replace("\n", " ")).encode() + b"\n")
            self._descriptor = None

    def failed(self, error: ElasticFlowError) -> int:
        say(f"Error: {error}")
        self(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
