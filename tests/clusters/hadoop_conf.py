"""The configuration of a Hadoop cluster on one machine: a pure function of where it is and how many it has.

Everything is bound to localhost, on the ports given. What waits for minutes on a real cluster waits seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

GPUS_PER_NODE = 2
MEMORY_PER_NODE_MB = 8192
VCORES_PER_NODE = 16
MARK = "ELASTICFLOW_TEST_HADOOP"
"""In the environment of every process of a cluster, its applications' containers included: its folder."""

SUPERUSER = "hdfs"
YARN_USER = "yarn"

Properties = dict[str, str]

LOG4J = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
"""


class Layout(NamedTuple):
    """`ports` by daemon, and by daemon and what else it listens for: "node-0", "node-0.web"."""

    folder: Path
    jars: Path
    java_home: Path
    user: str
    nodes: tuple[str, ...]
    datanodes: tuple[str, ...]
    node_recovery: bool
    ports: Mapping[str, int]
    settings: Mapping[str, str]

    def address(self, port: str) -> str:
        return f"localhost:{self.ports[port]}"

    @property
    def conf(self) -> Path:
        return self.folder / "conf"


def port_names(nodes: tuple[str, ...], datanodes: tuple[str, ...]) -> list[str]:
    return [
        *("namenode", "namenode.web", "resourcemanager", "resourcemanager.web"),
        *("resourcemanager.scheduler", "resourcemanager.nodes", "resourcemanager.admin"),
        *(f"{name}{what}" for name in datanodes for what in ("", ".web", ".ipc")),
        *(f"{name}{what}" for name in nodes for what in ("", ".web", ".localizer")),
    ]


def files(layout: Layout) -> dict[str, str]:
    """Texts by path in the cluster's folder: `conf/` is for clients, containers and managers."""
    core, hdfs, yarn = _core(layout), _hdfs(layout), _yarn(layout)
    resource_types = {"yarn.resource-types": "yarn.io/gpu"}
    common = {
        "core-site.xml": core,
        "hdfs-site.xml": hdfs,
        "yarn-site.xml": {**yarn, **resource_types},
        "resource-types.xml": resource_types,
        "capacity-scheduler.xml": _queues(),
    }
    per_daemon: dict[str, dict[str, Properties]] = {
        "conf": {},
        **{f"conf.{name}": {"hdfs-site.xml": _datanode(layout, name)} for name in layout.datanodes},
        **{
            f"conf.{name}": {
                "yarn-site.xml": _node(layout, name),
                "node-resources.xml": {
                    "yarn.nodemanager.resource-type.yarn.io/gpu": str(GPUS_PER_NODE),
                },
            }
            for name in layout.nodes
        },
    }
    texts: dict[str, str] = {}
    for folder, own in per_daemon.items():
        for name in {**common, **own}:
            properties = {**common.get(name, {}), **own.get(name, {})}
            given = layout.settings if name.endswith("-site.xml") else {}
            texts[f"{folder}/{name}"] = _xml({**properties, **given})
        texts[f"{folder}/log4j.properties"] = LOG4J
    return texts


def _core(layout: Layout) -> Properties:
    return {
        "fs.defaultFS": f"hdfs://{layout.address('namenode')}",
        "hadoop.tmp.dir": f"{layout.folder}/tmp",
        # Spares a process for every unknown user.
        "hadoop.user.group.static.mapping.overrides": ";".join(
            f"{user}={user}" for user in sorted({SUPERUSER, YARN_USER, layout.user})
        ),
        "fs.getspaceused.jitterMillis": "0",
        # Ten seconds of patience, as ever, but in smaller steps.
        "ipc.client.connect.retry.interval": "250",
        "ipc.client.connect.max.retries": "40",
    }


def _hdfs(layout: Layout) -> Properties:
    state = layout.folder / "state"
    return {
        "dfs.namenode.name.dir": f"file://{state}/namenode",
        "dfs.namenode.http-address": layout.address("namenode.web"),
        "dfs.replication": str(min(2, len(layout.datanodes))),
        "dfs.permissions.enabled": "true",
        "dfs.permissions.superusergroup": SUPERUSER,
        "dfs.webhdfs.enabled": "true",
        "dfs.namenode.safemode.extension": "0",
        "dfs.heartbeat.interval": "1",
        # Stale after 3 s, dead after 2 * 0.3 s + 10 heartbeats.
        "dfs.namenode.heartbeat.recheck-interval": "300",
        "dfs.namenode.stale.datanode.interval": "3000",
        "dfs.namenode.avoid.read.stale.datanode": "true",
        "dfs.namenode.avoid.write.stale.datanode": "true",
        "dfs.namenode.write.stale.datanode.ratio": "1.0",
        "dfs.namenode.edits.noeditlogchannelflush": "true",  # of processes that are killed nothing is lost
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.datanode.hostname": "localhost",
        "dfs.client.use.datanode.hostname": "true",
        "dfs.datanode.use.datanode.hostname": "true",
    }


