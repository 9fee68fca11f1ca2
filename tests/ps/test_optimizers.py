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
from elasticflow_ps.kernel import Kernel
from elasticflow_ps.norms import clip_scale, squared_norm
from elasticflow_ps.optimizers import kernel_for

DTYPES = [np.float32, np.float64]
RTOL = {np.float32: 1e-6, np.float64: 1e-12}


def rtol(optimizer, dtype) -> float:
    """Of NAdam and ASGD torch keeps numbers as float32, whatever the parameters are."""
    return RTOL[np.float32 if isinstance(optimizer, (api.NAdam, api.ASGD)) else dtype]


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
    *(
        api.RMSprop(
            momentum=momentum,
            centered=centered,
            alpha=alpha,
            eps=0.1 if centered else 1e-8,  # the difference of two squares has few digits
            weight_decay=decay,
            maximize=maximize,
        )
        for momentum, centered, alpha, decay, maximize in itertools.product(
            (0.0, 0.9), (False, True), (0.99, 0.9), (0.0, 0.1), (False, True)
        )
    ),
    *(
        kind(weight_decay=decay, maximize=maximize, eps=eps)
        for kind, decay, maximize, eps in itertools.product(
            (api.Adadelta, api.Adamax, api.NAdam, api.RAdam), (0.0, 0.1), (False, True), (1e-8, 1e-2)
        )
    ),
    *(
        kind(weight_decay=0.1, decoupled_weight_decay=True, betas=betas)
        for kind, betas in itertools.product((api.NAdam, api.RAdam), ((0.9, 0.999), (0.3, 0.5)))
    ),
    api.NAdam(momentum_decay=0.5),
    api.Rprop(),
    api.Rprop(etas=(0.3, 1.5), step_sizes=(1e-3, 0.2), maximize=True),
]
CONSTANT_RATE: list[api.Optimizer] = [
    api.ASGD(lr=0.01, lambd=0.01, t0=5, weight_decay=0.1),
    api.ASGD(lr=0.01, alpha=2.0),
]
"""Torch updates by the learning rate of the step before."""

TORCH_PATHS: list[api.Optimizer] = [
    api.SGD(),
    api.SGD(weight_decay=0.1, maximize=True),
    api.SGD(momentum=0.9, dampening=0.3),
    api.SGD(momentum=0.9, nesterov=True, weight_decay=0.1),
    api.Adam(),
    api.Adam(betas=(0.3, 0.5), amsgrad=True, weight_decay=0.1),
    api.AdamW(maximize=True),
    api.Adagrad(lr_decay=0.1, weight_decay=0.1),
    api.RMSprop(centered=True, momentum=0.9),
    api.Adadelta(weight_decay=0.1),
    api.Adamax(),
    api.NAdam(weight_decay=0.1),
    api.RAdam(),
]
SAME_ORDER = [each for each in TORCH_PATHS if not isinstance(each, (api.RMSprop, api.RAdam))]
"""As torch's, in which numbers overflow, or not."""
EACH_PATH = [
    *TORCH_PATHS,
    api.Ftrl(),
    api.Ftrl(l1=0.3, weight_decay=0.1, maximize=True),
    api.Lion(weight_decay=0.1),
    api.ASGD(t0=5),
    api.Rprop(),
    api.SGD(momentum=0.9, form="keras", clip_value=0.5),
    api.Adam(form="keras", ema=0.9),
]


OURS = ("clip_norm", "clip_value", "ema")


def varying_lr(update: int) -> float:
    """A schedule that also visits zero."""
    return 0.01 * (update % 4)


def torch_optimizer(optimizer: api.Optimizer, tensors):
    torch = pytest.importorskip("torch")
    arguments = {name: value for name, value in optimizer.settings().items() if name not in OURS}
    if isinstance(optimizer, api.Rprop):
        del arguments["weight_decay"]
    kind = getattr(torch.optim, arguments.pop("optimizer"))
    return kind(tensors, foreach=False, **arguments)


def kernel_steps(optimizer, params, grads, scales=None, lr_of=varying_lr):
    """Parameters and slots after one update per row of ``grads``."""
    kernel = kernel_for(optimizer)
    slots = kernel.new_slots(params)
    for update, grad in enumerate(grads, 1):
        out = np.full_like(params, np.nan)
        scale = 1.0 if scales is None else scales[update - 1]
        kernel.apply(params, grad, slots, out, slots, lr=lr_of(update), update=update, grad_scale=scale)
        params = out
    return params, slots


