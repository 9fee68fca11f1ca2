"""Throughput curves fitted to the smallest sizes of published profiles, against the sizes left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, figure
from elasticflow.scheduler.curves import Curve
from elasticflow.scheduler.fit import fit_curve
from elasticflow.scheduler.traces import read_profiles

PROFILES = Path(__file__).parent / "data" / "scheduler"
KINDS = ("A100", "T4")
KNOWN = (1, 2, 3, 4)
COMMAND = "python -m benchmarks fitting"


def left_out(profiles: Mapping[object, Curve], known: int) -> dict[int, list[tuple[float, float]]]:
    """By doublings beyond the last known size: relative error and the error that was told beforehand."""
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for curve in profiles.values():
        points = list(zip(curve.sizes, curve.rates, strict=True))
        fit = fit_curve(dict(points[:known]))
        for beyond, (size, rate) in enumerate(points[known:], start=1):
            found[beyond].append((abs(fit.rate(size) / rate - 1), fit.error(size)))
    return found


def run() -> Iterator[Figure]:
    """By kind of GPU, sizes known and doublings beyond: the median error; reference: the error told."""
    for kind in KINDS:
        profiles = read_profiles(PROFILES / f"throughputs_{kind}")
        for known in KNOWN:
            for beyond, errors in left_out(profiles, known).items():
                off, told = np.array(errors).T
                yield figure(
                    f"{kind}, {known} sizes known, times {1 << beyond}: off by",
                    float(np.median(off)),
                    "",
                    float(np.median(told)),
                    COMMAND,
                    f"worst of ten: {np.percentile(off, 90):.2f}; {np.mean(off < told):.0%} within what was "
                    f"told, {np.mean(off < 2 * told):.0%} within twice that",
                )
