"""The groups of checks, by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from elasticflow.cluster.contract import CLUSTERS, load_cluster
from elasticflow.doctor.finding import Diagnosis
from elasticflow.doctor.hadoop_findings import hdfs, kerberos
from elasticflow.doctor.machine import machine
from elasticflow.doctor.run_folder import run_folder
from elasticflow.doctor.stores import stores
from elasticflow.run.config import Config


def _of_cluster(name: str) -> Callable[[Config], Iterator[Diagnosis]]:
    def check(config: Config) -> Iterator[Diagnosis]:
        checks = load_cluster(name, "checks")
        if checks.concerns(config):
            yield from checks.check(config)

    return check


MATTERS: Mapping[str, Callable[[Config], Iterator[Diagnosis]]] = {
    "machine": machine,
    "run folder": run_folder,
    "stores": stores,
    **{name: _of_cluster(name) for name in CLUSTERS},
    "hdfs": hdfs,
    "kerberos": kerberos,
}
