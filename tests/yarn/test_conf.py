"""What people begin with: conf/yarn.yaml and yarn/digits.yaml."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticflow.cli.verbs import parser
from elasticflow.cluster.scripts import as_yaml
from elasticflow.run.config import Config, make
from elasticflow_yarn.config import YarnConfig, read
from elasticflow_yarn.spec import MASTER, resources, specification

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf" / "yarn.yaml"
SPEC = ROOT / "yarn" / "digits.yaml"


def test_the_example_shows_every_key_with_its_default_and_a_comment() -> None:
    values = yaml.safe_load(CONF.read_text())
    assert set(values) == {"backend", "workers", "yarn"}
    assert set(values["yarn"]) == set(YarnConfig.__struct_fields__)
    assert read(values["yarn"]) == read({"queue": "train"})
    lines = [line for line in CONF.read_text().splitlines() if ":" in line and line.strip()[0] != "#"]
    assert len(lines) == len(values) + len(values["yarn"])
    own_words = ("master_vcores", "server_vcores", "memory")
    told = [line for line in lines if line.startswith("  ") and line.split(":")[0].strip() not in own_words]
    assert all(len(line.partition("  # ")[2]) > 8 for line in told)


def spec() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(SPEC.read_text())
    return found


def test_skein_takes_the_specification_and_finds_its_files() -> None:
    skein = pytest.importorskip("skein")
    found = skein.ApplicationSpec.from_file(str(SPEC))
    sources = {name: Path(file.source.removeprefix("file://")) for name, file in found.master.files.items()}
    assert sources.pop("environment") == ROOT / "environment.tar.gz"  # made by 'elasticflow pack'
    assert all(path.is_file() for path in sources.values())
    assert (found.services["worker"].instances, found.services["worker"].allow_failures) == (0, True)


def test_it_asks_for_what_the_settings_would() -> None:
    """And sets the libraries up alike, or the bits would be others."""
    config = make(str(CONF), {"program": "digits.py"})
    asked = resources(config, read(config.yarn))
    section = read(config.yarn)
    made = specification(config, section, run_dir="hdfs:///r", program="hdfs:///r/p.tar.gz", first=False)
    found = spec()
    assert found["max_attempts"] == made["max_attempts"] and found["queue"] == made["queue"]
    for name, holder in {MASTER: found, **dict.fromkeys(asked.keys() - {MASTER}, found["services"])}.items():
        wanted = asked[name]
        given = holder[name]["resources"]
        assert (given["memory"], given["vcores"]) == (f"{wanted.memory_mb // 1024} GiB", wanted.vcores)
        assert given.get("gpus", 0) == wanted.gpus
    for name in ("worker", "server"):
        env = {key: value for key, value in found["services"][name]["env"].items() if "GPU" not in key}
        assert env == {k: v for k, v in made["services"][name]["env"].items() if "GPU" not in k}
    assert found["services"]["worker"]["env"]["ELASTICFLOW_GPUS"] == "1"
    assert found["master"]["env"] == made["master"]["env"]
    pulse, meant = found["services"]["pulse"], made["services"]["pulse"]
    assert pulse == {**meant, "script": meant["script"].strip()}


def test_bash_and_the_command_line_read_its_scripts() -> None:
    found = spec()
    scripts = [found["master"]["script"], *(each["script"] for each in found["services"].values())]
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    (line,) = re.findall(r"until python -m elasticflow\.cli (.*); do", scripts[0])
    arguments = parser().parse_args(shlex.split(line))
    assert (arguments.verb, arguments.on) == ("lead", "yarn")
    assert {arguments.program, arguments.config} < set(found["master"]["files"])


def test_a_dry_run_reads_as_the_specification_it_is() -> None:
    made = specification(Config(program="p.py"), YarnConfig(), run_dir="hdfs:///r", program="hdfs:///p.tgz")
    assert yaml.safe_load(as_yaml(made)) == made
