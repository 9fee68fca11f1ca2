"""Models as files that compute, loaded by the plain framework, and compared with what the program has."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from elasticflow import checkpoint  # noqa: E402
from elasticflow.cli.exporting import export_run  # noqa: E402
from elasticflow.errors import CheckpointError, ConfigError, ProgramError  # noqa: E402
from elasticflow.frameworks.torch_files import output_names, write  # noqa: E402
from elasticflow.process.new_files import writing  # noqa: E402
from elasticflow.run import config  # noqa: E402
from elasticflow.run.folder import RunDir  # noqa: E402
from elasticflow.worker.warm import begin  # noqa: E402
from tests.full_disk import room_of  # noqa: E402

TORCH = """
import numpy as np, torch, elasticflow as ef

def model():
    layers = [torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(), torch.nn.Linear(4, 2)]
    net = torch.nn.Sequential(*layers)
    return {"net": net, MORE"optimizer": ef.SGD(lr=0.1)}

def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x), y)

def data():
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > 0).astype(np.int64)}
"""
PREDICT = """
def predict(x, params):
    return torch.softmax(params["net"](x) * params["scale"], dim=1)
"""
KERAS = """
import numpy as np, keras, elasticflow as ef

def model():
    layers = [keras.layers.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization()]
    net = keras.Sequential([*layers, keras.layers.Dense(2)])
    return {"net": net, "optimizer": ef.SGD(lr=0.1)}

def forward(x, y, params):
    found = keras.losses.sparse_categorical_crossentropy(y, params["net"](x), from_logits=True)
    return keras.ops.mean(found)

def data():
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > 0).astype(np.int64)}
"""
X = np.random.default_rng(1).normal(size=(7, 3)).astype(np.float32)


def net():
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(), torch.nn.Linear(4, 2)
    ).eval()


def make_run(folder: Path, text: str, weights: Path) -> tuple[RunDir, checkpoint.Manifest]:
    """A run whose only checkpoint holds these weights."""
    (folder / "program.py").write_text(text)
    run = RunDir(folder / "run")
    options = {"program": str(folder / "program.py"), "run_dir": str(run.path), "init_from": str(weights)}
    run.create(config.make(None, options))
    begin(run)
    return run, checkpoint.load_manifest(run.storage(), 0)


@pytest.fixture
def trained(tmp_path):
    torch.save(net().state_dict(), tmp_path / "weights.pt")
    return make_run(tmp_path, TORCH.replace("MORE", ""), tmp_path / "weights.pt")


def test_a_state_dict_is_the_modules_own(trained, tmp_path):
    export_run(*trained, str(tmp_path / "model.pt"))
    plain = torch.nn.Sequential(*[type(each)(*sizes) for each, sizes in zip(net(), SIZES, strict=True)])
    plain.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(plain.eval()(torch.from_numpy(X)), net()(torch.from_numpy(X)))


SIZES = [(3, 4), (4,), (), (4, 2)]
TIED = """
import torch

def net():
    first, second, third = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.weight = third.weight = first.weight
    third.weight.requires_grad_(FIRST)
    layers = torch.nn.ModuleDict({"a": first, "b": second, "again": second, "c": third})
    layers.register_buffer("places", torch.arange(4), persistent=False)
    layers.register_buffer("kept", torch.ones(4))
    return layers
