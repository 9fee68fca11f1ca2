"""The first checkpoint of a run that begins with the weights of another: what is taken, from where, and what
is said."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from elasticflow import checkpoint  # noqa: E402
from elasticflow.errors import CheckpointError, ConfigError  # noqa: E402
from elasticflow.run import config  # noqa: E402
from elasticflow.run.folder import RunDir  # noqa: E402
from elasticflow.run.settings import MemberSettings  # noqa: E402
from elasticflow.step.layout import Entry, Rule  # noqa: E402
from elasticflow.worker.loaded import Loaded  # noqa: E402
from elasticflow.worker.warm import begin, mapping_of, match  # noqa: E402

PROGRAM = """
import numpy as np, torch, elasticflow as ef

def model():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    return {"net": net, "words": ef.Embedding(None, 2), "optimizer": ef.OPTIMIZER}

def forward(x, i, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x) + params["words"](i), y)

def data():
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    return {"x": x, "i": np.arange(64) % 7, "y": (x[:, 0] > 0).astype(np.int64)}
"""
IDS, ROWS = np.array([5, -1, 3]), np.arange(6, dtype=np.float32).reshape(3, 2)


def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


def make_run(folder: Path, init_from: object, optimizer="SGD(lr=0.1, momentum=0.9)", **settings) -> RunDir:
    folder.mkdir(parents=True)
    (folder / "program.py").write_text(PROGRAM.replace("OPTIMIZER", optimizer))
    run = RunDir(folder / "run")
    options = {"program": str(folder / "program.py"), "run_dir": str(run.path), "init_from": str(init_from)}
    run.create(config.make(None, options | settings))
    return run


def arrays_of(run: RunDir, slots=False):
    storage = run.storage()
    assert checkpoint.verify(storage, 0) == []
    return dict(checkpoint.tensors(storage, checkpoint.load_manifest(storage, 0), slots))


def save(path: Path, weights) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **weights)
    elif path.suffix == ".safetensors":
        pytest.importorskip("safetensors.numpy").save_file(weights, path)
    elif path.suffix == ".h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            for name, array in weights.items():
                file[name] = array
    else:
        torch.save({name: torch.from_numpy(array) for name, array in weights.items()}, path)
    return path


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".h5", ".pt"])
def test_what_files_hold_is_taken_by_name(tmp_path, ending):
    module = net()
    weights = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    weights |= {"words.ids": IDS, "words.rows": ROWS}
    run = make_run(tmp_path / "a", save(tmp_path / f"weights{ending}", weights))
    taken = begin(run)
    assert taken.missing == taken.unused == taken.unlike == () and len(taken.taken) == 10
    found = arrays_of(run, slots=True)
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(found[f"net.{name}"], tensor.numpy())
    assert dict(zip(found["words.ids"].tolist(), found["words.rows"].tolist(), strict=True)) == {
        5: [0, 1], -1: [2, 3], 3: [4, 5],
    }  # fmt: skip
    assert not found["net.0.weight#momentum_buffer"].any()


def test_a_runs_weights_and_the_state_of_its_optimizer(tmp_path):
    weights = {"words.ids": IDS, "words.rows": ROWS}
    weights |= {f"net.{name}": t.numpy() for name, t in net().state_dict().items()}
    first = make_run(
        tmp_path / "a", save(tmp_path / "w.npz", weights), "Adagrad(initial_accumulator_value=3)"
    )
    begin(first)
    one, two = (
        make_run(tmp_path / name, first.path, "Adagrad(initial_accumulator_value=9)", init_optimizer=state)
        for name, state in (("b", True), ("c", False))
    )
    assert begin(one).sha256 == begin(two).sha256
    before, kept, anew = arrays_of(first, True), arrays_of(one, True), arrays_of(two, True)
    assert all(np.array_equal(before[name], kept[name]) for name in before)
    assert (kept["words.rows#sum"] == 3).all() and (anew["words.rows#sum"] == 9).all()
    assert np.array_equal(anew["words.rows"], before["words.rows"])
    manifest = checkpoint.load_manifest(one.storage(), 0)
    assert manifest.work["init"]["from"] == str(first.path) and manifest.work["init"]["optimizer"] is True


def test_other_vocabularies_than_those_of_the_run_are_told(tmp_path, monkeypatch):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"x": [[1.0, 2.0, 3.0]] * 8, "i": ["Rome", "Oslo"] * 4, "y": [0, 1] * 4})
    pq.write_table(table, tmp_path / "table.parquet")
    rules = f"vocabularies=ef.data.vocabularies('{tmp_path}/v.json')"
    head, _, _ = PROGRAM.partition("    x = np.random")
    program = f"{head}    return ef.data.Parquet('{tmp_path}/table.parquet', {rules})\n"
    monkeypatch.setitem(globals(), "PROGRAM", program)
    weights = {f"net.{name}": t.numpy() for name, t in net().state_dict().items()}
    (tmp_path / "v.json").write_text('{"i": ["Rome", "Oslo"]}')
    first = make_run(tmp_path / "a", save(tmp_path / "w.npz", weights))
    begin(first)
    same = make_run(tmp_path / "b", first.path)
    assert begin(same).vocabularies == ""
    (tmp_path / "v.json").write_text('{"i": ["Oslo", "Rome"]}')
    other = make_run(tmp_path / "c", first.path)
    taken = begin(other)
    assert taken.vocabularies == "vocabularies of i"
    ((kind, words),) = [line for line in taken.lines("a") if "vocabularies" in line[1]]
    assert kind == "warning" and words.startswith("the vocabularies of i are others than those of a: ")


def test_names_are_mapped_and_the_rest_is_told(tmp_path):
    weights = {
        "encoder.weight": np.ones((4, 3), np.float32),
        "encoder.bias": np.ones(5, np.float32),
        "head.weight": np.ones((2, 4), np.float32),
    }
    run = make_run(tmp_path / "a", save(tmp_path / "w.npz", weights), init_map="encoder=net.0")
    taken = begin(run)
    assert taken.taken == ("net.0.weight",) and taken.unlike == ("net.0.bias",)
    assert taken.unused == ("encoder.bias", "head.weight") and "net.2.weight" in taken.missing
    assert (arrays_of(run)["net.0.weight"] == 1).all()
    lines = dict(taken.lines("w.npz"))
    assert "have no such" in lines["warning"] or "the model has none such" in lines["warning"]


def test_the_names_of_a_module_alone():
    entries = [
        Entry("net.0.weight", (1,), "float32", Rule.UPDATE),
        Entry("scale", (1,), "float32", Rule.UPDATE),
    ]
    assert match(entries, ["0.weight", "scale", "1.weight"], {}) == {
        "net.0.weight": "0.weight",
        "scale": "scale",
    }
    assert match(entries, ["m.0.weight", "m.s"], {"m": "net", "m.s": "scale"}) == {
        "net.0.weight": "m.0.weight",
        "scale": "m.s",
    }
    assert match(entries, ["weight"], {"": "net.0"}) == {"net.0.weight": "weight"}


@pytest.mark.parametrize("text", ["a", "a=b,a=c"])
def test_maps_that_are_none(text):
    with pytest.raises(ConfigError, match="must be old=new, each old name once"):
        mapping_of(text)


class Evil:
    def __reduce__(self):
        return (open, ("/tmp/never", "w"))


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (lambda p: p / "none.npz", {}, "there is no such file"),
        (lambda p: save(p / "w.npz", {"a": ROWS}), {}, r"none of its names \(a, ...\).*Map them: --init-map"),
        (lambda p: save(p / "w.npz", {"a": ROWS}), {"init_optimizer": True}, "no optimizer's state: a run"),
        (lambda p: save(p / "w.npz", {"a.b": ROWS}), {"init_map": "a=net,b=net"}, r"no name in .*npz is 'b'"),
        (lambda p: (p / "w.txt").write_text("x") and p / "w.txt", {}, "are taken from a run's folder, or"),
        (lambda p: torch.save({"a": Evil()}, p / "w.pt") or p / "w.pt", {}, "nothing of it is executed"),
        (lambda p: torch.save([1], p / "w.pt") or p / "w.pt", {}, "holds a list, and no state dict"),
        (lambda p: (p / "w.npz").write_text("x") and p / "w.npz", {}, "w.npz: "),
        (lambda p: (p / "empty").mkdir() or p / "empty", {}, "holds no committed checkpoint"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_named(tmp_path, make, settings, words):
    with pytest.raises((CheckpointError, ConfigError), match=words):
        begin(make_run(tmp_path / "a", make(tmp_path), **settings))
    assert not Path("/tmp/never").exists()


def trained(path: Path, optimizer, by_name=False, steps=3) -> tuple:
    """A plain script's net and optimizer, after some steps, as it saves them."""
    torch.manual_seed(1)
    mine = torch.nn.ModuleDict({"net": net()})
    updates = optimizer(mine.named_parameters() if by_name else mine.parameters())
    for _ in range(steps):
        updates.zero_grad()
        torch.nn.functional.cross_entropy(mine["net"](torch.randn(8, 3)), torch.arange(8) % 2).backward()
        updates.step()
    torch.save({"model": mine.state_dict(), "optimizer": updates.state_dict(), "epoch": 3}, path)
    names = [name for name, _ in mine.named_parameters()]
    return dict(zip(names, updates.state_dict()["state"].values(), strict=True)), path


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(
    ("theirs", "ours", "updates"),
    [
        (lambda p: torch.optim.AdamW(p, amsgrad=True), "AdamW(amsgrad=True)", 3),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "SGD(lr=0.1, momentum=0.9)", 1),
        (lambda p: torch.optim.Adagrad(p), "Groups(ef.Adagrad(), {'*.bias': {'lr': 0.5}})", 3),
    ],
)
def test_the_state_of_torchs_optimizers_is_taken_with_its_count(tmp_path, theirs, ours, updates, by_name):
    state, path = trained(tmp_path / "w.pt", theirs, by_name)
    if by_name and "param_names" not in torch.load(path)["optimizer"]["param_groups"][0]:
        pytest.skip("this PyTorch keeps no names")
    run = make_run(tmp_path / "a", path, ours, init_optimizer=True)
    taken = begin(run)
    assert set(taken.stateful) == set(state) and taken.stateless == () and taken.updates == updates
    found = arrays_of(run, slots=True)
    for name, slots in state.items():
        for slot, value in slots.items():
            if slot != "step":
                assert np.array_equal(found[f"{name}#{slot}"], value.numpy()), (name, slot)
    manifest = checkpoint.load_manifest(run.storage(), 0)
    assert manifest.updates == updates
    settings = MemberSettings.of(
        run.config(), name="worker-0", role="worker", host="", master="", run_dir=str(run.path)
    )
    assert Loaded(settings).spec().updates_before == updates


