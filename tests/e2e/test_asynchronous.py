"""The asynchronous mode: each batch is applied once, whoever is killed; and it learns."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elasticflow.run.telling import LiveStatus

from .conftest import Run, cli
from .processes import Outcome

EPOCHS, STEPS = 4, 7
"""203 records in batches of 4, eight a step; the last step of an epoch has 11 records."""
ASYNCHRONOUS = ("--mode", "async", "--staleness", 7, "--batch-size", 4, "--epochs", EPOCHS)
DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.py"


@pytest.fixture
def settings(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """With the same learning rate for all, so that each record counts the same; param: of arrays' ways."""
    file = tmp_path / "settings.yaml"
    file.write_text(
        f"staleness_rule: none\nshared_memory: {getattr(request, 'param', 'true')}\nsnapshot_s: 0.1\n"
    )
    return file


def counted(run: Run, folder: Path) -> dict[str, np.ndarray]:
    run.finish()
    file = folder / "counted.npz"
    assert cli("export", run.path, file).returncode == 0
    with np.load(file) as arrays:
        return dict(arrays)


def ready(status: LiveStatus, role: str) -> list[str]:
    return [member.name for member in getattr(status, f"{role}s") if member.state == "ready"]


@pytest.mark.parametrize("settings", ["true", "false"], indirect=True)
@pytest.mark.parametrize("victims", [("worker",), ("server",), ("master",), ("worker", "server", "master")])
def test_every_record_once_an_epoch(
    start: Callable[..., Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: Path,
    victims: tuple[str, ...],
) -> None:
    """kill -9 in the midst of steps, with parameters that lie in several parcels of two servers."""
    wide = 1 << 14
    monkeypatch.setenv("SLICE_S", "0.01")
    monkeypatch.setenv("WIDE", str(wide))
    gate = f"step {EPOCHS * STEPS - 4}"
    options = (*ASYNCHRONOUS, "--config", settings)
    run = start("counting_async.py", *options, "--workers", 3, "--servers", 2, shut=[gate])
    for number, role in enumerate(victims):
        status = run.wait_until(
            lambda s, at=5 + 6 * number: s.step >= at and all(m.state == "ready" for m in s.workers)
        )
        run.kill("master" if role == "master" else ready(status, role)[0])
    run.open(gate)
    seen = counted(run, tmp_path)["seen"]
    assert seen.shape == (203, wide)
    assert (seen == -EPOCHS).all(), np.unique(seen, return_counts=True)


@pytest.mark.parametrize("victim", ["worker", "server"])
@pytest.mark.parametrize("looped", [False, True], ids=["forward", "loop"])
def test_rows_of_tables_too(
    start: Callable[..., Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: Path,
    looped: bool,
    victim: str,
) -> None:
    monkeypatch.setenv("SLICE_S", "0.01")
    monkeypatch.setenv("TABLE", "1")
    if looped:
        monkeypatch.setenv("LOOP", "1")
    gate = f"step {EPOCHS * STEPS - 4}"
    options = (*ASYNCHRONOUS, "--config", settings)
    more = ("--workers", 3, "--servers", 2, "--checkpoint-every", 6)
    run = start("counting_async.py", *options, *more, shut=[gate])
    run.kill(ready(run.wait_for_step(15), victim)[0])
    run.open(gate)
    found = counted(run, tmp_path)
    assert sorted(found["rows.ids"]) == list(range(203))
    assert (found["rows.rows"] == -EPOCHS).all(), found["rows.rows"]
    assert (found["seen"] == -EPOCHS).all()


def test_it_learns_as_the_synchronous_mode_does(start: Callable[..., Run], tmp_path: Path) -> None:
    """With a learning rate that late updates stand; see docs/async.md for one that they do not."""
    program = tmp_path / "digits.py"
    program.write_text(DIGITS.read_text().replace("lr=0.2", "lr=0.02"))
    accuracies = []
    for options in (("--mode", "async", "--staleness", 3, "--batch-size", 32), ("--batch-size", 32)):
        run = start(str(program), *options, "--epochs", 6, "--workers", 2)
        found = re.findall(r"accuracy (0\.\d+)", run.finish())
        accuracies.append(float(found[-1]))
    late, exact = accuracies
    assert late > 0.9 and abs(late - exact) < 0.05, accuracies


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "clips.py").write_text(
        "import elasticflow as ef, numpy as np, torch\n"
        "def model(): return {'w': torch.zeros(2), 'optimizer': ef.SGD(lr=0.1, clip_norm=1.0)}\n"
        "def forward(x, params): return (params['w'] * x).sum()\n"
        "def data(): return ef.data.Arrays(x=np.ones((64, 2), np.float32))\n"
    )
    options = ("--mode", "async", "--staleness", 1, "--run-dir", "run")
    Outcome(tmp_path, "train", "clips.py", *options).refused("clip_norm", "mode: async", "mode: sync")


def test_a_resumed_run_has_the_same_mode(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "import elasticflow as ef, numpy as np, torch\n"
        "def model(): return {'w': torch.zeros(2), 'optimizer': ef.SGD(lr=0.1)}\n"
        "def forward(x, params): return (params['w'] * x).sum()\n"
        "def data(): return ef.data.Arrays(x=np.ones((64, 2), np.float32))\n"
    )
    options = ("--run-dir", "run", "--batch-size", 8, "--epochs", 1)
    first = Outcome(tmp_path, "train", "plain.py", "--mode", "async", "--staleness", 1, *options)
    assert first.code == 0, first.err
    more = ("train", "plain.py", "--resume", "--run-dir", "run", "--epochs", 2)
    Outcome(tmp_path, *more, "--staleness", 3).refused(
        "made with staleness 1", "now it is 3", "--staleness 1"
    )
    Outcome(tmp_path, *more, "--mode", "sync", "--staleness", 0).refused(
        "made with mode async", "--mode async"
    )
    assert Outcome(tmp_path, *more).code == 0
