"""Figures, before anybody writes them down in a format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "info"]


class Figure(NamedTuple):
    """A family of figures. name: without the ending of its kind. labels: besides whose it is."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def queried(self) -> str:
        """Its name in queries."""
        return self.name + {"counter": "_total", "gauge": "", "info": "_info"}[self.kind]


class Sample(NamedTuple):
    """One figure of a family."""

    figure: Figure
    labels: dict[str, str]
    value: float


def table(*figures: Figure) -> Mapping[str, Figure]:
    """By name."""
    return {figure.name: figure for figure in figures}
