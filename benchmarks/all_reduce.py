"""100 MB among four processes: workers that carry the servers, workers with servers, and gloo DDP, in turns.

Then kill -9 of a worker of each. Of DDP's processes nothing is left then: the job is started again.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.dense import HUNDRED, PROGRAM, Flat
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import TCP, job, step_seconds
from elasticflow.process.fingerprint import environment

ROUNDS = 3
WORLD, WARM_UP = 4, 24
FLAT = HUNDRED
CARRIED = ("--workers", WORLD, "--strategy", "all_reduce", "--places", 4)
SERVED = ("--workers", 2, "--servers", 2)
COMMAND = "python -m benchmarks all_reduce"
DDP = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, world, elements, steps, slices, port = map(int, sys.argv[1:])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=world)

class Flat(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = torch.nn.Parameter(torch.zeros(elements))

    def forward(self, x):
        return x.mean() * self.p0.sum()

net = DistributedDataParallel(Flat())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.ones(1, 1)
for step in range(steps):
    since_s = time.perf_counter()
    optimizer.zero_grad()
    cost = net(x)
    cost.backward()
    cost.item()
    optimizer.step()
    print(time.perf_counter() - since_s, flush=True)
"""
"""As ``programs/flat.py``: a slice for each process."""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _ddp(flat: Flat, world: int, steps: int) -> list[subprocess.Popen[str]]:
    port = _free_port()
    sizes = (world, flat.elements, steps, flat.slices, port)
    return [
        subprocess.Popen(
            [sys.executable, "-c", DDP, str(rank), *map(str, sizes)],
            env={**environment(1), **flat.environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(world)
    ]


def _ddp_step_s(flat: Flat, world: int) -> float:
    """Seconds of a step."""
    outputs = [process.communicate()[0] for process in _ddp(flat, world, flat.steps)]
    return median([float(line) for line in outputs[0].split()][WARM_UP:])


def _step_s(options: Sequence[object], settings: Mapping[str, object], flat: Flat) -> float:
    """Seconds of a step, of the last ones: by then all places are where they stay."""
    with job(flat, *options, "--checkpoint-every", "24h", program=PROGRAM, settings=settings) as one:
        one.wait()
        return median([median(step_seconds(each)[-WARM_UP:]) for each in one.timelines().values()])


def _lost_s(options: Sequence[object], flat: Flat) -> float:
    """Seconds from the kill of a worker until there is a step that there was not before."""
    more = ("--checkpoint-every", "24h")
    with job(flat, *options, *more, steps=40 * flat.steps, program=PROGRAM) as one:
        status = one.wait_until(int(str(options[1])), step=WARM_UP)
        victim = next(each for each in status.workers if each.name == "worker-2")
        reached = one.wait_until(int(str(options[1])), step=status.step + WARM_UP).step
        since_s = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        one.wait_for(lambda status: status.step > reached + 1)
        return time.monotonic() - since_s


def _ddp_lost_s(flat: Flat) -> float:
    """The same, where all begins anew: seconds from the kill until as many steps are made again."""
    steps, before = WARM_UP, _ddp(flat, WORLD, 40 * flat.steps)
    for _ in range(steps):
        assert before[0].stdout
        before[0].stdout.readline()
    since_s = time.monotonic()
    before[1].kill()
    for process in before:
        process.communicate()
    for process in _ddp(flat, WORLD, steps + 1):
        process.communicate()
    return time.monotonic() - since_s


def run() -> Iterator[Figure]:
    """In turns: steps through memory, and by TCP as between hosts, then kills."""
    carried, served = FLAT._replace(slices=WORLD), FLAT._replace(slices=2)
    for what, settings in (("memory", {}), ("TCP", TCP)):
        ours, theirs, ddp = [], [], []
        for _ in range(ROUNDS):
            ours.append(_step_s(CARRIED, settings, carried))
            theirs.append(_step_s(SERVED, settings, served))
            ddp.append(_ddp_step_s(carried, WORLD))
        ours_s, theirs_s, ddp_s = median(ours), median(theirs), median(ddp)
        gigabytes, note = (
            2 * FLAT.num_bytes / 1e9,
            f"{1000 * ours_s:.0f} ms and {1000 * theirs_s:.0f} ms a step",
        )
        name = f"100 MB by {what}, 4 workers that carry"
        yield figure(
            f"{name} / 2 workers, 2 servers",
            4 * gigabytes / ours_s,
            "GB/s",
            2 * gigabytes / theirs_s,
            COMMAND,
            note,
        )
        note = f"{1000 * ours_s:.0f} ms and {1000 * ddp_s:.0f} ms a step"
        yield figure(f"{name} / gloo DDP of 4", 1 / ours_s, "steps/s", 1 / ddp_s, COMMAND, note)
    lost, served_lost, ddp_lost = [], [], []
    for _ in range(ROUNDS):
        lost.append(_lost_s(CARRIED, carried))
        served_lost.append(_lost_s(SERVED, served))
        ddp_lost.append(_ddp_lost_s(carried))
    name = "kill -9 of a worker, until a new step: carried"
    yield figure(f"{name} / with servers", median(lost), "s", median(served_lost), COMMAND)
    yield figure(f"{name} / gloo DDP, begun anew", median(lost), "s", median(ddp_lost), COMMAND)
