"""A step on a GPU over the plain PyTorch loop on the same slices; digests of runs that are disturbed there.

``python -m benchmarks gpu [resnet|gpt|tiny|copies|kills|neighbours]...``; all without names. Exit code 77: no
GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.figures import Figure, figure, line, median
from benchmarks.jobs import job, step_seconds
from elasticflow.process.fingerprint import environment

COMMAND = "python -m benchmarks gpu"
NO_GPU = 77
"""Exit code of tests that are skipped, by custom of Automake."""
ROUNDS, RATE = 2, 12
"""RATE: faults a minute."""
HOME = Path(__file__).parent / "programs"


class Net(NamedTuple):
    """What is trained. options: of ``elasticflow train``. threads: of the worker, which copies
    with them, and of the server."""

    name: str
    batch_size: int
    slices: int
    steps: int
    threads: int
    skipped: int
    """First steps that are not counted: memory is still being pinned, kernels loaded."""

    @property
    def program(self) -> Path:
        return HOME / f"{self.name}_torch.py"

    def environment(self) -> dict[str, str]:
        return {}


NETS = (
    Net("resnet", 512, 8, 24, 8, 8),
    Net("gpt", 64, 8, 24, 8, 8),
    Net("tiny", 64, 8, 400, 1, 50),
)


DISTURBED = Net("soak", 64, 8, 160, 1, 0)
"""With 50 steps in each of ``steps // 8`` epochs."""


def _plain(net: Net, kind: str) -> float:
    """Seconds of a step of ``benchmarks.gpu_plain``."""
    command = [sys.executable, "-m", "benchmarks.gpu_plain", kind, *map(str, net[:4])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment(net.threads))
    return median(json.loads(done.stdout.splitlines()[-1])[net.skipped :])


def _ours(net: Net, graphs: bool) -> tuple[float, str]:
    """Seconds of a step, and where they went."""
    options = ("--workers", 1, "--servers", 1, "--device", "cuda", "--checkpoint-every", "1h")
    settings = {"threads": net.threads, "server_threads": net.threads, "start_s": 300, "graphs": graphs}
    with job(net, *options, program=net.program, settings=settings) as one:
        one.wait()
        timeline = [each for each in one.only_timeline() if each.tick >= net.skipped]
    steps = step_seconds(timeline)
    spent: dict[str, float] = {}
    for each in timeline:
        spent[each.what] = spent.get(each.what, 0.0) + each.seconds
    parts = (f"{what} {1000 * seconds / len(steps):.2f} ms" for what, seconds in sorted(spent.items()))
    return median(steps), ", ".join(parts)


def _steps(net: Net) -> Iterator[Figure]:
    loop_ms = 1000 * min(_plain(net, "slices") for _ in range(ROUNDS))
    whole_ms = 1000 * min(_plain(net, "whole") for _ in range(ROUNDS))
    command, name = f"{COMMAND} {net.name}", f"step of {net.name}"
    for graphs, kind in ((False, "ElasticFlow"), (True, "with graphs")):
        seconds, note = min(_ours(net, graphs) for _ in range(ROUNDS))
        yield figure(f"{name}: {kind} / loop over slices", 1000 * seconds, "ms", loop_ms, command, note)
    note = "a loop of one batch a step, nothing deterministic"
    yield figure(f"{name}: with graphs / loop", 1000 * seconds, "ms", whole_ms, command, note)


