"""Settings of a YARN that will hurt runs, for ``elasticflow doctor``. What is made of them is pure."""

from __future__ import annotations

import email.utils
import shutil
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from typing import Any

from elasticflow.doctor.finding import Diagnosis, broken, hurts, ok
from elasticflow.errors import ConfigError
from elasticflow.process.decoding import from_json
from elasticflow.run.config import Config
from elasticflow.storage.hadoop import HadoopConf
from elasticflow_yarn.cluster import _reason, new_session
from elasticflow_yarn.config import YarnConfig, read
from elasticflow_yarn.errors import SkeinNotInstalled
from elasticflow_yarn.preflight import check_tools

ASK_S = 5.0
APART_S = 60.0
"""So far may the ResourceManager's clock be from this machine's."""
ATTEMPTS, LEAST_MB = 6, 256

Properties = Mapping[str, str]


def concerns(config: Config) -> bool:
    """Whether these settings have to do with YARN."""
    return config.backend == "yarn"


def check(config: Config) -> Iterator[Diagnosis]:
    """All findings; each request has a time limit."""
    import os

    try:
        check_tools(os.environ)
        yield ok("yarn tools", f"yarn at {shutil.which('yarn')}, Java and Skein are there")
    except SkeinNotInstalled as error:
        yield broken("yarn tools", str(error), "Install it, or submit from a gateway of the cluster.")
    try:
        yarn = read(config.yarn)
    except ConfigError as error:
        yield broken("yarn settings", str(error), "Correct the file of settings.")
        yarn = YarnConfig()
    try:
        conf = HadoopConf.load()
        urls = conf.resource_managers()
    except ConfigError as error:
        yield broken("yarn", str(error), "Set HADOOP_CONF_DIR to the folder with yarn-site.xml.")
        return
    if not urls:
        cure = "Set HADOOP_CONF_DIR to a folder whose yarn-site.xml has yarn.resourcemanager.hostname."
        yield broken("yarn", "no ResourceManager is named", cure)
        return
    said = []
    for url in urls:
        try:
            properties, apart_s = _asked(url, conf)
        except Exception as error:  # noqa: BLE001  (whatever requests and parsers raise)
            said.append(f"{url}: {_reason(error)}")
            continue
        yield from findings(properties, yarn)
        yield _clock(apart_s)
        return
    yield broken(
        "yarn", f"the ResourceManager's /conf does not answer: {'; '.join(said)}", "Is it up, and reached?"
    )


def _asked(url: str, conf: HadoopConf) -> tuple[dict[str, str], float | None]:
    """The settings, and how far the clock there is from this one. Raises whatever is wrong."""
    user = {} if conf.is_secure else {"user.name": conf.user()}
    headers = {"Accept": "application/json"}
    session = new_session(conf.is_secure)
    answer = session.get(f"{url.rstrip('/')}/conf", params=user, headers=headers, timeout=ASK_S)
    answer.raise_for_status()
    date = answer.headers.get("Date")
    moment = email.utils.parsedate_to_datetime(date).timestamp() if date else None
    return parse_conf(answer.content), None if moment is None else abs(moment - time.time())


def parse_conf(content: bytes) -> dict[str, str]:
    """Of ``/conf``, which is JSON or XML as the version of Hadoop likes. Raises ValueError."""
    if content.lstrip().startswith(b"<"):
        root = ElementTree.fromstring(content)
        pairs = ((each.findtext("name"), each.findtext("value")) for each in root.iter("property"))
        return {name: value or "" for name, value in pairs if name}
    told: Any = from_json(content, Any)
    return {each["key"]: str(each.get("value", "")) for each in told["properties"]}


