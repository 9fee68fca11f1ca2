"""``run.json`` between versions of ElasticFlow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticflow import __version__
from elasticflow.cli.main import main
from elasticflow.errors import RunError
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir


def rewrite(run: RunDir, **values: Any) -> None:
    path = Path(run.settings)
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_only_what_differs_is_written_and_all_of_it_is_read(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    chosen = Config(program="some.py", run_dir=str(run.path), epochs=3, slurm={"partition": "gpu"})
    run.create(chosen)
    written = json.loads(Path(run.settings).read_text())
    assert written == {
        "version": __version__,
        "program": "some.py",
        "run_dir": str(run.path),
        "epochs": 3,
        "slurm": {"partition": "gpu"},
    }
    assert run.config() == chosen


def test_a_file_of_a_version_that_wrote_all_settings(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.create(Config())
    chosen = Config(program="some.py", batch_size=32)
    Path(run.settings).write_bytes(msgspec.json.encode(chosen))
    assert run.config() == chosen


@pytest.mark.parametrize("version", ["9.1.0", ""])
def test_a_later_versions_file_is_named_with_what_to_do(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path / "run")
    run.create(Config(program="some.py"))
    rewrite(run, version="9.1.0")
    assert run.config().program == "some.py", "all that it says is known"
    rewrite(run, version=version, warp=9)
    assert main(["train", "--resume", "--run-dir", str(run.path)]) == 1
    said = capsys.readouterr().err
    assert (
        f"written by {'ElasticFlow 9.1.0' if version else 'another ElasticFlow'}, this is {__version__}"
        in said
    )
    assert (
        "does not know the setting warp. Go on with the one that wrote it" in said and said.count("\n") == 1
    )


@pytest.mark.parametrize("values", [{"epochs": "three"}, {"epochs": 0}, {"slices": 3}, {"workers": "x"}])
def test_a_setting_that_cannot_be(tmp_path: Path, values: dict[str, Any]) -> None:
    run = RunDir(tmp_path)
    run.create(Config())
    rewrite(run, **values)
    with pytest.raises(RunError, match=r"run\.json: cannot be read: "):
        run.config()
