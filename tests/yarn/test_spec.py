"""The specification that is submitted, to the letter; and that Skein and bash read it as it is meant.

The files in ``golden`` are written anew with ELASTICFLOW_WRITE_GOLDEN=1; read what has changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from elasticflow.cluster.scripts import as_yaml
from elasticflow.errors import ConfigError
from elasticflow.run.config import Config
from elasticflow_yarn.config import read
from elasticflow_yarn.spec import quoted, specification

GOLDEN = Path(__file__).parent / "golden"
RUN_DIR = "hdfs:///user/ann/elasticflow/runs/digits-1"


class Case(NamedTuple):
    section: dict[str, Any] = {}
    run_dir: str = RUN_DIR
    resume: bool = False
    threads: int = 1
    least: int = 1
    file_systems: tuple[str, ...] = ()


CASES = {
    "default": Case(),
    "resume": Case(resume=True),
    "no_gpu": Case({"gpus": 0}),
    "environment": Case({"environment": "env.tar.gz"}),
    "shared_environment": Case({"environment": "hdfs:///envs/torch.tar.gz"}),
    "setup": Case({"setup": "module load cuda\nexport NCCL_DEBUG='WARN'\n", "python": "/opt/my python"}),
    "odd_run_dir": Case(run_dir='hdfs:///runs/it\'s "50%" of $HOME'),
    "everything": Case(
        {
            "queue": "root.train",
            "name": "my run",
            "tags": ["nightly"],
            "node_label": "gpu",
            "acls": {"enable": True, "view_users": ["bob"], "ui_users": ["*"]},
            "max_attempts": 3,
            "master_memory": "2 GiB",
            "server_memory": "16 GiB",
            "server_vcores": 4,
            "memory": "32 GiB",
            "gpus": 2,
            "vcores": 4,
            "env": {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "2", "JDK_JAVA_OPTIONS": "-Dx=y"},
            "files": {
                "words.txt": "hdfs:///data/words.txt",
                "raw.zip": {"source": "raw.zip", "type": "file"},
            },
        },
        threads=8,
        least=2,
        file_systems=("hdfs://other:8020",),
    ),
}


@pytest.fixture(autouse=True)
def python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/elasticflow/bin/python")


def made(case: Case) -> dict[str, Any]:
    return specification(
        Config(program="program/digits.py", threads=case.threads, workers=f"{case.least}..4"),
        read(case.section),
        run_dir=case.run_dir,
        program=f"{RUN_DIR}/program.tar.gz",
        resume=case.resume,
        file_systems=case.file_systems,
    )


@pytest.mark.parametrize("name", CASES)
def test_specifications_are_as_in_the_golden_files(name: str) -> None:
    text, path = as_yaml(made(CASES[name])), GOLDEN / f"{name}.yaml"
    if os.environ.get("ELASTICFLOW_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), path.name


@pytest.mark.parametrize("name", CASES)
def test_skein_reads_what_was_meant(name: str) -> None:
    skein = pytest.importorskip("skein")
    spec = made(CASES[name])
    read_again = skein.ApplicationSpec.from_dict(yaml.safe_load(as_yaml(spec)))
    assert read_again.max_attempts == spec["max_attempts"] and read_again.queue == spec["queue"]
    for service in ("worker", "server"):
        found, wanted = read_again.services[service], spec["services"][service]
        assert found.script == wanted["script"] and found.env == wanted["env"]
        least = CASES[name].least if service == "worker" else 1
        assert (found.instances, found.max_restarts, found.allow_failures) == (least, 0, True)
        assert f"{found.resources.memory} MiB" == wanted["resources"]["memory"]
        assert found.resources.gpus == wanted["resources"].get("gpus", 0)
    pulse = read_again.services["pulse"]
    assert (pulse.instances, pulse.nodes, pulse.relax_locality) == (1, ["0.0.0.0"], False)
    assert read_again.master.script == spec["master"]["script"]
    assert str(read_again.master.files["program"].type) == "ARCHIVE"


def test_the_master_may_have_to_ask_for_all_containers_itself() -> None:
    spec = specification(Config(), read({}), run_dir=RUN_DIR, program="program.tar.gz", first=False)
    assert [spec["services"][name]["instances"] for name in ("worker", "server")] == [0, 0]


@pytest.mark.parametrize("name", CASES)
def test_bash_reads_the_scripts(name: str) -> None:
    spec = made(CASES[name])
    for script in (spec["master"]["script"], spec["services"]["worker"]["script"]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def script_with(python: Path, run_dir: str = RUN_DIR) -> str:
    script: str = made(Case({"python": str(python)}, run_dir=run_dir))["master"]["script"]
    return script


def executed(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True)


def fake_python(folder: Path, lines: str) -> Path:
    """Its second call is the leader's; the first asks what can be imported."""
    path = folder / "a python"
    asked, _, leading = lines.partition("\n")
    path.write_text(f'#!/bin/bash\n[ "$1" = -c ] && {{ {asked}; }}\n{leading}')
    path.chmod(0o755)
    return path


def test_a_leader_that_is_killed_comes_again(tmp_path: Path) -> None:
    """In place; and its last exit code is the script's. It is told which run, to the letter."""
    python = fake_python(
        tmp_path, 'exit 0\necho "$7" >> calls\n[ $(wc -l < calls) = 2 ] && exit 3\nkill -9 $$\n'
    )
    ended = executed(tmp_path, script_with(python, CASES["odd_run_dir"].run_dir))
    assert ended.returncode == 3
    assert (tmp_path / "calls").read_text().splitlines() == [CASES["odd_run_dir"].run_dir] * 2


@pytest.mark.parametrize("code", [0, 1, 3, 4])
def test_a_leader_that_has_ended_does_not(tmp_path: Path, code: int) -> None:
    python = fake_python(tmp_path, f"exit 0\necho once >> calls\nexit {code}\n")
    assert executed(tmp_path, script_with(python)).returncode == code
    assert (tmp_path / "calls").read_text() == "once\n"


def test_no_python_is_told_in_one_line(tmp_path: Path) -> None:
    ended = executed(tmp_path, script_with(tmp_path / "nowhere"))
    assert ended.returncode == 1 and len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith(f"Error: there is no {tmp_path}/nowhere on ")
    assert ended.stderr.endswith("; see yarn.python and yarn.environment\n")


def test_a_python_without_elasticflow_is_told_in_one_line(tmp_path: Path) -> None:
    python = fake_python(tmp_path, "echo Traceback >&2; echo \"No module named 'zmq'\" >&2; exit 1\n")
    ended = executed(tmp_path, script_with(python))
    assert ended.returncode == 1 and len(ended.stderr.splitlines()) == 1
    assert "cannot import elasticflow: No module named 'zmq'; see " in ended.stderr


def test_values_reach_a_container_as_they_are() -> None:
    """YARN's script for a container has: export NAME="VALUE"."""
    value = 'a "b" \\ `c` {"d": 1}'
    (written,) = quoted({"NAME": value}).values()
    script = f'export NAME="{written}"; printf %s "$NAME"'
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == value


def test_an_archive_that_yarn_does_not_unpack() -> None:
    with pytest.raises(ConfigError, match=r"env\.tar\.bz2: YARN unpacks \.tar\.gz, \.tgz, \.zip"):
        made(Case({"environment": "env.tar.bz2"}))