def torch_steps(optimizer, params, grads, lr_of=varying_lr):
    torch = pytest.importorskip("torch")
    tensor = torch.nn.Parameter(torch.from_numpy(params.copy()))
    theirs = torch_optimizer(optimizer, [tensor])
    for update, grad in enumerate(grads, 1):
        theirs.param_groups[0]["lr"] = lr_of(update)
        tensor.grad = torch.from_numpy(grad.copy())
        theirs.step()
    return tensor.detach().numpy(), {k: v.numpy() for k, v in theirs.state[tensor].items() if k != "step"}


def assert_like_torch(optimizer, dtype, seed=0):
    rng = np.random.default_rng(seed)
    params = rng.standard_normal(257).astype(dtype)
    grads = rng.standard_normal((20, 257)).astype(dtype)
    ours, slots = kernel_steps(optimizer, params, grads)
    theirs, state = torch_steps(optimizer, params, grads)
    state = {name: value for name, value in state.items() if value.shape == params.shape}
    close = {"rtol": rtol(optimizer, dtype), "atol": rtol(optimizer, dtype)}  # values are of order one
    np.testing.assert_allclose(ours, theirs, **close)
    assert set(slots) == set(state)
    for name in slots:
        scale = max(1.0, float(np.abs(state[name]).max()))
        np.testing.assert_allclose(slots[name], state[name], close["rtol"], close["atol"] * scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_grid_of_arguments_follows_torch(dtype):
    for optimizer in GRID:
        assert_like_torch(optimizer, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", CONSTANT_RATE, ids=repr)
def test_averaged_sgd_follows_torch(optimizer, dtype):
    rng = np.random.default_rng(0)
    params, grads = rng.standard_normal(57).astype(dtype), rng.standard_normal((20, 57)).astype(dtype)
    ours, slots = kernel_steps(optimizer, params, grads, lr_of=lambda update: optimizer.lr)
    theirs, state = torch_steps(optimizer, params, grads, lr_of=lambda update: optimizer.lr)
    close = {"rtol": rtol(optimizer, dtype), "atol": rtol(optimizer, dtype)}
    np.testing.assert_allclose(ours, theirs, **close)
    np.testing.assert_allclose(slots["ax"], state["ax"], **close)


@pytest.mark.parametrize("kind", [api.SGD, api.AdamW, api.RMSprop])
def test_each_element_of_a_gradient_is_clipped_as_by_torch(kind):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    params, grads = rng.standard_normal(57), rng.standard_normal((9, 57))
    optimizer = kind(lr=0.1, weight_decay=0.1, clip_value=0.5)
    clipped = [torch.nn.Parameter(torch.from_numpy(grad.copy())) for grad in grads]
    for each in clipped:
        each.grad = each.detach()
        torch.nn.utils.clip_grad_value_([each], 0.5)
    theirs, _ = torch_steps(optimizer, params, [each.grad.numpy() for each in clipped])
    ours, _ = kernel_steps(optimizer, params, grads)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_the_moving_average_is_of_the_parameters_after_each_update():
    rng = np.random.default_rng(0)
    params, grads = rng.standard_normal(57), rng.standard_normal((9, 57))
    each = [kernel_steps(api.Adam(), params, grads[:n])[0] for n in range(1, 10)]
    average = each[0]
    for newer in each[1:]:
        average = 0.9 * average + 0.1 * newer
    ours, slots = kernel_steps(api.Adam(ema=0.9), params, grads)
    assert ours.tobytes() == each[-1].tobytes()
    np.testing.assert_allclose(slots["ema"], average, rtol=1e-12)


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
FORM = st.sampled_from(["torch", "keras"])
OTHERS = st.one_of(
    drawn(
        api.RMSprop,
        momentum=floats(0, 0.99),
        centered=st.booleans(),
        form=st.sampled_from(["torch", "keras"]),
    ),
    drawn(api.Adadelta, eps=floats(1e-8, 1)),
    drawn(api.Adamax, eps=floats(1e-8, 1), clip_value=floats(0.1, 2)),
    drawn(api.NAdam, eps=floats(1e-8, 1), ema=floats(0, 0.99)),
    drawn(api.RAdam, eps=floats(1e-8, 1)),
    drawn(api.Lion),
    drawn(api.ASGD, t0=floats(0, 4)),
    st.builds(api.Rprop),
)


@settings(max_examples=60, database=None)
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
    np.testing.assert_allclose(ours, expected, rtol=rtol(optimizer, dtype), atol=rtol(optimizer, dtype))


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


@settings(max_examples=100, database=None)
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


@settings(max_examples=3000, database=None)
@given(
    optimizer=OPTIMIZERS | FTRL | OTHERS,
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
        (api.RMSprop(centered=True, momentum=0.5), ("square_avg", "grad_avg", "momentum_buffer")),
        (api.Lion(ema=0.5), ("exp_avg", "ema")),
        (api.ASGD(), ("ax",)),
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
@pytest.mark.parametrize("optimizer", SAME_ORDER, ids=repr)
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
