"""Plain scripts that call ``fit`` of Keras, as programs: what is evaluated is what Keras evaluates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from elasticflow.errors import ProgramError  # noqa: E402
from elasticflow.run import config  # noqa: E402
from elasticflow.run.settings import MemberSettings  # noqa: E402
from elasticflow.step.schedule import Kind  # noqa: E402
from elasticflow.training.advice import Tuning  # noqa: E402
from elasticflow.worker.loaded import Loaded  # noqa: E402

HEAD = """
import keras, numpy as np, tensorflow as tf
from keras import layers
rng = np.random.default_rng(0)
x = rng.normal(size=(96, 4))
y = (x[:, 0] > 0).astype("int64")
"""
DENSE = """
model = keras.Sequential([layers.Input((4,)), layers.Dense(8, "relu", kernel_regularizer="l2")])
model.add(layers.Dropout(0.5))
model.add(layers.Dense({}))
"""
MANY = DENSE.format("3, 'softmax'")
ONE = DENSE.format("1, 'sigmoid'")
FEW = "validation_data=(x[:40], y[:40])"
COMPILED = "model.compile('adam', 'sparse_categorical_crossentropy', metrics=['accuracy'])\n"


def loaded(folder: Path, text: str, **settings: object) -> Loaded:
    script = folder / "script.py"
    script.write_text(HEAD + text)
    chosen = config.make(None, {"program": str(script), **settings})
    return Loaded(MemberSettings.of(chosen, name="worker-0", role="worker", host="", master="", run_dir=""))


def evaluated(found: Loaded) -> dict[str, float]:
    """All records to test with, as one slice."""
    batch = found.batches(found.schedule).of_rows(Kind.EVALUATE, np.arange(found.schedule.num_test))
    cost, *values = found.replica.evaluate(batch, 0)
    return {"loss": cost, **dict(zip(found.replica.metrics.names, values, strict=True))}


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (MANY + COMPILED + f"model.fit(x, y, {FEW})", "x[:40], y[:40]"),
        (
            ONE + "own = ['acc', 'mae', keras.losses.cosine_similarity]\n"
            "model.compile('sgd', 'binary_crossentropy', metrics=own)\n"
            "model.fit(x, y, validation_split=0.25, class_weight={0: 3.0})",
            "x[72:], y[72:]",
        ),
        (
            "inputs = {'a': keras.Input((4,), name='a'), 'b': keras.Input((), dtype='int32', name='b')}\n"
            "both = layers.Concatenate()([inputs['a'], layers.Embedding(2, 3)(inputs['b'])])\n"
            "outputs = [layers.Dense(1, name='size')(both), layers.Dense(2, 'softmax', name='kind')(both)]\n"
            "model = keras.Model(inputs, outputs)\n"
            "model.compile('adam', {'size': 'mse', 'kind': 'sparse_categorical_crossentropy'}, "
            "loss_weights={'size': 0.5, 'kind': 2.0}, metrics={'kind': ['accuracy'], 'size': 'mae'})\n"
            "inner = {'a': x, 'b': y}\n"
            "model.fit(inner, [x[:, 1], y], validation_data=(inner, [x[:, 1], y]))",
            "inner, [x[:, 1], y]",
        ),
        (
            MANY
            + COMPILED
            + "pairs = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96, seed=1).batch(16)\n"
            "model.fit(pairs, validation_data=pairs)",
            "x, y",
        ),
        (
            "class Net(keras.Model):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.inner, self.outer = layers.Dense(8), layers.Dense(4)\n"
            "    def call(self, x):\n"
            "        found = self.outer(self.inner(x))\n"
            "        self.add_loss(keras.ops.mean((found - x) ** 2))\n"
            "        return found\n"
            "model = Net()\n"
            "model.compile('adam')\n"
            "model.fit(x, validation_data=(x[:40],))",
            "x[:40]",
        ),
    ],
    ids=["one output", "weights and names", "several outputs", "a dataset", "a model's own loss"],
)
def test_cost_and_metrics_are_those_of_keras(tmp_path: Path, text: str, given: str) -> None:
    found = loaded(tmp_path, text)
    told = evaluated(found)
    scope: dict[str, Any] = {"model": found.program.model()["model"]}
    exec(HEAD, scope)
    if "inner" in given:
        scope["inner"] = {"a": scope["x"], "b": scope["y"]}
    expected = eval(f"model.evaluate({given}, return_dict=True, verbose=0, batch_size=96)", scope)
    assert told.keys() <= expected.keys()
    assert told == pytest.approx({name: expected[name] for name in told}, rel=1e-5)


def test_objects_that_are_no_means_are_metrics_of_objects(tmp_path: Path) -> None:
    text = (
        ONE
        + "model.compile('sgd', 'binary_crossentropy', metrics=[keras.metrics.AUC(name='auc')])\n"
        + f"model.fit(x, y, {FEW})"
    )
    (measure,) = loaded(tmp_path, text).replica.metrics.summed
    assert measure.name == "auc" and measure.of


def rate(found: Loaded, tick: int) -> float | None:
    return found.learning_rate(found.schedule.at(tick), Tuning(), found.schedule.total_steps)


def test_schedules_of_optimizers_and_of_epochs(tmp_path: Path) -> None:
    decay = "keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)"
    found = loaded(
        tmp_path, MANY + COMPILED.replace("'adam'", f"keras.optimizers.SGD({decay})") + "model.fit(x, y)"
    )
    assert [rate(found, tick) for tick in (0, 1)] == pytest.approx([0.1, 0.1 * 0.5**0.1])
    scheduler = "keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr / 2)"
    found = loaded(tmp_path, MANY + COMPILED + f"model.fit(x, y, epochs=4, callbacks=[{scheduler}])")
    assert [rate(found, tick) for tick in (0, 3, 8)] == pytest.approx([5e-4, 2.5e-4, 1.25e-4])


def test_callbacks_that_evaluations_decide(tmp_path: Path) -> None:
    callbacks = (
        "[keras.callbacks.ReduceLROnPlateau('val_accuracy', 0.5, 3, cooldown=0, min_lr=1e-5),"
        " keras.callbacks.EarlyStopping(patience=4, min_delta=0.01), keras.callbacks.TensorBoard()]"
    )
    rules = loaded(tmp_path, MANY + COMPILED + f"model.fit(x, y, {FEW}, callbacks={callbacks})").program.rules
    assert rules.stopping and rules.plateau
    stopping, plateau = rules.stopping, rules.plateau
    assert (stopping.metric, stopping.mode, stopping.patience, stopping.least_gain) == (
        "cost",
        "min",
        4,
        0.01,
    )
    assert (plateau.metric, plateau.mode, plateau.patience, plateau.factor) == ("accuracy", "max", 3, 0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MANY + "model.fit(x, y)", "must call `compile|was not compiled"),
        (MANY + COMPILED + "model.fit(x, y, steps_per_epoch=3)", "steps_per_epoch=3 is not None.*--max"),
        (MANY + COMPILED + "model.fit(x, y, shuffle=False)", "shuffle=False"),
        (MANY + COMPILED + "model.fit(iter([(x, y)]))", "a list_iterator, whose batches only come one after"),
        (MANY + COMPILED + "model.fit(np.array(['a']), y[:1])", "is of <U1; numbers are known"),
        (
            MANY + COMPILED + "model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat())",
            "without an end; leave out its repeat",
        ),
        (
            MANY + COMPILED + "model.fit(x, y, callbacks=[keras.callbacks.EarlyStopping()])",
            "EarlyStopping: monitor='val_loss'; evaluations decide here",
        ),
        (
            MANY + COMPILED + f"model.fit(x, y, {FEW}, callbacks=[keras.callbacks.LambdaCallback()])",
            "LambdaCallback: known are EarlyStopping",
        ),
        (
            MANY + "model.compile('adam', keras.losses.SparseCategoricalCrossentropy(reduction='sum'))\n"
            "model.fit(x, y)",
            "reduction='sum'",
        ),
        (
            "class Own(keras.Sequential):\n    def train_step(self, data):\n        return {}\n"
            + MANY.replace("keras.Sequential(", "Own(") + COMPILED + "model.fit(x, y)",
            r"Own has a train_step\(\) of its own.*loop\(session\)",
        ),
        (MANY + COMPILED + "if False:\n    model.fit(x, y)", r"ended without a call of Model.fit\(\)"),
        (MANY + COMPILED + "model.fit(x, yy)", "NameError: name 'yy' is not defined.*line"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ProgramError, match=words) as caught:
        loaded(tmp_path, text)
    assert str(tmp_path / "script.py") in str(caught.value)
