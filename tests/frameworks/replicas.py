"""Replicas of small programs, and what they compute, for the tests of all frameworks.

As a script, ``replicas.py torch_models``, it prints what a fresh process computes, as JSON.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from elasticflow.api import SGD
from elasticflow.frameworks import Replica, open_replica
from elasticflow.frameworks.lookups import ReadRows
from elasticflow.program.loading import Program, bind
from elasticflow.step.layout import Rule, Vector
from elasticflow.step.rows import Keys, Rows, Values
from elasticflow.step.schedule import Kind
from elasticflow.worker.sums import add

COLUMNS = ("x", "y")


def program(
    model: Callable[[], Any], forward: Callable[..., Any], metrics: Callable[..., Any] | None = None
) -> Program:
    """``model`` need not name an optimizer."""

    def whole() -> Any:
        values = model()
        return {"optimizer": SGD(lr=0.1), **values} if isinstance(values, dict) else values

    return Program("program.py", whole, forward, None, metrics, None)


def columns(num_records: int = 12, seed: int = 0) -> dict[str, np.ndarray]:
    """x: (n, 8) float32. y: (n,) int64 in 0..4."""
    random = np.random.default_rng(seed)
    return {
        "x": random.normal(size=(num_records, 8)).astype(np.float32),
        "y": random.integers(0, 4, num_records),
    }


def misplaced(array: np.ndarray, by: int) -> np.ndarray:
    """The same values at an address that is ``by`` elements off a multiple of 64 bytes."""
    raw = np.empty(array.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + by * array.itemsize
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def opened(program: Program, seed: int = 1, device: str = "cpu", graphs: bool = False) -> Replica:
    metrics = tuple(bind(program, "metrics", COLUMNS, False)) if program.metrics else None
    return open_replica(
        program,
        seed=seed,
        threads=1,
        sample=columns(2),
        metric_arguments=metrics,
        device=device,
        graphs=graphs,
    )


def computed(replica: Replica, batch: dict[str, np.ndarray], seed: int = 5, weight: float = 0.25) -> Vector:
    """What ``compute`` puts into a vector full of something else."""
    out = Vector(replica.layout)
    for group in out.groups:
        group.fill(7)
    out.rows = [
        Rows(np.array([7], np.uint64), np.full((1, spec.dim), 7, np.float32)) for spec in replica.tables
    ]
    replica.compute(replica.prepare(batch), seed, weight, out)
    return out


def values(replica: Replica, vector: Vector, rule: Rule) -> dict[str, np.ndarray]:
    entries = replica.layout.of_rule(rule)
    return dict(zip([entry.name for entry in entries], vector.tensors(entries), strict=True))


def check_by_epoch(model: Callable[[], Any], forward: Callable[..., Any], late: str) -> None:
    """Of what is trained from the second epoch on, ``late``, nothing is computed in the first."""
    always = opened(program(model, forward))
    names = [entry.name for entry in always.layout.of_rule(Rule.UPDATE)]
    early = [name for name in names if not fnmatchcase(name, late)]
    assert early and early != names
    thawed = replace(program(model, forward), trainable=lambda epoch: ["*"] if epoch else early)
    replica, right = opened(thawed), values(always, computed(always, columns()), Rule.UPDATE)
    for epoch in (0, 1, 1, 0):
        replica.begin_epoch(epoch)
        found = values(replica, computed(replica, columns()), Rule.UPDATE)
        for name, gradient in found.items():
            if epoch or name in early:
                assert gradient.tobytes() == right[name].tobytes(), (epoch, name)
            else:
                assert (gradient == 7).all(), "nothing is written there"
        told: list[int] = []
        batch = replica.prepare(columns())
        replica.compute(batch, 5, 0.25, Vector(replica.layout), ready=told.append)
        numbered = [entry.name for entry in replica.layout.of_rule(Rule.UPDATE)]
        assert {numbered[number] for number in told} <= set(names if epoch else early)
        assert not replica.unused


def late(read: Callable[[int, Keys], Values]) -> ReadRows:
    """Reads only when the rows are waited for."""
    return lambda number, keys: partial(read, number, keys)


def set_state(replica: Replica, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Another version: all of its floating tensors, and all rows, changed."""
    read = replica.lookups.read_rows
    replica.lookups.read_rows = late(lambda number, keys: change(read(number, keys)()))
    kept = [entry for entry in replica.layout.entries if entry.rule in (Rule.UPDATE, Rule.MEAN)]
    for array in replica.state.tensors(kept):
        array[...] = change(array)
    replica.refresh()


