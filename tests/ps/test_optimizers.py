"""Kernels against torch.optim, FTRL against its paper, and bits that do not depend on how a vector is cut."""

from __future__ import annotations

import itertools
import math
import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow import api
from elasticflow_ps.optimizers import Kernel, clip_scale, kernel_for, squared_norm

DTYPES = [np.float32, np.float64]
RTOL = {np.float32: 1e-6, np.float64: 1e-12}

GRID: list[api.Optimizer] = [
    *(
        api.SGD(momentum=momentum, dampening=dampening, weight_decay=decay, maximize=maximize)
        for momentum, dampening, decay, maximize in itertools.product(
            (0.0, 0.9), (0.0, 0.3, 1.0), (0.0, 0.1), (False, True)
        )
        if momentum or not dampening
    ),
    *(
        api.SGD(momentum=0.9, nesterov=True, weight_decay=decay, maximize=maximize)
        for decay, maximize in itertools.product((0.0, 0.1), (False, True))
    ),
    *(
        kind(betas=betas, eps=eps, amsgrad=amsgrad, weight_decay=decay, maximize=maximize)
        for kind, betas, eps, amsgrad, decay, maximize in itertools.product(
            (api.Adam, api.AdamW),
            ((0.9, 0.999), (0.3, 0.5), (0.0, 0.0)),
            (1e-8, 1e-2),
            (False, True),
            (0.0, 0.1),
            (False, True),
        )
    ),
    *(
        api.Adagrad(
            lr_decay=lr_decay, initial_accumulator_value=initial, weight_decay=decay, maximize=maximize
        )
        for lr_decay, initial, decay, maximize in itertools.product(
            (0.0, 0.1), (0.0, 0.5), (0.0, 0.1), (False, True)
        )
    ),
]

TORCH_PATHS: list[api.Optimizer] = [
    api.SGD(),
    api.SGD(weight_decay=0.1, maximize=True),
    api.SGD(momentum=0.9, dampening=0.3),
    api.SGD(momentum=0.9, nesterov=True, weight_decay=0.1),
    api.Adam(),
    api.Adam(betas=(0.3, 0.5), amsgrad=True, weight_decay=0.1),
    api.AdamW(maximize=True),
    api.Adagrad(lr_decay=0.1, weight_decay=0.1),
]
EACH_PATH = [*TORCH_PATHS, api.Ftrl(), api.Ftrl(l1=0.3, weight_decay=0.1, maximize=True)]


def varying_lr(update: int) -> float:
    """A schedule that also visits zero."""
    return 0.01 * (update % 4)


def torch_optimizer(optimizer: api.Optimizer, tensors):
    torch = pytest.importorskip("torch")
    arguments = optimizer.settings()
    arguments.pop("clip_norm")
    kind = getattr(torch.optim, arguments.pop("optimizer"))
    return kind(tensors, foreach=False, **arguments)


def kernel_steps(optimizer, params, grads, scales=None):
    """Parameters and slots after one update per row of ``grads``."""
    kernel = kernel_for(optimizer)
    slots = kernel.new_slots(params)
    for update, grad in enumerate(grads, 1):
        out = np.full_like(params, np.nan)
        scale = 1.0 if scales is None else scales[update - 1]
        kernel.apply(params, grad, slots, out, slots, lr=varying_lr(update), update=update, grad_scale=scale)
        params = out
    return params, slots


def torch_steps(optimizer, params, grads):
    torch = pytest.importorskip("torch")
    tensor = torch.nn.Parameter(torch.from_numpy(params.copy()))
    theirs = torch_optimizer(optimizer, [tensor])
    for update, grad in enumerate(grads, 1):
        theirs.param_groups[0]["lr"] = varying_lr(update)
        tensor.grad = torch.from_numpy(grad.copy())
        theirs.step()
    return tensor.detach().numpy(), {k: v.numpy() for k, v in theirs.state[tensor].items() if k != "step"}


def assert_like_torch(optimizer, dtype, seed=0):
    rng = np.random.default_rng(seed)
    params = rng.standard_normal(257).astype(dtype)
    grads = rng.standard_normal((20, 257)).astype(dtype)
    ours, slots = kernel_steps(optimizer, params, grads)
    theirs, state = torch_steps(optimizer, params, grads)
    close = {"rtol": RTOL[dtype], "atol": RTOL[dtype]}  # values are of order one
    np.testing.assert_allclose(ours, theirs, **close)
    assert set(slots) == set(state)
    for name in slots:
        np.testing.assert_allclose(slots[name], state[name], **close)