def test_a_run_that_goes_on_from_a_run_counts_on(tmp_path):
    _, path = trained(tmp_path / "w.pt", torch.optim.Adam, steps=5)
    first = make_run(tmp_path / "a", path, "Adam(ema=0.9)", init_optimizer=True)
    assert begin(first).updates == 5
    found = arrays_of(first, slots=True)
    assert np.array_equal(found["net.0.bias#ema"], found["net.0.bias"])  # there was none to take
    second = make_run(tmp_path / "b", first.path, "Adam()", init_optimizer=True)
    assert begin(second).updates == 5
    alone = make_run(tmp_path / "c", first.path, "Adam()")
    assert begin(alone).updates == 0 and not arrays_of(alone, slots=True)["net.0.bias#exp_avg"].any()


def test_of_which_parameters_there_is_no_state_is_told(tmp_path):
    _, path = trained(tmp_path / "w.pt", torch.optim.Adam)
    saved = torch.load(path)
    del saved["optimizer"]["state"][0]
    torch.save(saved, path)
    taken = begin(make_run(tmp_path / "a", path, "Adam()", init_optimizer=True))
    assert taken.stateless == ("net.0.weight",)
    lines = [text for _, text in taken.lines("w.pt")]
    assert "the optimizer goes on with its state of 5 of them, after 3 updates" in lines
    assert any(line.startswith("net.0.weight have no state of the optimizer there") for line in lines)


