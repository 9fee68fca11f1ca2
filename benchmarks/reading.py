"""Records of a slow transform: made by the worker alone, and by two processes beside it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, figure, median
from elasticflow.hashing import mix
from elasticflow.run.config import Config
from elasticflow.run.settings import MemberSettings
from elasticflow.worker.loaded import load_sources
from elasticflow.worker.readers import Columns, Readers, RowNumbers, SliceAhead

PROCESSES, ROUNDS = 2, 3
SLICE_ROWS, SLICES = 8, 100
COMMAND = "python -m benchmarks reading"
PROGRAM = """
import time
import numpy as np
import elasticflow as ef

def make(record):
    end_s = time.process_time() + 0.002
    while time.process_time() < end_s:
        pass
    return {"x": np.full(100, record["n"], np.float32)}

def data():
    return ef.data.Transform({"n": np.arange(100_000)}, make)

def model():
    return {}

def forward(x, params):
    return 0
"""


def _made(readers: Readers, number: int) -> float:
    """Records a second, of a worker that does nothing but take them."""
    rows = [np.arange(SLICE_ROWS) + SLICE_ROWS * place for place in range(SLICES)]
    since_s, ordered = time.perf_counter(), 0
    for place in range(SLICES):
        while ordered < SLICES and readers.has_room():
            readers.order(SliceAhead(number, ordered), rows[ordered], 1)
            ordered += 1
        if readers.take(SliceAhead(number, place)) is None:
            readers.make(rows[place], 1)
    return SLICE_ROWS * SLICES / (time.perf_counter() - since_s)


def run() -> Iterator[Figure]:
    """Medians, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        settings = MemberSettings.of(
            Config(program=str(program), read_processes=PROCESSES),
            name="worker-1",
            role="worker",
            host="",
            master="",
            run_dir="",
        )
        _, sources = load_sources(settings)
        source = sources.train

        def make(rows: RowNumbers, seed: int) -> Columns:
            return source.finish(source.drawn(rows, seed), mix(seed, int(rows[0])))

        readers = Readers(settings, make)
        _made(readers, 0)  # while they load the program
        alone, ahead = [], []
        for number in range(1, ROUNDS + 1):
            since_s = time.perf_counter()
            make(np.arange(SLICE_ROWS * SLICES), 1)
            alone.append(SLICE_ROWS * SLICES / (time.perf_counter() - since_s))
            ahead.append(_made(readers, number))
        readers.close()
    note = "2 ms of a processor a record"
    yield figure(
        f"records by {PROCESSES} processes beside a worker", median(ahead), "/s", median(alone), COMMAND, note
    )
