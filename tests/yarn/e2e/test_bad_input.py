"""What cannot be is told at once, in one message with the numbers, and leaves nothing behind."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticflow.run.folder import RunDir
from tests.clusters.hadoop import HadoopCluster
from tests.e2e.conftest import PROGRAMS, cli
from tests.e2e.processes import Outcome

from .conftest import SMALL, WORK, YarnRun


@pytest.fixture
def submitted(hadoop: HadoopCluster, tmp_path: Path, url: str) -> Callable[..., Outcome]:
    """How ``submit`` ends, in an empty folder."""

    def outcome(*options: object, program: object = PROGRAMS / "small_torch.py", **section: Any) -> Outcome:
        folder = tmp_path / "here"
        folder.mkdir()
        config = tmp_path / "yarn.yaml"
        config.write_text(yaml.safe_dump({"backend": "yarn", **WORK, "yarn": {**SMALL, **section}}))
        where = () if "--run-dir" in options else ("--run-dir", f"{url}/run")
        return Outcome(folder, "submit", config, program, *where, *options)

    return outcome


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"queue": "night"}, ("yarn.queue", "'night'", "prod", "train")),
        ({"gpus": 4}, ("4 GPUs", "2 GPUs", "node")),
        ({"memory": "100 GiB"}, ("100 GiB", "8 GiB")),
        ({"gpu": 1}, ("yarn", "gpu", "Known keys: ", "gpus")),
        ({"gpus": "two"}, ("yarn.gpus",)),
        ({"memory": "much"}, ("yarn.memory", "'much'", "2 GiB")),
        ({"environment": "/nowhere/environment.tar.gz"}, ("yarn.environment", "/nowhere/environment.tar.gz")),
    ],
)
def test_settings_that_cannot_be(
    hadoop: HadoopCluster,
    submitted: Callable[..., Outcome],
    url: str,
    section: dict[str, Any],
    words: tuple[str, ...],
) -> None:
    if "environment" in section:
        section = {**section, "python": ""}
    outcome = submitted(**section)
    outcome.refused(*words)
    assert outcome.found == [] and not RunDir(url).path.exists()
    assert not hadoop.applications()


def test_no_yarn_on_the_path(
    submitted: Callable[..., Outcome], hadoop: HadoopCluster, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = [each for each in os.environ["PATH"].split(":") if not each.startswith(str(hadoop.folder))]
    monkeypatch.setenv("PATH", ":".join(path))
    submitted().refused("yarn", "PATH")
    assert not RunDir(url).path.exists()


def test_a_user_who_may_not_write_there(
    submitted: Callable[..., Outcome], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    submitted().refused("stranger", "--run-dir")
    monkeypatch.undo()
    assert not RunDir(url).path.exists()


def test_a_folder_that_is_in_use(submitted: Callable[..., Outcome], url: str) -> None:
    thesis = RunDir(url).path / "thesis.tex"
    thesis.parent.mkdir(parents=True)
    thesis.replace_bytes(b"\\end{document}")  # type: ignore[union-attr]
    submitted("--run-dir", url).refused("is not empty", "--run-dir")
    assert thesis.read_bytes() == b"\\end{document}"


def test_data_that_are_not_there(submitted: Callable[..., Outcome], url: str) -> None:
    submitted("--data", f"{url}/day=*/*.parquet").refused("no file matches", url)
    assert not RunDir(url).path.exists()


def test_a_folder_of_this_machine(submitted: Callable[..., Outcome], tmp_path: Path) -> None:
    submitted("--run-dir", tmp_path / "run").refused("hdfs:///", "--run-dir")
    assert not (tmp_path / "run").exists()


def test_an_environment_without_what_the_program_imports(
    submitted: Callable[..., Outcome], hadoop: HadoopCluster, tmp_path: Path, url: str
) -> None:
    """Told before the submission, or else by the application, in one line."""
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        script = b'#!/bin/sh\nexec python3 -S -I "$@"\n'  # has nothing but Python itself
        entry = tarfile.TarInfo("bin/python")
        entry.size, entry.mode = len(script), 0o755
        tar.addfile(entry, io.BytesIO(script))
    outcome = submitted("--attach", environment=str(archive), python="")
    assert outcome.code == 1 and "Traceback" not in outcome.err + outcome.out, outcome.err
    assert "elasticflow" in outcome.err or "torch" in outcome.err, outcome.err
    assert not outcome.left


def test_a_program_that_fails_at_import(submit: Callable[..., YarnRun], tmp_path: Path) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "broken.py").write_text("import no_such_module\n\ndef model(): ...\ndef forward(x, y): ...\n")
    run = submit(str(folder / "broken.py"), "--workers", 2)
    code, output = run.wait()
    assert code == 1 and "no_such_module" in output and "Error: " in output, output
    if "application_" in output:
        run.leaves_nothing()


def test_unknown_keys_in_the_settings_of_an_application(
    submit: Callable[..., YarnRun],
) -> None:
    run = submit("small_torch.py", yarn={"instances": 3})
    code, output = run.wait()
    assert code == 1 and "instances" in output and "Known keys: " in output, output


def test_a_python_that_is_not_on_the_nodes(submit: Callable[..., YarnRun]) -> None:
    """No Python of ours has run: what the script has said is shown all the same."""
    run = submit("small_torch.py", "--workers", 1, yarn={"python": "/no/python3", "max_attempts": 1})
    code, output = run.wait()
    sentence = "there is no /no/python3 on"
    assert code == 1 and sentence in output and "see yarn.python" in output, output
    for verb in ("status", "logs"):
        told = cli(verb, run.path)
        assert told.returncode == 0 and sentence in told.stdout, told
