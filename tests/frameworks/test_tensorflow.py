import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
import tensorflow_models as models  # noqa: E402
from keras import layers  # noqa: E402
from replicas import (  # noqa: E402
    FreshProcess,
    added_in_place,
    bits,
    check_by_epoch,
    columns,
    computed,
    digest,
    opened,
    program,
    set_state,
    started_anew,
    told_early,
    values,
)

from elasticflow.errors import ProgramError  # noqa: E402
from elasticflow.frameworks import CostError, tensorflow  # noqa: E402
from elasticflow.step.layout import Rule, Vector  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    tensorflow.set_up(seed=0, threads=1)


@pytest.fixture(scope="module", autouse=True)
def fresh() -> Iterator[FreshProcess]:
    """Is waited for by the last tests of this file, and works until then."""
    process = FreshProcess("tensorflow_models")
    yield process
    process.close()


@pytest.mark.parametrize("name", ["norm", "bare", "towers", "tables alone", "table in a loop"])
def test_a_slice_added_onto_its_sibling_is_the_sum_of_both(name):
    onto, afterwards = added_in_place(models.PROGRAMS[name])
    assert onto == afterwards


@pytest.mark.parametrize("onto", [False, True])
@pytest.mark.parametrize("name", ["norm", "bare"])
def test_gradients_are_told_of_when_they_are_final(name, onto):
    assert told_early(models.PROGRAMS[name], onto)


@pytest.mark.parametrize("name", ["norm", "bare", "dropout", "towers"])
def test_first_values_can_be_made_again(name):
    first, again = started_anew(models.PROGRAMS[name])
    assert first == again


def test_gradients_are_those_of_a_tape():
    def model():
        x = keras.Input((8,))
        both = layers.Concatenate()([x, layers.Dense(6, activation="tanh")(x)])
        return {"net": keras.Model(x, layers.Dense(4)(both))}

    replica = opened(program(model, models.branching_forward))
    batch = columns()
    found = computed(replica, batch, weight=0.25)
    state = values(replica, replica.state, Rule.UPDATE)
    weights = {name: tf.Variable(value) for name, value in state.items()}
    first, first_bias, last, last_bias = weights.values()
    with tf.GradientTape() as tape:
        hidden = tf.tanh(batch["x"] @ first + first_bias)
        logits = tf.concat([batch["x"], hidden], 1) @ last + last_bias
        cost = models.cross_entropy(batch["y"], logits) * (2 if batch["x"].mean() > 0 else 1)
    gradients = values(replica, found, Rule.UPDATE)
    for name, gradient in tape.gradient(cost, weights).items():
        np.testing.assert_allclose(gradients[name], gradient / 4, rtol=1e-5, atol=1e-7)
    report = values(replica, found, Rule.REPORT)["report"]
    assert report.tolist() == [pytest.approx(float(cost) / 4)]


def test_the_seed_decides_what_dropout_drops():
    for name in ("norm", "dropout"):
        replica = opened(models.PROGRAMS[name])
        one, other, again = (digest(computed(replica, columns(), seed)) for seed in (1, 2, 1))
        assert one == again != other


@pytest.mark.parametrize("name", ["norm", "attention", "dropout"])
def test_computing_leaves_the_model_alone(name):
    replica = opened(models.PROGRAMS[name])
    before = state_and_variables(replica)
    computed(replica, columns())
    replica.evaluate(replica.prepare(columns()), seed=0)
    assert state_and_variables(replica) == before


def state_and_variables(replica):
    variables = [variable.numpy().tobytes() for _, variable in replica._variables.pairs]
    return [group.tobytes() for group in replica.state.groups], variables


@pytest.mark.parametrize("eager", [False, True])
def test_a_slice_that_raises_leaves_the_model_alone(eager):
    def forward(x, y, params):
        params["net"].trainable_weights[0].assign_add(params["net"].trainable_weights[0])
        x = tf.nn.dropout(x, 0.5) if eager else x
        cost = models.net_forward(x, y, params)
        tf.debugging.assert_less(x, 1000.0)
        if x.shape[0] == 3:
            raise ValueError("three")
        return cost

    replica = opened(program(models.norm, forward))
    expected = digest(computed(replica, columns()))
    before = state_and_variables(replica)
    with pytest.raises(ValueError, match="three"):
        computed(replica, columns(3))
    assert state_and_variables(replica) == before
    with pytest.raises(tf.errors.InvalidArgumentError):
        computed(replica, {**columns(), "x": columns()["x"] + 2000})
    assert state_and_variables(replica) == before
    assert digest(computed(replica, columns())) == expected


