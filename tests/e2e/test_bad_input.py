"""Bad input: one clear message, an exit code that is not 0, no process and no folder left behind."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from elasticflow.cli import main
from elasticflow.cli.check import MARK

from .conftest import Run
from .processes import Outcome, assert_told

HEAD = "import numpy as np\nimport elasticflow as ef\n"
TORCH = "import torch\n" + HEAD
NO_MODEL = "def model():\n    return {}\n"
MODEL = "def model():\n    return {'w': torch.zeros(2), 'optimizer': ef.SGD(lr=0.1)}\n"
FORWARD = "def forward(x, params):\n    return (params['w'] * x).sum(1).mean()\n"
DATA = "def data():\n    return {'x': np.ones((64, 2), np.float32)}\n"
GOOD = TORCH + MODEL + FORWARD + DATA

# name: the program, and what the message must say. Programs that need no framework import none.
PROGRAMS = {
    "import_error": (HEAD + "import nosuchmodule\n", ["import_error.py", "nosuchmodule", "line 3"]),
    "raises": (HEAD + "x = 1 / 0\n", ["raises.py", "ZeroDivisionError", "line 3: x = 1 / 0"]),
    "exits": ("import sys\nsys.exit(3)\n", ["exits.py", "SystemExit: 3", "line 2"]),
    "no_model": (
        HEAD + FORWARD + DATA,
        ["defines no model()", "model() and forward()", "found: data, forward"],
    ),
    "no_forward": (HEAD + NO_MODEL + DATA, ["defines no forward()", "found: data, model"]),
    "list_model": (
        HEAD + "def model():\n    return [1]\n" + FORWARD + DATA,
        ["list_model.py", "model() returned a list", "must return a dict"],
    ),
    "empty_model": (
        HEAD + NO_MODEL + FORWARD + DATA,
        ["nothing that can be trained", "PyTorch", "TensorFlow"],
    ),
    "model_raises": (
        HEAD + "def model():\n    raise RuntimeError('boom')\n" + FORWARD + DATA,
        ["model() raised RuntimeError: boom", "model_raises.py, line 4"],
    ),
    "bad_lr": (
        HEAD + "def model():\n    return {'optimizer': ef.SGD(lr=-1)}\n" + FORWARD + DATA,
        ["model()", "SGD(lr=-1)", "lr must be a number >= 0", "bad_lr.py, line 4"],
    ),
    "no_params": (
        HEAD + NO_MODEL + "def forward(x):\n    return 0\n" + DATA,
        ["forward() must take an argument named params"],
    ),
    "no_column": (
        HEAD + NO_MODEL + "def forward(x, y, params):\n    return 0\n" + DATA,
        ["forward() takes y", "no such column", "its columns are x"],
    ),
    "extra_column": (
        HEAD + NO_MODEL + FORWARD + "def data():\n    return {'x': np.ones(3), 'z': np.ones(3)}\n",
        ["column 'z'", "forward() does not know", "its arguments are x, params"],
    ),
    "empty": (
        HEAD + NO_MODEL + FORWARD + "def data():\n    return {'x': np.ones((0, 2))}\n",
        ["empty.py: data()", "is empty: 0 records", "At least one"],
    ),
    "ragged": (
        HEAD + NO_MODEL + FORWARD + "def data():\n    return {'x': np.ones((3, 2)), 'y': np.ones(4)}\n",
        ["different lengths", "'x' has 3", "'y' has 4"],
    ),
    "missing_file": (
        HEAD + NO_MODEL + FORWARD + "def data():\n    return ef.data.NPZ('no/such.npz')\n",
        ["data()", "no file no/such.npz", "missing_file.py, line 8"],
    ),
    "no_data": (HEAD + NO_MODEL + FORWARD, ["no data()", "no --data"]),
    "no_optimizer": (
        TORCH + "def model():\n    return {'w': torch.zeros(2)}\n" + FORWARD + DATA,
        ["model() names no optimizer", "ef.SGD"],
    ),
    "torch_optimizer": (
        TORCH
        + "def model():\n    w = torch.zeros(2, requires_grad=True)\n"
        + "    return {'w': w, 'optimizer': torch.optim.LBFGS([w], lr=0.1)}\n"
        + FORWARD
        + DATA,
        ["model()['optimizer'] is torch's LBFGS", "several times an update", "Name one of SGD, Adam, AdamW"],
    ),
    "half": (
        TORCH + MODEL.replace("zeros(2)", "zeros(2).half()") + FORWARD + DATA,
        ["w: is torch.float16", "float32 or float64"],
    ),
    "not_scalar": (
        TORCH + MODEL + "def forward(x, params):\n    return params['w'] * x\n" + DATA,
        ["forward() returned a tensor of shape (8, 2)", "one floating number"],
    ),
    "nan": (
        TORCH + MODEL + FORWARD.replace(".mean()", ".mean() * float('nan')") + DATA,
        ["forward() returned a cost of nan", "finite"],
    ),
    "always": (
        TORCH + MODEL + "def forward(x, params):\n    raise KeyError('lost')\n" + DATA,
        ["forward() raised KeyError: 'lost'", "always.py, line 7: raise KeyError('lost')"],
    ),
    "nan_lr": (
        TORCH + MODEL.replace("lr=0.1", "lr=float('nan')") + FORWARD + DATA,
        ["SGD(lr=nan)", "lr must be a number >= 0, and finite", "line 5"],
    ),
    "huge_table": (
        TORCH + MODEL.replace("'w'", "'t': ef.Embedding(1 << 60, 2), 'w'") + FORWARD + DATA,
        ["Embedding(rows=1152921504606846976)", "from 1 to 2**53 - 1, or None"],
    ),
    "unspeakable_name": (
        TORCH + MODEL.replace("'w'", "'\\udc80': torch.zeros(2), 'w'") + FORWARD + DATA,
        ["unspeakable_name.py", "a parameter is named", "must be text that can be encoded"],
    ),
    "huge_rate": (
        GOOD + "def learning_rate(step, epoch):\n    return 1e300\n",
        ["learning_rate(0, 0) returned 1e+300", "a number from 0 to 1e+38"],
    ),
    "column_metric": (
        GOOD.replace(
            "return {'x'", "return {'test': {'x': np.ones((4, 2), np.float32)}, 'train': {'x'"
        ).replace("np.float32)}\n", "np.float32)}}\n")
        + "def metrics(x, params):\n    return {'epoch': x.mean()}\n",
        ["metrics() returned 'epoch'", "a column of the report is called", "another name"],
    ),
    "complex": (
        TORCH + MODEL.replace("zeros(2)", "zeros(2, dtype=torch.complex64)") + FORWARD + DATA,
        ["w: is torch.complex64", "must be real"],
    ),
    "lazy": (
        TORCH + MODEL.replace("torch.zeros(2)", "torch.nn.LazyLinear(1)") + FORWARD + DATA,
        ["w.weight: has no shape before its layer is first called", "LazyLinear"],
    ),
    "double": (
        TORCH
        + MODEL.replace("'w': torch.zeros(2)", "'t': ef.Embedding(9, 2), 'w': torch.nn.Linear(2, 1).double()")
        + "def forward(x, params):\n    return params['w'](params['t'](x[:, 0].long())).mean()\n"
        + DATA,
        ["forward() raised RuntimeError", "Rows of ef.Embedding are float32, and w.weight is float64"],
    ),
    "negative_rate": (
        GOOD + "def learning_rate(step, epoch):\n    return -1\n",
        ["learning_rate(0, 0) returned -1", "a number from 0 to 1e+38"],
    ),
}
TRAINED = ("import_error", "no_forward", "empty", "half", "nan", "always", "nan_lr", "unspeakable_name")
"""Given to ``train``, two at a time. The others are given to ``check``, which does as a worker does."""


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Outcome]]]:
    ids = {item.name for item in request.session.items}
    with ThreadPoolExecutor(2) as pool:
        futures = {}
        for name in TRAINED:
            if f"test_train[{name}]" in ids:
                folder = tmp_path_factory.mktemp(name)
                (folder / f"{name}.py").write_text(PROGRAMS[name][0])
                futures[name] = pool.submit(Outcome, folder, "train", f"{name}.py", "--workers", 1)
        yield futures


@pytest.mark.parametrize("name", TRAINED)
def test_train(outcomes: dict[str, Future[Outcome]], name: str) -> None:
    outcome = outcomes[name].result()
    outcome.refused(*PROGRAMS[name][1])
    if "runs" in outcome.found:  # it began, and says why it failed
        assert (
            list(outcome.folder.glob("runs/*/logs/worker-1.log")) and "elasticflow logs runs/" in outcome.out
        )
    assert set(outcome.found) <= {f"{name}.py", "runs"}


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - set(TRAINED)))
def test_check(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / f"{name}.py"
    program.write_text(PROGRAMS[name][0])
    monkeypatch.setenv(MARK, "1")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["check", str(program)]) == 1
    assert_told(capfd.readouterr().err, *PROGRAMS[name][1])


CONFIGS = {
    "unknown": (
        "epocs: 3\n",
        ["unknown.yaml", "unknown key 'epocs'", "did you mean 'epochs'?", "batch_size, "],
    ),
    "kind": ("epochs: three\n", ["kind.yaml", "epochs: 'three'", "a whole number"]),
    "range": ("servers: 0\n", ["range.yaml", "servers: 0", ">= 1"]),
    "not_yaml": ("epochs: [1\n", ["not_yaml.yaml, line 2", "is not YAML"]),
    "list": ("- epochs\n", ["list.yaml", "'key: value'", "list"]),
    "related": ("lost_s: 1\n", ["related.yaml", "lost_s: 1.0", "suspect_s, 2.0"]),
}

OPTIONS = {
    "--slices 6": ["slices: 6", "power of two"],
    "--slices 128": ["slices: 128", "batch of 64", "at most 64"],
    "--workers 9": ["workers: 9", "8 slices", "--slices"],
    "--workers 3..1": ["workers: '3..1'", "MIN..MAX", "1 <= MIN <= MAX"],
    "--port 70000": ["port: 70000", "<= 65535"],
    "--checkpoint-every often": ["checkpoint_every: 'often'", "500 (steps), 30s"],
    "--run-dir good.py": ["good.py: is not empty", "--run-dir"],
    "--resume": ["no run of good.py", "--run-dir"],
    "--resume --run-dir nowhere": ["nowhere: is not the folder of a run"],
    "--config nosuch.yaml": ["nosuch.yaml: cannot be read"],
}


def test_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the client alone can tell. No folder is made."""
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "syntax.py").write_text("x = 1\ndef model(:\n    pass\n")
    for name, (text, _) in CONFIGS.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    before = sorted(tmp_path.iterdir())
    Outcome(tmp_path, "train", "nofile.py").refused("nofile.py", "does not exist", "model() and forward()")
    cases = {f"good.py --config {name}.yaml": fragments for name, (_, fragments) in CONFIGS.items()}
    cases |= {f"good.py {options}": fragments for options, fragments in OPTIONS.items()}
    cases |= {"syntax.py": ["syntax.py, line 2", "def model(:"], "": ["which program?"]}
    monkeypatch.chdir(tmp_path)
    for options, fragments in cases.items():
        assert main(["train", *options.split()]) == 1, options
        assert_told(capsys.readouterr().err, *fragments)
    assert sorted(tmp_path.iterdir()) == before