"""


@pytest.mark.parametrize("trained", [True, False])
def test_a_state_dict_of_tied_layers_has_all_their_names(tmp_path, trained):
    text = TIED.replace("FIRST", str(trained))
    model = 'net = globals()["net"]()\n    return {"net": net, "head": net["b"], "optimizer": ef.SGD(lr=0.1)}'
    program = TORCH.replace("MORE", "").replace("def model():", f"{text}\ndef model():\n    {model}", 1)
    made: dict[str, object] = {}
    exec(text, made)
    expected = made["net"]()
    torch.save(expected.state_dict(), tmp_path / "weights.pt")
    export_run(*make_run(tmp_path, program, tmp_path / "weights.pt"), str(tmp_path / "model.pt"))
    found = torch.load(tmp_path / "model.pt", weights_only=True)
    fresh = made["net"]()
    fresh.load_state_dict(found)
    assert found.keys() == expected.state_dict().keys()
    assert torch.equal(fresh["again"].weight, expected["a"].weight)


def test_torch_export_computes_for_any_number_of_records(trained, tmp_path):
    export_run(*trained, str(tmp_path / "model.pt2"))
    program = "import torch, sys; assert 'elasticflow' not in sys.modules;"
    program += "p = torch.export.load('model.pt2').module();"
    program += "torch.save(p(torch.load('x.pt')), 'y.pt')"
    torch.save(torch.from_numpy(X), tmp_path / "x.pt")
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True)
    torch.testing.assert_close(torch.load(tmp_path / "y.pt"), net()(torch.from_numpy(X)).detach())


def a_state_dict(file):
    torch.save(torch.nn.Linear(100, 50).state_dict(), file)


def a_program(file):
    torch.export.save(torch.export.export(torch.nn.Linear(100, 50), (torch.zeros(2, 100),)), file)


@pytest.mark.parametrize("save", [a_state_dict, a_program])
@pytest.mark.parametrize("room", [0, 1000])
def test_a_full_disk_is_what_is_told(tmp_path, save, room):
    """PyTorch tells of positions, or aborts the process."""
    with (
        room_of(room),
        pytest.raises(OSError, match="File too large"),
        writing(tmp_path / "model") as file,
    ):
        save(file)
    assert (tmp_path / "model").stat().st_size == room
    with writing(tmp_path / "whole") as file:
        save(file)
    assert (tmp_path / "whole").stat().st_size > 20_000


@pytest.mark.parametrize("ending", [".pt", ".npz"])
def test_a_disk_that_becomes_read_only_is_what_is_told(trained, tmp_path, monkeypatch, ending):
    """Where what was written by then cannot be removed either."""

    def read_only(path, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "replace", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(CheckpointError, match=rf"model\{ending}: .*Read-only file system$"):
        export_run(*trained, str(tmp_path / f"model{ending}"))


def test_predict_is_what_is_exported(tmp_path):
    torch.save({f"net.{n}": t for n, t in net().state_dict().items()}, tmp_path / "weights.pt")
    text = TORCH.replace("MORE", '"scale": torch.full((2,), 3.0), ') + PREDICT
    run = make_run(tmp_path, text, tmp_path / "weights.pt")
    export_run(*run, str(tmp_path / "model.pt2"))
    found = torch.export.load(tmp_path / "model.pt2").module()(torch.from_numpy(X))
    torch.testing.assert_close(found, torch.softmax(net()(torch.from_numpy(X)) * 3, dim=1))


def test_onnx(trained, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    export_run(*trained, str(tmp_path / "model.onnx"))
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    [found] = session.run(None, {session.get_inputs()[0].name: X})
    np.testing.assert_allclose(found, net()(torch.from_numpy(X)).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_onnx_calls_what_is_predicted_as_predict_does(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")

    def predict(x, params):
        scores = params["net"](x)
        return {"score": scores, "best": scores.argmax(1), "again": scores}

    layer = torch.nn.Linear(3, 2)
    write(tmp_path / "m.onnx", ".onnx", predict, {"net": layer}, ["x"], [X])
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    assert [each.name for each in session.get_outputs()] == ["score", "best", "again"]
    [score, best, _] = session.run(None, {"x": X})
    np.testing.assert_array_equal(score.argmax(1), best)
    assert output_names(torch.ones(2), ["x"]) == ["prediction"]
    assert output_names({"x": torch.ones(2)}, ["x"]) is None and output_names((1, 2), []) is None


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("m.bin", ConfigError, "the ending must be one of .npz, .safetensors, .h5, .pt, .pt2, .onnx, .keras"),
        ("m.keras", ConfigError, "the program is of torch; use .pt2 or .onnx"),
    ],
)
def test_what_cannot_be_exported_is_named(trained, tmp_path, name, error, words):
    with pytest.raises(error, match=words):
        export_run(*trained, str(tmp_path / name))
    assert not [path for path in tmp_path.iterdir() if name in path.name]


def test_several_modules_want_predict(tmp_path):
    torch.save(net().state_dict(), tmp_path / "weights.pt")
    text = TORCH.replace("MORE", '"other": torch.nn.Linear(1, 1), ')
    run = make_run(tmp_path, text, tmp_path / "weights.pt")
    with pytest.raises(ProgramError, match="Define predict"):
        export_run(*run, str(tmp_path / "model.pt2"))


LOADED = """
import sys, numpy as np, onnxruntime, tensorflow as tf, keras
assert "elasticflow" not in sys.modules
x = np.load("x.npy")
whole = keras.models.load_model("model.keras")
plain = whole(x, training=False).numpy()
saved = tf.saved_model.load("model.savedmodel")
np.testing.assert_allclose(saved.predict(tf.constant(x)).numpy(), plain, rtol=1e-5, atol=1e-6)
session = onnxruntime.InferenceSession("model.onnx")
[found] = session.run(None, {session.get_inputs()[0].name: x})
np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-5)
np.save("kernel.npy", whole.layers[0].kernel.numpy())
"""
EXPORTED = """
import sys
from elasticflow.cli.main import main
for ending in ("keras", "savedmodel", "onnx"):
    assert main(["export", "run", f"model.{ending}"]) == 0
"""


def test_keras_and_saved_models(tmp_path):
    for needed in ("tensorflow", "tf2onnx", "onnxruntime"):
        pytest.importorskip(needed)
    kernel = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez(tmp_path / "weights.npz", **{"net.0.kernel": kernel})
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "program.py").write_text(KERAS)
    run = RunDir(tmp_path / "run")
    options = {"program": str(tmp_path / "program.py"), "run_dir": str(run.path)}
    run.create(config.make(None, options | {"init_from": str(tmp_path / "weights.npz")}))
    for text in (BEGUN, EXPORTED, LOADED):
        done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "kernel.npy"), kernel)


BEGUN = """
from elasticflow.worker.warm import begin
from elasticflow.run.folder import RunDir
begin(RunDir("run"))
"""
