"""What a worker finds out with its first slice: what does not go together, and how many slices fit."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from elasticflow.errors import ProgramError  # noqa: E402
from elasticflow.run import config  # noqa: E402
from elasticflow.run.settings import MemberSettings  # noqa: E402
from elasticflow.worker.loaded import Loaded  # noqa: E402
from elasticflow.worker.summed import looks_summed  # noqa: E402
from elasticflow.worker.whose_fault import OutsideError  # noqa: E402

PROGRAM = """
import numpy as np, torch, elasticflow as ef

def model():
    return {"net": torch.nn.Linear(3, 2), "optimizer": ef.SGD(lr=0.1)}

def forward(x, y, params):
    if len(x) > MOST:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    return torch.nn.functional.cross_entropy(params["net"](x), y)

def data():
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > 0).astype(np.TYPE)}
"""


def loaded(
    folder: Path, *, most: int = 64, kind: str = "int64", reduction: str = "mean", **settings: object
) -> Loaded:
    program = folder / "program.py"
    text = PROGRAM.replace("MOST", str(most)).replace("TYPE", kind)
    program.write_text(text.replace("(x), y)", f"(x), y, reduction={reduction!r})"))
    chosen = config.make(None, {"program": str(program), "batch_size": 64, **settings})
    return Loaded(MemberSettings.of(chosen, name="worker-0", role="worker", host="", master="", run_dir=""))


def test_labels_of_a_wrong_type_are_named_with_their_column(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"got Float.*A record has x float32\[3\], y float32\[\]: data"):
        loaded(tmp_path, kind="float32").rehearse()


@pytest.mark.parametrize(("most", "slices"), [(64, 8), (7, 16), (2, 32)])
def test_slices_become_smaller_until_one_fits(tmp_path: Path, most: int, slices: int) -> None:
    found = loaded(tmp_path, most=most)
    found.rehearse()
    assert found.schedule.num_slices == slices and found.probe
    assert bool(found.slices_why) == (slices > 8)


@pytest.mark.parametrize(
    ("most", "settings", "words"),
    [
        (7, {"slices": 8}, "a slice of 8 records, of which a batch of 64 has 8. Use more --slices"),
        (0, {}, "a slice of 1 record, of which a batch of 64 has 64"),
    ],
)
def test_where_none_fits_no_record_is_to_blame(tmp_path: Path, most: int, settings, words: str) -> None:
    with pytest.raises(OutsideError, match=words):
        loaded(tmp_path, most=most, **settings).rehearse()


def test_as_many_slices_as_are_cheap(tmp_path: Path) -> None:
    found = loaded(tmp_path, measure_slices=True, workers="3")
    found.rehearse()
    assert found.schedule.num_slices in (4, 8) and "in multiples of" in found.slices_why


KEEPS = """
import numpy as np, torch, elasticflow as ef

OWN = np.random.default_rng(1)
CALLS = [0]

class Net(torch.nn.Linear):
    state = torch.zeros(2)

    def forward(self, x):
        CALLS[0] += 1
        if "state" in KEEPS:
            self.state = (super().forward(x) + 0.5 * self.state).detach().mean(0)
        if "parameter" in KEEPS:
            self.weight.data.mul_(0.9)
        scale = CALLS[0] / 50 if "counter" in KEEPS else 1
        return (super().forward(x) + self.state) * scale + torch.rand(2) + np.random.rand()

def model():
    return {"net": Net(3, 2), "optimizer": ef.SGD(lr=0.1)}

def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x), y)

def changed(record):
    noise = OWN if "generator" in KEEPS else np.random
    return {**record, "x": record["x"] + noise.normal(size=3).astype(np.float32)}

def data():
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    return ef.data.Transform({"x": x, "y": (x[:, 0] > 0).astype(np.int64)}, changed)
"""


def keeping(folder: Path, what: str, **settings: object) -> Loaded:
    (folder / "keeps.py").write_text(f"KEEPS = {what!r}\n{KEEPS}")
    return loaded(folder, program=str(folder / "keeps.py"), **settings)


@pytest.mark.parametrize("what", ["counter", "state", "parameter", "generator"])
def test_what_keeps_something_from_slice_to_slice_is_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises(ProgramError, match="forward.. gave something else for the same slice"):
        keeping(tmp_path, what).rehearse()
    (warning,) = keeping(tmp_path, what, fingerprint="warn").rehearse().warnings
    assert "no longer promised" in warning
    assert keeping(tmp_path, what, mode="async", workers=1).rehearse().warnings == ()


def test_a_count_of_calls_changes_no_bit(tmp_path: Path) -> None:
    assert keeping(tmp_path, "nothing").rehearse().warnings == ()


STEPPED = """
rate = [0.1]

def learning_rate(step, epoch):
    rate[0] *= 0.99
    return rate[0]
"""


def test_a_learning_rate_that_is_another_one_when_it_is_asked_again_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "stepped.py"
    program.write_text(PROGRAM.replace("MOST", "64").replace("TYPE", "int64") + STEPPED)
    with pytest.raises(ProgramError, match=r"learning_rate\(0, 0\) returned 0.099, and 0.098.* asked again"):
        loaded(tmp_path, program=str(program)).rehearse()
    loaded(tmp_path, program=str(program), mode="async", workers=1).rehearse()


ROUNDS = """
import torch, elasticflow as ef

def model():
    return {"first": torch.nn.Linear(3, 2), "then": torch.nn.Linear(3, 2), "optimizer": ef.SGD(lr=0.1)}

def loop(session):
    for step in session.steps():
        for name in ("first", "then"):
            for part in step.slices():
                torch.nn.functional.cross_entropy(session.params[name](part.x), part.y).backward()
                step.push(session.params[name])

def data():
    return {"x": torch.ones(64, 3).numpy(), "y": torch.ones(64, dtype=torch.int64).numpy()}
"""


def test_what_a_loop_pushes_in_a_later_round_is_not_said_to_get_no_gradient(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(ROUNDS)
    assert loaded(tmp_path, program=str(tmp_path / "loops.py")).rehearse().warnings == ()


@pytest.mark.parametrize(("cost", "told"), [("sum", True), ("mean", False)])
def test_a_sum_is_told_from_a_mean(tmp_path: Path, cost: str, told: bool) -> None:
    found = loaded(tmp_path, reduction=cost)
    found.rehearse()
    assert ("a sum over its records" in looks_summed(found)) == told