def digest(*vectors: Vector) -> str:
    """One hash over all tensors, without the padding between them, and over rows."""
    sha = hashlib.sha256()
    for vector in vectors:
        dense = [entry for entry in vector.layout.entries if entry.rule is not Rule.ROWS]
        for entry, array in zip(dense, vector.tensors(dense), strict=True):
            sha.update(f"{entry}".encode() + array.tobytes())
        for entry, rows in zip(vector.layout.tables, vector.rows, strict=True):
            sha.update(f"{entry}".encode() + rows.keys.tobytes() + rows.values.tobytes())
    return sha.hexdigest()


def bits(program: Program, noise: bool = False, device: str = "cpu") -> str:
    """Hash over the first values and over two slices of different length, of two versions.

    noise: with other slices computed in between, and the arrays at other addresses each time.
    """
    replica = opened(program, device=device)
    found = [digest(replica.state)]
    for version in range(2):
        for number, num_records in enumerate((12, 7)):
            batch = columns(num_records, seed=number)
            if noise:
                computed(replica, columns((7, 12)[number], seed=9), seed=version)
                replica.evaluate(replica.prepare(columns(seed=8)), seed=2)
                batch = {name: misplaced(array, 1 + number) for name, array in batch.items()}
            found.append(digest(computed(replica, batch, seed=100 + number)))
        found.append(json.dumps(replica.evaluate(replica.prepare(columns()), seed=4)))
        set_state(replica, lambda array: array * np.float32(0.75))
    return hashlib.sha256("".join(found).encode()).hexdigest()


def added_in_place(program: Program) -> tuple[str, str]:
    """Hashes of the sum of two slices: the second added onto the first's, and both summed afterwards."""
    replica = opened(program)
    batches = [columns(12, seed=1), columns(7, seed=2)]
    left, right = (computed(replica, batch, seed) for seed, batch in enumerate(batches))
    add(left, right, Kind.TRAIN)
    onto = computed(replica, batches[0], 0)
    replica.compute(replica.prepare(batches[1]), 1, 0.25, onto, onto=True)
    return digest(onto), digest(left)


def told_early(program: Program, onto: bool) -> list[int]:
    """The numbers of the parameters told of while a slice is computed: their gradients were final by then.

    The slice has the same bits whether that is told or not, and so has the next one.
    """
    replica = opened(program)
    trained, batch = replica.layout.of_rule(Rule.UPDATE), columns(12, seed=1)
    plain, out, after = (computed(replica, columns(7, seed=2)) for _ in range(3))
    told: dict[int, bytes] = {}

    def ready(number: int) -> None:
        assert number not in told
        told[number] = out.tensors(trained)[number].tobytes()

    for vector, tell in ((plain, None), (out, ready), (after, None)):
        replica.compute(replica.prepare(batch), 1, 0.25, vector, onto=onto, ready=tell)
    assert digest(plain) == digest(out) == digest(after)
    assert all(out.tensors(trained)[number].tobytes() == value for number, value in told.items())
    return list(told)


def started_anew(program: Program) -> tuple[str, str]:
    """Hashes of the first values and a slice: at first, and after training and a second ``model()``."""

    def found() -> str:
        return digest(replica.state, computed(replica, columns()))

    replica = opened(program)
    first = found()
    set_state(replica, lambda array: array * np.float32(0.75))
    computed(replica, columns(7), seed=9)
    anew = opened(program)
    for mine, again in zip(replica.state.groups, anew.state.groups, strict=True):
        np.copyto(mine, again)
    replica.lookups.read_rows = anew.lookups.read_rows
    replica.refresh()
    return first, found()


class FreshProcess:
    """``bits`` of every program of a module, computed beside this process by one of its own."""

    def __init__(self, module: str) -> None:
        here = Path(__file__)
        path = os.pathsep.join([str(here.parents[2]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        command = [sys.executable, str(here), module]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)

    @cached_property
    def bits(self) -> dict[str, str]:
        output, _ = self._process.communicate(timeout=100)
        assert self._process.returncode == 0
        found: dict[str, str] = json.loads(output)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    programs = importlib.import_module(sys.argv[1]).PROGRAMS
    print(json.dumps({name: bits(programs[name]) for name in reversed(programs)}))
