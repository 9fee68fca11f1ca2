"""Predictions and evaluations of a run's model: the same bytes whoever computes them, and whoever dies."""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elasticflow as ef
from tests.clusters.processes import parent_of

from .conftest import PATIENCE_S, PROGRAMS, Run
from .processes import CLI, Outcome, assert_told, end_all, new_mark
from .programs.gates import MARK, Gate

RECORDS, PART = 1000, 64
OPTIONS = ("--part-records", PART, "--batch-records", 32)


def numbers(seed: int = 5, count: int = RECORDS) -> dict[str, np.ndarray[Any, Any]]:
    """As those of the program, without the label; and columns to keep."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4)).astype(np.float32) * 1000
    x[:, 0] = np.arange(count)
    names = np.array([f"record {n}" for n in range(count)])
    return {"x": x, "word": rng.integers(0, 90, count) * 1_000_003, "name": names, "id": np.arange(count) + 7}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("given") / "new.npz"
    np.savez(path, **numbers())
    return path


@pytest.fixture(scope="module")
def undisturbed(trained: Path, given: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What one process predicts."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = predict(folder, trained, given, "out.npz", "--keep", "id,name", "--workers", 1)
    assert done.code == 0, done.err
    return (folder / "out.npz").read_bytes()


def predict(folder: Path, run: Path, data: object, out: str, *options: object) -> Outcome:
    return Outcome(folder, "predict", run, "--data", data, "--out", out, *OPTIONS, *options)


def test_they_are_what_the_model_gives(
    trained: Path, given: Path, undisturbed: bytes, tmp_path: Path
) -> None:
    """Rows of the table are found by their ids; those of ids that never came are as at first."""
    import torch

    (tmp_path / "out.npz").write_bytes(undisturbed)
    found, data, run = dict(np.load(tmp_path / "out.npz")), numbers(), ef.Run(trained)
    weights, net = run.weights(), run.model()["net"].eval()
    rows = dict(zip(weights["words.ids"].tolist(), weights["words.rows"], strict=True))
    known = np.array([word in rows for word in data["word"].tolist()])
    assert 0 < known.sum() < RECORDS
    looked_up = np.stack([rows.get(word, np.zeros(2, np.float32)) for word in data["word"].tolist()])
    with torch.no_grad():
        scores = (net(torch.from_numpy(data["x"] / 1000)) + torch.from_numpy(looked_up)).softmax(1).numpy()
    np.testing.assert_allclose(found["score"][known], scores[known], rtol=1e-4, atol=1e-6)
    assert (found["score"].argmax(1) == found["best"]).all()
    assert (found["id"] == data["id"]).all() and (found["name"] == data["name"]).all()


def test_any_number_of_processes(trained: Path, given: Path, undisturbed: bytes, tmp_path: Path) -> None:
    done = predict(tmp_path, trained, given, "out.npz", "--keep", "id,name", "--workers", 3)
    assert done.code == 0 and not done.left, done.err
    assert (tmp_path / "out.npz").read_bytes() == undisturbed
    assert done.found == ["out.npz"], "and nothing beside it"


@pytest.mark.parametrize("name", ["out.csv", "out.parquet", "out"])
def test_any_kind_of_output(trained: Path, given: Path, tmp_path: Path, name: str) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    hashes = set()
    for workers in (1, 3):
        folder = tmp_path / str(workers)
        folder.mkdir()
        done = predict(folder, trained, given, name, "--keep", "id,name", "--workers", workers)
        assert done.code == 0, done.err
        files = [folder / name] if name != "out" else sorted((folder / name).iterdir())
        hashes.add(tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files))
    assert len(hashes) == 1
    csv = name.endswith(".csv")
    table = pyarrow.csv.read_csv(files[0]) if csv else pyarrow.parquet.read_table(folder / name)
    assert table["id"].to_pylist() == numbers()["id"].tolist()
    assert table.column_names == ["id", "name", *(["score.0", "score.1"] if csv else ["score"]), "best"]


@pytest.fixture
def under_way(trained: Path, given: Path, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Begins a command, with a gate that is shut."""
    environment, begun, gates = new_mark(), [], []

    def begin(place: str, *options: object) -> tuple[subprocess.Popen[str], Gate]:
        arguments = ("predict", trained, "--data", given, "--out", "out.npz", "--keep", "id,name", *OPTIONS)
        gates.append(Gate({MARK: environment[MARK]}, place))
        command = [*CLI, *map(str, (*arguments, *options))]
        pipe = subprocess.PIPE
        begun.append(
            subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True)
        )
        return begun[-1], gates[-1]

    yield begin
    end_all(environment)
    for each in begun:
        each.communicate()
    for gate in gates:
        gate.open()


