"""Optimizers of PyTorch and Keras that model() names: the same updates as theirs, or a reason."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from elasticflow import api
from elasticflow.errors import ProgramError
from elasticflow.frameworks.base import take_optimizer
from elasticflow_ps.kernel import PerTensorKernel
from elasticflow_ps.optimizers import kernel_for


def loaded_keras():
    """With the number of threads set, which can be done but before the first operation in a process."""
    keras = pytest.importorskip("keras")
    importlib.import_module("elasticflow.frameworks.tensorflow").set_up(0, 1)
    return keras


KERAS = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "clipvalue": 0.1}),
    ("Adam", {"epsilon": 1e-2}),
    ("Adam", {"amsgrad": True, "global_clipnorm": 1e9}),
    ("AdamW", {}),
    ("Adagrad", {"epsilon": 1e-2, "weight_decay": 0.1}),
    ("RMSprop", {"epsilon": 1e-2}),
    ("RMSprop", {"centered": True, "momentum": 0.9}),
    ("Adadelta", {"learning_rate": 1.0}),
    ("Adamax", {"epsilon": 1e-2}),
    ("Nadam", {}),
    ("Lion", {"weight_decay": 0.1}),
    ("Ftrl", {"l1_regularization_strength": 0.01, "l2_regularization_strength": 0.1, "beta": 0.5}),
    ("Lamb", {"beta_1": 0.8}),
]


@pytest.mark.parametrize(("name", "arguments"), KERAS)
def test_kerass_are_understood(name, arguments):
    keras = loaded_keras()
    theirs = getattr(keras.optimizers, name)(**arguments)
    kernel = kernel_for(ours := take_optimizer({"optimizer": theirs}).optimizer)
    assert ours.form == "keras"
    rng = np.random.default_rng(0)
    params = rng.standard_normal(57).astype(np.float32)
    variable = keras.Variable(params)
    slots = kernel.new_slots(params)
    for update in range(1, 12):
        lr = ours.lr * (1 + update % 3)
        theirs.learning_rate = lr
        grad = rng.standard_normal(57).astype(np.float32)
        out = np.empty_like(params)
        if isinstance(kernel, PerTensorKernel):
            squares = kernel.squared_norms(params, grad, slots, update=update, grad_scale=1.0)
            lr *= kernel.trust(*np.sqrt(squares))
        kernel.apply(params, grad, slots, out, slots, lr=lr, update=update)
        theirs.apply([grad], [variable])
        params = out
    np.testing.assert_allclose(params, variable.numpy(), rtol=2e-5, atol=2e-5)


def test_kerass_moving_averages_are_ours():
    keras = loaded_keras()
    theirs = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)
    kernel = kernel_for(take_optimizer({"optimizer": theirs}).optimizer)
    params = np.ones(3, np.float32)
    variable, slots = keras.Variable(params), kernel.new_slots(params)
    for update in range(1, 5):
        out = np.empty_like(params)
        kernel.apply(params, np.float32([1, 2, update]), slots, out, slots, lr=0.1, update=update)
        theirs.apply([np.float32([1, 2, update])], [variable])
        params = out
    theirs.finalize_variable_values([variable])
    np.testing.assert_allclose(slots["ema"], variable.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, api.SGD(lr=0.1, momentum=0.9, nesterov=True)),
        ("Adam", {}, api.Adam()),
        ("Adam", {"decoupled_weight_decay": True, "weight_decay": 0.1}, api.AdamW(weight_decay=0.1)),
        ("AdamW", {"betas": (0.8, 0.9), "foreach": True}, api.AdamW(betas=(0.8, 0.9))),
        ("Adagrad", {"lr_decay": 0.1}, api.Adagrad(lr_decay=0.1)),
        ("RMSprop", {"centered": True}, api.RMSprop(centered=True)),
        ("Adadelta", {}, api.Adadelta()),
        ("Adamax", {}, api.Adamax()),
        ("NAdam", {"momentum_decay": 0.1}, api.NAdam(momentum_decay=0.1)),
        ("RAdam", {}, api.RAdam()),
        ("ASGD", {"t0": 5.0}, api.ASGD(t0=5.0)),
        ("Rprop", {"etas": (0.4, 1.3)}, api.Rprop(etas=(0.4, 1.3))),
    ],
)
def test_pytorchs_are_understood(name, arguments, expected):
    torch = pytest.importorskip("torch")
    theirs = getattr(torch.optim, name)([torch.zeros(3)], **arguments)
    assert take_optimizer({"optimizer": theirs}).optimizer == expected


def test_groups_of_pytorch_are_groups():
    torch = pytest.importorskip("torch")
    weight, bias, scale, other = (torch.zeros(3) for _ in range(4))
    less = {"params": [bias, scale], "weight_decay": 0.0}
    theirs = torch.optim.AdamW([{"params": [weight]}, less, {"params": [other], "lr": 0.1}])
    names = {id(weight): "w", id(bias): "b[0]", id(scale): "s", id(other): "o"}
    groups = take_optimizer({"optimizer": theirs}, names)
    assert groups.optimizer == api.AdamW()
    assert groups.others == (api.AdamW(weight_decay=0.0), api.AdamW(lr=0.1))
    assert [groups.number_of(name) for name in ("w", "b[0]", "s", "o")] == [0, 1, 1, 2]


def test_a_learning_rate_may_be_a_tensor():
    torch = pytest.importorskip("torch")
    theirs = torch.optim.Adam([torch.zeros(3)], lr=torch.tensor(0.5))
    assert take_optimizer({"optimizer": theirs}).optimizer == api.Adam(lr=0.5)


@pytest.mark.parametrize(
    ("name", "words"), [("LBFGS", "computes the cost several times"), ("Muon", "whole tensor")]
)
def test_others_of_pytorch_are_refused_with_the_reason(name, words):
    torch = pytest.importorskip("torch")
    theirs = getattr(torch.optim, name)([torch.zeros(3, 3)])
    with pytest.raises(ProgramError, match=words):
        take_optimizer({"optimizer": theirs})


def test_a_class_of_the_programs_own_is_refused():
    torch = pytest.importorskip("torch")
    kind = type("Adam", (torch.optim.Adam,), {"__module__": "program"})
    with pytest.raises(ProgramError, match="program's Adam: updates run on the servers, which"):
        take_optimizer({"optimizer": kind([torch.zeros(3)])})


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("Lamb", {"weight_decay": 0.1}, "no part of its norms; name ef.LAMB"),
        ("Adafactor", {}, "rows and columns"),
        ("Adam", {"clipnorm": 1.0}, "global_clipnorm"),
        ("Adam", {"gradient_accumulation_steps": 2}, "larger batch_size"),
        ("Ftrl", {"learning_rate_power": -0.3}, "learning_rate_power=-0.5"),
    ],
)
def test_others_of_keras_are_refused_with_the_reason(name, arguments, words):
    keras = loaded_keras()
    with pytest.raises(ProgramError, match=words):
        take_optimizer({"optimizer": getattr(keras.optimizers, name)(**arguments)})


def test_a_schedule_of_keras_is_a_function_of_the_program():
    keras = loaded_keras()
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 100)
    with pytest.raises(ProgramError, match="learning_rate\\(step, epoch\\)"):
        take_optimizer({"optimizer": keras.optimizers.SGD(schedule)})


def test_those_that_are_not_there_say_why():
    import elasticflow as ef

    for name, reason in api.OTHERS.items():
        with pytest.raises(AttributeError, match="elasticflow has no"):
            getattr(ef, name)
        assert reason
