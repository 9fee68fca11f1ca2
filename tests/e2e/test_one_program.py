"""A run is of one program and of one set of records, whatever is done to their files while it goes on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .conftest import PROGRAMS, Run, cli, digest_in

PROGRAM = """
from pathlib import Path

import torch

import elasticflow as ef
import layers
from gates import pass_gate
from tools import rates

SCALE = 1.0


def model():
    return {"net": layers.net(), "optimizer": ef.SGD(lr=0.1)}


def learning_rate(step, epoch):
    import late  # no import at the top tells of it

    pass_gate(f"step {step}")
    return late.FACTOR * rates.LR


def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x) * SCALE, y)


def data():
    return ef.data.NPZ(Path(__file__).with_name("records.npz"))
"""
FILES = {
    "program.py": PROGRAM,
    "layers.py": "import torch\n\n\ndef net():\n    return torch.nn.Linear(6, 2)\n",
    "late.py": "FACTOR = 1.0\n",
    "tools/__init__.py": "",
    "tools/rates.py": "from .base import BASE\n\nLR = 0.1 * BASE\n",
    "tools/base.py": "BASE = 1.0\n",
}
EDITED = {
    "program.py": PROGRAM.replace("SCALE = 1.0", "SCALE = 3.0"),
    "layers.py": FILES["layers.py"].replace("Linear(6, 2)", "Linear(6, 2, bias=False)"),
    "late.py": "FACTOR = 0.5\n",
    "tools/base.py": "BASE = 2.0\n",
}
OPTIONS = ("--epochs", 4, "--batch-size", 32, "--slices", 4, "--workers", 2)
STEPS = 4 * 10
LATE = f"step {STEPS - 5}"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def write_records(path: Path, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(320, 6)).astype(np.float32)
    with open(path, "r+b" if path.exists() else "wb") as file:  # in place, as many programs do
        np.savez(file, x=x, y=(x.sum(1) > 0).astype(np.int64))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The program's: no other test has its records."""
    path = tmp_path / "mine"
    write(path, FILES)
    shutil.copy(PROGRAMS / "gates.py", path)
    write_records(path / "records.npz")
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("undisturbed")
    write(path, FILES)
    shutil.copy(PROGRAMS / "gates.py", path)
    write_records(path / "records.npz")
    with Run(path / "run", str(path / "program.py"), *OPTIONS) as run:
        return run.digest()


def edit(folder: Path) -> None:
    write(folder, EDITED)