def test_a_new_version_is_used_after_refresh():
    replica, other = opened(models.PROGRAMS["norm"], seed=1), opened(models.PROGRAMS["norm"], seed=2)
    assert digest(computed(replica, columns())) != digest(computed(other, columns()))
    copy_state(replica, other)
    assert digest(computed(replica, columns())) == digest(computed(other, columns()))


def copy_state(source, target):
    for mine, theirs in zip(target.state.groups, source.state.groups, strict=True):
        np.copyto(mine, theirs)
    target.refresh()


def rules(replica):
    return {entry.name: entry.rule.value for entry in replica.layout.entries[:-1]}


def test_names_tell_where_a_variable_lies():
    layers.Dense(4), layers.Dense(4)  # Keras's own names count these
    assert rules(opened(models.PROGRAMS["norm"])) == {
        "net.1.kernel": "update",
        "net.1.bias": "update",
        "net.2.gamma": "update",
        "net.2.beta": "update",
        "net.2.moving_mean": "mean",
        "net.2.moving_variance": "mean",
        "net.7.kernel": "update",
        "net.7.bias": "update",
    }
    assert set(rules(opened(models.PROGRAMS["functional"]))) == {
        "net.layers.1.kernel",
        "net.layers.1.bias",
        "net.layers.4.kernel",
        "net.layers.4.bias",
    }
    assert rules(opened(models.PROGRAMS["mixture"])) == {
        "net.scale": "update",
        "net.shift": "update",
        "net.experts.0.kernel": "update",
        "net.experts.0.bias": "update",
        "net.experts.1.kernel": "update",
        "net.experts.1.bias": "update",
        "net.named.gate.kernel": "update",
        "net.named.gate.bias": "update",
    }
    assert rules(opened(models.PROGRAMS["attention"])) == {
        "net.table": "update",
        "net.mask": "mean",
        "net.calls": "first",
        "net.mean": "mean",
    }
    assert rules(opened(models.PROGRAMS["bare"])) == {
        "weight": "update",
        "bias": "update",
        "columns": "first",
    }


def test_names_of_larger_layers():
    def model():
        x = keras.Input((8, 4))
        y = layers.Bidirectional(layers.LSTM(3, return_sequences=True, dropout=0.5))(x)
        return {"net": keras.Model(x, layers.MultiHeadAttention(2, 5)(y, y))}

    def forward(x, y, params):
        return tf.reduce_mean(params["net"](tf.repeat(x[:, :, None], 4, axis=2)) ** 2)

    replica = opened(program(model, forward))
    assert set(rules(replica).values()) == {"update"}
    assert {name.removeprefix("net.layers.") for name in rules(replica)} == {
        *(
            f"1.{way}_layer.cell.{w}"
            for way in ("forward", "backward")
            for w in ("kernel", "recurrent_kernel", "bias")
        ),
        *(f"2.{d}_dense.{w}" for d in ("query", "key", "value", "output") for w in ("kernel", "bias")),
    }
    assert digest(computed(replica, columns(), seed=1)) == digest(computed(replica, columns(), seed=1))


def test_buffers_leave_as_weighted_changes():
    replica = opened(models.PROGRAMS["attention"])
    x = columns()["x"]
    found = computed(replica, columns(), weight=0.5)
    means = values(replica, found, Rule.MEAN)
    assert means["net.mean"] == pytest.approx(0.5 * 0.1 * x.mean())
    assert values(replica, found, Rule.FIRST) == {"net.calls": 1}
    assert np.isneginf(values(replica, replica.state, Rule.MEAN)["net.mask"]).any()
    assert not means["net.mask"].any()

    replica = opened(models.PROGRAMS["norm"])
    change = values(replica, computed(replica, columns(), weight=0.5), Rule.MEAN)
    assert all(array.all() for array in change.values())