@pytest.mark.parametrize("dtype", DTYPES)
def test_grid_of_arguments_follows_torch(dtype):
    for optimizer in GRID:
        assert_like_torch(optimizer, dtype)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere torch always fuses multiply-adds")
def test_sgd_has_the_bits_that_torch_has_where_it_fuses_nothing():
    pytest.importorskip("torch")
    code = """
import numpy as np
from tests.ps.test_optimizers import DTYPES, GRID, api, kernel_steps, torch_steps
rng = np.random.default_rng(4)
for dtype in DTYPES:
    params, grads = rng.standard_normal(1001).astype(dtype), rng.standard_normal((5, 1001)).astype(dtype)
    for optimizer in GRID:
        if isinstance(optimizer, api.SGD):
            ours, slots = kernel_steps(optimizer, params, grads)
            theirs, state = torch_steps(optimizer, params, grads)
            assert ours.tobytes() == theirs.tobytes(), optimizer
            assert all(slots[name].tobytes() == state[name].tobytes() for name in slots), optimizer
"""
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "ATEN_CPU_CAPABILITY": "default"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def floats(low: float, high: float) -> st.SearchStrategy[float]:
    return st.just(float(low)) | st.floats(low, high, allow_subnormal=False)


def drawn(kind, **arguments):
    return st.builds(kind, weight_decay=floats(0, 0.2), maximize=st.booleans(), **arguments)


ADAM = {
    "betas": st.tuples(floats(0, 0.99), floats(0.5, 0.9999)),  # less magnifies the last bits of grad + decay
    "eps": floats(1e-8, 1),
    "amsgrad": st.booleans(),
}


OPTIMIZERS = st.one_of(
    drawn(api.SGD, momentum=floats(0, 0.99), dampening=floats(0, 1)),
    drawn(api.SGD, momentum=floats(0.01, 0.99), nesterov=st.just(True)),
    drawn(api.Adam, **ADAM),
    drawn(api.AdamW, **ADAM),
    drawn(
        api.Adagrad,
        lr_decay=floats(0, 1),
        initial_accumulator_value=floats(0, 2),
        eps=floats(1e-10, 1),
    ),
)
FTRL = drawn(api.Ftrl, beta=floats(0, 2), l1=floats(0, 3))