def delete(folder: Path) -> None:
    for path in [*folder.glob("*.py"), *folder.glob("**/__pycache__"), folder / "tools"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("disturb", [edit, delete])
def test_files_are_edited_or_deleted_and_a_worker_joins(
    start: Callable[..., Run], undisturbed: str, folder: Path, disturb: Callable[[Path], None]
) -> None:
    run = start(str(folder / "program.py"), *OPTIONS, shut=[LATE])
    run.wait_for_workers(2)
    disturb(folder)
    run.kill("worker-1")
    run.wait_until(lambda s: {w.name for w in s.workers if w.state == "ready"} >= {"worker-3"})
    run.open(LATE)
    output = run.finish()
    assert "worker-3 has joined" in output
    assert digest_in(output) == undisturbed


def stopped(start: Callable[..., Run], folder: Path) -> Run:
    """A run that was stopped before its end."""
    run = start(str(folder / "program.py"), *OPTIONS, shut=[LATE], name="run")
    run.wait_for_step(10)
    assert run.stop(held_at=LATE).returncode == 0
    assert run.wait()[0] == 3
    return run


@pytest.mark.parametrize("named", [True, False])
def test_resume_takes_the_runs_copy_and_says_so(
    start: Callable[..., Run], undisturbed: str, folder: Path, named: bool
) -> None:
    run = stopped(start, folder)
    edit(folder)
    resumed = cli("train", *([folder / "program.py"] if named else []), "--resume", "--run-dir", run.path)
    assert resumed.returncode == 0, resumed.stderr
    assert f"with the run's copy of {folder / 'program.py'}" in resumed.stdout
    note = "has changed since this run began (late.py, layers.py, program.py, tools/base.py)"
    assert (note in resumed.stderr) is named
    assert digest_in(resumed.stdout) == undisturbed


def test_another_program_on_purpose_is_recorded(
    start: Callable[..., Run], undisturbed: str, folder: Path
) -> None:
    run = stopped(start, folder)
    write(folder, {"late.py": "FACTOR = 0.5\n"})
    program = folder / "program.py"
    resumed = cli("train", "--resume", "--run-dir", run.path, "--program", program)
    assert resumed.returncode == 0, resumed.stderr
    assert f"and from here on with another program, {program} (" in resumed.stdout
    assert digest_in(resumed.stdout) != undisturbed
    report = json.loads(cli("report", "--json", run.path).stdout)
    assert [use["name"] for use in report["programs"]] == ["program.py"] * 2
    first, second = report["programs"]
    assert first["from_step"] == 0 < second["from_step"] == report["start_step"]
    assert second["sha256"] == report["program_sha256"] == run.dir.config().program_sha256 != first["sha256"]
    assert f"changed at step {second['from_step']}" in cli("report", run.path).stdout
    shown = cli("checkpoint", "show", run.path).stdout
    assert f"program from step {second['from_step']} on: program.py, {second['sha256']}" in shown


def test_another_program_by_mistake_is_refused(start: Callable[..., Run], folder: Path) -> None:
    run = stopped(start, folder)
    settings = run.dir.settings.read_bytes()
    write(folder, {"other.py": EDITED["program.py"]})
    refused = cli("train", folder / "other.py", "--resume", "--run-dir", run.path)
    assert refused.returncode == 1
    assert "is of program.py" in refused.stderr and f"--program {folder / 'other.py'}" in refused.stderr
    assert run.dir.settings.read_bytes() == settings


def test_a_copied_run_has_its_program_with_it(
    start: Callable[..., Run], undisturbed: str, folder: Path, tmp_path: Path
) -> None:
    run = stopped(start, folder)
    assert cli("checkpoint", "copy", run.path, tmp_path / "copy").returncode == 0
    edit(folder)
    resumed = cli("train", "--resume", "--run-dir", tmp_path / "copy")
    assert digest_in(resumed.stdout) == undisturbed


# --- records --------------------------------------------------------------------------------------


def error_in(output: str) -> str:
    (line,) = [line for line in output.splitlines() if line.startswith("Error: ")]
    return line


def touch(path: Path) -> None:
    os.utime(path)


def rewrite(path: Path) -> None:
    write_records(path, seed=1)


def replace(path: Path) -> None:
    shutil.copy(path, path.with_name("new"))
    path.with_name("new").replace(path)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("disturb", "words"),
    [
        (touch, "has changed: it was written to, touched or replaced"),
        (rewrite, "has changed: it has as many bytes as before, but others"),
        (replace, "has changed: it was written to, touched or replaced"),
        (remove, "there is no file"),
    ],
)
def test_a_changed_file_of_records_ends_the_run(
    start: Callable[..., Run], folder: Path, disturb: Callable[[Path], None], words: str
) -> None:
    run = start(str(folder / "program.py"), *OPTIONS, shut=[LATE])
    run.wait_for_workers(2)
    for _ in range(2):
        run.held_at(LATE)  # both are, or one of them might see it by itself
    disturb(folder / "records.npz")
    run.kill("worker-1")
    code, output = run.wait()
    assert code == 1, output
    assert str(folder / "records.npz") in error_in(output) and words in error_in(output)


def test_resume_with_touched_and_with_other_records(
    start: Callable[..., Run], undisturbed: str, folder: Path
) -> None:
    run = stopped(start, folder)
    records = folder / "records.npz"
    before = records.read_bytes()
    rewrite(records)
    refused = cli("train", "--resume", "--run-dir", run.path)
    assert refused.returncode == 1
    assert "the data has changed since the checkpoint" in refused.stderr and str(records) in refused.stderr
    records.unlink()
    records.write_bytes(before)
    resumed = cli("train", "--resume", "--run-dir", run.path)
    assert digest_in(resumed.stdout) == undisturbed


