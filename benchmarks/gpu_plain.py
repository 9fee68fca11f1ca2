"""What people would write by hand for one GPU.

``python -m benchmarks.gpu_plain KIND NAME BATCH SLICES STEPS``
KIND: ``slices`` computes deterministically and slice by slice, as ElasticFlow; ``whole`` neither.
Prints the seconds of each step, as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time


def main() -> None:
    """See the module's docstring."""
    kind, name, *numbers = sys.argv[1:]
    batch_size, slices, steps = map(int, numbers)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    if kind == "slices":
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    else:
        torch.backends.cudnn.benchmark = True
    program = importlib.import_module(f"benchmarks.programs.{name}_torch")
    torch.manual_seed(0)
    net = program.net().cuda()
    optimizer = program.optimizer(net.parameters())
    columns = {column: torch.from_numpy(array) for column, array in program.arrays().items()}
    order = torch.randperm(len(next(iter(columns.values()))))
    parts, seconds = (slices if kind == "slices" else 1), []

    def fetch(step: int) -> list[dict[str, torch.Tensor]]:
        first = step % 8 * batch_size
        rows = order[first : first + batch_size].chunk(parts)
        return [
            {column: values[some].pin_memory().cuda(non_blocking=True) for column, values in columns.items()}
            for some in rows
        ]

    batches = fetch(0)
    for step in range(steps):
        since_s = time.perf_counter()
        optimizer.zero_grad()
        costs = []
        for batch in batches:
            cost = program.forward(**batch, params={"net": net})
            (cost / parts).backward()
            costs.append(cost.detach())
        optimizer.step()
        batches = fetch(step + 1)  # while the GPU computes
        sum(costs).item()  # the cost is watched, as ElasticFlow watches it
        seconds.append(time.perf_counter() - since_s)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
