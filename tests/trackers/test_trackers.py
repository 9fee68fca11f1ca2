"""Each tracker by its own library: what it has drawn is read back, and begun again it has drawn the same."""

from __future__ import annotations

import csv
import errno
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from elasticflow.errors import ConfigError, RunError
from elasticflow.run.tracks import PACKAGES, TRACKERS, TrackDir, check_names, check_packages
from elasticflow.trackers import drawing
from elasticflow.trackers.drawing import Drawing, make_tracker
from elasticflow.trackers.points import TrackPoint
from elasticflow.trackers.tracker import About, CurveTracker

POINTS = [
    TrackPoint(1, "train", 1000.0, {"train/loss": 2.0, "learning_rate": 0.1, "workers": 2}),
    TrackPoint(5, "train", 1004.0, {"train/loss": 1.0, "learning_rate": 0.1, "workers": 2}),
    TrackPoint(5, "test", 1005.0, {"epoch": 1, "test/cost": 1.5, "test/accuracy": 0.5}),
]
FURTHER = [TrackPoint(9, "train", 1009.0, {"train/loss": 0.5, "learning_rate": 0.05, "workers": 1})]
pytestmark = pytest.mark.filterwarnings("ignore")  # libraries warn of themselves


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")


def about(path: Path) -> About:
    settings = {"epochs": 3, "program": "digits.py", "args.lr": 0.1}
    return About(str(path), "digits-1", "digits.py", 1000.0, settings, "0123456789abcdef")


def in_csv(path: Path) -> list[tuple[str, int, float]]:
    rows = list(csv.DictReader((path / "metrics.csv").read_text().splitlines()))
    assert len({row["step"] for row in rows}) == len(rows)
    return [
        (name, int(row["step"]), float(value))
        for row in rows
        for name, value in row.items()
        if value and name not in ("step", "time")
    ]


def in_tensorboard(path: Path) -> list[tuple[str, int, float]]:
    from tensorboardX.proto import event_pb2

    found = []
    (file,) = (path / "tensorboard").glob("events*")
    data = file.read_bytes()
    while data:
        length = int.from_bytes(data[:8], "little")
        event = event_pb2.Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]
        found += [
            (value.tag, event.step, value.simple_value)
            for value in event.summary.value
            if value.WhichOneof("value") == "simple_value"
        ]
    return found


def in_mlflow(path: Path) -> list[tuple[str, int, float]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(path / "mlflow" / "mlruns").resolve().as_uri())
    experiment = client.get_experiment_by_name("elasticflow")
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["args.lr"] == "0.1" and run.info.run_name == "digits-1"
    names = run.data.metrics
    return [
        (name, each.step, each.value)
        for name in names
        for each in client.get_metric_history(run.info.run_id, name)
    ]


def records(data: bytes, header: int = 7, block: int = 1 << 15) -> Iterator[bytes]:
    """Of a log as LevelDB writes it: sum, length and kind (all, first, middle, last), then a part."""
    at, parts = header, b""
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def in_wandb(path: Path) -> list[tuple[str, int, float]]:
    from wandb.proto import wandb_internal_pb2

    (file,) = (path / "wandb" / "wandb").glob("offline-run-*/*.wandb")
    found = []
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        items = {each.key or each.nested_key[0]: json.loads(each.value_json) for each in record.history.item}
        found += [
            (name, items["step"], value)
            for name, value in items.items()
            if name != "step" and not name.startswith("_")
        ]
    return found


READ: dict[str, Callable[[Path], list[tuple[str, int, float]]]] = {
    "csv": in_csv,
    "mlflow": in_mlflow,
    "tensorboard": in_tensorboard,
    "wandb": in_wandb,
}


def wanted(points: Sequence[TrackPoint]) -> list[tuple[str, int, float]]:
    return sorted((name, p.step, pytest.approx(v)) for p in points for name, v in p.values.items())


@pytest.mark.parametrize("name", TRACKERS)
def test_what_is_drawn_is_there_once_also_by_one_that_begins_again(tmp_path: Path, name: str) -> None:
    first = make_tracker(name, TrackDir(tmp_path), about(tmp_path))
    first.begin(POINTS[:1])
    first.draw(POINTS[1:])
    first.tell({"digest": "abc", "fingerprint.torch": "2"})
    first.end("stopped")
    assert sorted(READ[name](tmp_path)) == wanted(POINTS)
    second = make_tracker(name, TrackDir(tmp_path), about(tmp_path))
    second.begin(POINTS)
    second.draw(FURTHER)
    second.tell({"digest": "def"})
    second.end("finished")
    assert sorted(READ[name](tmp_path)) == wanted([*POINTS, *FURTHER])
    third = make_tracker(name, TrackDir(tmp_path), about(tmp_path))
    third.begin(POINTS)  # what came after is undone
    third.end("finished")
    assert sorted(READ[name](tmp_path)) == wanted(POINTS)


