"""How a container's member ended: what the container leaves behind for the master when it did not end well.

Why a program failed stands in its output, which YARN does not tell the master. The container's own process
(``elasticflow_yarn.container``) writes the last line of it into the run's folder, as
``endings/<member>.json``, and the master reads it when YARN says that the container is over. A container that
YARN ends leaves none: YARN says why it did.
"""

from __future__ import annotations

import msgspec

from elasticflow.process.decoding import from_json
from elasticflow.run.folder import RunDir, RunPath, publish
from elasticflow_yarn.gpus import NO_GPU as NO_GPU

WORDS = 300
"""The most characters of a member's last line that are kept."""


class Ending(msgspec.Struct, frozen=True):
    """How the process of a member ended, as the container around it saw it."""

    code: int
    """Its exit code; 128 + n where signal n ended it; ``NO_GPU``, with ``no_gpu``, where it never began."""
    words: str
    """The last line of its output, at most ``WORDS`` characters; empty where it said nothing."""
    container: str
    """YARN's id of the container."""
    node: str
    """Name of the node it ran on."""
    no_gpu: bool = False
    """No GPU of the host came free in time, and the program was never started."""


def path(run: RunDir, name: str) -> RunPath:
    """Where the ending of member ``name`` lies: a path of the same kind as the run's folder."""
    return run.path / "endings" / f"{name}.json"


def write(run: RunDir, name: str, ending: Ending) -> None:
    """Leaves the ending of member ``name`` in the run's folder, which is not made anew where it was moved:
    who moves it back is to find its name free. Raises ``OSError``."""
    file = path(run, name)
    file.parent.mkdir(exist_ok=True)
    publish(file, ending)


def read(run: RunDir, name: str) -> Ending | None:
    """What member ``name`` left, None if it left nothing that can be read.

    Raises ``OSError`` where the run's folder does not answer.
    """
    try:
        return from_json(path(run, name).read_bytes(), Ending)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
