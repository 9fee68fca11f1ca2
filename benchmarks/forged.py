"""A million forged files: manifests, settings, programs and records of somebody who means harm.

Each is changed as a person would who knows the format (a number that is huge, a text in place of a list,
and the hash made right again), or bit by bit. Whoever reads it must come to an end soon, with little
memory, and with an error of ElasticFlow's own, if any.
"""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import random
import resource
import secrets
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np

from benchmarks.figures import Figure, figure
from elasticflow.checkpoint import Manifest, Part, chain_of, table_sizes
from elasticflow.checkpoint.manifest import Saved, decode, encode
from elasticflow.data import HDF5
from elasticflow.errors import ElasticFlowError
from elasticflow.program.copy import Copy, fetch, keep
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.step.layout import Entry, Layout, Rule

COMMAND = "python -m benchmarks forged"
FILES = 1_000_000
MEMORY_BYTES = 4 << 30
"""That a reader may have: what is claimed in a forged file may be far more, and must not be believed."""
STEP = 7
DEEP = "lists in lists in lists"
NASTY: tuple[Any, ...] = (
    0, -1, 1, 2**31, 2**50, 2**63 - 1, 2**63, 2**70, 0.5, 1e308, True, None, "", "float32", "O", "V9",
    "U99999999", "f8,f8", "rows", "x" * 5000, "../../etc", "/dev/zero", "\x1b[2J\0",
    [], [2**50], [2**25, 2**25], [-1, -1], [[]], {}, {"1": {}}, {"a": None}, [0] * 1000, "9" * 5000,
)  # fmt: skip


def _manifest() -> Manifest:
    entries = (
        Entry("w", (40, 5), "float32", Rule.UPDATE),
        Entry("mean", (5,), "float64", Rule.MEAN),
        Entry("seen", (), "int64", Rule.FIRST),
    )
    layout = Layout(entries)
    chunks = {chunk.number: {"value": Saved(4096 * (1 + chunk.number), "0" * 64)} for chunk in layout.chunks}
    return Manifest(
        program="digits.py",
        tick=8,
        step=STEP,
        epoch=1,
        optimizer={"name": "SGD", "lr": 0.1},
        work={"seed": 0, "batch_size": 64, "slices": 8},
        fingerprint={"cpu": "x", "threads": 1},
        signature=layout.signature,
        entries=entries,
        parts=(Part("generation-1-server-0.h5", 1 << 20, chunks),),
    )


class Forger:
    """Changes values as JSON has them, here and there."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def forged(self, value: Any) -> Any:
        """A changed copy."""
        changed = msgspec.json.decode(msgspec.json.encode(value))
        for _ in range(self._rng.choice((1, 1, 1, 2, 4))):
            self._change(changed)
        return changed

    def _change(self, top: Any) -> None:
        holder, place = top, None
        while isinstance(top, (dict, list)) and top and (place is None or self._rng.random() < 0.85):
            holder = top
            place = self._rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
            top = holder[place]
        if place is None:
            return
        way = self._rng.random()
        if way < 0.7:
            holder[place] = deepcopy(self._rng.choice(NASTY))
        elif way < 0.8:
            del holder[place]
        elif way < 0.9 and isinstance(holder, list):
            holder += [holder[place]] * self._rng.choice((1, 10, 500))
        else:
            holder[place] = DEEP

    def flipped(self, data: bytes) -> bytes:
        """Other bits, or others cut out."""
        changed = bytearray(data)
        for _ in range(self._rng.choice((1, 2, 8))):
            changed[self._rng.randrange(len(changed))] = self._rng.choice((0, 255, self._rng.randrange(256)))
        return bytes(changed[: self._rng.randrange(len(changed))] if self._rng.random() < 0.1 else changed)


def forge_manifests(rng: random.Random, folder: Path) -> Callable[[], object]:
    """Each with its hash, and mostly with the signature of its entries, made right again."""
    forger, whole = Forger(rng), msgspec.to_builtins(_manifest())
    right = encode(_manifest())

    def one() -> object:
        if rng.random() < 0.2:
            data = forger.flipped(right)
        else:
            changed = forger.forged(whole)
            if isinstance(changed, dict) and rng.random() < 0.9:
                changed["signature"] = hashlib.sha256(_encoded(changed.get("entries"))).hexdigest()
            inner = _encoded(changed)
            data = b'{"sha256":"%s","manifest":%s}' % (hashlib.sha256(inner).hexdigest().encode(), inner)
        manifest = decode(data, STEP)
        return manifest.layout(), manifest.files, table_sizes(manifest), chain_of(manifest, range(10))

    return one


def forge_settings(rng: random.Random, folder: Path) -> Callable[[], object]:
    """``run.json`` and ``report.json``."""
    forger, run = Forger(rng), RunDir(folder)
    whole = msgspec.to_builtins(Config(program="digits.py", slurm={"partition": "gpu"}))
    right = msgspec.json.encode(whole)

    def one() -> object:
        data = forger.flipped(right) if rng.random() < 0.2 else _encoded(forger.forged(whole))
        run.settings.write_bytes(data)
        run.report.write_bytes(data)
        run.read_report()
        chosen = run.config()
        return chosen.num_slices, chosen.worker_range, chosen.checkpoint_interval, chosen.time_limit_s

    return one


def forge_programs(rng: random.Random, folder: Path) -> Callable[[], object]:
    """Archives of a run's program, among them some that would unpack to gigabytes."""
    forger, run = Forger(rng), RunDir(folder)
    copy = Copy("digits.py", {"digits.py": b"def model(): ...\n" * 50, "layers.py": b"import torch\n"})
    keep(run, copy)
    path = run.program_copy(copy.sha256[:16])
    assert isinstance(path, Path)
    right = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("digits.py", bytes(200 << 20))
    bomb = buffer.getvalue()

    def one() -> object:
        path.write_bytes(forger.flipped(bomb if rng.random() < 0.01 else right))
        return fetch(run, copy.sha256)

    return one


