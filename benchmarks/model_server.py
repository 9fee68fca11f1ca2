"""``elasticflow serve-model`` beside a plain FastAPI program with the same model, in turns.

Requests are of one record of 64 numbers, on connections that are kept
open, by one client process that does nothing else. Both have as many processes as there are cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures import Figure, figure

PROGRAM = """
import numpy as np
import torch
import elasticflow as ef

torch.manual_seed(0)

def net():
    wide = {width}
    return torch.nn.Sequential(
        torch.nn.Linear(64, wide), torch.nn.ReLU(), torch.nn.Linear(wide, wide), torch.nn.ReLU(),
        torch.nn.Linear(wide, 10),
    )

def model():
    return {{"net": net(), "optimizer": ef.SGD(lr=0.01)}}

def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x), y)

def predict(x, params):
    return {{"score": params["net"](x).softmax(1)}}

def data():
    rng = np.random.default_rng(0)
    return {{"x": rng.normal(size=(256, 64)).astype(np.float32), "y": rng.integers(0, 10, 256)}}
"""
PLAIN = """
import torch
from fastapi import FastAPI
from pydantic import BaseModel
from program import net

torch.set_num_threads(1)
served, app = net().eval(), FastAPI()

class Records(BaseModel):
    x: list[list[float]]

@app.post("/predict")
def predict(records: Records):
    with torch.no_grad():
        score = served(torch.tensor(records.x)).softmax(1)
    return {"predictions": {"score": score.tolist()}}

@app.get("/health")
def health():
    return {}
"""
WIDTHS = {"small": 256, "large": 2048}
CONNECTIONS = (1, 8, 32)
SECONDS, ROUNDS = 4.0, 3
COMMAND = "python -m benchmarks model_server"


class Measured(NamedTuple):
    """p50, p99: seconds from question to answer."""

    p50: float
    p99: float
    per_second: float


async def _ask(port: int, asked: bytes, until_s: float, found: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until_s:
        begun_s = time.perf_counter()
        writer.write(asked)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        found.append(time.perf_counter() - begun_s)
    writer.close()


async def _measured(port: int, connections: int) -> Measured:
    body = json.dumps({"x": [[round(0.1 * n, 1) for n in range(64)]]}).encode()
    head = (
        f"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    asked = head.encode() + b"\r\n\r\n" + body
    found: list[float] = []
    begun_s = time.perf_counter()
    await asyncio.gather(*(_ask(port, asked, begun_s + SECONDS, found) for _ in range(connections)))
    seconds, ordered = time.perf_counter() - begun_s, sorted(found)
    return Measured(statistics.median(ordered), ordered[int(0.99 * len(ordered))], len(ordered) / seconds)


@contextmanager
def _served(folder: Path, listener: socket.socket, *command: str) -> Iterator[int]:
    """listener: is handed on, where the command asks for {fd}; else the port is free for it to listen."""
    port, fd = listener.getsockname()[1], listener.fileno()
    path = os.pathsep.join([str(folder), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-m", *(each.format(fd=fd, port=port) for each in command)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        pass_fds=[fd] if "{fd}" in command else [],
    )
    if "{fd}" not in command:
        listener.close()
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def _listener() -> socket.socket:
    """Answers are sent at once, as ours are: uvicorn's own, of several processes, wait 40 ms each."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def run() -> Iterator[Figure]:
    """For each size of the model and number of connections: requests a second, and how long they take."""
    num = str(len(os.sched_getaffinity(0)))
    for name, width in WIDTHS.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            (folder / "program.py").write_text(PROGRAM.format(width=width))
            (folder / "plain.py").write_text(PLAIN)
            train = ("train", "program.py", "--run-dir", "run", "--epochs", "1", "--workers", "1")
            command = [sys.executable, "-m", "elasticflow.cli", *train]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            serve = ("elasticflow.cli", "serve-model", "run", "--port", "{port}", "--workers", num)
            plain = ("uvicorn", "plain:app", "--fd", "{fd}", "--workers", num, "--log-level", "error")
            with (
                _listener() as first,
                _listener() as second,
                _served(folder, first, *serve) as ours,
                _served(folder, second, *plain) as theirs,
            ):
                for connections in CONNECTIONS:
                    yield _figure(name, connections, ours, theirs)


def _figure(name: str, connections: int, ours: int, theirs: int) -> Figure:
    found: dict[int, list[Measured]] = {ours: [], theirs: []}
    for _ in range(ROUNDS):
        for port, measured in found.items():
            measured.append(asyncio.run(_measured(port, connections)))
    mine, other = (
        Measured(*(statistics.median(each) for each in zip(*measured, strict=True)))
        for measured in found.values()
    )
    told = ", ".join(
        f"{who} {1e3 * each.p50:.1f} and {1e3 * each.p99:.1f} ms"
        for who, each in (("ours", mine), ("FastAPI", other))
    )
    what = f"requests of a {name} model, {connections} at a time"
    return figure(what, mine.per_second, "/s", other.per_second, COMMAND, f"p50 and p99: {told}")
