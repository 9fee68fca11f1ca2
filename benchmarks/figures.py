"""A figure: a value beside the limit or peer that was measured in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """``ratio`` is value / reference. ``command`` prints the figure again."""

    name: str
    value: float
    unit: str
    reference: float
    ratio: float
    command: str
    note: str = ""


def figure(name: str, value: float, unit: str, reference: float, command: str, note: str = "") -> Figure:
    """A figure with its ratio worked out."""
    ratio = value / reference if reference else float("nan")
    return Figure(
        name=name, value=value, unit=unit, reference=reference, ratio=ratio, command=command, note=note
    )


def line(one: Figure) -> str:
    """One line for a person."""
    value, reference = f"{one.value:9.3f} {one.unit:<2}", f"reference {one.reference:9.3f}"
    return f"{one.name:<52} {value}  {reference}  ratio {one.ratio:6.3f}  {one.note}".rstrip()


def median(values: Sequence[float]) -> float:
    """The median; of nothing, NaN."""
    return statistics.median(values) if values else float("nan")