def test_frozen_layers_are_no_part_of_what_travels():
    def model():
        net = models.norm()["net"]
        net.layers[1].trainable = False
        net.layers[2].trainable = False
        late = layers.Dense(4, trainable=False)
        return {"net": net, "late": late, "rate": tf.Variable(2.0, trainable=False)}

    def forward(x, y, params):
        return models.cross_entropy(y, params["late"](params["net"](x)) * params["rate"])

    replica = opened(program(model, forward))
    assert rules(replica) == {
        "net.2.moving_mean": "mean",
        "net.2.moving_variance": "mean",
        "net.7.kernel": "update",
        "net.7.bias": "update",
        "rate": "mean",
    }
    frozen = ["net.1.kernel", "net.1.bias", "net.2.gamma", "net.2.beta", "late.kernel", "late.bias"]
    assert sorted(replica.frozen()) == sorted(frozen)
    found = computed(replica, columns())
    assert not any(change.any() for change in values(replica, found, Rule.MEAN).values())
    assert all(gradient.any() for gradient in values(replica, found, Rule.UPDATE).values())


def test_what_is_trained_later_gets_no_gradient_before():
    check_by_epoch(models.norm, models.net_forward, "net.1.*")


def test_tied_variables_are_one():
    def model():
        shared = layers.Dense(8)
        scale = tf.ones(8)
        net = keras.Sequential([shared, layers.ReLU(), shared])
        return {"net": net, "head": shared, "scale": scale, "again": scale}

    def forward(x, y, params):
        return models.cross_entropy(y, params["head"](params["net"](x)) * params["scale"] * params["again"])

    replica = opened(program(model, forward))
    assert list(rules(replica)) == ["net.0.kernel", "net.0.bias", "scale"]
    set_state(replica, lambda array: array * 2)
    assert all(
        gradient.any() for gradient in values(replica, computed(replica, columns()), Rule.UPDATE).values()
    )


def test_parameters_without_gradient_are_named():
    replica = opened(program(lambda: {**models.mlp(), "spare": tf.ones(3)}, models.net_forward))
    found = values(replica, computed(replica, columns()), Rule.UPDATE)
    assert replica.unused == ("spare",)
    assert not found["spare"].any()


def test_sparse_gradients_become_dense():
    def forward(x, y, params):
        return tf.reduce_mean(tf.gather(params["table"], y) ** 2)

    replica = opened(program(lambda: {"table": tf.reshape(tf.range(30.0), (6, 5))}, forward))
    found = values(replica, computed(replica, columns(), weight=1.0), Rule.UPDATE)["table"]
    counts = np.bincount(columns()["y"], minlength=6)[:, None]
    np.testing.assert_allclose(found, 2 * np.arange(30.0).reshape(6, 5) * counts / 60, rtol=1e-6)


@pytest.mark.parametrize("name", ["norm", "decorated"])
def test_evaluation_is_in_inference_mode(name):
    replica = opened(models.PROGRAMS[name])
    trained = digest(computed(replica, columns()))
    set_state(replica, lambda array: array + np.float32(0.5))
    batch = replica.prepare(columns())
    assert replica.metrics.names == ("accuracy", "always 1")
    cost, accuracy, one = replica.evaluate(batch, seed=1)
    assert [cost, accuracy, one] == replica.evaluate(batch, seed=2), "no dropout"
    net = replica.params["net"]
    logits = net(batch["x"], training=False)
    factor = 2 if name == "decorated" and columns()["x"].mean() > 0 else 1
    assert cost == pytest.approx(float(models.cross_entropy(batch["y"], logits)) * factor, rel=1e-6)
    assert (accuracy, one) == (pytest.approx(np.mean(np.argmax(logits, 1) == columns()["y"])), 1)
    assert trained != digest(computed(replica, columns(), seed=1)), "dropout is back"


