"""Fork servers for the runs of tests, which write down whose nurseries they fork.

A process that was forked has the fork server's environment in /proc, so it does not show its mark. It has a
session of its own, which all that it starts belong to.

Variables that tests' programs read may differ: that is when they run, not while a framework is loaded. A run
with any other variable of its own starts its nursery by itself.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from elasticflow.local.forkserver import VARIABLE, ForkRequest, ForkServer, main
from elasticflow.local.process import Process

from .programs.gates import MARK

READ = re.compile(r'environ(?:\.get)?[\[(]\s*"([A-Z_]+)"|"([A-Z_]+)" in os\.environ')
OF_PROGRAMS = {
    name
    for program in Path(__file__).parent.joinpath("programs").glob("*.py")
    for names in READ.findall(program.read_text())
    for name in names
    if name
}
OF_THIS_PROCESS = (
    *("PYTEST_CURRENT_TEST", "COLUMNS", "LINES", "RECORDS"),
    *("TORCHINDUCTOR_CACHE_DIR", "PYGAME_HIDE_SUPPORT_PROMPT"),  # set by what a test imports
)
"""Set in the processes of the tests."""
OF_THEIR_DATA = ("FULL", "KEPT_IN", "WHEN")
"""Set by tests for programs that they write."""
INDIFFERENT = (*OF_PROGRAMS, *OF_THIS_PROCESS, *OF_THEIR_DATA, MARK)


def forked(environment: Mapping[str, str]) -> set[int]:
    """Sessions of nurseries that were forked for runs with this mark."""
    folder = os.environ.get(VARIABLE)
    path = Path(folder, f"of-{environment[MARK]}") if folder else None
    return set(map(int, path.read_text().split())) if path and path.exists() else set()


class MarkingForkServer(ForkServer):
    """See above."""

    def forked(self, process: Process, request: ForkRequest) -> None:
        mark = request.environment.get(MARK, "none")
        with Path(os.environ[VARIABLE], f"of-{mark}").open("a") as file:
            file.write(f"{process.pid}\n")


if __name__ == "__main__":
    main(sys.argv[1:], MarkingForkServer)
