"""What people begin with: conf/slurm.yaml, slurm/digits.sbatch and slurm/README.md."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml

from elasticflow.errors import ConfigError
from elasticflow.run import config
from elasticflow.run.config import Config
from elasticflow_slurm.config import PlaceConfig, SlurmConfig, read
from elasticflow_slurm.scripts import leader_script
from tests.clusters.slurm import SlurmCluster

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf" / "slurm.yaml"
BATCH = ROOT / "slurm" / "digits.sbatch"
PARTITIONS = {"leader": {"partition": "cpu"}, "workers": [{"partition": "gpu"}]}


def test_the_example_shows_every_key_with_its_default_and_a_comment() -> None:
    values = yaml.safe_load(CONF.read_text())
    assert set(values) == {"backend", "workers", "slurm"}
    assert set(values["slurm"]) == set(SlurmConfig.__struct_fields__)
    assert read(values["slurm"]) == read(PARTITIONS)
    lines = [line for line in CONF.read_text().splitlines() if ":" in line and line.strip()[0] != "#"]
    assert len(lines) == len(values) + len(values["slurm"])
    assert all(len(line.partition("  # ")[2]) > 10 for line in lines if line.startswith("  "))


def test_the_example_names_what_a_place_has() -> None:
    (line,) = re.findall(r"^ *leader: .*# (.*)$", CONF.read_text(), re.MULTILINE)
    assert all(name in line for name in PlaceConfig.__struct_fields__)


def test_the_example_is_one_of_a_whole_run() -> None:
    chosen = config.make(str(CONF), {"program": "digits.py"})
    assert chosen.backend == "slurm" and chosen.worker_range == (1, 6)
    assert msgspec.structs.replace(chosen, program="", workers="2", backend="local", slurm={}) == Config()


def test_times_need_quotes_as_the_example_says() -> None:
    """YAML takes 4:00:00 for a number to the base of 60; that must not become minutes."""
    text = CONF.read_text().replace('  time: ""', "  time: 4:00:00")
    with pytest.raises(ConfigError, match="slurm.time"):
        read(yaml.safe_load(text)["slurm"])


def _components(script: str) -> list[set[str]]:
    """The options of each, as sbatch reads them: up to the first command."""
    found: list[set[str]] = [set()]
    for line in script.splitlines():
        if line == "#SBATCH hetjob":
            found.append(set())
        elif line.startswith("#SBATCH "):
            found[-1].add(line)
        elif line and not line.startswith("#"):
            break
    return found


def test_the_batch_script_is_what_submit_would_make() -> None:
    chosen = config.make(str(CONF), {"program": "digits.py"})
    made = leader_script(chosen, read(chosen.slurm), "RUN", "/run", resume=False)
    ours = [
        {line for line in part if not line.startswith(("#SBATCH --comment", "#SBATCH --output"))}
        for part in _components(made)
    ]
    assert _components(BATCH.read_text()) == ours and len(ours) == 2
    assert BATCH.read_text().count("\n#SBATCH --") == sum(map(len, ours))


def test_the_batch_script_is_one_that_bash_can_read() -> None:
    done = subprocess.run(["bash", "-n", BATCH], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    (command,) = re.findall(r"^until (elasticflow lead \S+ --config \S+ .*); do$", BATCH.read_text(), re.M)
    _, _, program, _, settings, *_ = command.split()
    assert (ROOT / program).exists() and ROOT / settings == CONF


@pytest.mark.slurm
def test_sbatch_takes_the_batch_script(cluster: SlurmCluster) -> None:
    cluster.run("sbatch", "--test-only", str(BATCH))


def test_links_of_the_readme_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / "slurm" / "README.md").read_text()):
        assert link.startswith("https:") or (ROOT / "slurm" / link).exists(), link
