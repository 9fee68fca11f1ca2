"""The ``slurm:`` section of a run's settings. ``conf/slurm.yaml`` shows each with a comment."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from elasticflow.cluster.config import ClusterConfig, read_section
from elasticflow.errors import ConfigError
from elasticflow.run.config import Count, Positive
from elasticflow_slurm.client import time_s


class PlaceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where jobs may run: sbatch's options of these names. "": SLURM's own default."""

    partition: str = ""
    qos: str = ""
    account: str = ""
    constraint: str = ""
    reservation: str = ""

    @property
    def options(self) -> dict[str, str]:
        """Those that are set, for sbatch."""
        return {name: value for name, value in msgspec.to_builtins(self).items() if value}

    def __str__(self) -> str:
        named = [f"{name} {value}" for name, value in self.options.items()]
        return ", ".join(named) or "SLURM's default partition"


class SlurmConfig(ClusterConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times for sbatch (``time``, ``time_min``) are as sbatch takes them; "": the partition's default.

    leader: where master and parameter servers run. workers: where workers run, the best first.
    """

    job_name: str = ""
    leader: PlaceConfig = PlaceConfig()
    leader_time: str = ""
    leader_mem: str = "2G"
    server_cpus: Positive = 1
    server_nodes: Positive = 1
    server_mem: str = "2G"

    workers: tuple[PlaceConfig, ...] = (PlaceConfig(),)
    gpus: Count = 1
    gpu_type: str = ""
    cpus: Count = 0
    """CPUs of a worker; 0: as many as ``threads``."""
    mem: str = ""
    time: str = ""
    time_min: str = ""
    warn_s: Positive = 120
    """So long before its time limit a worker is replaced, and the leader hands over."""
    sbatch: dict[str, str] = {}
    """More options of sbatch for workers, by their long names."""
    container: str = ""
    """What workers and servers are started by, such as ``apptainer exec --nv /images/torch.sif``: a command
    that executes another one in an image, in the same network and among the same processes."""
    container_python: str = "python3"
    """In that image."""

    give_back: bool = True
    """Whether workers leave where another run of this user waits for places and has fewer."""
    ship: bool = False
    """Whether the program's folder is copied into the run's folder first."""

    def __post_init__(self) -> None:
        if not self.workers:
            raise ConfigError("slurm.workers: is empty; name at least one place, such as {partition: gpu}.")
        if self.gpu_type and not self.gpus:
            raise ConfigError(f"slurm.gpu_type: {self.gpu_type!r} is set, but slurm.gpus is 0.")
        if self.container and self.environment:
            raise ConfigError("slurm.container, slurm.environment: name one of them; an image has its own.")
        try:
            shlex.split(self.container)
        except ValueError as error:
            raise ConfigError(f"slurm.container: {self.container!r}: cannot be read: {error}.") from error
        for name in ("time", "time_min", "leader_time"):
            if (text := getattr(self, name)) and time_s(text) is None:
                raise ConfigError(
                    f"slurm.{name}: {text!r} is no time for sbatch: write minutes (90), "
                    "hours:minutes:seconds (1:30:00) or days-hours (2-12)."
                )


def read(section: dict[str, Any]) -> SlurmConfig:
    """The checked settings. Raises ConfigError, which names the key."""
    for name in ("time", "time_min", "leader_time"):
        if isinstance(section.get(name), int):
            raise ConfigError(
                f'slurm.{name}: {section[name]} is a number; write it in quotes, such as "1:30:00": YAML '
                "takes 1:30:00 for the number 5400, and sbatch would take that for minutes."
            )
    return read_section(SlurmConfig, "slurm", section)