def _datanode(layout: Layout, name: str) -> Properties:
    return {
        "dfs.datanode.data.dir": f"file://{layout.folder}/state/{name}",
        "dfs.datanode.address": layout.address(name),
        "dfs.datanode.http.address": layout.address(f"{name}.web"),
        "dfs.datanode.ipc.address": layout.address(f"{name}.ipc"),
    }


def _yarn(layout: Layout) -> Properties:
    manager = "yarn.resourcemanager"
    preemption = f"{manager}.monitor.capacity.preemption"
    return {
        f"{manager}.hostname": "localhost",
        f"{manager}.address": layout.address("resourcemanager"),
        f"{manager}.scheduler.address": layout.address("resourcemanager.scheduler"),
        f"{manager}.resource-tracker.address": layout.address("resourcemanager.nodes"),
        f"{manager}.admin.address": layout.address("resourcemanager.admin"),
        f"{manager}.webapp.address": layout.address("resourcemanager.web"),
        f"{manager}.am.max-attempts": "6",
        f"{manager}.recovery.enabled": "true",
        f"{manager}.work-preserving-recovery.scheduling-wait-ms": "1000",
        f"{manager}.store.class": "org.apache.hadoop.yarn.server.resourcemanager"
        ".recovery.FileSystemRMStateStore",
        f"{manager}.fs.state-store.uri": f"file://{layout.folder}/state/resourcemanager",
        # Else in /tmp, the same for all clusters.
        "yarn.node-attribute.fs-store.root-dir": f"file://{layout.folder}/state/node-attributes",
        "yarn.node-labels.fs-store.root-dir": f"file://{layout.folder}/state/node-labels",
        f"{manager}.nodemanagers.heartbeat-interval-ms": "200",
        f"{manager}.connect.retry-interval.ms": "500",
        f"{manager}.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager"
        ".scheduler.capacity.CapacityScheduler",
        f"{manager}.scheduler.monitor.enable": "true",
        f"{preemption}.monitoring_interval": "1000",
        f"{preemption}.max_wait_before_kill": "2000",
        f"{preemption}.total_preemption_per_round": "1.0",
        f"{preemption}.max_ignored_over_capacity": "0.0",
        f"{preemption}.natural_termination_factor": "1.0",
        "yarn.scheduler.minimum-allocation-mb": "64",
        "yarn.scheduler.maximum-allocation-mb": str(MEMORY_PER_NODE_MB),
        "yarn.scheduler.maximum-allocation-vcores": str(VCORES_PER_NODE),
        "yarn.scheduler.include-port-in-node-name": "true",  # several nodes on one host
        "yarn.nm.liveness-monitor.expiry-interval-ms": "10000",
        "yarn.am.liveness-monitor.expiry-interval-ms": "400000",  # so long a busy machine may start one
        "yarn.nodemanager.hostname": "localhost",
        "yarn.nodemanager.resource.memory-mb": str(MEMORY_PER_NODE_MB),
        "yarn.nodemanager.resource.cpu-vcores": str(VCORES_PER_NODE),
        "yarn.nodemanager.pmem-check-enabled": "true",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.container-monitor.interval-ms": "1000",
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "yarn.nodemanager.recovery.enabled": str(layout.node_recovery).lower(),
        "yarn.nodemanager.env-whitelist": f"JAVA_HOME,HADOOP_CONF_DIR,PATH,LANG,TZ,{MARK}",
        "yarn.nodemanager.admin-env": f"{MARK}={layout.folder}",
        "yarn.log-aggregation-enable": "true",
        "yarn.log-aggregation.retain-seconds": "86400",
        "yarn.nodemanager.remote-app-log-dir": "/tmp/logs",
        "yarn.application.classpath": f"{layout.conf},{layout.jars}/*",
        "yarn.timeline-service.enabled": "false",
    }


def _node(layout: Layout, name: str) -> Properties:
    state = layout.folder / "state" / name
    return {
        "yarn.nodemanager.address": layout.address(name),
        "yarn.nodemanager.localizer.address": layout.address(f"{name}.localizer"),
        "yarn.nodemanager.webapp.address": layout.address(f"{name}.web"),
        "yarn.nodemanager.local-dirs": f"{state}/local",
        "yarn.nodemanager.log-dirs": f"{state}/logs",
        "yarn.nodemanager.recovery.dir": f"{state}/recovery",
    }


def _queues() -> Properties:
    root = "yarn.scheduler.capacity"
    shares = {"train": 20, "prod": 80}
    properties = {
        f"{root}.resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
        f"{root}.maximum-am-resource-percent": "0.9",
        f"{root}.node-locality-delay": "-1",
        f"{root}.root.queues": ",".join(shares),
    }
    for queue, share in shares.items():
        properties |= {
            f"{root}.root.{queue}.capacity": str(share),
            f"{root}.root.{queue}.maximum-capacity": "100",
            f"{root}.root.{queue}.user-limit-factor": "10",
        }
    return properties


def _xml(properties: Properties) -> str:
    lines = [
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in sorted(properties.items())
    ]
    return "\n".join(['<?xml version="1.0"?>', "<configuration>", *lines, "</configuration>", ""])