def test_mlflow_says_what_the_run_is(tmp_path: Path) -> None:
    tracker = make_tracker("mlflow", TrackDir(tmp_path), about(tmp_path))
    tracker.begin(POINTS)
    tracker.tell({"digest": "abc", "checkpoint": "here"})
    tracker.end("diverged")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "mlflow" / "mlruns").resolve().as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("elasticflow").experiment_id])
    assert run.data.tags["digest"] == "abc" and run.data.tags["checkpoint"] == "here"
    assert run.info.status == "FAILED"


def test_a_name_that_mlflow_refuses_costs_no_curve(tmp_path: Path) -> None:
    names = {
        "test/acc@5": "test/acc_5",
        "test/f1 (%)": "test/f1 ___",
        "test/../../up": "test_.._.._up",
        "test/a/b": "test/a/b",
        "test/" + 300 * "x": "test/" + 245 * "x",
    }
    points = [TrackPoint(step, "test", 1000.0 + step, dict.fromkeys(names, float(step))) for step in (1, 2)]
    for _ in range(2):  # the second finds what the first has drawn
        tracker = make_tracker("mlflow", TrackDir(tmp_path), about(tmp_path))
        tracker.begin(points[:1])
        tracker.draw(points[1:])
        tracker.end("finished")
    assert sorted(in_mlflow(tmp_path)) == sorted((name, s, s) for name in names.values() for s in (1, 2))


def test_a_full_disk_is_an_error_of_tensorboard_and_no_waiting_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must be raised where the tracker is called, also for more points than a queue would take."""
    from tensorboardX import record_writer

    made = record_writer.RecordWriter
    full = True

    def write(self: object, data: bytes) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written(self, data)

    written = made.write
    monkeypatch.setattr(made, "write", write)
    said: list[str] = []
    thread = Drawing(
        "tensorboard",
        lambda: make_tracker("tensorboard", TrackDir(tmp_path), about(tmp_path)),
        [],
        said.append,
    )
    full = False
    thread.start()
    thread.draw(POINTS)
    while not [*tmp_path.glob("tensorboard/events*")] or len(in_tensorboard(tmp_path)) < len(wanted(POINTS)):
        time.sleep(0.01)
    full = True
    for _ in range(20):
        thread.draw(FURTHER)
    thread.end("finished")
    thread.join(30)
    assert not thread.is_alive() and thread.problem == "OSError: [Errno 28] No space left on device"
    assert said == [f"tracker tensorboard: {thread.problem}; it is begun again later"]


class Odd(CurveTracker):
    """Fails as often as it is told to."""

    failures = 0
    drawn: list[TrackPoint] = []

    def begin(self, points: Sequence[TrackPoint]) -> None:
        if Odd.failures:
            Odd.failures -= 1
            raise SystemExit("no\nserver")
        Odd.drawn = list(points)

    def draw(self, points: Sequence[TrackPoint]) -> None:
        if Odd.failures:
            Odd.failures -= 1
            raise ValueError("no server")
        Odd.drawn += points

    def tell(self, facts: dict[str, str]) -> None: ...

    def end(self, state: str) -> None: ...


def odd(tmp_path: Path, failures: int, said: list[str]) -> Drawing:
    Odd.failures, Odd.drawn = failures, []
    drawing = Drawing("odd", lambda: Odd(tmp_path, about(tmp_path)), POINTS[:1], said.append)
    drawing.start()
    return drawing


def test_a_tracker_that_fails_is_begun_again_and_draws_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "AGAIN_S", 0.0)
    said: list[str] = []
    thread = odd(tmp_path, 2, said)
    thread.draw(POINTS[1:])
    thread.draw(FURTHER)
    thread.end("finished")
    thread.join(30)
    assert Odd.drawn == [*POINTS, *FURTHER] and not thread.problem
    assert said == ["tracker odd: SystemExit: no server; it is begun again later"]


def test_one_that_keeps_failing_says_so_once_and_is_tried_at_the_end(tmp_path: Path) -> None:
    said: list[str] = []
    thread = odd(tmp_path, 10**9, said)
    for _ in range(5):
        thread.draw(FURTHER)
    thread.end("finished")
    thread.join(30)
    assert len(said) == 1 and thread.problem == "SystemExit: no server"


def test_unknown_trackers_and_missing_packages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="'tensorbord' is no tracker; allowed are tensorboard, mlflow"):
        check_names(["csv", "tensorbord"])
    with pytest.raises(ConfigError, match="names one twice"):
        check_names(["csv", "csv"])
    monkeypatch.setitem(PACKAGES, "wandb", "no_such_package")
    with pytest.raises(ConfigError, match=r"wandb: needs the package no_such_package.*pip install"):
        check_packages(["csv", "wandb"])
    check_packages(["csv"])


def test_one_process_draws_in_a_folder(tmp_path: Path) -> None:
    folder = TrackDir(tmp_path / "tracks")
    assert not folder.is_held()
    descriptor = folder.hold()
    assert folder.is_held()
    with pytest.raises(RunError, match="another process draws"):
        folder.hold()
    os.close(descriptor)
    folder.wait_until_free(30)
    assert not folder.is_held() and folder.read_problems() == {}
    folder.problems.write_text('{"csv": "no"}')
    assert folder.read_problems() == {"csv": "no"}