def test_a_killed_process_is_replaced(
    under_way: Callable[..., Any], undisturbed: bytes, tmp_path: Path
) -> None:
    command, gate = under_way(f"record {5 * PART + 32}", "--workers", 2)
    os.kill(gate.next_pid(PATIENCE_S), signal.SIGKILL)
    gate.open()
    _, err = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0, err
    assert "1 process died on the way" in err
    assert (tmp_path / "out.npz").read_bytes() == undisturbed


def test_who_forks_the_processes_is_killed_and_others_begin_anew(
    under_way: Callable[..., Any], undisturbed: bytes, tmp_path: Path
) -> None:
    command, gate = under_way(f"record {5 * PART + 32}", "--workers", 2)
    forker = parent_of(gate.next_pid(PATIENCE_S))
    assert parent_of(forker) == command.pid
    os.kill(forker, signal.SIGKILL)
    gate.open()
    _, err = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0, err
    assert "2 processes died on the way" in err
    assert (tmp_path / "out.npz").read_bytes() == undisturbed


def test_a_killed_command_is_gone_on_with(
    under_way: Callable[..., Any], undisturbed: bytes, tmp_path: Path
) -> None:
    """What was finished by then is used, and nothing has the output's name before all is there."""
    command, gate = under_way(f"record {9 * PART}", "--workers", 1)
    computes = os.pidfd_open(gate.next_pid(PATIENCE_S))
    command.kill()
    command.wait()
    assert select.select([computes], [], [], PATIENCE_S)[0], "it outlives the command"
    os.close(computes)
    gate.open()
    assert not (tmp_path / "out.npz").exists()
    again, gate = under_way("nowhere", "--workers", 2)
    _, err = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, err
    assert "9 of them from before" in err
    assert (tmp_path / "out.npz").read_bytes() == undisturbed


def test_a_damaged_part_is_said(
    under_way: Callable[..., Any], trained: Path, given: Path, undisturbed: bytes, tmp_path: Path
) -> None:
    parts = tmp_path / ".out.npz.predict" / "parts"
    command, gate = under_way(f"record {9 * PART}", "--workers", 1)
    gate.next_pid(PATIENCE_S)
    os.truncate(parts / "part-000002.npz", 0)
    gate.open()
    _, err = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 1
    assert_told(err, str(parts), "cannot be read any more", "Remove that folder, and give the same command")
    shutil.rmtree(parts)
    done = predict(tmp_path, trained, given, "out.npz", "--keep", "id,name")
    assert done.code == 0, done.err
    assert (tmp_path / "out.npz").read_bytes() == undisturbed


def test_parts_of_other_data_are_not_used(
    under_way: Callable[..., Any], trained: Path, tmp_path: Path
) -> None:
    command, gate = under_way(f"record {2 * PART}", "--workers", 1)
    gate.next_pid(PATIENCE_S)
    command.kill()
    command.wait()
    gate.open()
    np.savez(tmp_path / "other.npz", **numbers(seed=6))
    done = predict(tmp_path, trained, "other.npz", "out.npz", "--keep", "id,name")
    assert done.code == 0 and "is not used" in done.err
    fresh = predict(tmp_path, trained, "other.npz", "fresh.npz", "--keep", "id,name")
    assert fresh.code == 0, fresh.err
    assert (tmp_path / "out.npz").read_bytes() == (tmp_path / "fresh.npz").read_bytes()