def test_losses_of_layers_are_those_of_the_slice():
    def model():
        return {"net": keras.Sequential([layers.Dense(4, activity_regularizer="l2"), layers.Dense(4)])}

    def forward(x, y, params):
        return models.net_forward(x, y, params) + sum(params["net"].losses)

    replica = opened(program(model, forward))
    one = digest(computed(replica, columns()))
    computed(replica, columns(4))
    assert digest(computed(replica, columns())) == one


@pytest.mark.filterwarnings("ignore:`build:UserWarning")
def test_layers_for_training_alone_are_built():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.always, self.training_only = layers.Dense(4), layers.Dense(4)

        def call(self, x, training=False):
            return self.always(x) + (self.training_only(x) if training else 0)

    replica = opened(program(lambda: {"net": Net()}, models.net_forward))
    assert list(rules(replica)) == [
        f"net.{layer}.{w}" for layer in ("always", "training_only") for w in ("kernel", "bias")
    ]
    computed(replica, columns())
    assert not replica.unused


def test_building_does_not_count():
    def model():
        return {**models.mlp(), "calls": tf.Variable(0), "mean": tf.Variable(1.0, trainable=False)}

    def forward(x, y, params):
        params["calls"].assign_add(1)
        params["mean"].assign(tf.reduce_mean(x))
        return models.net_forward(x, y, params)

    replica = opened(program(model, forward))
    assert values(replica, replica.state, Rule.FIRST) == {"calls": 0}
    assert values(replica, replica.state, Rule.MEAN) == {"mean": 1}


def test_incoming_arrays_may_change_afterwards():
    replica = opened(models.PROGRAMS["mlp"])
    arrays = columns()
    batch = replica.prepare(arrays)
    expected = digest(computed(replica, columns(), seed=5, weight=0.25))
    for array in arrays.values():
        array.fill(0)
    out = Vector(replica.layout)
    replica.compute(batch, 5, 0.25, out)
    assert digest(out) == expected


DENORMAL_SUM = """
import numpy as np
a = np.full(1000, 1e-40, np.float32)
found = (a + a).tobytes() + (a * np.float32(0.5)).tobytes() + a.sum().tobytes()
"""


def test_sums_outside_are_as_in_a_process_without_tensorflow():
    """TensorFlow's operations take denormal numbers for 0; NumPy's beside it must not."""
    replica = opened(
        program(
            lambda: {"tiny": tf.fill(1000, 1e-40)}, lambda x, y, params: tf.reduce_sum(params["tiny"] * 1e30)
        )
    )
    computed(replica, columns())
    here: dict[str, bytes] = {}
    exec(DENORMAL_SUM, here)
    command = [sys.executable, "-c", DENORMAL_SUM + "import sys; sys.stdout.buffer.write(found)"]
    there = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    assert here["found"] == there
    assert np.frombuffer(there, np.float32).all()


def variable(*arguments, **keywords):
    return lambda: {**models.mlp(), "v": tf.Variable(*arguments, **keywords)}


class Unused(keras.Model):
    def __init__(self):
        super().__init__()
        self.used, self.forgotten = layers.Dense(4), layers.Dense(4)
        self.built = True

    def call(self, x):
        return self.used(x)


BAD_MODELS = {
    "returned a list": lambda: [1],
    "nothing that can be trained": lambda: {"rate": 0.1},
    "no parameters to train": lambda: {"columns": tf.range(3), "scale": tf.Variable(1.0, trainable=False)},
    "is a list; allowed are TensorFlow": lambda: {**models.mlp(), "layers": [layers.Dense(4)]},
    "v: is bfloat16; parameters and buffers must be float32 or float64": variable([1.0], dtype=tf.bfloat16),
    "v: is float16": variable([1.0], dtype=tf.float16),
    "v: tensors of string cannot be kept": variable("text"),
    "v: is complex64; parameters and buffers must be real": variable([1j], dtype=tf.complex64),
    "v: has the shape \\(None,\\)": variable([1.0], shape=[None]),
    "net.forgotten: forward\\(\\) calls no such layer": lambda: {"net": Unused()},
    "head: forward\\(\\) calls no such layer": lambda: {**models.mlp(), "head": layers.Dense(4)},
    "names no optimizer": lambda: {**models.mlp(), "optimizer": None},
    "model\\(\\) raised ZeroDivisionError": lambda: {"weight": tf.ones(3) * (1 / 0)},
}


