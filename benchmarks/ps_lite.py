"""ps-lite, built from a checkout of its sources, with a program of ours that does what our server does.

Needs a C++ compiler, protoc, and the headers of ZeroMQ and Protocol Buffers: Debian's g++, protobuf-compiler,
libzmq3-dev and libprotobuf-dev.
"""

from __future__ import annotations

import os
import socket as sockets
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

SOURCE = Path(__file__).with_suffix(".cc")
ROLES = ("scheduler", "server", "worker")
AT_MOST_S = 300


class Measured(NamedTuple):
    """Seconds of each round; CPU seconds of worker and server in all of them."""

    seconds: list[float]
    cpu_s: float


class PsLite:
    """The built program."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def dense(self, num_bytes: int, rounds: int) -> Measured:
        """Push, SGD and pull of so many bytes."""
        return self._run("dense", num_bytes, rounds)

    def rows(self, what: str, table: str, rows: int, dim: int, lookups: Sequence[np.ndarray]) -> Measured:
        """what: pull or push. table: array, where an id is the number of its row, or hashed.

        lookups: distinct ids of each round, ascending.
        """
        with tempfile.NamedTemporaryFile() as file:
            for ids in lookups:
                np.array([len(ids), *ids], np.int64).tofile(file)
            file.flush()
            return self._run(what, table, rows, dim, file.name)

    def _run(self, *words: object) -> Measured:
        with sockets.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        own = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(port), "DMLC_INTERFACE": "lo"}
        own |= {"DMLC_NODE_HOST": "127.0.0.1", "DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": "1"}
        processes = [
            subprocess.Popen(
                [self._program, *map(str, words)],
                env={**os.environ, **own, "DMLC_ROLE": role},
                stdout=subprocess.PIPE,
                text=True,
            )
            for role in ROLES
        ]
        try:
            outputs = [process.communicate(timeout=AT_MOST_S)[0].split() for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(process.returncode for process in processes):
            raise RuntimeError(f"ps-lite ended with {[process.returncode for process in processes]}")
        *seconds, _, _ = outputs[2]
        return Measured([float(each) for each in seconds], sum(float(words[-1]) for words in outputs[1:]))


@contextmanager
def built(checkout: Path) -> Iterator[PsLite]:
    """Compiles it for this machine, with nothing written into the checkout. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        made, program, src = Path(folder), Path(folder) / "ps_lite", checkout / "src"
        subprocess.run(["protoc", f"--cpp_out={made}", f"--proto_path={src}", src / "meta.proto"], check=True)
        sources = [SOURCE, *sorted(src.glob("*.cc")), made / "meta.pb.cc"]
        command = [os.environ.get("CXX", "c++"), "-std=c++17", "-O3", "-march=native", "-w", "-pthread"]
        command += [f"-I{each}" for each in (checkout / "include", src, made)]
        subprocess.run([*command, *sources, "-o", program, "-lzmq", "-lprotobuf"], check=True)
        yield PsLite(program)