def forge_records(rng: random.Random, folder: Path) -> Callable[[], object]:
    """HDF5 files: the library itself reads them, so it may crash; that is counted, by ``_endure``."""
    forger, path = Forger(rng), folder / "records.h5"
    with h5py.File(path, "w") as file:
        x = np.arange(600, dtype="f4").reshape(100, 6)
        file.create_dataset("x", data=x, chunks=(10, 6), compression="gzip")
        file["y"] = np.arange(100)
        file["also"] = h5py.SoftLink("/x")
    right = path.read_bytes()

    def one() -> object:
        path.write_bytes(forger.flipped(right))
        return HDF5(path, x="x", y="y").rows(np.array([0, 50, 99]))

    return one


KINDS: tuple[tuple[str, Callable[[random.Random, Path], Callable[[], object]], float], ...] = (
    ("manifests", forge_manifests, 0.5),
    ("settings and reports", forge_settings, 0.4),
    ("programs", forge_programs, 0.08),
    ("records in HDF5", forge_records, 0.02),
)


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value).replace(b'"%s"' % DEEP.encode(), b"[" * 5000 + b"]" * 5000)


class Told(msgspec.Struct):
    """refused: with an error of ElasticFlow's own. odd: other errors, by their words."""

    forged: int = 0
    refused: int = 0
    longest_s: float = 0.0
    grown_mb: float = 0.0
    crashes: int = 0
    odd: list[str] = []


def endure(kind: Callable[[random.Random, Path], Callable[[], object]], seed: int, count: int) -> Told:
    """Reads so many forged files in this process."""
    told = Told()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        one = kind(random.Random(seed), Path(folder))
        for _ in range(count):
            begin_s = time.perf_counter()
            try:
                one()
            except ElasticFlowError:
                told.refused += 1
            except Exception as error:  # noqa: BLE001  (any of them is what is looked for)
                told.odd.append(f"{type(error).__name__}: {error}"[:200])
            told.forged += 1
            told.longest_s = max(told.longest_s, time.perf_counter() - begin_s)
    told.grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return told


def _child(pipe: Any, number: int, seed: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    pipe.send(endure(KINDS[number][1], seed, count))


def endure_apart(number: int, seed: int, count: int) -> Told:
    """The same in a process of its own, which may crash."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, number, seed, count))
    process.start()
    theirs.close()
    try:
        told: Told = ours.recv()
    except EOFError:
        told = Told(forged=count, crashes=1)
    process.join()
    return told


def run(files: int = FILES, seed: int | None = None) -> Iterator[Figure]:
    """All kinds. Raises RuntimeError at an error that is not ElasticFlow's own."""
    seed = secrets.randbits(32) if seed is None else seed
    for number, (name, _, share) in enumerate(KINDS):
        count = max(1, round(files * share))
        pieces = (
            [endure_apart(number, seed + at, min(1000, count - at)) for at in range(0, count, 1000)]
            if (name == "records in HDF5")
            else [endure_apart(number, seed, count)]
        )
        odd = [words for each in pieces for words in each.odd]
        crashes = sum(each.crashes for each in pieces)
        if odd or (crashes and number != len(KINDS) - 1):
            raise RuntimeError(f"{name}, seed {seed}: {crashes} crashes, {len(odd)} odd errors: {odd[:3]}")
        yield figure(
            f"forged {name}: read / refused", sum(each.forged for each in pieces), "",
            sum(each.refused for each in pieces), COMMAND,
            f"the longest took {1000 * max(each.longest_s for each in pieces):.0f} ms; memory grew by "
            f"{max(each.grown_mb for each in pieces):.0f} MB; {crashes} crashes of the library; seed {seed}",
        )  # fmt: skip
