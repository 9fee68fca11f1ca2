"""How an application ends: with a final status that is true, its run's last words, and no other attempt.

Skein tells YARN of an end without another attempt as SUCCEEDED alone. So a few lines of Java, which YARN's
own client is in the reach of, tell of the others, in the ApplicationMaster's name; YARN keeps what it hears
first. Then Skein is told SUCCEEDED, and clears up.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from elasticflow.master.log import say
from elasticflow.run.folder import EXIT_CODES
from elasticflow_yarn.java import SMALL

SOURCE = Path(__file__).with_name("Finish.java")
STATUSES = {
    code: {"finished": "SUCCEEDED", "stopped": "KILLED"}.get(state, "FAILED")
    for state, code in EXIT_CODES.items()
}
"""YARN's final status, by a run's exit code."""
FINISH_S = 60.0
"""Java may take so long to begin, and YARN to answer."""


def finish(code: int, text: str) -> None:
    """Ends the application in whose ApplicationMaster this is. What hinders that is told in the log."""
    status = STATUSES[code]
    try:
        import skein

        if status != "SUCCEEDED" and _tell(status, text):
            status = "SUCCEEDED"  # to Skein
        skein.ApplicationClient.from_current().shutdown(status, text)
    except Exception as error:  # noqa: BLE001  (the exit code tells it as well)
        say(f"warning: YARN could not be told that the run is over ({text}): {error}")


def _tell(status: str, text: str) -> bool:
    """Whether YARN knows it; where it does not, it starts other attempts, which say the same."""
    try:
        java, class_path = application_master()
        options = ["-Xmx64m", *SMALL]
        done = subprocess.run(
            [java, *options, str(SOURCE), status, text],
            env={**os.environ, "CLASSPATH": class_path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=FINISH_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"warning: YARN could not be told at once that the run is over: {error}")
        return False
    if done.returncode:
        words = (done.stdout.strip() or "no word").splitlines()[-1]
        say(f"warning: YARN could not be told at once that the run is over: {words}")
    return done.returncode == 0


def application_master() -> tuple[str, str]:
    """The Java that runs the ApplicationMaster, and its class path. Raises OSError if it is not above us."""
    for pid in _ancestors():
        process = Path("/proc", str(pid))
        variables = process.joinpath("environ").read_bytes().decode(errors="surrogateescape").split("\0")
        found = dict(variable.partition("=")[::2] for variable in variables)
        java = os.readlink(process / "exe")
        if "CLASSPATH" in found and Path(java).name == "java":
            return java, found["CLASSPATH"]
    raise ProcessLookupError("no ApplicationMaster is among the processes above this one")


def _ancestors() -> Iterator[int]:
    """Parent, its parent, ..., as far as the first process of all."""
    pid = os.getppid()
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
