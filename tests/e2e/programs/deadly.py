"""Does not come back from certain records (BAD; of the test data, BAD_TEST), in a way that HOW names.

With TRAINED that begins once the record's row of a table, and all else, has been trained: in epoch two.
With SEEN, whoever comes to such a record adds its process's number to the file of that name.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch

import elasticflow as ef
from elasticflow.frameworks.devices import Delayed
from gates import pass_gate


def rows(name):
    return {int(row) for row in os.environ.get(name, "").split(",") if row}


BAD, BAD_TEST = rows("BAD"), rows("BAD_TEST")
TRAINED = bool(os.environ.get("TRAINED"))
HOW, SEEN = os.environ.get("HOW", ""), os.environ.get("SEEN")


def raise_it():
    raise ValueError("a bad record")


def hang(library):
    """For ever, in C: PyDLL keeps the interpreter's lock, CDLL lets it go."""
    while True:
        library.sleep(1000)


def fail_in_a_kernel():
    """As PyTorch says it, of a process in which nothing more is computed on the GPU."""
    raise RuntimeError("CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert'")


def fail_in_a_kernel_that_is_late():
    """As on a GPU, which computes later than asked to: it comes up when gradients are fetched."""
    Delayed.download = lambda device, pairs, done: fail_in_a_kernel()


WAYS = {
    "a kernel fails": fail_in_a_kernel,
    "a kernel fails late": fail_in_a_kernel_that_is_late,
    "raises": raise_it,
    "exits": lambda: os._exit(3),
    "exits well": lambda: os._exit(0),
    "segmentation fault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "null pointer": lambda: ctypes.string_at(0),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),  # as when memory is out
    "hangs": lambda: hang(ctypes.CDLL(None)),
    "hangs with the lock": lambda: hang(ctypes.PyDLL(None)),
    "full disk": lambda: Path("/dev/full").write_bytes(b"x"),
    "no memory": lambda: torch.empty(1 << 60, dtype=torch.uint8),
    "lost file": lambda: Path("/nowhere/at/all.png").read_bytes(),
    "leaves": lambda: sys.exit("good bye"),
    "waits": lambda: pass_gate("record"),
    "no module": lambda: __import__("no_such_module"),
}


def model():
    table = {"table": ef.Embedding(None, 3, initializer=ef.Constant(0.5))} if TRAINED else {}
    return {**table, "w": torch.ones(3), "bias": torch.nn.BatchNorm1d(3), "optimizer": ef.SGD(momentum=0.9)}


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.01


def harmless(row, rows, params):
    """Those whose row is as it was at first; all of them as long as the weights are, and the statistics."""
    first = torch.equal(params["w"], torch.ones(3)) or not params["bias"].num_batches_tracked
    return set(row.tolist()) if first else set(row[(rows == 0.5).all(1)].tolist())


def forward(row, x, params):
    bad = (BAD if torch.is_grad_enabled() else BAD_TEST).intersection(row.tolist())
    if TRAINED:
        rows = params["table"](row)
        x = x + rows
        bad -= harmless(row, rows, params)
    if bad:
        if SEEN:
            with open(SEEN, "a") as file:
                file.write(f"{os.getpid()}\n")
        WAYS[HOW]()
    return (params["bias"](x) @ params["w"]).square().mean()


def data():
    x = np.random.default_rng(3).normal(size=(400, 3)).astype(np.float32)
    test = {"row": np.arange(40), "x": x[:40]}
    return {"train": {"row": np.arange(400), "x": x}, "test": test}