def _copies() -> Iterator[Figure]:
    """Downloads as gradients leave, but with nothing else to do, over one copy into pinned memory."""
    import torch

    from elasticflow.frameworks.devices import open_device
    from elasticflow.frameworks.torch_sums import BUCKET_BYTES
    from elasticflow.step.layout import Entry, Layout, Rule, paged_vector

    device = open_device("cuda", 0)
    vector = paged_vector(Layout([Entry("x", (64 << 20,), "float32", Rule.UPDATE)]))
    (there,) = device.groups_of(vector)
    device.pin(vector)
    host, pinned = vector.groups[0], torch.empty(64 << 20, pin_memory=True)
    step = BUCKET_BYTES // host.itemsize
    pairs = [(host[at : at + step], there[at : at + step]) for at in range(0, len(host), step)]

    def in_buckets() -> None:
        for pair in pairs:
            device.download([pair], lambda: None)
        device.wait()

    def rate(copy: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        since_s = time.perf_counter()
        copy()
        torch.cuda.synchronize()
        return host.nbytes / (time.perf_counter() - since_s) / 1e9

    ours = max(rate(in_buckets) for _ in range(5))
    plain = max(rate(lambda: pinned.copy_(there, non_blocking=True)) for _ in range(5))
    yield figure("downloads in buckets / one pinned copy", ours, "GB/s", plain, f"{COMMAND} copies")


def _digest(net: Net, workers: int, rate: int = 0, seed: int = 0) -> tuple[str, int]:
    """Of a run whose workers are killed and frozen so often a minute; and how often that was."""
    options = ("--workers", workers, "--servers", 2, "--device", "cuda")
    settings = {"max_failures": 10_000}
    with job(net, *options, program=HOME / "soak_torch.py", settings=settings) as one:
        one.wait_until(workers)
        chaos = [sys.executable, "-m", "elasticflow.cli", "chaos", str(one.run.path), "--seed", str(seed)]
        told = ""
        if rate:
            kinds = ("--rate", str(rate), "--kinds", "worker,freeze-worker")
            told = subprocess.run([*chaos, *kinds], check=False, stdout=subprocess.PIPE, text=True).stdout
        output = one.wait()
    found = re.search(r"^digest: (\w+)$", output, re.MULTILINE)
    if not found:
        raise RuntimeError(output)
    return found[1], told.count("(pid") - told.count("goes on")


def _kills(seconds: float) -> Iterator[Figure]:
    """Of runs of two workers on one GPU that are killed and frozen until the time is up."""
    right, _ = _digest(DISTURBED, 1)
    found, faults, ends_s = list[str](), 0, time.monotonic() + seconds
    while time.monotonic() < ends_s:
        digest, number = _digest(DISTURBED, 2, RATE, len(found))
        found.append(digest)
        faults += number
        print(f"run {len(found)}, {number} faults: {digest[:8]}, right is {right[:8]}", file=sys.stderr)
    note = f"two workers on one GPU, {faults} faults in {seconds:g} s"
    name = "disturbed runs with the digest of one left alone / runs"
    yield figure(name, found.count(right), "", len(found), f"{COMMAND} kills", note)


def _neighbours(runs: int) -> Iterator[Figure]:
    """Of runs of one to three workers on a GPU on which another program computes all the time."""
    right, _ = _digest(DISTURBED, 1)
    neighbour = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        found = [_digest(DISTURBED, 1 + number % 3)[0] for number in range(runs)]
    finally:
        neighbour.kill()
        neighbour.wait()
    name = "runs beside a busy neighbour with the digest of one left alone / runs"
    yield figure(name, found.count(right), "", runs, f"{COMMAND} neighbours")


_BUSY = """
import torch
x = torch.randn(4096, 4096, device="cuda")
while True:
    x = (x @ x).clamp(-1, 1)
    torch.cuda.synchronize()
"""


def run(names: tuple[str, ...] = (), *, seconds: float = 600.0, runs: int = 30) -> Iterator[Figure]:
    """Raises SystemExit where there is no GPU. seconds, runs: of what is disturbed."""
    import torch

    if not torch.cuda.is_available():
        print("no GPU", flush=True)
        raise SystemExit(NO_GPU)
    for net in NETS:
        if not names or net.name in names:
            yield from _steps(net)
    if not names or "copies" in names:
        yield from _copies()
    if not names or "kills" in names:
        yield from _kills(seconds)
    if not names or "neighbours" in names:
        yield from _neighbours(runs)


def main(words: list[str]) -> int:
    """With names of parts."""
    parser = argparse.ArgumentParser(prog=COMMAND)
    parts = [*(net.name for net in NETS), "copies", "kills", "neighbours"]
    parser.add_argument("names", nargs="*", choices=parts)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long kills go on")
    parser.add_argument("--runs", type=int, default=30, help="beside a busy neighbour")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args(words)
    for one in run(tuple(arguments.names), seconds=arguments.seconds, runs=arguments.runs):
        print(msgspec.json.encode(one).decode() if arguments.json else line(one), flush=True)
    return 0
