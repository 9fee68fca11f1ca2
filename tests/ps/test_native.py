"""The updates in C have NumPy's bits, wherever arrays lie and whoever shares the work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow import api
from elasticflow.process.compiled import library, sources_digest
from elasticflow_ps import native
from elasticflow_ps.kernel import Kernel
from elasticflow_ps.norms import add_squares_with_numpy, squared_norm
from elasticflow_ps.optimizers import kernel_for

DTYPES = [np.float32, np.float64]
LARGE = (1 << 20) // 4 + 999
"""Elements of a span that is written past the caches, and shared."""
EACH_RULE: list[api.Optimizer] = [
    api.SGD(weight_decay=0.1),
    api.SGD(momentum=0.9, nesterov=True),
    api.Adam(weight_decay=0.1),
    api.AdamW(amsgrad=True),
    api.Adagrad(),
    api.Ftrl(l1=0.5, weight_decay=0.1),
    api.RMSprop(clip_value=0.5),
    api.RMSprop(momentum=0.9, form="keras"),
    api.RMSprop(centered=True),
    api.RMSprop(centered=True, momentum=0.9, weight_decay=0.1),
    api.Adadelta(),
    api.Adamax(ema=0.9),
    api.NAdam(weight_decay=0.1),
    api.RAdam(),
    api.Lion(weight_decay=0.1),
    api.ASGD(),
    api.LAMB(),
    api.LARS(weight_decay=0.1, nesterov=True),
]

in_c = pytest.mark.skipif(not native.available, reason="installed without a C compiler")


@pytest.mark.skipif("ELASTICFLOW_REQUIRE_CLUSTERS" not in os.environ, reason="only CI must have a compiler")
def test_it_has_been_compiled() -> None:
    assert native.available


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    yield
    native.set_threads(1)


def numbers(*usual: float) -> st.SearchStrategy[float]:
    return st.sampled_from([0.0, *usual]) | st.floats(0, 1e3) | st.floats(0, 1e-30)


def drawn(kind, **arguments):
    return st.builds(kind, weight_decay=numbers(0.1), maximize=st.booleans(), **arguments)


BETA = st.sampled_from([0.0, 0.3, 0.5, 0.9, 0.999]) | st.floats(0, 1, exclude_max=True)
FORM, LIMIT = st.sampled_from(["torch", "keras"]), st.floats(1e-30, 1e30)
ADAM = {"form": FORM, "betas": st.tuples(BETA, BETA), "eps": numbers(1e-8), "amsgrad": st.booleans()}
OPTIMIZERS = st.one_of(
    drawn(api.SGD),
    drawn(api.SGD, momentum=numbers(0.9), dampening=numbers(0.3, 1.0)),
    drawn(api.SGD, momentum=st.floats(1e-3, 2), nesterov=st.just(True)),
    drawn(api.Adam, **ADAM),
    drawn(api.AdamW, **ADAM),
    drawn(api.Adagrad, lr_decay=numbers(0.1), eps=numbers(1e-10)),
    drawn(api.Ftrl, beta=numbers(1.0), l1=numbers(0.5)),
    drawn(api.SGD, momentum=numbers(0.9), form=st.just("keras"), clip_value=LIMIT),
    drawn(
        api.RMSprop, alpha=BETA, eps=numbers(1e-8), momentum=numbers(0.9), centered=st.booleans(), form=FORM
    ),
    drawn(api.Adadelta, rho=BETA, eps=numbers(1e-6), clip_value=LIMIT),
    drawn(api.Adamax, betas=st.tuples(BETA, BETA), eps=numbers(1e-8), form=FORM, ema=BETA),
    drawn(api.NAdam, betas=st.tuples(BETA, BETA), eps=numbers(1e-8), momentum_decay=numbers(1.0)),
    drawn(api.RAdam, betas=st.tuples(BETA, BETA), eps=numbers(1e-8)),
    drawn(api.Lion, betas=st.tuples(BETA, BETA), clip_value=LIMIT),
    drawn(api.ASGD, lambd=numbers(1e-4), t0=numbers(5.0)),
    drawn(api.LAMB, betas=st.tuples(BETA, BETA), eps=numbers(1e-6), clip_value=LIMIT),
    drawn(api.LARS, momentum=numbers(0.9)),
)


def values(rng: np.random.Generator, size: int, dtype: type[np.floating]) -> np.ndarray:
    """Of all magnitudes, with zeros, subnormal numbers, infinities and NaN among them."""
    limits = np.finfo(dtype)
    special = [0.0, -0.0, limits.smallest_subnormal, -limits.tiny / 3, limits.max, np.inf, -np.inf, np.nan]
    plain = rng.standard_normal(size) * 10.0 ** rng.integers(-30, 30, size)
    with np.errstate(all="ignore"):
        plain = np.where(rng.random(size) < 0.5, rng.standard_normal(size), plain).astype(dtype)
    return np.where(rng.random(size) < 0.1, rng.choice(np.array(special, dtype), size), plain)


def moved(array: np.ndarray, num_bytes: int) -> np.ndarray:
    """A copy that begins ``num_bytes`` after an aligned address, be it odd."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + num_bytes
    copy = memory[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


def bits(array: np.ndarray) -> bytes:
    """With one NaN for all: which of its operands' payloads a result carries is nobody's promise."""
    return np.where(np.isnan(array), np.array(np.nan, array.dtype), array).tobytes()


def assert_same_bits(kernel: Kernel, size: int, dtype: type[np.floating], seed: int, **arguments) -> None:
    """Of one update in C, wherever arrays lie, and in NumPy."""
    rng = np.random.default_rng(seed)
    params, grad = values(rng, size, dtype), values(rng, size, dtype)
    before = {name: values(rng, size, dtype) for name in kernel.slots}
    for name in set(before) - {"exp_avg", "grad_avg", "momentum_buffer", "z"}:
        before[name] = np.abs(before[name])  # sums of squares
    in_place = bool(rng.integers(2))

    subject = [moved(a, int(rng.choice([0, 0, 4, 8, 13]))) for a in (params, grad, np.empty_like(params))]
    slots = {name: moved(a, int(rng.choice([0, 0, 4, 8, 13]))) for name, a in before.items()}
    after = slots if in_place else {name: np.empty_like(a) for name, a in slots.items()}
    assert native.takes(*subject, *slots.values(), *after.values())
    for array in subject[:2]:
        array.flags.writeable = False
    kernel.apply(*subject[:2], slots, subject[2], after, **arguments)

    out, expected = np.empty_like(params), {name: np.empty_like(a) for name, a in before.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "available", False)
        kernel.apply(params, grad, before, out, expected, **arguments)
    assert bits(subject[2]) == bits(out)
    assert all(bits(after[name]) == bits(expected[name]) for name in kernel.slots)
    assert in_place or all(slots[name].tobytes() == before[name].tobytes() for name in kernel.slots)


def test_is_there_if_a_compiler_is() -> None:
    assert native.available or shutil.which("cc") is None


@in_c
@settings(max_examples=2000, database=None)
@given(
    optimizer=OPTIMIZERS,
    size=st.integers(0, 300) | st.integers(0, 40_000),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
    lr=numbers(0.1),
    update=st.sampled_from([1, 2]) | st.integers(1, 10_000),
    grad_scale=st.sampled_from([1.0, 0.3, 0.0, float("nan")]),
)
def test_bits_are_those_of_numpy(optimizer, size, dtype, seed, lr, update, grad_scale):
    kernel = kernel_for(optimizer)
    assert_same_bits(kernel, size, dtype, seed, lr=lr, update=update, grad_scale=grad_scale)


@in_c
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", EACH_RULE, ids=repr)
def test_bits_of_a_large_span_are_those_of_numpy(optimizer, dtype, threads):
    native.set_threads(threads)
    for seed in range(4):
        assert_same_bits(kernel_for(optimizer), LARGE + seed, dtype, seed, lr=0.1, update=2)


@in_c
@settings(max_examples=200, database=None)
@given(
    size=st.integers(0, 40_000) | st.just(LARGE),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
    threads=st.integers(1, 3),
)
def test_norms_are_those_of_numpy(size, dtype, seed, threads):
    native.set_threads(threads)
    rng = np.random.default_rng(seed)
    grad = moved(rng.standard_normal(size).astype(dtype), int(rng.integers(16)))
    length = max(1, min(size, 16_384))
    sums = np.zeros(length)
    add_squares_with_numpy(grad, sums)
    assert squared_norm(grad) == float(np.add.reduce(sums))
    wild, ours, theirs = values(rng, size, dtype), np.zeros(length), np.zeros(length)
    native.add_squares(wild, ours)
    add_squares_with_numpy(wild, theirs)
    assert bits(ours) == bits(theirs)


@in_c
def test_threads_can_be_changed_and_callers_can_meet():
    """Who finds the pool taken works alone."""
    assert [native.set_threads(n) for n in (3, 1, 2)] == [3, 1, 2]
    kernel, failed = kernel_for(api.Adam()), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        params, grad = rng.standard_normal((2, LARGE)).astype(np.float32)
        slots, expected = kernel.new_slots(params), np.empty_like(params)
        numbers = kernel.numbers(0.1, 1, 1.0)
        after = [np.empty_like(params) for _ in kernel.slots]
        kernel.apply_with_numpy(params, grad, expected, list(slots.values()), after, numbers)
        for _ in range(20):
            out = np.empty_like(params)
            fresh = kernel.new_slots(params)
            kernel.apply(params, grad, fresh, out, fresh, lr=0.1, update=1)
            if out.tobytes() != expected.tobytes():
                failed.append(seed)

    callers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failed


@in_c
def test_a_fork_leaves_the_threads_behind_and_goes_on():
    code = f"""
import os, sys
import numpy as np
from elasticflow import api
from elasticflow_ps import native
from elasticflow_ps.optimizers import kernel_for
ones, out = np.ones({LARGE}, np.float32), np.empty({LARGE}, np.float32)
native.set_threads(3)
kernel_for(api.SGD()).apply(ones, ones, {{}}, out, {{}}, lr=0.5, update=1)
child = os.fork()
out[:] = 0
kernel_for(api.SGD()).apply(ones, ones, {{}}, out, {{}}, lr=0.5, update=1)
assert (out == 0.5).all()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


def test_what_c_cannot_do_numpy_does():
    """Arrays with gaps, other numbers, and everything where the library is not there."""
    rng = np.random.default_rng(0)
    kernel = kernel_for(api.SGD(momentum=0.9))
    for params in (rng.standard_normal((50, 2))[:, 0], rng.standard_normal(50).astype(np.longdouble)):
        assert not native.takes(params)
        slots, out = kernel.new_slots(params), np.empty_like(params)
        kernel.apply(params, params, slots, out, slots, lr=0.5, update=1)
        assert (out == params - params * 0.5).all()
        assert squared_norm(params) == pytest.approx(float((params**2).sum()))


def test_a_library_that_cannot_be_loaded_is_not_there(monkeypatch, tmp_path):
    assert library(tmp_path) is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / f"_native{EXTENSION_SUFFIXES[0]}").write_text("built elsewhere")
    assert library(tmp_path / "other") is None
    monkeypatch.setattr(native, "_lib", None)
    assert native.set_threads(4) == 1


@in_c
def test_a_library_of_other_sources_than_those_beside_it_is_not_used(tmp_path, capsys):
    """C would take for an address what is a number now."""
    there = Path(native.__file__).parent
    for path in (*there.glob("*.[ch]"), *there.glob("_native*")):
        shutil.copy(path, tmp_path)
    assert library(tmp_path) is not None
    shutil.copytree(tmp_path, tmp_path / "edited")
    with open(tmp_path / "edited" / "rows.c", "a") as file:
        file.write("/* one more argument */")
    assert library(tmp_path / "edited") is None
    said = capsys.readouterr().err
    assert "is of other sources than those beside it, and not used" in said
    assert "pip install -e ." in said


@in_c
def test_a_wheel_has_no_sources_to_compare(tmp_path):
    for path in Path(native.__file__).parent.glob("_native*"):
        shutil.copy(path, tmp_path)
    assert sources_digest(tmp_path) is None
    assert library(tmp_path) is not None
