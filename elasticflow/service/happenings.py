"""What the service is told. All of it is written to the journal, with the time, before anybody acts on it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class _Happening(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    pass


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that was handed in.

    deadline_s: since 1970; None: best effort. kind: runs of one kind are equally fast, see ``learned``.
    most_workers: more cannot share a batch, or are not wanted. steps: of the whole run; None: nobody knows
    before its program was loaded. rates: steps a second by workers, as far as they were ever measured.
    soft: (seconds after the deadline, what it is worth to be done then). mark: in its folder; "": none is.
    """

    name: str
    run_dir: str
    user: str
    kind: str
    most_workers: int
    deadline_s: float | None = None
    priority: int = 0
    steps: int | None = None
    rates: dict[int, float] = {}
    soft: list[tuple[float, float]] = []
    mark: str = ""


class HandedIn(_Happening, frozen=True):
    """Somebody wants this run."""

    task: Task


class Counted(_Happening, frozen=True):
    """So many steps the whole run has."""

    name: str
    steps: int


class Advanced(_Happening, frozen=True):
    """Steps that are done, by task: comes along with whatever else happens."""

    done: dict[str, int]


class Paced(_Happening, frozen=True):
    """Steps a second, measured while so many workers took part."""

    name: str
    workers: int
    rate: float


class Began(_Happening, frozen=True):
    """A run that had no worker had its first one ready so long after it was granted some."""

    name: str
    seconds: float


class Held(_Happening, frozen=True):
    """A run has no more than so many workers, by one who knows of the grant of that number."""

    name: str
    workers: int
    number: int


class Over(_Happening, frozen=True):
    """A run has ended, and does not go on. state: as in its report."""

    name: str
    state: str
    text: str = ""


class Cancelled(_Happening, frozen=True):
    """Somebody does not want it any more."""

    name: str
    by: str


class NodeSeen(_Happening, frozen=True):
    """A node is gone, or there again. name: the cluster's; "": the service has no other. why: it is gone."""

    node: int
    up: bool
    name: str = ""
    why: str = ""


class Foreseen(_Happening, frozen=True):
    """From when on how many workers may be used, as far as that is known ahead; the last for ever."""

    steps: list[tuple[float, int]]


class Shared(_Happening, frozen=True):
    """Others need what is above so many workers, from now on; None: nobody does."""

    workers: int | None = None


class Woken(_Happening, frozen=True):
    """It is as late as the policy wanted to be told."""


Happening: TypeAlias = (
    HandedIn
    | Counted
    | Advanced
    | Paced
    | Began
    | Held
    | Over
    | Cancelled
    | NodeSeen
    | Foreseen
    | Shared
    | Woken
)
