"""What a master has done about what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from elasticflow.checkpoint import Part
from elasticflow.master.members import RunState
from elasticflow.run.config import Config
from elasticflow.wire.messages import Assignment, Excluded, Share


@dataclass(frozen=True)
class StartAction:
    """Start a process. carrier: the worker that is to carry it; "": it has a place of its own."""

    name: str
    role: str
    carrier: str = ""


@dataclass(frozen=True)
class FixAction:
    """Write the settings into the run's folder: something that they left open is decided."""

    config: Config


@dataclass(frozen=True)
class KillAction:
    """End a process at once; it may be hung.

    never_came: it has not said a word, though it has its place, which may be to blame.
    """

    name: str
    never_came: bool = False


@dataclass(frozen=True)
class HaltAction:
    """Tell a server to stop where it is, and to offer what it has."""

    name: str
    generation: int


@dataclass(frozen=True)
class AssignAction:
    """Tell a member all it has to know."""

    name: str
    assignment: Assignment


@dataclass(frozen=True)
class PlanAction:
    """Tell the servers who computes what."""

    number: int
    shares: tuple[Share, ...]
    servers: tuple[str, ...]


@dataclass(frozen=True)
class DrainAction:
    """Tell a worker to leave once it has no slices."""

    name: str


@dataclass(frozen=True)
class CutAction:
    """Tell the leading server to have a checkpoint cut. finish: and to let the run end with it."""

    name: str
    finish: bool


@dataclass(frozen=True)
class PauseAction:
    """Tell the leading server that after the next step no server goes on."""

    name: str


@dataclass(frozen=True)
class SettledAction:
    """Tell the servers that the checkpoint of a version is committed, or given up."""

    names: tuple[str, ...]
    tick: int


@dataclass(frozen=True)
class CommitAction:
    """All parts of a checkpoint are written: make it visible."""

    tick: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class PruneAction:
    """Remove the checkpoints that are not to be kept, now that there is one of this version."""

    tick: int


@dataclass(frozen=True)
class QuarantineAction:
    """Tell the workers which records to leave out."""

    names: tuple[str, ...]
    excluded: tuple[Excluded, ...]


@dataclass(frozen=True)
class AttemptAction:
    """Tell workers to try a slice that raised for another one, or was deadly: then with care."""

    names: tuple[str, ...]
    tick: int
    slice: int
    careful: bool = False


@dataclass(frozen=True)
class LookAction:
    """Ask members what they do and what they wait for."""

    names: tuple[str, ...]
    number: int


@dataclass(frozen=True)
class InspectAction:
    """Ask a worker in which of these slices a tick that diverged began."""

    name: str
    tick: int
    slices: tuple[int, ...]


@dataclass(frozen=True)
class QuitAction:
    """Tell a member to leave now."""

    name: str
    reason: str


@dataclass(frozen=True)
class NoteAction:
    """Something that people should read. kind: ``info``, ``warning`` or ``fault``."""

    kind: str
    text: str


@dataclass(frozen=True)
class FaultAction:
    """A member is lost. early: a server, before all were put in order first: nobody has to go back."""

    name: str
    role: str
    text: str
    early: bool = False


@dataclass(frozen=True)
class RegroupedAction:
    """All servers can go on after a loss: from version ``start``, where they had come to ``reached``.

    source: ``memory``, ``storage`` or ``beginning``. why: what else than a loss it is for; "": nothing.
    """

    reached: int
    start: int
    source: str
    why: str = ""


@dataclass(frozen=True)
class ResizedAction:
    """The number of workers to have has changed."""

    old: int
    new: int
    reason: str


@dataclass(frozen=True)
class HandOverAction:
    """Have another master started elsewhere, which goes on from the newest commit."""


@dataclass(frozen=True)
class RememberAction:
    """Write down what the next master has to know, before what follows is done."""


@dataclass(frozen=True)
class EndAction:
    """The run is over."""

    state: RunState
    text: str
    detail: str = ""


Action: TypeAlias = (
    StartAction | FixAction | KillAction | HaltAction | AssignAction | PlanAction | DrainAction | CutAction
    | PauseAction | SettledAction | CommitAction | PruneAction | QuarantineAction | AttemptAction
    | InspectAction | QuitAction | NoteAction | FaultAction | RegroupedAction | ResizedAction
    | HandOverAction | RememberAction | EndAction | LookAction
)  # fmt: skip