@pytest.mark.parametrize("message", BAD_MODELS)
def test_bad_models(message):
    with pytest.raises(ProgramError, match=message):
        opened(program(BAD_MODELS[message], models.net_forward))


BAD_COSTS = {
    "returned a float; it must return the cost": lambda x, y, params: 1.0,
    "returned a NoneType": lambda x, y, params: None,
    r"shape \(12, 4\) and float32": lambda x, y, params: params["net"](x),
    r"shape \(\) and int64": lambda x, y, params: tf.reduce_max(tf.argmax(params["net"](x))),
    "depends on no parameter": lambda x, y, params: tf.reduce_mean(x),
}


def built_mlp():
    return {"net": keras.Sequential([keras.Input((8,)), layers.Dense(4)])}


@pytest.mark.parametrize("message", BAD_COSTS)
def test_bad_costs(message):
    replica = opened(program(built_mlp, BAD_COSTS[message]))
    with pytest.raises(CostError, match=message):
        computed(replica, columns())


def test_what_forward_raises_comes_out_as_it_is(caplog):
    def forward(x, y, params):
        raise KeyError("nonsense")

    with pytest.raises(KeyError, match="^'nonsense'$"):
        computed(opened(program(built_mlp, forward)), columns())
    with pytest.raises(ProgramError, match=r"forward\(\) raised KeyError: 'nonsense'"):
        opened(program(models.mlp, forward))
    assert not caplog.records


def test_bad_metrics():
    with pytest.raises(ProgramError, match=r"metrics\(\) returned a EagerTensor"):
        opened(program(models.mlp, models.net_forward, models.net_forward))
    with pytest.raises(ProgramError, match=r"metrics\(\) raised KeyError: 'other'"):
        opened(program(models.mlp, models.net_forward, lambda x, params: {"a": params["other"]}))

    def metrics(x, params):
        return {f"of {len(x)}": tf.reduce_mean(x)}

    replica = opened(program(models.mlp, models.net_forward, metrics))
    with pytest.raises(ProgramError, match=r"\('of 12',\), and before that \('of 2',\)"):
        replica.evaluate(replica.prepare(columns()), seed=0)


def test_another_number_of_threads_is_too_late():
    with pytest.raises(ProgramError, match="before the number of threads was set"):
        tensorflow.set_up(seed=0, threads=2)


def test_frameworks_do_not_mix():
    torch = pytest.importorskip("torch")
    with pytest.raises(ProgramError, match="mixes PyTorch and TensorFlow"):
        opened(program(lambda: {**models.mlp(), "other": torch.ones(3)}, models.net_forward))


WHY_EAGER = {
    "dropout": "it uses RandomUniform, whose random state cannot be set in a graph",
    "function": "it uses RandomStandardNormal",
    "keras.random": "it uses a variable that is not in model()",
    "numpy": "it uses Python's or NumPy's random numbers",
    "untraceable": "it cannot be traced to a graph: AttributeError: 'SymbolicTensor' object has no",
    "table in a loop": "it cannot be traced to a graph: ProgramError: table 'table': was called in a loop",
}


@pytest.mark.parametrize("name", models.PROGRAMS)
def test_bits_depend_on_state_batch_and_seed_alone(name, fresh, caplog):
    assert bits(models.PROGRAMS[name], noise=True) == fresh.bits[name]
    told = [record.getMessage() for record in caplog.records if record.name != "tensorflow"]
    assert len(told) == (name in WHY_EAGER), "one line where a graph will not do, else none"
    assert not told or told[0].startswith(f"forward() runs eagerly, which is slower: {WHY_EAGER[name]}")


def test_a_full_disk_is_not_taken_for_a_program_without_source(monkeypatch):
    """What AutoGraph makes of a program passes through a file: without it, ifs over tensors would fail."""

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def forward(x, y, w):
        return tf.reduce_mean((w * x - y) ** 2)

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    with pytest.raises(OSError, match="No space left"):
        opened(program(models.PROGRAMS["bare"].model, forward))