def test_port_in_use_and_unknown_backend(tmp_path: Path) -> None:
    """What the master finds before it starts anything."""
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "slurm.yaml").write_text("backend: slurm\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        Outcome(tmp_path, "train", "good.py", "--port", port).refused(
            f"port {port}", "in use", "another --port"
        )
    Outcome(tmp_path, "train", "good.py", "--config", "slurm.yaml").refused(
        "backend: slurm", "elasticflow submit"
    )
    (tmp_path / "slurm.yaml").write_text("backend: slum\n")
    Outcome(tmp_path, "train", "good.py", "--config", "slurm.yaml").refused("backend: 'slum'", "local, slurm")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good.py", "slurm.yaml"]


def test_parameter_without_gradient_is_a_warning(tmp_path: Path) -> None:
    program = GOOD.replace("'w': torch.zeros(2)", "'w': torch.zeros(2), 'idle': torch.zeros(3)")
    (tmp_path / "idle.py").write_text(program)
    outcome = Outcome(tmp_path, "train", "idle.py", "--workers", 1, "--epochs", 2)
    assert outcome.code == 0 and not outcome.left, outcome.err
    assert "Warning: these parameters got no gradient in the first slice: idle; a step" in outcome.out
    assert outcome.out.splitlines()[-1] == "finished: all 2 steps are done"


