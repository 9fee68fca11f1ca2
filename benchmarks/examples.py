"""The examples beside their plain versions: what they reach, and what CPU time they take.

``python -m benchmarks examples [NAME...]`` prints a line an example. Quality: the last test metric of five
seeds of ``plain.py``, and of one of ours with two slices. CPU time: user and system, of all processes that
belong to it (client, master, server and worker), of a whole run, and of that less a run of one epoch, so
without start and end; evaluations are in both. Ours with one worker, and slices as the column says; in turns
with the plain version, each the least of all rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import math
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures import Figure, figure

COMMAND = "python -m benchmarks examples"
FOLDER = Path(__file__).parents[1] / "examples"
SLICES = (1, 2, 8)
SEEDS = range(5)
ROUNDS = 2
AFTER = "-- that was a seed --"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


class Example(NamedTuple):
    """program: that of ``elasticflow train``. metric: as both print it.

    epochs: of the run whose quality counts. measured: epochs of the run whose CPU time counts. prepare: a
    script that is to be run before. plain: more arguments of ``plain.py``.
    """

    name: str
    program: str
    metric: str
    epochs: int
    batch_size: int
    measured: int
    prepare: str = ""
    plain: tuple[str, ...] = ()
    seed: int = 0

    def ours(self, folder: Path, run: Path, epochs: int, slices: int) -> list[str]:
        """The command that trains it. folder: where the example is."""
        return [
            sys.executable, "-m", "elasticflow.cli", "train", str(folder / self.program),
            "--epochs", str(epochs), "--batch-size", str(self.batch_size), "--workers", "1",
            "--slices", str(slices), "--seed", str(self.seed), "--run-dir", str(run),
        ]  # fmt: skip

    def theirs(self, folder: Path, seed: int, epochs: int) -> list[str]:
        """The command of its plain version."""
        return [sys.executable, str(folder / "plain.py"), str(seed), str(epochs), *self.plain]

    def made(self, where: Path) -> Path:
        """A copy of its folder, ready to be trained."""
        folder = where / self.name
        shutil.copytree(FOLDER / self.name, folder, ignore=shutil.ignore_patterns("data", "__pycache__"))
        if self.prepare:
            subprocess.run([sys.executable, folder / self.prepare], check=True)
        return folder

    def value(self, output: str) -> float:
        """The last of its metric that was printed. Raises ValueError if there is none."""
        found = re.findall(rf"\b{self.metric} (-?\d+\.\d+)", output)
        if not found:
            raise ValueError(f"{self.name}: no {self.metric}:\n{output}")
        return float(found[-1])


EXAMPLES = (
    Example("resnet", "resnet.py", "accuracy", 10, 128, 11),
    Example("gpt", "gpt.py", "cost", 2, 16, 3),
    Example("finetune", "finetune.py", "accuracy", 30, 64, 60, "make_backbone.py"),
    Example("hive_clicks", "clicks.py", "cost", 3, 64, 12, "make_data.py", seed=1),
    Example("nightly", "sales.py", "cost", 5, 128, 60, "make_data.py", ("1",)),
    Example("keras_functional", "keras_functional.py", "auc", 4, 256, 20),
    Example("texts", "texts.py", "accuracy", 4, 64, 5),
    Example("imbalanced", "imbalanced.py", "auc", 20, 256, 20),
    Example("multi_task", "multi_task.py", "auc", 3, 256, 14),
    Example("two_towers", "two_towers.py", "accuracy", 6, 512, 40),
)


def _environment() -> dict[str, str]:
    return {**os.environ, **ONE_THREAD, "PYTHONUNBUFFERED": "1"}


def output_of(command: Sequence[str]) -> str:
    """What it prints. Raises RuntimeError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=_environment())
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def _adopt() -> None:
    """Processes whose parents have ended are this one's: it is told what they took."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def _cpu_seconds(command: Sequence[str]) -> tuple[float, int]:
    """What a command and all that it starts take; and how many epochs it has told of."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = output_of(command)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return seconds, int(re.findall(r"^epoch (\d+)(?:, step \d+)?: test", told, re.MULTILINE)[-1])


