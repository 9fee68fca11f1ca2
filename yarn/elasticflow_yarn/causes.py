"""Why a container is over: Skein's and YARN's words, and the member's own last ones, in words for people."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from elasticflow.cluster.contract import Ended, How
from elasticflow.cluster.member import EXIT_ABANDONED
from elasticflow.process.ending import signal_name
from elasticflow_yarn.application import Container
from elasticflow_yarn.ending import Ending

LAUNCH_S = 10.0
"""What ends within this, and says nothing, was hardly there: its node may be to blame."""


class Cause(Enum):
    """Why a container is over: how that counts, and in words that follow a member's name.

    What none of them is TAKEN for: an error of the program's.
    """

    DONE = How.DONE, "ended{on}"
    PREEMPTED = How.TAKEN, "was preempted{on}"
    """YARN gave its place to another queue."""
    NODE_LOST = How.TAKEN, "lost its node {node}"
    """YARN hears nothing of its node any more."""
    MEMORY = How.FAILED, "was killed by YARN{on}: {used}; {key} gives it more"
    """It used more memory than it had asked for."""
    REQUESTED = How.TAKEN, "was killed{on} by somebody's request to Skein"
    NOT_STARTED = How.TAKEN, "could not be started{on}: {words}"
    """The node could not begin it."""
    BY_YARN = How.TAKEN, "was ended by YARN{on}: {words}"
    """For another reason."""
    NO_GPU = How.TAKEN, "found no free GPU{on}: {last}"
    """Its host had no GPU that was not in use."""
    ABANDONED = How.KILLED, "ended{on} with exit code {code}: {last}"
    """It heard nothing of a master any more."""
    KILLED = How.KILLED, "was killed by {by}{on}"
    """By a signal."""
    FAILED = How.FAILED, "failed{on} with exit code {code}: {last}"
    """By an error of its own."""
    SILENT = How.KILLED, "died{on} without a word{soon}; its log may tell why"
    VANISHED = How.TAKEN, "is lost{on}: YARN does not know its container any more"
    """YARN has it no more, and Skein was not told."""


_WORDS = (
    ("Completed successfully.", Cause.DONE),
    ("Killed by user request.", Cause.REQUESTED),
    ("Container failed during execution", Cause.SILENT),
    ("preempted by scheduler", Cause.PREEMPTED),
    ("on a *lost* node", Cause.NODE_LOST),
    ("exceeding memory limits", Cause.MEMORY),
    ("running beyond physical memory limits", Cause.MEMORY),
    ("running beyond virtual memory limits", Cause.MEMORY),
    ("expired since it was unused", Cause.NOT_STARTED),
    ("Failed to download resource", Cause.NOT_STARTED),
    ("File does not exist", Cause.NOT_STARTED),
    ("initialization failed", Cause.NOT_STARTED),
    ("ocalization", Cause.NOT_STARTED),
    ("Exception from container-launch", Cause.NOT_STARTED),
    ("Container launch fail", Cause.NOT_STARTED),
)
"""In what Skein says; the first that is found counts."""


class CauseVerdict(NamedTuple):
    """ended.text is to follow the member's name."""

    cause: Cause
    ended: Ended
    blames_node: bool


def first_cause(container: Container) -> Cause:
    """As far as Skein knows; SILENT: the member's own last words may tell more."""
    for words, cause in _WORDS:
        if words in container.words:
            return cause
    if container.state == "SUCCEEDED":
        return Cause.DONE
    return Cause.REQUESTED if container.state == "KILLED" else Cause.BY_YARN


def judge(
    name: str, container: Container, left: Ending | None = None, *, vanished: bool = False
) -> CauseVerdict:
    """What became of a member whose container is over. left: its last words, if there are any.

    vanished: Skein does not know that it is.
    """
    if left is not None and left.container != container.yarn_id:
        left = None  # of one of that name, before the run was resumed
    cause = Cause.VANISHED if vanished else first_cause(container)
    if left is not None and cause in (Cause.SILENT, Cause.VANISHED):
        cause = _cause_of_code(left)
    how, template = cause.value
    text = template.format(
        on=f" on {container.node}" if container.node else "",
        node=container.node or "its node",
        words=_first_line(container.words),
        used=_used(container.words),
        key="yarn.server_memory" if container.service == "server" else "yarn.memory",
        soon=_soon(container),
        last=left.words if left and left.words else "it left no words",
        by=signal_name(left.code - 128) if left else "",
        code=left.code if left else "",
    )
    ended = Ended(name, how, f"{text} ({container.yarn_id or container.id})")
    return CauseVerdict(cause, ended, _blames(cause, container))


def _cause_of_code(left: Ending) -> Cause:
    if left.no_gpu:
        return Cause.NO_GPU
    if left.code == EXIT_ABANDONED:
        return Cause.ABANDONED
    return Cause.KILLED if signal_name(left.code - 128) else Cause.FAILED


def _blames(cause: Cause, container: Container) -> bool:
    """Whether it speaks against its node."""
    if cause is Cause.SILENT:
        return lasted_s(container) < LAUNCH_S
    return cause in (Cause.FAILED, Cause.NOT_STARTED, Cause.NO_GPU)


def lasted_s(container: Container) -> float:
    """How long a container ran."""
    if container.started_at is None or container.finished_at is None:
        return 0.0
    return container.finished_at - container.started_at


def _soon(container: Container) -> str:
    """Of one that left no word: what it may have lacked, if it hardly ran."""
    if container.started_at is None or container.finished_at is None or lasted_s(container) >= LAUNCH_S:
        return ""
    what = "the Python of yarn.python or yarn.environment, or elasticflow in it, may be missing there"
    return f", {lasted_s(container):.0f} s after its start: {what}"


def _used(words: str) -> str:
    found = re.search(r"[\d.]+ ?[KMGT]?B of [\d.]+ ?[KMGT]?B \w+ memory used", words)
    return found[0] if found else "it used more memory than it had asked for"


def _first_line(words: str) -> str:
    """What YARN says goes on for pages; 300 characters at most."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return (lines[0] if lines else "it does not say why")[:300]
