"""What a container asks for, and a node or a queue has."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Resources(msgspec.Struct, frozen=True):
    """memory_mb: in MiB, as YARN counts."""

    memory_mb: int = 0
    vcores: int = 0
    gpus: int = 0

    def fits(self, room: Resources) -> bool:
        """Whether ``room`` has that much of everything."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(room), strict=True)
        return all(mine <= theirs for mine, theirs in pairs)

    def plus(self, other: Resources) -> Resources:
        return Resources(self.memory_mb + other.memory_mb, self.vcores + other.vcores, self.gpus + other.gpus)

    def __str__(self) -> str:
        """``2 GPUs, 16 GiB and 4 vcores``; of what there is none is not told, but of memory."""
        counted = [_many(self.gpus, "GPU")] if self.gpus else []
        counted += [_gib(self.memory_mb) if self.memory_mb >= 1024 else f"{self.memory_mb} MiB"]
        counted += [_many(self.vcores, "vcore")] if self.vcores else []
        return " and ".join(filter(None, (", ".join(counted[:-1]), counted[-1])))


class Measure(NamedTuple):
    """By what is counted."""

    gpus: bool

    def of(self, resources: Resources) -> int:
        return resources.gpus if self.gpus else resources.memory_mb

    def text(self, amount: int) -> str:
        """``1 GPU``, ``2 GiB``."""
        return _many(amount, "GPU") if self.gpus else _gib(amount)

    def of_text(self, amount: int, most: int) -> str:
        """``1 of 6 GPUs``"""
        return f"{amount if self.gpus else _gib(amount).removesuffix(' GiB')} of {self.text(most)}"


def _many(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _gib(memory_mb: int) -> str:
    return f"{memory_mb / 1024:.4g} GiB"