def findings(properties: Properties, yarn: YarnConfig) -> Iterator[Diagnosis]:
    """Of the ResourceManager's settings; NodeManagers may have others, where files differ."""
    yield ok("yarn", f"the ResourceManager tells {len(properties):,} settings")
    yield from _memory(properties)
    if _is(properties, "yarn.log-aggregation-enable", False):
        yield ok("log aggregation", "on: logs outlive their nodes")
    else:
        yield hurts(
            "log aggregation",
            "yarn.log-aggregation-enable is false",
            "true: else the logs of a node that is lost are lost, and 'elasticflow logs' shows none once a "
            "run is over.",
        )
    yield _preemption(properties)
    attempts = _whole(properties, "yarn.resourcemanager.am.max-attempts", 2)
    if attempts < ATTEMPTS:
        yield hurts(
            "attempts",
            f"yarn.resourcemanager.am.max-attempts is {attempts}",
            f"{ATTEMPTS} or more: each lost node of an ApplicationMaster costs one; a run bears "
            f"{attempts - 1}.",
        )
    else:
        yield ok("attempts", f"{attempts} of an ApplicationMaster")
    for name in ("resourcemanager", "nodemanager"):
        if not _is(properties, f"yarn.{name}.recovery.enabled", False):
            yield hurts(
                f"{name} recovery",
                f"yarn.{name}.recovery.enabled is false",
                "true: containers then survive its restart.",
            )
    least = _whole(properties, "yarn.scheduler.minimum-allocation-mb", 1024)
    if least > LEAST_MB:
        yield hurts(
            "least container",
            f"yarn.scheduler.minimum-allocation-mb is {least}",
            f"{LEAST_MB} or less: masters and servers need no more than they ask for.",
        )
    yield from _gpus(properties, yarn)


def _memory(properties: Properties) -> Iterator[Diagnosis]:
    if _is(properties, "yarn.nodemanager.vmem-check-enabled", True):
        ratio = properties.get("yarn.nodemanager.vmem-pmem-ratio", "2.1")
        yield hurts(
            "container kill",
            f"a container that maps more than {ratio} times its memory is killed",
            "yarn.nodemanager.vmem-check-enabled: false. Frameworks, memory-mapped data and CUDA map far "
            "more than they take.",
        )
    if _is(properties, "yarn.nodemanager.pmem-check-enabled", True):
        yield ok("container memory", "who takes more than it asked for is killed: give yarn.memory room")


def _preemption(properties: Properties) -> Diagnosis:
    if not _is(properties, "yarn.resourcemanager.scheduler.monitor.enable", False) and not _is(
        properties, "yarn.scheduler.fair.preemption", False
    ):
        return ok(
            "preemption", "off: queues wait until containers are given back, as runs do where others wait"
        )
    delay_ms = _whole(properties, "yarn.nodemanager.sleep-delay-before-sigkill.ms", 250)
    wait_ms = _whole(
        properties, "yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill", 15000
    )
    found = f"on: {wait_ms} ms from the decision, and {delay_ms} ms from SIGTERM to SIGKILL"
    if wait_ms < 1000:
        return hurts(
            "preemption", found, "max_wait_before_kill: 15000: else a run has no time to give way by itself."
        )
    return ok("preemption", found)


def _gpus(properties: Properties, yarn: YarnConfig) -> Iterator[Diagnosis]:
    if not yarn.gpus:
        return
    if "yarn.io/gpu" not in properties.get("yarn.resource-types", ""):
        yield broken(
            "gpus",
            "yarn.resource-types does not have yarn.io/gpu",
            "Have resource-types.xml name it, and the NodeManagers' plugins too; or gpus: 0.",
        )
        return
    calculator = properties.get("yarn.scheduler.capacity.resource-calculator", "")
    if calculator and "Dominant" not in calculator:
        yield hurts(
            "gpus", f"are not counted by {calculator.rpartition('.')[2]}", "DominantResourceCalculator."
        )
    else:
        yield ok("gpus", "are counted")


def _clock(apart_s: float | None) -> Diagnosis:
    if apart_s is None:
        return ok("clock of YARN", "is not told")
    found = f"the ResourceManager's is {apart_s:.0f} s from this one's"
    if apart_s > APART_S:
        return hurts(
            "clock of YARN",
            found,
            "Keep both right (NTP): Kerberos refuses 5 minutes, deadlines are moments.",
        )
    return ok("clock of YARN", found)


def _is(properties: Properties, name: str, default: bool) -> bool:
    return properties.get(name, str(default)).strip().lower() == "true"


def _whole(properties: Properties, name: str, default: int) -> int:
    try:
        return int(properties.get(name, default))
    except ValueError:
        return default
