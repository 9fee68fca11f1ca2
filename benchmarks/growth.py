"""How a step grows with the bytes of the model, and with a table's rows; CPU with the workers; three plots.

The plots are docs/growth-bytes.png, docs/growth-workers.png (CPU of server and master) and
docs/growth-rows.png; they need matplotlib. Tables that do not fit into half of the free memory are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from benchmarks import crowd, sparse, wire
from benchmarks.dense import PROGRAM, WARM_UP, Flat
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import TCP, job, step_seconds
from elasticflow.process.available import available_memory

FOLDER = Path(__file__).parent.parent / "docs"
MEGABYTES = (1, 4, 16, 64, 256, 1000)
MOST_STEPS, FEWEST_STEPS = 400, 16
WORKERS = (1, 2, 4, 8, 16, 32)
MILLIONS = (1, 3, 10, 30, 100)
ROW_BYTES = 128
"""What a row of 16 numbers takes in a server at most, its place in the index included."""
COMMAND = "python -m benchmarks growth"


def run(folder: Path = FOLDER) -> Iterator[Figure]:
    """The bytes first, over TCP. folder: where the plots go."""
    pyplot = pyplot_of()
    sizes: dict[str, list[float]] = {"ElasticFlow, a step": [], "plain sockets": []}
    for megabytes in MEGABYTES:
        steps = max(FEWEST_STEPS, min(MOST_STEPS, 8 * (500 // megabytes)))
        flat = Flat(f"{megabytes} MB", 1, megabytes * 250_000, steps)
        plain_ms = 1000 * median(wire.round_seconds(flat.num_bytes, steps)[WARM_UP:])
        step_ms = 1000 * _step_s(flat)
        for values, value in zip(sizes.values(), (step_ms, plain_ms), strict=True):
            values.append(value)
        yield figure(f"step of {flat.name} / plain sockets", step_ms, "ms", plain_ms, COMMAND)
    plot(pyplot, folder / "growth-bytes.png", "MB of parameters", MEGABYTES, sizes)
    costs = crowd.costs(WORKERS)
    first = costs[0].cpu_ms
    for workers, cost in zip(WORKERS, costs, strict=True):
        for name, cpu_ms in cost.cpu_ms.items():
            core = 100 * cpu_ms / cost.step_ms
            note = f"{core:.0f} % of a core; a step takes {cost.step_ms:.2f} ms"
            what = f"CPU of the {name} a step, {workers} / 1 workers"
            yield figure(what, cpu_ms, "ms", first[name], COMMAND, note)
    lines = {f"CPU of the {name}": [cost.cpu_ms[name] for cost in costs] for name in first}
    lines["a step"] = [cost.step_ms for cost in costs]
    plot(pyplot, folder / "growth-workers.png", "workers", WORKERS, lines)
    yield from _rows(pyplot, folder)


def _rows(pyplot: ModuleType, folder: Path) -> Iterator[Figure]:
    """Lookups and updates of 4,096 ids in tables of more and more rows."""
    room = min(available_memory().values()) / 2
    millions = [each for each in MILLIONS if each * 1_000_000 * ROW_BYTES < room]
    costs = [sparse.measure(sparse.Sparse(each * 1_000_000, 16, computed=True)) for each in millions]
    lines = {"lookup": [1000 * c.read_s for c in costs], "push and update": [1000 * c.push_s for c in costs]}
    for name, values in lines.items():
        for each, value in zip(millions, values, strict=True):
            what = f"{name} of {sparse.IDS} ids, {each} / {millions[0]} million rows"
            yield figure(what, value, "ms", values[0], COMMAND)
    plot(pyplot, folder / "growth-rows.png", "million rows", millions, lines)


def _step_s(flat: Flat) -> float:
    members = ("--workers", 1, "--servers", 1, "--checkpoint-every", "24h")
    with job(flat, *members, program=PROGRAM, settings=TCP) as one:
        one.wait()
        timeline = one.only_timeline()
    return median(step_seconds(timeline)[WARM_UP:])


def pyplot_of() -> ModuleType:
    """Raises SystemExit if it is not there."""
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit("growth plots with matplotlib: pip install 'elasticflow-trainer[bench]'.") from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def plot(
    pyplot: ModuleType,
    path: Path,
    across: str,
    places: Sequence[int],
    lines: dict[str, list[float]],
    up: str = "ms",
) -> None:
    """Whole decades, both axes logarithmic: what grows in proportion is a straight line."""
    shown, axes = pyplot.subplots(figsize=(6, 4))
    for label, values in lines.items():
        axes.loglog(places, values, marker="o", label=label)
    axes.set_xticks(places, [str(place) for place in places])
    axes.minorticks_off()
    every = [value for values in lines.values() for value in values]
    axes.set_ylim(10 ** math.floor(math.log10(min(every))), 10 ** math.ceil(math.log10(max(every))))
    axes.set(xlabel=across, ylabel=up)
    axes.legend()
    shown.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(shown)
