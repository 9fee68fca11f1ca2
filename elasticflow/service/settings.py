"""The settings of a service: a file of YAML such as conf/service.yaml. Every default lives here, once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from elasticflow.cluster.contract import CLUSTERS
from elasticflow.errors import ConfigError
from elasticflow.process.decoding import converted
from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.policies import POLICIES
from elasticflow.service.hours import Hours
from elasticflow.service.journal import ServiceRules, UserQuota

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Some = Annotated[int, Meta(ge=1, le=1 << 20)]
SERVICES = Path("~/.elasticflow/services")
"""Where a service lies that is named, and not given as a folder."""


class ServiceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """conf/service.yaml shows each with a comment."""

    folder: str = "default"
    nodes: Some = 1
    workers_per_node: Some = 4
    policy: str = "elastic"
    shrink_s: Seconds = 1.0
    start_s: Seconds = 4.0
    grow_s: Seconds = 0.5
    failure_s: Seconds = 15.0
    measure_s: Annotated[float, Meta(gt=0, le=1e6)] = 30.0
    poll_s: Annotated[float, Meta(gt=0, le=60)] = 0.5
    cluster: Literal["local", "kubernetes", "slurm", "yarn"] = "local"
    look_s: Annotated[float, Meta(gt=0, le=3600)] = 5.0
    hours: list[Hours] = []
    quotas: dict[str, UserQuota] = {}
    metrics_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    metrics_address: str = "127.0.0.1"
    metrics_token_file: str = ""
    kubernetes: dict[str, Any] = {}
    slurm: dict[str, Any] = {}
    yarn: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if others := [name for name in CLUSTERS if name != self.cluster and getattr(self, name)]:
            raise ConfigError(f"{others[0]}: is set, but cluster is {self.cluster}.")
        if self.policy not in POLICIES:
            raise ConfigError(f"policy: {self.policy!r}; allowed are {', '.join(POLICIES)}.")
        ClusterShape(self.nodes, self.workers_per_node)  # raises where the nodes are of no power of two

    @property
    def section(self) -> dict[str, Any]:
        """The cluster's, by which the runs are submitted."""
        return getattr(self, self.cluster) if self.cluster in CLUSTERS else {}

    @property
    def rules(self) -> ServiceRules:
        """By what is decided."""
        return ServiceRules(
            policy=self.policy,
            nodes=self.nodes,
            gpus_per_node=self.workers_per_node,
            overheads=Overheads(self.shrink_s, self.start_s, self.grow_s, self.failure_s),
            cluster=self.cluster,
            quotas=self.quotas,
        )


def folder_of(named: str) -> Path:
    """The folder of a service: as it is given, with a slash in it, or below ``SERVICES`` by its name."""
    return Path(named).expanduser().absolute() if "/" in named else SERVICES.expanduser() / named


def read_service_config(path: str) -> ServiceConfig:
    """Raises ConfigError."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no YAML: {error}") from error
    known = ServiceConfig.__struct_fields__
    if not isinstance(values, dict) or (unknown := [str(name) for name in values if name not in known]):
        what = f"unknown key {', '.join(unknown)}" if isinstance(values, dict) else "no names and values"
        raise ConfigError(f"{path}: {what}. Known keys: {', '.join(known)}.")
    try:
        return converted(values, ServiceConfig)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
