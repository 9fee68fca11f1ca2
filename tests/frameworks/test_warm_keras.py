"""Keras's own files as the first weights of a run."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras

from elasticflow import checkpoint
from elasticflow.errors import CheckpointError
from elasticflow.frameworks.base import set_up
from elasticflow.frameworks.keras_files import layer_weights, weights_and_state
from elasticflow.run import config
from elasticflow.run.folder import RunDir
from elasticflow.worker.warm import begin

set_up(seed=0, threads=1)

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own


def make() -> keras.Model:
    layers = [keras.layers.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization()]
    return keras.Sequential([*layers, keras.layers.Dense(2)])


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_names_are_those_of_the_programs_model(tmp_path, ending):
    trained, path = make(), str(tmp_path / f"model{ending}")
    trained.save(path) if ending == ".keras" else trained.save_weights(path)
    found = layer_weights({"net": make(), "optimizer": None}, path)
    np.testing.assert_array_equal(found["net.0.kernel"], trained.layers[0].kernel.numpy())
    np.testing.assert_array_equal(found["net.2.bias"], trained.layers[2].bias.numpy())
    assert "net.1.moving_mean" in found and len(found) == len(trained.weights)


def test_what_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="model.. returned 2 layers or models"):
        layer_weights({"a": make(), "b": make()}, "x.keras")
    (tmp_path / "x.keras").write_text("nothing")
    with pytest.raises(CheckpointError, match="x.keras: Keras cannot load it"):
        layer_weights({"a": make()}, str(tmp_path / "x.keras"))


def trained(optimizer: keras.optimizers.Optimizer) -> keras.Model:
    model = make()
    model.compile(optimizer, "mse")
    chance = np.random.default_rng(0)
    model.fit(chance.normal(size=(32, 3)), chance.normal(size=(32, 2)), batch_size=8, epochs=1, verbose=0)
    return model


PROGRAM = """
import keras, numpy as np, elasticflow as ef

def model():
    layers = [keras.layers.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization()]
    net = keras.Sequential([*layers, keras.layers.Dense(2)])
    return {"net": net, "optimizer": OPTIMIZER}

def forward(x, y, params):
    return keras.ops.mean((params["net"](x) - y) ** 2)

def data():
    return {"x": np.ones((8, 3), np.float32), "y": np.ones((8, 2), np.float32)}
"""


def taken(folder: Path, file: Path, optimizer: str) -> tuple[dict[str, np.ndarray], checkpoint.Manifest]:
    """The first checkpoint of a run that begins with a file, and its optimizer's state."""
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(PROGRAM.replace("OPTIMIZER", optimizer))
    run = RunDir(folder / "run")
    options = {"program": str(folder / "program.py"), "run_dir": str(run.path), "init_from": str(file)}
    run.create(config.make(None, options | {"init_optimizer": True}))
    begin(run)
    manifest = checkpoint.load_manifest(run.storage(), 0)
    return dict(checkpoint.tensors(run.storage(), manifest, True)), manifest


def test_with_the_state_of_adam(tmp_path):
    model, path = trained(keras.optimizers.Adam(amsgrad=True)), tmp_path / "model.keras"
    model.save(path)
    found, manifest = taken(tmp_path / "of", path, "ef.AdamW(lr=0.1, amsgrad=True)")
    kept = model.optimizer
    for slot, theirs in (
        ("exp_avg", kept._momentums),
        ("exp_avg_sq", kept._velocities),
        ("max_exp_avg_sq", kept._velocity_hats),
    ):
        np.testing.assert_array_equal(found[f"net.0.kernel#{slot}"], theirs[0].numpy())
        np.testing.assert_array_equal(found[f"net.2.bias#{slot}"], theirs[-1].numpy())
    assert manifest.updates == 4 and np.abs(found["net.0.kernel#exp_avg"]).max() > 0


def test_with_momentum_in_both_forms(tmp_path):
    model, path = trained(keras.optimizers.SGD(0.25, momentum=0.9)), tmp_path / "model.keras"
    model.save(path)
    kept = model.optimizer.momentums[0].numpy()
    found, _ = taken(tmp_path / "a", path, "keras.optimizers.SGD(0.25, momentum=0.9)")
    np.testing.assert_array_equal(found["net.0.kernel#momentum_buffer"], -kept)
    found, _ = taken(tmp_path / "b", path, "ef.SGD(lr=0.25, momentum=0.9)")
    np.testing.assert_array_equal(found["net.0.kernel#momentum_buffer"], -kept / np.float32(0.25))


def test_a_state_that_cannot_be_taken_is_named(tmp_path):
    values, path = {"net": make()}, tmp_path / "model.keras"
    trained(keras.optimizers.Nadam()).save(path)
    with pytest.raises(CheckpointError, match="state of Keras's Nadam; that of Adam, AdamW, SGD can be"):
        weights_and_state(values, str(path), "torch")
    make().save(path)
    with pytest.raises(CheckpointError, match="holds no optimizer's state: its model was not compiled"):
        weights_and_state(values, str(path), "torch")
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    trained(keras.optimizers.SGD(schedule, momentum=0.9)).save(path)
    with pytest.raises(CheckpointError, match="has the learning rates of a schedule in it"):
        weights_and_state(values, str(path), "torch")
    for name in ("x.weights.h5", "x.h5"):
        with pytest.raises(CheckpointError, match="alone. Save the whole model"):
            weights_and_state(values, str(tmp_path / name), "keras")
