"""The cluster that the tests run on is a real one: it stores, schedules, preempts, fails and comes back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clusters import hadoop as hadoop_module
from tests.clusters import hadoop_jars
from tests.clusters.hadoop import Container, HadoopCluster
from tests.clusters.hadoop_conf import MARK
from tests.clusters.processes import ClusterError, environ, is_alive, pids

pytestmark = [pytest.mark.hdfs, pytest.mark.yarn]

SPECIFICATION = """
name: bare
queue: train
master: {{resources: {{memory: 512 MiB, vcores: 1}}, script: "{script}"}}
services:
  worker: {{instances: {workers}, allow_failures: true, script: "{script}",
    resources: {{memory: 128 MiB, vcores: 1, gpus: 1}}}}
"""


@pytest.fixture
def cluster(hadoop: HadoopCluster) -> Iterator[HadoopCluster]:
    yield hadoop
    hadoop.reset()


def wait_for(is_so: Callable[[], bool], timeout_s: float = 100.0) -> None:
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


class Skein:
    """Its command, with one driver for all."""

    def __init__(self, cluster: HadoopCluster, folder: Path) -> None:
        self._environment = {**cluster.environment, "SKEIN_CONFIG": str(folder)}
        self._folder = folder

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "skein.cli", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, *, workers: int = 1, script: str = "sleep 1000") -> str:
        path = self._folder / "bare.yaml"
        path.write_text(SPECIFICATION.format(workers=workers, script=script))
        return self.run("application", "submit", str(path))


@pytest.fixture(scope="module")
def skein(hadoop: HadoopCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skein]:
    pytest.importorskip("skein")
    command = Skein(hadoop, tmp_path_factory.mktemp("skein"))
    command.run("driver", "start", "--log", str(hadoop.folder / "log" / "driver.log"))
    yield command
    command.run("driver", "stop")


def running(cluster: HadoopCluster, application: str, count: int) -> list[Container]:
    """That many containers, each of which has started to do what it was told."""

    def are_running() -> bool:
        found = cluster.containers(application)
        return len(found) == count and all(cluster.runs(container.id, "sleep") for container in found)

    wait_for(are_running)
    return cluster.containers(application)


def write(cluster: HadoopCluster, name: str, text: str) -> str:
    local = cluster.folder / name
    local.write_text(text)
    path = f"/user/{cluster.user}/{name}"
    cluster.run("hdfs", "dfs", "-put", "-f", str(local), path)
    return path


def test_a_file_is_written_and_read_over_webhdfs(cluster: HadoopCluster) -> None:
    hdfs = pytest.importorskip("hdfs")
    client = hdfs.InsecureClient(cluster.namenode_url, user=cluster.user)
    path = f"/user/{cluster.user}/over-webhdfs"
    client.write(path, data=b"some" * 1000, overwrite=True, replication=2)
    with client.read(path) as reader:
        assert reader.read() == b"some" * 1000
    assert client.status(path)["replication"] == 2
    stranger = hdfs.InsecureClient(cluster.namenode_url, user="stranger")
    with pytest.raises(hdfs.HdfsError, match="Permission denied: user=stranger"):
        stranger.write(path, data=b"other", overwrite=True)


def test_a_bare_application_runs_and_what_it_said_is_kept(cluster: HadoopCluster, skein: Skein) -> None:
    application = skein.submit(workers=2, script="env; setsid sleep 1000 & sleep 1000")
    containers = running(cluster, application, 3)
    left = [pid for container in containers for pid in cluster.pids(container.id)]
    assert application in cluster.run("yarn", "application", "-list")
    cluster.reset()
    assert cluster.applications() == {}
    assert cluster.applications(ended=True)[application] == "KILLED"
    assert not [pid for pid in left if is_alive(pid)]
    wait_for(lambda: cluster.application(application)["logAggregationStatus"] == "SUCCEEDED")
    said = cluster.run("yarn", "logs", "-applicationId", application)
    assert said.count(f"HADOOP_CONF_DIR={cluster.conf}\n") == 3
    assert said.count(f"JAVA_HOME={cluster.environment['JAVA_HOME']}\n") == 3


def test_what_is_killed_is_missed_and_reset_brings_it_back(cluster: HadoopCluster, skein: Skein) -> None:
    path = write(cluster, "survives", "kept")
    application = skein.submit()
    worker = running(cluster, application, 2)[1]
    for daemon in (worker.node, "datanode-1"):
        cluster.kill(daemon)
    wait_for(lambda: worker not in cluster.containers(application) and cluster.live_datanodes() == 1)
    assert cluster.run("hdfs", "dfs", "-cat", path) == "kept"
    orphans = cluster.pids(worker.id)
    assert orphans
    cluster.freeze("datanode-0")
    cluster.reset()
    assert not [pid for pid in orphans if is_alive(pid)]
    assert set(cluster._daemons()) == set(cluster.daemons)
    assert cluster.live_datanodes() == 2


def test_down_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    hadoop_module.require()
    with HadoopCluster(nodes=0, datanodes=1, yarn=False) as cluster:
        folder = cluster.folder
        assert HadoopCluster(folder).is_running()
        with pytest.raises(ClusterError, match="runs in .* already"):
            HadoopCluster(folder).start()
        with pytest.raises(ClusterError, match="no daemon 'node-7' here, but namenode, datanode-0"):
            cluster.kill("node-7")
    assert not folder.exists()
    assert not [pid for pid in pids() if f"{MARK}={folder}" in environ(pid)]


def test_a_cluster_whose_tests_were_killed_is_ended_by_the_next(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder = tmp_path / "cluster"
    folder.mkdir()
    (folder / "owner").write_text(str(gone.pid))
    left = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: str(folder)})
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: str(tmp_path)}) as other:
        hadoop_module.stop_orphans()
        assert left.wait(10) < 0
        assert other.poll() is None
        other.kill()
    assert not folder.exists()


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "no `java` here" in hadoop_jars.skip_reason()
    monkeypatch.setattr(hadoop_jars, "java_home", lambda: tmp_path)
    assert "no `mvn`" in hadoop_jars.skip_reason()
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("ELASTICFLOW_REQUIRE_CLUSTERS", raising=False)
    with pytest.raises(pytest.skip.Exception):
        hadoop_module.require()
    monkeypatch.setenv("ELASTICFLOW_REQUIRE_CLUSTERS", "1")
    with pytest.raises(pytest.fail.Exception):
        hadoop_module.require()


@pytest.mark.parametrize(("said", "version"), [("17.0.15", 17), ("1.8.0_402", 8), ("21-ea", 21)])
def test_java_says_its_version(said: str, version: int, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{said}\" 2026-01-01' >&2\n")
    java.chmod(0o755)
    assert hadoop_jars._java_version(str(java)) == version


def fake_maven(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = folder / "mvn"
    maven.write_text(f"#!/bin/sh\n{script}\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(hadoop_jars, "java_home", lambda: folder)


def test_the_jars_are_fetched_once_and_never_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    get_folder = 'for one in "$@"; do case "$one" in -DoutputDirectory=*) to="${one#*=}";; esac; done'
    work = f'echo x >> {asked}; {get_folder}; echo jar > "$to/a.jar"'
    fake_maven(tmp_path, f"{work}; echo '[ERROR] no network'; echo '[ERROR] more'; exit 1", monkeypatch)
    with pytest.raises(ClusterError, match="it said: .ERROR. no network"):
        hadoop_jars.fetch()
    assert not list((tmp_path / "cache").glob("elasticflow/hadoop-*[!k]"))
    fake_maven(tmp_path, work, monkeypatch)
    folder = hadoop_jars.fetch()
    assert hadoop_jars.fetch() == folder == hadoop_jars.cache()
    assert (folder / "a.jar").read_text() == "jar\n"
    assert asked.read_text().count("x") == 2
