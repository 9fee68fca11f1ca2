"""Workers that bring nothing: how long that is believed of so many, and when it is tried again. Pure.

They are given back, so what was measured on a bad day would never be measured again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from elasticflow.master.gain import MOST_REGROW_S, REGROW_S

LEAST_GAIN = 0.1
"""A number of workers brings nothing if it is not faster than fewer by this part."""


@dataclass(frozen=True)
class Doubt:
    """Of a number of workers that brought nothing. until_s: it is believed; wait_s: for so long in all."""

    until_s: float
    wait_s: float


def weigh(doubts: dict[int, Doubt], rates: Mapping[int, float], measured: int | None, now_s: float) -> None:
    """Brings the doubts of a run up to date. rates: steps a second by workers. measured: of so many, now."""
    fastest = 0.0
    for workers, rate in sorted(rates.items()):
        if workers & (workers - 1):  # it was never granted, but measured on the way to another number
            continue
        doubt = doubts.get(workers)
        if rate > fastest * (1 + LEAST_GAIN):
            doubts.pop(workers, None)
        elif doubt is None:
            doubts[workers] = Doubt(now_s + REGROW_S, REGROW_S)
        elif workers == measured:
            wait_s = min(2 * doubt.wait_s, MOST_REGROW_S)
            doubts[workers] = Doubt(now_s + wait_s, wait_s)
        fastest = max(fastest, rate)


def over(
    doubts: Mapping[int, Doubt], rates: Mapping[int, float], workers: int, now_s: float
) -> Iterator[int]:
    """More workers than the run has, that are to be tried again."""
    for number, doubt in doubts.items():
        if number > workers and number in rates and doubt.until_s <= now_s:
            yield number
