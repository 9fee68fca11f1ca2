"""What is looked at before a run is submitted, so that nothing begins that cannot go on."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import platform
import shutil
import socket
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from elasticflow.cluster.pack import MANIFEST, Environment
from elasticflow.errors import ConfigError, ProgramError
from elasticflow.process.decoding import from_json
from elasticflow.program.loading import foreign_imports, imports
from elasticflow.run.config import Config
from elasticflow.storage.urls import is_url
from elasticflow_yarn.cluster import ResourceManager, YarnNode, YarnQueue
from elasticflow_yarn.config import YarnConfig
from elasticflow_yarn.errors import SkeinNotInstalled, YarnRefused
from elasticflow_yarn.resources import Resources
from elasticflow_yarn.spec import MASTER, SERVER, WORKER, resources

HEAD_BYTES = 1 << 20
"""Of an archive, as much as is looked at."""
NAMES = {MASTER: "the ApplicationMaster", WORKER: "a worker", SERVER: "a server"}
KEYS = {
    MASTER: "yarn.master_memory, yarn.master_vcores",
    WORKER: "yarn.gpus, yarn.memory, yarn.vcores",
    SERVER: "yarn.server_memory, yarn.server_vcores",
}


def check_tools(environ: Mapping[str, str]) -> None:
    """Whether Skein can start here. Raises SkeinNotInstalled."""
    missing = [name for name in ("skein", "hdfs") if importlib.util.find_spec(name) is None]
    if missing:
        raise SkeinNotInstalled(
            f"{' and '.join(missing)}: not installed here; pip install 'elasticflow-trainer[yarn]'."
        )
    if importlib.util.find_spec("distutils") is None:
        raise SkeinNotInstalled("skein needs setuptools with Python 3.12 and later; pip install setuptools.")
    if shutil.which("yarn", path=environ.get("PATH")) is None:
        raise SkeinNotInstalled(
            "there is no 'yarn' on PATH: submit from a gateway of the cluster, or add Hadoop's bin folder to "
            "PATH."
        )
    home = environ.get("JAVA_HOME")
    if shutil.which(f"{home}/bin/java" if home else "java", path=environ.get("PATH")) is None:
        where = f"in JAVA_HOME ({home})" if home else "on PATH, and JAVA_HOME is not set"
        raise SkeinNotInstalled(f"there is no Java {where}; Skein needs one to submit.")


def check_cluster(cluster: ResourceManager, config: Config, yarn: YarnConfig) -> bool:
    """Whether the queue takes this run, and a node has room for each container.

    Returns whether that holds though a node is lost: to ask for more than any has ends an ApplicationMaster.
    Raises ConfigError, YarnBusy.
    """
    try:
        queue = cluster.queue(yarn.queue)
    except YarnRefused as error:
        raise ConfigError(f"yarn.queue: {error}") from error
    asked, nodes = resources(config, yarn), cluster.nodes()
    check_nodes(asked, nodes, yarn.node_label)
    if queue is not None:
        check_queue(asked, queue, config.num_servers)
    live = [node for node in nodes if node.takes(yarn.node_label)]
    return all(sum(wanted.fits(node.total) for node in live) > 1 for wanted in asked.values())


def check_nodes(asked: Mapping[str, Resources], nodes: Iterable[YarnNode], label: str = "") -> None:
    """Raises ConfigError where a container is larger than any node that lives: that ends an application."""
    live = [node for node in nodes if node.takes(label)]
    if not live:
        labelled = f" with the label {label!r} (yarn.node_label)" if label else ""
        raise ConfigError(f"yarn: the cluster has no live node{labelled}; is it up?")
    for name, wanted in asked.items():
        if not any(wanted.fits(node.total) for node in live):
            largest = max(live, key=lambda node: (min(node.total.gpus, wanted.gpus), node.total.memory_mb))
            raise ConfigError(
                f"yarn: {NAMES[name]} asks for {wanted}; the largest node, {largest.id}, has "
                f"{largest.total}. Ask for less: {KEYS[name]}."
            )


def check_queue(asked: Mapping[str, Resources], queue: YarnQueue, num_servers: int) -> None:
    """Raises ConfigError where the queue would never let the smallest run of this kind in."""
    if queue.state != "RUNNING":
        raise ConfigError(f"yarn.queue: queue {queue.path!r} is {queue.state}, and takes no application.")
    for name, wanted in asked.items():
        if _exceeds(wanted, queue.largest):
            raise ConfigError(
                f"yarn: {NAMES[name]} asks for {wanted}; queue {queue.path!r} allows {queue.largest} for one "
                f"container. Ask for less: {KEYS[name]}."
            )
    counts = {MASTER: 1, WORKER: 1, SERVER: num_servers}
    parts = [msgspec.structs.astuple(asked[name]) for name, count in counts.items() for _ in range(count)]
    least = Resources(*(sum(each) for each in zip(*parts, strict=True)))
    if _exceeds(least, queue.most):
        raise ConfigError(
            f"yarn.queue: with one worker the run asks for {least}; queue {queue.path!r} never has more than "
            f"{queue.most}. Ask for less, or name another queue."
        )


def _exceeds(wanted: Resources, most: Resources) -> bool:
    """Where nothing is told of a limit, there is none."""
    limits = zip(msgspec.structs.astuple(wanted), msgspec.structs.astuple(most), strict=True)
    return any(limit and each > limit for each, limit in limits)


def check_environment(archive: str, program: str) -> None:
    """Whether an archive is there, and, where its first member tells, fits. Raises ConfigError.

    Archives that others made are not looked into: that would mean to read all of them.
    """
    try:
        head = _head(archive)
    except OSError as error:
        raise ConfigError(
            f"yarn.environment: {archive}: cannot be read: {error.strerror or error}; 'elasticflow pack "
            "environment.tar.gz' makes such an archive."
        ) from error
    if not archive.endswith(".zip") and head[:2] != b"\x1f\x8b":
        raise ConfigError(f"yarn.environment: {archive}: is not compressed by gzip, as its name says.")
    if (packed := _manifest(head)) is None:
        return
    if "elasticflow" not in packed.modules:
        raise ConfigError(
            f"yarn.environment: {archive}: holds no elasticflow; pack an environment that does."
        )
    wanted = {name.partition(".")[0] for name in foreign_imports(program)} if program else set()
    if missing := sorted(wanted - set(packed.modules)):
        raise ConfigError(
            f"yarn.environment: {archive}: has no {', '.join(missing)}, which {program} imports; install it "
            "in the environment, and pack it again."
        )


def check_imports(program: str) -> None:
    """Raises ProgramError if this Python lacks a module that a program imports."""
    folder = str(Path(program).resolve().parent)
    sys.path.insert(0, folder)
    try:
        wanted = dict.fromkeys(name.partition(".")[0] for name in imports(program))
        missing = [name for name in wanted if name not in sys.modules and not importlib.util.find_spec(name)]
    finally:
        sys.path.remove(folder)
    if missing:
        raise ProgramError(
            f"{program}: imports {', '.join(missing)}, which the containers' Python does not have "
            f"({sys.executable}, {platform.python_version()}, on {socket.gethostname()}); install it there, "
            "or pack an environment that has it (yarn.environment, 'elasticflow pack')."
        )


def _head(archive: str) -> bytes:
    if is_url(archive):
        from elasticflow.storage.webhdfs import WebHdfs

        client, path = WebHdfs.of(archive)
        return client.read(path, 0, min(HEAD_BYTES, client.status(path).length))
    with open(archive, "rb") as file:
        return file.read(HEAD_BYTES)


def _manifest(head: bytes) -> Environment | None:
    """What ``elasticflow pack`` writes first."""
    with contextlib.suppress(tarfile.TarError, EOFError, OSError, msgspec.MsgspecError):
        with tarfile.open(fileobj=io.BytesIO(head), mode="r|gz") as tar:
            first = tar.next()
            file = tar.extractfile(first) if first and first.name == MANIFEST else None
            return from_json(file.read(), Environment) if file else None
    return None