def test_resume_where_other_bits_would_be_computed(
    start: Callable[..., Run], undisturbed: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings of the libraries are part of the fingerprint that a checkpoint bears."""
    run = stopped(start, folder)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    refused = cli("train", "--resume", "--run-dir", run.path)
    assert refused.returncode == 1
    assert "than those who made the checkpoint (MKL_CBWR: AUTO,STRICT / COMPATIBLE)" in refused.stderr
    assert "Allow it with fingerprint: warn." in refused.stderr
    lax = tmp_path / "lax.yaml"
    lax.write_text("fingerprint: warn\n")
    allowed = cli("train", "--config", lax, "--resume", "--run-dir", run.path)
    assert allowed.returncode == 0, allowed.stderr
    monkeypatch.delenv("MKL_CBWR")
    events = "".join(
        event["text"] for event in json.loads(cli("report", run.path, "--json").stdout)["events"]
    )
    assert "the same answer is no longer promised" in events


DRAWN = """
def data():
    import numpy as np

    x = np.random.default_rng().normal(size=(320, 6)).astype(np.float32)
    return {"x": x, "y": (x.sum(1) > 0).astype(np.int64)}
"""
OF_A_SET = """
def data():
    import numpy as np

    words = {word: number for number, word in enumerate({str(each) for each in range(320)})}
    x = np.eye(6, dtype=np.float32)[[number % 6 for number in words.values()]]
    return {"x": x, "y": np.array([int(word) % 2 for word in words])}
"""


OF_A_FILE = """
def data():
    import numpy as np

    records = np.load(Path(__file__).with_name("records.npz"))
    return {"x": records["x"], "y": records["y"]}
"""


OF_FILES = """
class Records:
    def __init__(self, folder):
        self.files = sorted(folder.glob("[0-9]*.npz"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, number):
        import numpy as np

        with np.load(self.files[number]) as record:
            return {"x": record["x"], "y": record["y"]}


def data():
    return ef.data.Indexed(Records(Path(__file__).parent))
"""


OF_ONE_FILE = """
class Records:
    def __init__(self, path):
        self.path = path

    def __len__(self):
        import numpy as np

        with np.load(self.path) as records:
            return len(records["x"])

    def __getitem__(self, number):
        import numpy as np

        with np.load(self.path) as records:
            return {name: records[name][number] for name in ("x", "y")}


def data():
    return ef.data.Indexed(Records(Path(__file__).parent / "records.npz"))
"""


def with_data(folder: Path, data: str) -> None:
    (folder / "program.py").write_text(PROGRAM[: PROGRAM.index("def data")] + data.lstrip())


def test_resume_where_the_program_draws_other_records(
    start: Callable[..., Run], folder: Path, tmp_path: Path
) -> None:
    """In memory nothing else tells of it, and one worker alone finds nobody to differ from."""
    with_data(folder, DRAWN)
    run = start(str(folder / "program.py"), *OPTIONS[:-1], 1, shut=[LATE], name="run")
    run.wait_for_step(10)
    assert run.stop(held_at=LATE).returncode == 0 and run.wait()[0] == 3
    refused = cli("train", "--resume", "--run-dir", run.path)
    assert refused.returncode == 1 and "than those who made the checkpoint: of the first" in refused.stderr
    lax = tmp_path / "lax.yaml"
    lax.write_text("fingerprint: warn\n")
    assert cli("train", "--config", lax, "--resume", "--run-dir", run.path).returncode == 0


def change_one(path: Path) -> None:
    """Of a record that is not in the first slice."""
    with np.load(path) as records:
        x, y = records["x"], records["y"]
    y[57] ^= 1
    np.savez(path, x=x, y=y)


def change_it(path: Path) -> None:
    """The class of its only record."""
    with np.load(path) as record:
        x, y = record["x"], record["y"]
    np.savez(path, x=x, y=y ^ 1)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_file_that_the_program_reads_by_itself_changes(
    start: Callable[..., Run], undisturbed: str, folder: Path, goes_on: bool
) -> None:
    """In one record: who joins afterwards, or resumes, says so, and goes on once it is as it was."""
    with_data(folder, OF_A_FILE)
    records = folder / "records.npz"
    before = records.read_bytes()
    if goes_on:
        run = start(str(folder / "program.py"), *OPTIONS, shut=[LATE])
        run.wait_for_workers(2)
        for _ in range(2):
            run.held_at(LATE)
        change_one(records)
        run.kill("worker-1")
        run.kill("worker-2")
        code, output = run.wait()
        assert code == 1 and "would train on other records than the first worker" in error_in(output), output
    else:
        run = stopped(start, folder)
        change_one(records)
        refused = cli("train", "--resume", "--run-dir", run.path)
        assert refused.returncode == 1
        assert "would train on other records than those who made the checkpoint" in refused.stderr
    records.write_bytes(before)
    resumed = cli("train", "--resume", "--run-dir", run.path)
    assert digest_in(resumed.stdout) == undisturbed


@pytest.mark.parametrize("goes_on", [False, True])
def test_one_of_the_files_that_a_dataset_reads_changes(
    start: Callable[..., Run], undisturbed: str, folder: Path, goes_on: bool
) -> None:
    """Whoever reads it again finds out, or who resumes."""
    with_data(folder, OF_FILES)
    with np.load(folder / "records.npz") as records:
        for number, (x, y) in enumerate(zip(records["x"], records["y"], strict=True)):
            np.savez(folder / f"{number:03}.npz", x=x, y=y)
    record = folder / "057.npz"
    before = record.read_bytes()
    if goes_on:
        run = start(str(folder / "program.py"), *OPTIONS, shut=["step 15"])
        run.held_at("step 15")
        change_it(record)
        run.open("step 15")
        code, output = run.wait()
        assert code == 1 and str(record) in error_in(output) and "has changed: " in error_in(output), output
    else:
        run = stopped(start, folder)
        change_it(record)
        refused = cli("train", "--resume", "--run-dir", run.path)
        assert refused.returncode == 1 and "the data has changed since the checkpoint" in refused.stderr
    record.write_bytes(before)
    resumed = cli("train", "--resume", "--run-dir", run.path)
    assert digest_in(resumed.stdout) == undisturbed


def test_the_one_file_that_a_dataset_opens_by_its_name_changes(
    start: Callable[..., Run], undisturbed: str, folder: Path
) -> None:
    with_data(folder, OF_ONE_FILE)
    run, records = stopped(start, folder), folder / "records.npz"
    before = records.read_bytes()
    change_it(records)
    refused = cli("train", "--resume", "--run-dir", run.path)
    assert refused.returncode == 1 and "the data has changed since the checkpoint" in refused.stderr
    assert "dataset.path names it" in refused.stderr
    records.write_bytes(before)
    resumed = cli("train", "--resume", "--run-dir", run.path)
    assert digest_in(resumed.stdout) == undisturbed


def test_the_order_of_a_set_is_the_same_in_each_run(start: Callable[..., Run], folder: Path) -> None:
    with_data(folder, OF_A_SET)
    first, second = (start(str(folder / "program.py"), *OPTIONS, name=name) for name in ("first", "second"))
    assert first.digest() == second.digest()


def test_many_files_of_records(tmp_path: Path, start: Callable[..., Run]) -> None:
    """One of them changes while both workers have it open: noticed as soon as somebody reads it again."""
    names: list[Any] = [tmp_path / f"part-{number}.csv" for number in range(3)]
    for number, name in enumerate(names):
        rows = "".join(f"{number}.{row},{row % 2}\n" for row in range(100))
        name.write_text(f"a,y\n{rows}")
    program = """
import torch
import elasticflow as ef
from gates import pass_gate

def model():
    return {"w": torch.zeros(2), "optimizer": ef.SGD(lr=0.1)}

def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.1

def forward(a, y, params):
    return (a * params["w"][0] + params["w"][1] - y).square().mean()

def data():
    return ef.data.CSV("FOLDER/part-*.csv", cache_bytes=1, block_bytes=500)
"""
    (tmp_path / "program.py").write_text(program.replace("FOLDER", str(tmp_path)))
    shutil.copy(PROGRAMS / "gates.py", tmp_path)
    options = ("--epochs", 20, "--batch-size", 30, "--workers", 2, "--slices", 2, "--seed", 3)
    run = start(str(tmp_path / "program.py"), *options, shut=["step 20"])
    run.held_at("step 20")
    names[1].write_text(names[1].read_text().replace("1.5,", "1.7,"))
    run.open("step 20")
    code, output = run.wait()
    assert code == 1, output
    assert str(names[1]) in error_in(output)