@settings(max_examples=60, deadline=None, database=None)
@given(optimizer=OPTIMIZERS, dtype=st.sampled_from(DTYPES), seed=st.integers(0, 1000))
def test_drawn_arguments_follow_torch(optimizer, dtype, seed):
    assert_like_torch(optimizer, dtype, seed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
@pytest.mark.parametrize("optimizer", TORCH_PATHS, ids=repr)
def test_clipping_follows_torch(optimizer, max_norm, dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    params = rng.standard_normal(300).astype(dtype)
    grads = rng.standard_normal((5, 300)).astype(dtype)

    norms = [math.sqrt(sum(squared_norm(part) for part in np.split(grad, 3))) for grad in grads]
    scales = [clip_scale(norm, max_norm) for norm in norms]
    ours, _ = kernel_steps(optimizer, params, grads, scales)

    tensors = [torch.nn.Parameter(torch.from_numpy(part.copy())) for part in np.split(params, 3)]
    theirs = torch_optimizer(optimizer, tensors)
    for update, grad in enumerate(grads, 1):
        theirs.param_groups[0]["lr"] = varying_lr(update)
        for tensor, part in zip(tensors, np.split(grad, 3), strict=True):
            tensor.grad = torch.from_numpy(part.copy())
        torch.nn.utils.clip_grad_norm_(tensors, max_norm)
        theirs.step()
    expected = np.concatenate([tensor.detach().numpy() for tensor in tensors])
    np.testing.assert_allclose(ours, expected, rtol=RTOL[dtype], atol=RTOL[dtype])


def printed_ftrl(optimizer: api.Ftrl, w: float, grads, lrs) -> tuple[float, float, float]:
    """The weight, n and z after algorithm 1 of McMahan et al. 2013, of one coordinate that begins at w."""
    n = z = 0.0
    for g, alpha in zip(-grads if optimizer.maximize else grads, lrs, strict=True):
        sigma = (math.sqrt(n + g * g) - math.sqrt(n)) / alpha
        z += g - sigma * w
        n += g * g
        if abs(z) <= optimizer.l1:
            w = 0.0
        else:
            quadratic = (optimizer.beta + math.sqrt(n)) / alpha + optimizer.weight_decay
            w = -(z - math.copysign(optimizer.l1, z)) / quadratic
    return w, n, z


def ftrl_steps(optimizer, params, grads, lrs):
    """Parameters, n and z after one update per row of ``grads``."""
    kernel = kernel_for(optimizer)
    slots = kernel.new_slots(params)
    for update, (grad, lr) in enumerate(zip(grads, lrs, strict=True), 1):
        out = np.full_like(params, np.nan)
        kernel.apply(params, grad, slots, out, slots, lr=lr, update=update)
        params = out
    return params, slots["n"], slots["z"]


@settings(max_examples=100, deadline=None, database=None)
@given(optimizer=FTRL, dtype=st.sampled_from(DTYPES), seed=st.integers(0, 1000))
def test_ftrl_is_as_printed(optimizer, dtype, seed):
    rng = np.random.default_rng(seed)
    params, grads = rng.standard_normal(57).astype(dtype), rng.standard_normal((20, 57)).astype(dtype)
    params[::3], grads[:, ::5], lrs = 0, 0, rng.choice([0.05, 0.3], 20)
    ours = ftrl_steps(optimizer, params, grads, lrs)
    columns = zip(params.astype(float), grads.T.astype(float), strict=True)
    printed = np.array([printed_ftrl(optimizer, w, g, lrs) for w, g in columns]).T
    for found, expected in zip(ours, printed, strict=True):
        np.testing.assert_allclose(found, expected, rtol=100 * RTOL[dtype], atol=200 * RTOL[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_ftrl_makes_weights_zero_within_l1_and_of_no_gradient_without_beta(dtype):
    grads = np.array([[0.1, -0.1, 0.3, -0.3, 0.0]], dtype)
    for start in (0.0, -0.0):
        params = np.full(5, start, dtype)
        weights, _, z = ftrl_steps(api.Ftrl(l1=0.2), params, grads, [0.5])
        assert (weights == 0).tolist() == [True, True, False, False, True]
        assert (np.sign(weights) == -np.sign(z))[2:].all()
        weights, *_ = ftrl_steps(api.Ftrl(beta=0.0), params, grads, [0.5])
        np.testing.assert_allclose(weights, [-0.5, 0.5, -0.5, 0.5, 0.0], rtol=RTOL[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_ftrl_with_a_learning_rate_of_zero_changes_nothing(dtype):
    rng = np.random.default_rng(5)
    params, grads = rng.standard_normal(50).astype(dtype), rng.standard_normal((3, 50)).astype(dtype)
    through = ftrl_steps(api.Ftrl(l1=0.2), params, grads, [0.1, 0.0, 0.1])
    around = ftrl_steps(api.Ftrl(l1=0.2), params, grads[::2], [0.1, 0.1])
    assert all(a.tobytes() == b.tobytes() for a, b in zip(through, around, strict=True))


def test_clip_scale_is_at_most_one_and_passes_nan_on():
    assert clip_scale(0.0, 1.0) == 1.0
    assert clip_scale(4.0, 1.0) == 1.0 / (4.0 + 1e-6)
    assert clip_scale(math.inf, 1.0) == 0.0
    assert math.isnan(clip_scale(math.nan, 1.0))


@settings(max_examples=3000, deadline=None, database=None)
@given(
    optimizer=OPTIMIZERS | FTRL,
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
    elsewhere=st.lists(st.booleans(), min_size=1, max_size=5),
)
def test_bits_do_not_depend_on_where_the_slots_are_written(optimizer, dtype, seed, elsewhere):
    """In place, or, while a snapshot holds them, elsewhere: which leaves those it holds as they were."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 40))
    kernel = kernel_for(optimizer)
    here = there = rng.standard_normal(size).astype(dtype)
    slots, free = kernel.new_slots(here), kernel.new_slots(there)
    for update, moves in enumerate(elsewhere, 1):
        grad = (rng.standard_normal(size) * 10.0 ** rng.integers(-20, 20)).astype(dtype)
        arguments = {"lr": varying_lr(update), "update": update, "grad_scale": float(rng.choice([1, 0.3]))}
        after = {name: np.full_like(slot, np.nan) for name, slot in free.items()} if moves else free
        held = {name: slot.copy() for name, slot in free.items()}
        for slot in free.values():
            slot.flags.writeable = not moves
        outs = np.full_like(here, np.nan), np.full_like(there, np.nan)
        kernel.apply(here, grad, slots, outs[0], slots, **arguments)
        kernel.apply(there, grad, free, outs[1], after, **arguments)
        assert all(free[name].tobytes() == held[name].tobytes() for name in held) or not moves
        (here, there), free = outs, after
        assert here.tobytes() == there.tobytes()
        assert all(slots[name].tobytes() == free[name].tobytes() for name in slots)


def shifted(array: np.ndarray, num_bytes: int) -> np.ndarray:
    """A copy that begins ``num_bytes`` after an aligned address."""
    view = np.empty(array.nbytes + 128, np.uint8)
    start = -view.ctypes.data % 64 + num_bytes
    copy = view[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


def apply_in_pieces(kernel: Kernel, params, grad, slots, rng, **arguments):
    """One update with random borders, every array of every piece at a random address; inputs read-only."""
    borders = sorted({0, params.size, *rng.integers(1, params.size, 6).tolist()})
    out = np.empty_like(params)
    for start, stop in itertools.pairwise(borders):
        piece = slice(start, stop)
        p, g, o = (shifted(a[piece], int(rng.integers(64))) for a in (params, grad, out))
        p.flags.writeable = g.flags.writeable = False
        state = {name: shifted(slot[piece], int(rng.integers(64))) for name, slot in slots.items()}
        kernel.apply(p, g, state, o, state, **arguments)
        out[piece] = o
        for name, slot in slots.items():
            slot[piece] = state[name]
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", EACH_PATH, ids=repr)
def test_bits_do_not_depend_on_borders_or_alignment(optimizer, dtype):
    rng = np.random.default_rng(2)
    kernel = kernel_for(optimizer)
    whole = cut = rng.standard_normal(100_003).astype(dtype)
    whole_slots, cut_slots = kernel.new_slots(whole), kernel.new_slots(cut)
    for update in range(1, 13):
        grad = rng.standard_normal(whole.size).astype(dtype)
        arguments = {"lr": 0.01, "update": update, "grad_scale": 1.0 if update % 3 else 0.7}
        out = np.empty_like(whole)
        kernel.apply(whole, grad, whole_slots, out, whole_slots, **arguments)
        cut = apply_in_pieces(kernel, cut, grad, cut_slots, rng, **arguments)
        whole = out
        assert whole.tobytes() == cut.tobytes()
        for name in kernel.slots:
            assert whole_slots[name].tobytes() == cut_slots[name].tobytes()


@pytest.mark.parametrize("size", [0, 1, 7, 16_384, 100_003])
@pytest.mark.parametrize("dtype", DTYPES)
def test_squared_norm_is_exact_enough_and_ignores_alignment(dtype, size):
    grad = np.random.default_rng(3).standard_normal(size).astype(dtype)
    norm = squared_norm(grad)
    assert norm == pytest.approx(math.fsum(float(x) ** 2 for x in grad), rel=1e-13)
    for num_bytes in range(17):
        moved = shifted(grad, num_bytes)
        moved.flags.writeable = False
        assert squared_norm(moved) == norm


def test_squared_norm_is_in_float64():
    assert squared_norm(np.array([3e38, 1e-30], np.float32)) == float(np.float32(3e38)) ** 2
    assert squared_norm(np.array([1e-30], np.float32)) > 0
    assert squared_norm(np.array([1e200])) == math.inf


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [
        (api.SGD(), ()),
        (api.SGD(momentum=0.9), ("momentum_buffer",)),
        (api.Adam(), ("exp_avg", "exp_avg_sq")),
        (api.AdamW(amsgrad=True), ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")),
        (api.Adagrad(initial_accumulator_value=0.5), ("sum",)),
        (api.Ftrl(), ("n", "z")),
    ],
    ids=repr,
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_new_slots(optimizer, names, dtype):
    kernel = kernel_for(optimizer)
    slots = kernel.new_slots(np.ones(5, dtype))
    assert kernel.slots == tuple(slots) == names
    for name, slot in slots.items():
        assert slot.dtype == dtype
        assert slot.tolist() == [0.5 if name == "sum" else 0.0] * 5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", TORCH_PATHS, ids=repr)
def test_extreme_values_pass_silently_as_in_torch(optimizer, dtype):
    limits = np.finfo(dtype)
    tiny, huge = limits.smallest_subnormal, limits.max
    values = np.array([0.0, 1.0, tiny, -7 * tiny, limits.tiny, huge, -huge, np.inf, -np.inf, np.nan], dtype)
    params, grad = np.repeat(values, values.size), np.tile(values, values.size)
    ours, _ = kernel_steps(optimizer, params, [grad] * 3)
    theirs, _ = torch_steps(optimizer, params, [grad] * 3)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_number_beyond_the_dtype_becomes_infinite_silently():
    out = np.empty(1, np.float32)
    one = np.ones(1, np.float32)
    kernel_for(api.SGD()).apply(one, one, {}, out, {}, lr=1e300, update=1)
    assert out == -np.inf


def test_needs_no_framework():
    code = (
        "import sys, elasticflow_ps.optimizers; sys.exit(not {'torch', 'tensorflow'}.isdisjoint(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
