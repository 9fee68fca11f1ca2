"""What people would write by hand: a PyTorch loop, and DistributedDataParallel, over the same slices.

``python -m benchmarks.plain CASE loop|ddp RANK WORLD PORT`` prints the seconds of each step, as JSON.
Slices, threads and library settings are those of an ElasticFlow worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.cases import CASES, Case
from elasticflow.process.fingerprint import environment


def steps_of(case: Case, kind: str, world: int = 1, port: int = 29512) -> list[float]:
    """Seconds of each step, as rank 0 sees them, measured in processes of their own."""
    number = str(CASES.index(case))
    variables = {**environment(1), **case.environment()}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.plain", number, kind, str(rank), str(world), str(port)],
            env=variables,
            stdout=subprocess.PIPE,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate()[0] for process in processes]
    seconds: list[float] = json.loads(outputs[0].splitlines()[-1])
    return seconds


def _train(case: Case, rank: int, world: int, wrap: Callable, no_sync: Callable) -> list[float]:  # type: ignore[type-arg]
    import torch

    from benchmarks.programs import mlp

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = wrap(mlp.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = (torch.from_numpy(array) for array in mlp.arrays())
    mine = range(rank * case.slices // world, (rank + 1) * case.slices // world)
    order = torch.randperm(len(x))
    seconds = []
    for step in range(case.steps):
        since_s = time.perf_counter()
        base = step % 8 * case.batch_size
        optimizer.zero_grad()
        for number in mine:
            first = base + number * case.slice_records
            rows = order[first : first + case.slice_records]
            with no_sync(net) if number != mine[-1] else contextlib.nullcontext():
                cost = torch.nn.functional.mse_loss(net(x[rows]), y[rows])
                (cost * (1 / len(mine))).backward()
                cost.item()  # the cost is watched, as ElasticFlow watches it
        optimizer.step()
        seconds.append(time.perf_counter() - since_s)
    return seconds


def main() -> None:
    """See the module's docstring."""
    number, kind, rank, world, port = sys.argv[1:]
    case = CASES[int(number)]
    if kind == "loop":
        print(json.dumps(_train(case, 0, 1, lambda net: net, lambda net: contextlib.nullcontext())))
        return
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=int(rank), world_size=int(world))
    print(json.dumps(_train(case, int(rank), int(world), DistributedDataParallel, lambda net: net.no_sync())))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
