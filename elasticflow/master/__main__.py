"""``python -m elasticflow.master RUN_DIR [--resume] [--ready-fd N]``: a run's master.

When it listens, or cannot, it writes a line to the descriptor: empty, or what is wrong.
Exit codes: see ``EXIT_CODES``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from elasticflow.errors import ElasticFlowError
from elasticflow.master.server import serve
from elasticflow.master.state import RunState

EXIT_CODES = {RunState.FINISHED: 0, RunState.FAILED: 1, RunState.STOPPED: 3}


def main(argv: list[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="elasticflow.master")
    parser.add_argument("run_dir")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--ready-fd", type=int, default=1)
    arguments = parser.parse_args(argv)
    said = False

    def ready(error: str) -> None:
        nonlocal said
        said = True
        os.write(arguments.ready_fd, error.replace("\n", " ").encode() + b"\n")
        os.close(arguments.ready_fd)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        end = serve(arguments.run_dir, arguments.resume, ready)
    except ElasticFlowError as error:
        print(f"Error: {error}", flush=True)
        if not said:
            ready(str(error))
        return 1
    return EXIT_CODES[end.state]


if __name__ == "__main__":
    sys.exit(main())
