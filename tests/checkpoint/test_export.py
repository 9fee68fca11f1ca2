import os
import sys

import numpy as np
import pytest
from saving import ENTRIES, make_model, save

from elasticflow import checkpoint
from elasticflow.errors import CheckpointError, ConfigError
from elasticflow.step.layout import Entry, Rule

NET = (
    Entry("net.0.weight", (6, 4), "float32", Rule.UPDATE),
    Entry("net.0.bias", (6,), "float32", Rule.UPDATE),
    Entry("net.1.weight", (6,), "float32", Rule.UPDATE),
    Entry("net.1.bias", (6,), "float32", Rule.UPDATE),
    Entry("net.1.running_mean", (6,), "float32", Rule.MEAN),
    Entry("net.1.running_var", (6,), "float32", Rule.MEAN),
    Entry("net.1.num_batches_tracked", (), "int64", Rule.FIRST),
    Entry("temperature", (), "float32", Rule.UPDATE),
)


def load_npz(path):
    with np.load(path) as arrays:
        return dict(arrays)


def load_safetensors(path):
    return pytest.importorskip("safetensors.numpy").load_file(path)


def load_hdf5(path):
    with pytest.importorskip("h5py").File(path) as file:
        return {entry.name: file[entry.name][()] for entry in ENTRIES[:-1]}


LOADERS = {".npz": load_npz, ".safetensors": load_safetensors, ".h5": load_hdf5}


@pytest.mark.parametrize("ending", LOADERS)
def test_every_tensor_comes_back_by_name(storage, model, tmp_path, ending):
    manifest = save(storage, model, num_servers=3)
    path = tmp_path / f"model{ending}"
    for _ in range(2):  # the second replaces the first
        checkpoint.export(storage, manifest, path)
    arrays = LOADERS[ending](path)
    assert arrays.keys() == {entry.name for entry in ENTRIES[:-1]}
    for name, array in arrays.items():
        expected = model.tensor(name)
        assert np.asarray(array).tobytes() == expected.tobytes(), name
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape), name
    assert [name for name in os.listdir(tmp_path) if "partial" in name] == []


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_torch_loads_it_in_one_line(storage, tmp_path, ending):
    torch = pytest.importorskip("torch")
    model = make_model(NET)
    path = tmp_path / f"model{ending}"
    checkpoint.export(storage, save(storage, model), path)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6))
    arrays = LOADERS[ending](path)
    net.load_state_dict(
        {
            name.removeprefix("net."): torch.from_numpy(a)
            for name, a in arrays.items()
            if name.startswith("net.")
        }
    )
    for name, tensor in net.state_dict().items():
        assert tensor.numpy().tobytes() == model.tensor(f"net.{name}").tobytes()


def test_names_with_slashes_and_words_of_numpys_own(storage, tmp_path):
    entries = [Entry(name, (3,), "float32", Rule.UPDATE) for name in ("dense/kernel", "file", "x.npy")]
    model = make_model(entries)
    manifest = save(storage, model)
    checkpoint.export(storage, manifest, tmp_path / "m.npz")
    checkpoint.export(storage, manifest, tmp_path / "m.h5")
    arrays = load_npz(tmp_path / "m.npz")
    assert list(arrays) == [entry.name for entry in entries]
    with pytest.importorskip("h5py").File(tmp_path / "m.h5") as file:
        for name in arrays:
            expected = model.tensor(name).tobytes()
            assert (arrays[name].tobytes(), file[name][()].tobytes()) == (expected, expected)


def test_the_same_model_makes_the_same_npz(storage, model, tmp_path):
    for num_servers in (1, 3):
        manifest = save(storage, model, num_servers, num_servers)
        checkpoint.export(storage, manifest, tmp_path / f"{num_servers}.npz")
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "3.npz").read_bytes()


@pytest.mark.parametrize("ending", LOADERS)
def test_a_failure_leaves_the_old_file(storage, model, tmp_path, ending):
    manifest = save(storage, model)
    path = tmp_path / f"model{ending}"
    path.write_bytes(b"old")
    part = storage.root / manifest.folder / "generation-1-server-1.h5"
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="generation-1-server-1.h5"):
        checkpoint.export(storage, manifest, path)
    assert path.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, "storage"])


def test_names_that_hdf5_cannot_hold_together(storage, tmp_path):
    model = make_model([Entry(name, (3,), "float32", Rule.UPDATE) for name in ("a", "a/b")])
    with pytest.raises(CheckpointError, match="'a/b'"):
        checkpoint.export(storage, save(storage, model), tmp_path / "m.h5")


def test_other_endings_and_places(storage, model, tmp_path):
    manifest = save(storage, model)
    with pytest.raises(ConfigError, match=r"'model.pt': the ending must be one of .npz, .safetensors, .h5"):
        checkpoint.export(storage, manifest, "model.pt")
    with pytest.raises(CheckpointError, match="FileNotFoundError"):
        checkpoint.export(storage, manifest, tmp_path / "nowhere" / "model.npz")


def test_safetensors_missing(storage, model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(CheckpointError, match="pip install safetensors"):
        checkpoint.export(storage, save(storage, model), tmp_path / "model.safetensors")