# --- folders of runs, and their checkpoints -----------------------------------------------------------


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program, and its run with checkpoints of steps 8 and 16."""
    folder = tmp_path_factory.mktemp("ended")
    (folder / "good.py").write_text(GOOD.replace("(64, 2)", "(512, 2)"))
    options = ("--workers", 1, "--epochs", 2, "--checkpoint-every", "8", "--run-dir", "run")
    outcome = Outcome(folder, "train", "good.py", *options)
    assert outcome.code == 0 and not outcome.left, outcome.err
    return folder


@pytest.fixture
def again(ended: Path, tmp_path: Path) -> Path:
    """A copy of it, to spoil."""
    return Path(shutil.copytree(ended, tmp_path / "again"))


def test_folder_of_another_run(again: Path) -> None:
    before = sorted(again.rglob("*"))
    Outcome(again, "train", "good.py", "--run-dir", "run").refused(
        "run: holds a run already", "--resume", "--run-dir"
    )
    assert sorted(again.rglob("*")) == before


def test_resume_with_other_settings(again: Path) -> None:
    """The model would be another. The run stays as it was, and can go on as before."""
    settings = (again / "run/run.json").read_bytes()
    for option, name in {
        "--seed 7": "seed 0",
        "--batch-size 32": "batch_size 64",
        "--slices 4": "slices 8",
    }.items():
        outcome = Outcome(again, "train", "good.py", "--resume", "--run-dir", "run", *option.split())
        outcome.refused(
            "step 16", f"made with {name}", f"now it is {option.split()[1]}", f"--{name.split()[0][:5]}"
        )
    assert (again / "run/run.json").read_bytes() == settings


def test_resume_with_another_model_or_data(again: Path) -> None:
    program = again / "good.py"
    whole = program.read_text()
    program.write_text(whole.replace("zeros(2)", "zeros(2).double()"))
    resume = ("train", "--program", "good.py", "--resume", "--run-dir", "run", "--epochs", 3)
    Outcome(again, *resume).refused("another model", "'w' is a float32", "float64", "in the model")
    program.write_text(whole.replace("(512, 2)", "(300, 2)"))
    Outcome(again, *resume).refused(
        "data has changed", "had 512 records", "now it has 300", "Give the same data"
    )


def test_damaged_checkpoints(again: Path) -> None:
    """The one before is used, and the damage is named; if all are damaged, that is an error."""
    first, second = sorted((again / "run/checkpoints").glob("step-*/*.h5"))
    assert "step-0000000008" in str(first) and "step-0000000016" in str(second)
    second.write_bytes(second.read_bytes()[:-100])
    resume = ("train", "good.py", "--resume", "--run-dir", "run", "--epochs", 2)
    outcome = Outcome(again, *resume)
    assert outcome.code == 0 and not outcome.left, outcome.err
    assert (
        "Warning: " in outcome.out and "step-0000000016" in outcome.out and "bytes, expected" in outcome.out
    )
    assert "going on from step 8" in outcome.out
    for part in (again / "run/checkpoints").glob("step-*/*.h5"):
        part.write_bytes(part.read_bytes()[:-100])
    Outcome(again, *resume).refused("run: none of its checkpoints is whole", "step-0000000016", "--run-dir")


def test_folder_in_use_by_a_live_run(start: Callable[..., Run], tmp_path: Path) -> None:
    """Neither a new run nor --resume disturbs it."""
    run = start("counting.py", "--batch-size", 16, "--workers", 1, name="run", shut=["step 100"])
    run.wait_for_step(1)
    before = {path: path.read_bytes() for path in (run.dir.settings, run.dir.client_keys)}
    (tmp_path / "good.py").write_text(GOOD)
    for arguments in (["good.py"], ["--resume"], ["--resume", "--program", "good.py"]):
        Outcome(tmp_path, "train", "--run-dir", "run", *arguments).refused("another run is using", "stop run")
    assert {path: path.read_bytes() for path in before} == before
    stopped = run.stop(held_at="step 100")
    assert stopped.returncode == 0 and "stopped: stopped by 'elasticflow stop'" in stopped.stdout
    code, output = run.wait()
    assert code == 3 and "steps are missing, go on with --resume" in output.splitlines()[-1]