def _qualities(example: Example, folder: Path) -> tuple[list[float], float]:
    """Of the plain version by seed, in one process, since most of a short run is its imports; and ours."""
    arguments = ", ".join(("seed", str(example.epochs), *example.plain))
    loop = f"import plain\nfor seed in {list(SEEDS)}:\n    plain.main({arguments})\n    print({AFTER!r})"
    told = output_of([sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(folder)!r})\n{loop}"])
    plain = [example.value(each) for each in told.split(AFTER)[:-1]]
    with tempfile.TemporaryDirectory() as runs:
        ours = output_of(example.ours(folder, Path(runs) / "run", example.epochs, 2))
    return plain, example.value(ours)


class Cost(NamedTuple):
    """CPU time of a run of one epoch, and of a long one, and by how many epochs that is longer."""

    short_s: float = math.inf
    long_s: float = math.inf
    more: int = 1

    @property
    def epoch_s(self) -> float:
        return (self.long_s - self.short_s) / self.more

    def least(self, other: Cost) -> Cost:
        return Cost(min(self.short_s, other.short_s), min(self.long_s, other.long_s), other.more)


def _cost(example: Example, folder: Path, slices: int) -> Cost:
    """slices: 0 for the plain version."""
    found = []
    for epochs in (1, example.measured):
        with tempfile.TemporaryDirectory() as runs:
            ours = example.ours(folder, Path(runs) / "run", epochs, slices)
            found.append(_cpu_seconds(ours if slices else example.theirs(folder, 0, epochs)))
    (short_s, one), (long_s, last) = found
    return Cost(short_s, long_s, last - one)


class Compared(NamedTuple):
    """quality: that of both, in words. costs: by slices; 0 is the plain version."""

    example: Example
    quality: tuple[str, str]
    costs: dict[int, Cost]


def compare(
    names: Sequence[str], rounds: int, quality: bool, slices: Sequence[int] = SLICES
) -> Iterator[Compared]:
    """See the module's docstring. names: of examples; none: all."""
    _adopt()
    for example in EXAMPLES:
        if names and example.name not in names:
            continue
        with tempfile.TemporaryDirectory() as where:
            folder = example.made(Path(where))
            told = ("", "")
            if quality:
                plain, ours = _qualities(example, folder)
                told = f"{statistics.mean(plain):.4f} ± {statistics.stdev(plain):.4f}", f"{ours:.4f}"
            costs = dict.fromkeys((0, *slices), Cost())
            for _ in range(rounds):
                costs = {count: cost.least(_cost(example, folder, count)) for count, cost in costs.items()}
        yield Compared(example, told, costs)


def run() -> Iterator[Figure]:
    """CPU time with one slice beside the plain version's."""
    for each in compare((), ROUNDS, True):
        note = f"{each.example.metric} {each.quality[1]}; plain {each.quality[0]}"
        name = f"{each.example.name}: CPU time, ElasticFlow / plain"
        yield figure(name, each.costs[1].epoch_s, "s", each.costs[0].epoch_s, COMMAND, note)
        name = f"{each.example.name}: CPU time of {each.example.measured} epochs, ElasticFlow / plain"
        yield figure(name, each.costs[1].long_s, "s", each.costs[0].long_s, COMMAND, "start and end included")


def main(words: Sequence[str]) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks examples", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(each.name for each in EXAMPLES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--slices", default=",".join(map(str, SLICES)), help="how many, of ours")
    parser.add_argument("--no-quality", action="store_true", help="CPU time alone")
    arguments = parser.parse_args(words)
    slices = tuple(map(int, arguments.slices.split(",")))
    columns = ["example", "metric", "plain, five seeds", "ours", "plain, an epoch"]
    columns += [f"{count} slice{'s' * (count > 1)}" for count in slices]
    columns += ["plain, a whole run", f"ours, {slices[0]} slice{'s' * (slices[0] > 1)}"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|", flush=True)
    for each in compare(arguments.names, arguments.rounds, not arguments.no_quality, slices):
        plain, first = each.costs[0], each.costs[slices[0]]
        words = [each.example.name, each.example.metric, *each.quality, f"{plain.epoch_s:.2f} s"]
        words += [f"{each.costs[count].epoch_s / plain.epoch_s:.2f}" for count in slices]
        words += [f"{plain.long_s:.1f} s", f"{first.long_s / plain.long_s:.2f}"]
        print(f"| {' | '.join(words)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