def test_two_commands_do_not_write_one_output(
    under_way: Callable[..., Any], trained: Path, given: Path, tmp_path: Path
) -> None:
    _, gate = under_way("record 0", "--workers", 1)
    gate.next_pid(PATIENCE_S)
    predict(tmp_path, trained, given, "out.npz").refused("another command is writing it just now")


@pytest.mark.parametrize("way", ["KILLS", "RAISES"])
def test_a_bad_record_is_named(
    trained: Path, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv(way, "333")
    words = "was killed by SIGKILL" if way == "KILLS" else "a record that I do not like"
    predict(tmp_path, trained, given, "out.npz", "--workers", 2).refused("record 333 (", words)
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("out", ["out.npz", "out.csv", "out.parquet"])
def test_what_no_file_can_hold_is_said(trained: Path, given: Path, tmp_path: Path, out: str) -> None:
    """And by which name; no process dies of it, least of all twenty."""
    text = (PROGRAMS / "applied_torch.py").read_text().replace("def predict(", "def others(")
    (tmp_path / "odd.py").write_text(
        f"{text}\n\ndef predict(x, word, params):\n    return {{'a\\udc80': x}}\n"
    )
    (tmp_path / "gates.py").write_text((PROGRAMS / "gates.py").read_text())
    predict(tmp_path, trained, given, out, "--program", "odd.py").refused("a\\udc80", out[3:])


def test_what_processes_that_die_have_said_is_told(trained: Path, given: Path, tmp_path: Path) -> None:
    text = (PROGRAMS / "applied_torch.py").read_text().replace("def predict(", "def others(")
    words = "raise BaseException('words of the program')"
    (tmp_path / "odd.py").write_text(f"{text}\n\ndef predict(x, word, params):\n    {words}\n")
    (tmp_path / "gates.py").write_text((PROGRAMS / "gates.py").read_text())
    predict(tmp_path, trained, given, "out.npz", "--program", "odd.py", "--workers", 1).refused(
        "record 0 (", "its last words were: BaseException: words of the program"
    )


def test_a_full_disk(trained: Path, given: Path, undisturbed: bytes, tmp_path: Path) -> None:
    """The command says so, and once there is room it goes on from where it was."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=160k", "elasticflow-test", str(disk)]
    if subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("may not mount a tmpfs")
    try:
        full = predict(disk, trained, given, "out.npz", "--keep", "id,name", "--workers", 2)
        full.refused("No space left on device", "Make room there, and give the same command again")
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        done = predict(disk, trained, given, "out.npz", "--keep", "id,name", "--workers", 2)
        assert done.code == 0, done.err
        assert (disk / "out.npz").read_bytes() == undisturbed
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(
    ("columns", "out", "options", "words"),
    [
        ({"x": 1}, "o.npz", (), "there is no array 'word'"),
        ({"x": 1, "word": 1}, "o.npz", ("--keep", "id"), "no column 'id' to keep. There are: 'x', 'word'"),
        ({"x": 1, "word": np.float32}, "o.npz", (), "'word' holds float32 of shape [], and int64 of shape"),
        ({"x": 1, "word": 1}, "o.txt", (), "a file that ends with .parquet, .csv, .npz"),
        ({"x": 1, "word": 1}, "no/o.npz", (), "there is no folder"),
        ({"x": 0, "word": 0}, "o.npz", (), "empty"),
        ({"x": 1, "word": 1}, "o.npz", ("--step", 3), "holds no checkpoint of step 3"),
        ({"x": 1, "word": 1}, "o.npz", ("--best",), "no checkpoint is kept as the best one"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(
    trained: Path, tmp_path: Path, columns: dict[str, Any], out: str, options: tuple[object, ...], words: str
) -> None:
    arrays = {
        name: numbers()[name][: 50 * (how != 0)].astype(
            how if isinstance(how, type) else numbers()[name].dtype
        )
        for name, how in columns.items()
    }
    np.savez(tmp_path / "bad.npz", **arrays)
    predict(tmp_path, trained, "bad.npz", out, *options).refused(words)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.npz"]


def test_no_predict(trained: Path, given: Path, tmp_path: Path) -> None:
    text = (PROGRAMS / "applied_torch.py").read_text().replace("def predict(", "def others(")
    (tmp_path / "without.py").write_text(text)
    (tmp_path / "gates.py").write_text((PROGRAMS / "gates.py").read_text())
    done = predict(tmp_path, trained, given, "out.npz", "--program", "without.py")
    assert done.code == 1 and "defines no predict()" in done.err and "def predict(x, params):" in done.err


# --- evaluations -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
def test_an_evaluation_is_the_runs_own(trained: Path, tmp_path: Path, workers: int) -> None:
    import sys

    sys.path.insert(0, str(PROGRAMS))
    from applied_torch import records  # type: ignore[import-not-found]

    np.savez(tmp_path / "test.npz", **records(2, 500))
    done = Outcome(tmp_path, "evaluate", trained, "--data", "test.npz", "--workers", workers, "--json")
    assert done.code == 0, done.err
    report = json.loads((trained / "report.json").read_text())
    assert json.loads(done.out) == report["evaluations"][-1]


def test_without_labels_nothing_is_evaluated(trained: Path, given: Path, tmp_path: Path) -> None:
    Outcome(tmp_path, "evaluate", trained, "--data", given).refused("there is no array 'y'")


# --- TensorFlow, tables of files ---------------------------------------------------------------------


def make_table(path: Path, seed: int, count: int, label: bool = True) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=count) * 10, rng.normal(size=count)
    city = [["Rome", "Oslo", "Lima", None][n] for n in rng.integers(0, 4, count)]
    columns = {
        "a": a,
        "b": b,
        "city": city,
        "day": pa.array(rng.integers(0, 99, count, np.int32), pa.date32()),
    }
    y = {"y": (a / 10 + b > 0).astype(np.int64)} if label else {}
    pq.write_table(pa.table({**columns, **y}), path, row_group_size=150)


def test_a_table_by_the_same_rules_in_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setenv("TABLE", str(tmp_path))
    (tmp_path / "cities.json").write_text('{"city": ["Rome", "Oslo"]}')
    for name, seed, count in (("train", 1, 640), ("test", 2, 400)):
        make_table(tmp_path / f"{name}.parquet", seed, count)
    (tmp_path / "new").mkdir()
    make_table(tmp_path / "new" / "one.parquet", 3, 333, label=False)
    make_table(tmp_path / "new" / "two.parquet", 4, 200, label=False)
    run_dir = tmp_path / "run"
    with Run(run_dir, "applied_tensorflow.py", "--epochs", 1, "--batch-size", 64, "--workers", 1) as run:
        run.finish()
    found = []
    for workers in (1, 2):
        done = predict(
            tmp_path, run_dir, "new", f"{workers}.parquet", "--keep", "day,city", "--workers", workers
        )
        assert done.code == 0, done.err
        found.append((tmp_path / f"{workers}.parquet").read_bytes())
    evaluated = Outcome(tmp_path, "evaluate", run_dir, "--data", "test.parquet", "--workers", 2, "--json")
    assert evaluated.code == 0, evaluated.err
    report = json.loads((run_dir / "report.json").read_text())
    assert json.loads(evaluated.out) == report["evaluations"][-1]
    assert found[0] == found[1]
    table, data = pq.read_table(tmp_path / "1.parquet"), pq.read_table(tmp_path / "new")
    assert table.select(["day", "city"]).equals(data.select(["day", "city"]))
    scores = np.array(table["prediction"].to_pylist())
    assert scores.shape == (533, 2) and len(np.unique(scores[:, 0])) > 100
    # Another night has another order of the same values.
    (tmp_path / "cities.json").write_text('{"city": ["Oslo", "Rome"]}')
    wrong = "the vocabularies of city are not those that the model was trained with"
    asked = Outcome(tmp_path, "evaluate", run_dir, "--data", "test.parquet")
    for refused in (asked, predict(tmp_path, run_dir, "new", "other.parquet")):
        assert refused.code == 1
        assert_told(refused.err, wrong)
    assert not (tmp_path / "other.parquet").exists()