@pytest.mark.parametrize(
    ("spoil", "optimizer", "words"),
    [
        (lambda saved: None, "Adagrad()", "no state that goes with the program's Adagrad: that keeps sum"),
        (lambda saved: saved.pop("optimizer"), "Adam()", "holds no optimizer's state: save"),
        (
            lambda saved: saved["optimizer"]["param_groups"].append(
                {"params": [saved["optimizer"]["param_groups"][0]["params"].pop()]}
            ),
            "Adam()",
            "6 parameters in 2 groups and no names of them",
        ),
        (
            lambda saved: saved["optimizer"]["state"][1].update(step=torch.tensor(9.0)),
            "Adam()",
            "not updated equally often",
        ),
        (
            lambda saved: saved["optimizer"]["state"][0].update(exp_avg=torch.zeros(9)),
            "Adam()",
            "in another order than net.parameters",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused(tmp_path, spoil, optimizer, words):
    _, path = trained(tmp_path / "w.pt", torch.optim.Adam)
    saved = torch.load(path)
    spoil(saved)
    torch.save(saved, path)
    with pytest.raises(CheckpointError, match=words):
        begin(make_run(tmp_path / "a", path, optimizer, init_optimizer=True))


def test_settings_of_a_run_that_begins_with_nothing():
    with pytest.raises(ConfigError, match="init_map: is for a run that begins with the weights"):
        config.make(None, {"init_map": "a=b"})


def test_parameters_that_are_not_trained_are_taken_too(tmp_path):
    weights = {"net.0.weight": np.full((4, 3), 7, np.float32), "net.2.bias": np.ones(2, np.float32)}
    run = make_run(tmp_path / "a", save(tmp_path / "w.npz", weights))
    text = PROGRAM.replace("OPTIMIZER", "SGD(momentum=0.9)").replace(
        "    return {", "    net[0].requires_grad_(False)\n    return {", 1
    )
    (tmp_path / "a" / "program.py").write_text(text)
    assert set(begin(run).taken) == set(weights)
    found = arrays_of(run)
    assert (found["net.0.weight"] == 7).all() and (found["net.2.bias"] == 1).all()
    settings = MemberSettings.of(
        run.config(), name="worker-0", role="worker", host="", master="", run_dir=str(run.path)
    )
    assert (Loaded(settings).replica.frozen()["net.0.weight"] == 7).all()
