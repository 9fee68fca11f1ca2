"""By which programs a run went."""

from __future__ import annotations

import msgspec


class ProgramUse(msgspec.Struct, frozen=True):
    """The program with which a run went on from a step, until the next one: its file's name and its hash."""

    from_step: int
    name: str
    sha256: str
