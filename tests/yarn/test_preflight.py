"""What is refused before a run is submitted, and in which words."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import msgspec
import pytest

from elasticflow.cluster.pack import MANIFEST, Environment
from elasticflow.errors import ConfigError
from elasticflow.run.config import Config
from elasticflow_yarn.cluster import YarnNode, YarnQueue
from elasticflow_yarn.config import read
from elasticflow_yarn.errors import SkeinNotInstalled
from elasticflow_yarn.preflight import (
    check_cluster,
    check_environment,
    check_nodes,
    check_queue,
    check_tools,
)
from elasticflow_yarn.resources import Resources
from elasticflow_yarn.spec import resources
from tests.yarn.fakes import FakeManager

PROGRAM = "import torch\nimport helper\n\n\ndef model():\n    pass\n"


def node(name: str, total: Resources, state: str = "RUNNING", labels: tuple[str, ...] = ()) -> YarnNode:
    return YarnNode(id=name, address=f"{name}:8042", state=state, total=total, available=total, labels=labels)


NOTHING = Resources()


def queue(most: Resources, largest: Resources = NOTHING, state: str = "RUNNING") -> YarnQueue:
    return YarnQueue(
        name="train", path="root.train", share=NOTHING, most=most, used=NOTHING, pending=NOTHING,
        largest=largest, state=state,
    )  # fmt: skip


SMALL, LARGE = node("node-1", Resources(8192, 8, 0)), node("node-2", Resources(8192, 8, 2))
ASKED = resources(Config(), read({"gpus": 2, "memory": "4 GiB"}))


def test_a_run_that_fits() -> None:
    check_nodes(ASKED, [SMALL, LARGE])
    check_queue(ASKED, queue(Resources(16384, 16, 4)), num_servers=1)


@pytest.mark.parametrize(
    ("nodes", "sure"),
    [((LARGE, LARGE), True), ((SMALL, LARGE), False), ((LARGE, node("node-3", LARGE.total, "LOST")), False)],
)
def test_whether_a_node_may_be_lost(nodes: tuple[YarnNode, ...], sure: bool) -> None:
    manager = FakeManager()
    manager.all_nodes = list(nodes)
    section = {"queue": "train", "gpus": 2}
    assert check_cluster(manager, Config(yarn=section), read(section)) is sure
    unmade = {**section, "queue": "root.users.anna"}
    with pytest.raises(ConfigError, match="queue 'root.users.anna' is unknown"):
        check_cluster(manager, Config(yarn=unmade), read(unmade))
    manager.makes = True
    assert check_cluster(manager, Config(yarn=unmade), read(unmade)) is sure


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"gpus": 4, "memory": "16 GiB"}, r"a worker asks for 4 GPUs, 16 GiB and 1 vcore; the largest node, "
         r"node-2, has 2 GPUs, 8 GiB and 8 vcores\. Ask for less: yarn\.gpus, yarn\.memory"),
        ({"memory": "9 GiB", "gpus": 0}, r"a worker asks for 9 GiB and 1 vcore; the largest node"),
        ({"vcores": 9}, r"a worker asks for 1 GPU, 2 GiB and 9 vcores"),
        ({"server_memory": "9 GiB"}, r"a server asks for 9 GiB .* Ask for less: yarn\.server_memory"),
        ({"master_vcores": 9}, r"the ApplicationMaster asks for 1 GiB and 9 vcores; .* yarn\.master_memory"),
    ],
)  # fmt: skip
def test_more_than_any_node_has(section: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_nodes(resources(Config(), read(section)), [SMALL, LARGE])


def test_nodes_that_do_not_live_or_have_another_label_do_not_count() -> None:
    gone = [node("node-3", LARGE.total, state="LOST"), SMALL]
    with pytest.raises(ConfigError, match="the largest node, node-1, has 8 GiB"):
        check_nodes(ASKED, gone)
    labelled = node("node-4", LARGE.total, labels=("gpu",))
    check_nodes(ASKED, [SMALL, labelled], label="gpu")
    with pytest.raises(ConfigError, match=r"no live node with the label 'fast' \(yarn\.node_label\)"):
        check_nodes(ASKED, [SMALL, labelled], label="fast")
    with pytest.raises(ConfigError, match="the cluster has no live node; is it up"):
        check_nodes(ASKED, [node("node-3", LARGE.total, state="UNHEALTHY")])


def test_what_a_queue_refuses() -> None:
    with pytest.raises(ConfigError, match=r"queue 'root\.train' is STOPPED, and takes no application"):
        check_queue(ASKED, queue(Resources(), state="STOPPED"), 1)
    with pytest.raises(
        ConfigError, match=r"a worker asks for .* queue 'root\.train' allows 2 GiB and 4 vcores"
    ):
        check_queue(ASKED, queue(Resources(16384, 16, 4), largest=Resources(2048, 4)), 1)
    with pytest.raises(
        ConfigError, match=r"with one worker the run asks for 2 GPUs, 9 GiB and 4 vcores; queue"
    ):
        check_queue(ASKED, queue(Resources(8192, 16, 4)), num_servers=2)


def test_limits_that_are_not_told_are_none() -> None:
    check_queue(ASKED, queue(Resources(), largest=Resources(8192, 8, 0)), 1)


# --- tools ------------------------------------------------------------------------------------------


def executable(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


def test_no_yarn_on_path(tmp_path: Path) -> None:
    executable(tmp_path / "jdk" / "bin", "java")
    with pytest.raises(SkeinNotInstalled, match="there is no 'yarn' on PATH: submit from a gateway"):
        check_tools({"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path / "jdk")})


def test_no_java(tmp_path: Path) -> None:
    executable(tmp_path, "yarn")
    with pytest.raises(SkeinNotInstalled, match=r"there is no Java in JAVA_HOME \(/nowhere\)"):
        check_tools({"PATH": str(tmp_path), "JAVA_HOME": "/nowhere"})
    with pytest.raises(SkeinNotInstalled, match="there is no Java on PATH, and JAVA_HOME is not set"):
        check_tools({"PATH": str(tmp_path)})


def test_all_tools_are_there(tmp_path: Path) -> None:
    pytest.importorskip("skein")
    executable(tmp_path, "yarn")
    executable(tmp_path, "java")
    check_tools({"PATH": str(tmp_path)})


# --- environments -----------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "digits.py").write_text(PROGRAM)
    return str(tmp_path / "digits.py")


def archive(folder: Path, *modules: str) -> str:
    path = folder / "environment.tar.gz"
    data = msgspec.json.encode(Environment("3.11.7", "/usr/bin/python3.11", modules))
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo(MANIFEST)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return str(path)


def test_an_environment_that_fits(tmp_path: Path, program: str) -> None:
    check_environment(archive(tmp_path, "elasticflow", "torch"), program)


def test_an_environment_that_lacks_something(tmp_path: Path, program: str) -> None:
    with pytest.raises(ConfigError, match=r"has no torch, which .*digits\.py imports; install it"):
        check_environment(archive(tmp_path, "elasticflow", "numpy"), program)
    with pytest.raises(ConfigError, match="holds no elasticflow"):
        check_environment(archive(tmp_path, "torch"), program)


def test_an_environment_of_others_is_taken_as_it_is(tmp_path: Path, program: str) -> None:
    path = tmp_path / "environment.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(tmp_path / "helper.py", "bin/python")
    check_environment(str(path), program)


def test_what_is_no_environment(tmp_path: Path, program: str) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.tar\.gz: cannot be read: No such file"):
        check_environment(str(tmp_path / "nothing.tar.gz"), program)
    (tmp_path / "text.tar.gz").write_text("environment")
    with pytest.raises(ConfigError, match=r"text\.tar\.gz: is not compressed by gzip"):
        check_environment(str(tmp_path / "text.tar.gz"), program)
