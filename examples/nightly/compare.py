"""Whether tonight's model is good enough to go out: python compare.py DAY RUN [RUN-OF-YESTERDAY]

Both are tested on the day's records that are kept back. Exits with 9 if tonight's costs more than 2 % more.
"""

import sys

import torch
from make_data import records
from sales import forward

import elasticflow as ef

MORE = 1.02
WORSE = 9


def main(day, *runs):
    test = [torch.from_numpy(column) for column in records(day, "test")]
    with torch.no_grad():
        costs = [forward(*test, ef.Run(run).model()).item() for run in runs]
    for run, cost in zip(runs, costs, strict=True):
        print(f"{run}: test cost {cost:.4f}")
    return WORSE if costs[0] > MORE * costs[-1] else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
