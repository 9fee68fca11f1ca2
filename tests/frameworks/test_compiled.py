"""``torch.compile``: what a slice gives follows from the slice alone, whatever was computed before it."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from elasticflow.frameworks import torch_compiled
from elasticflow.frameworks.loop_thread import LoopThread
from elasticflow.frameworks.pytorch import set_up
from elasticflow.process.fingerprint import SETTINGS
from elasticflow.worker.whose_fault import Culprit, OutsideError, spare_records, whose_fault

pytestmark = pytest.mark.timeout(600)  # a C++ compiler works, beside all else
SIZES = (8, 7)
PROGRAM = """
import sys
from tests.frameworks.test_compiled import show

show(sys.argv[1] == "kept", eval(sys.argv[2]))
"""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(13, 37), torch.nn.Linear(37, 5)
        self.norm, self.batch_norm = torch.nn.LayerNorm(37), torch.nn.BatchNorm1d(37)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.batch_norm(torch.nn.functional.gelu(self.first(x))))
        h = torch.tanh(h * torch.sigmoid(h.mean(0)))
        return torch.log_softmax(self.last(h), 1)


def digest(sizes: tuple[int, ...], dynamic: bool | None) -> str:
    """Of the gradients of slices of these sizes, one after the other, in the order of ``SIZES``."""
    torch._dynamo.reset()  # as a process that has compiled nothing
    torch.manual_seed(0)
    net, found = Net(), {}
    compiled = torch.compile(net, dynamic=dynamic)
    for size in sizes:
        net.zero_grad()
        x = torch.randn(size, 13, generator=torch.Generator().manual_seed(size))
        (compiled(x).exp().pow(1.3).sum() / size).backward()
        found[size] = [each.grad.numpy().tobytes() for each in net.parameters() if each.grad is not None]
    return hashlib.sha256(b"".join(itertools.chain(*(found[size] for size in SIZES)))).hexdigest()


def show(kept: bool, dynamic: bool | None) -> None:
    torch.set_num_threads(1)
    if kept:
        set_up(0, 1)
    for sizes in (SIZES, SIZES[::-1]):
        print(digest(sizes, dynamic))


def digests(folder: Path, kept: bool, dynamic: bool | None) -> set[str]:
    """By the order of sizes, in a process of its own: others here keep what they were told."""
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    command = [sys.executable, "-c", PROGRAM, "kept" if kept else "", str(dynamic)]
    done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    return set(lines)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PyTorch's cache, which processes share: what they compile alike is compiled once."""
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.xdist_group("test_compiled")
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_slice_gives_the_same_in_whatever_order_they_come(kernels: Path, dynamic: bool | None) -> None:
    assert len(digests(kernels, True, dynamic)) == 1


@pytest.mark.xdist_group("test_compiled")
def test_and_would_not_without(kernels: Path) -> None:
    """If it does one day, this is not needed any more."""
    assert len(digests(kernels, False, None)) > 1


def test_a_loop_of_the_programs_own_has_these_settings_too() -> None:
    """They are of a thread, or whoever has its context."""
    set_up(0, 1)
    torch.compile(lambda x: x, backend="eager")
    told: list[object] = []

    def loop() -> None:
        dynamo = torch._dynamo.config
        told.extend((dynamo.automatic_dynamic_shapes, dynamo.fail_on_recompile_limit_hit))
        told.append(dynamo.recompile_limit)

    thread = LoopThread(loop)
    thread.go_on()
    assert thread.over and told == [False, True, torch_compiled.MOST_KERNELS]


def test_an_older_pytorch_has_other_names() -> None:
    class Older:
        cache_size_limit, fail_on_cache_limit_hit = 8, False

    assert torch_compiled._set(Older, torch_compiled.FAILS, True) and Older.fail_on_cache_limit_hit
    assert torch_compiled._set(Older, torch_compiled.LIMITS, 9) and Older.cache_size_limit == 9
    assert not torch_compiled._set(Older, ("deterministic",), True) and not hasattr(Older, "deterministic")


def test_a_machine_without_a_compiler_is_no_records_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    code = "import torch; from elasticflow.worker.whose_fault import whose_fault\n"
    code += "try: torch.compile(lambda x: x * 2 + 1)(torch.ones(3))\n"
    code += "except Exception as error: print(whose_fault(error).name)"
    environment = {**os.environ, "CXX": "/nowhere/g++"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout == "PLACE\n", done.stderr


def test_too_many_sizes_are_the_programs_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch_compiled, "MOST_KERNELS", 2)
    set_up(0, 1)
    doubled = torch.compile(lambda x: x * 2 + 1, backend="eager")
    with pytest.raises(Exception, match="Hard failure") as raised:
        for size in range(2, 9):
            doubled(torch.ones(size))
    assert whose_fault(raised.value) is Culprit.PROGRAM
    with pytest.raises(OutsideError, match="no record is to blame for that, but the program") as outside:
        spare_records(raised.value, "program.py")
    assert "Give fewer sizes" in str(outside.value) and "dynamic=True" in str(outside.value)
    assert outside.value.for_all
