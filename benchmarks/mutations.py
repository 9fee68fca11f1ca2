"""Which defects in protocol and processes the simulation of whole runs finds, and after how many histories.

One defect at a time is put into a copy of the sources, and histories are played until a law is broken, for
``SECONDS`` at most. ``python -m benchmarks mutations PART...`` tries those whose names hold one of the parts.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.defects import DEFECTS, Defect
from benchmarks.figures import Figure, figure, line

ROOT = Path(__file__).parents[1]
SECONDS = 120
"""Of a processor, for which histories are played of each."""
COPIED = ("elasticflow", "ps", "tests/__init__.py", "tests/simulation")
MOST_CHARS = 150


class Found(NamedTuple):
    """What came of a hunt, after so many seconds. said: which law was broken, in which history."""

    defect: Defect
    caught: bool
    seconds: float
    said: str


def hunt(defect: Defect) -> Found:
    """Plays histories with one defect."""
    with tempfile.TemporaryDirectory(prefix="elasticflow-defect-") as folder:
        for name in COPIED:
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(ROOT / name, target) if (ROOT / name).is_dir() else shutil.copy(
                ROOT / name, target
            )
        path = Path(folder, defect.file)
        source = path.read_text(encoding="utf-8")
        if source.count(defect.right) != 1:
            raise ValueError(f"{defect.what}: not once in {defect.file}")
        path.write_text(source.replace(defect.right, defect.wrong), encoding="utf-8")
        begun_s = time.monotonic()
        found = _simulate(folder, "hunt", str(SECONDS))
    lines = found.stdout.strip().splitlines() or found.stderr.strip().splitlines() or ["a history has no end"]
    caught, said = found.returncode != 0, lines[0]
    seconds = time.monotonic() - begun_s
    seed = re.match(r"history (\d+):", said)
    if seed and _simulate(ROOT, seed[1]).returncode:
        caught, said = False, f"goes wrong without it, too: {said}"
    return Found(defect, caught, seconds, said[:MOST_CHARS])


def _simulate(folder: str | Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=folder,
        env={"PYTHONPATH": f"{folder}:{folder}/ps", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def run(parts: Sequence[str] = ("",)) -> Iterator[Figure]:
    """Two at a time."""
    command = "python -m benchmarks mutations"
    chosen = [defect for defect in DEFECTS if any(part in defect.what for part in parts)]
    caught = 0
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(hunt, chosen):
            caught += found.caught
            note = f"{'found' if found.caught else 'NOT FOUND'}: {found.said}"
            yield figure(f"mutations: {found.defect.what}", found.seconds, "s", SECONDS, command, note)
    yield figure("mutations: found", caught, "", len(chosen), command)


def main(arguments: list[str]) -> int:
    """See the module's docstring."""
    for each in run(arguments):
        print(line(each), flush=True)
    return 0
