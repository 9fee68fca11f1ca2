"""The ``yarn:`` section of a run's settings. ``conf/yarn.yaml`` shows each with a comment."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from elasticflow.cluster.config import ClusterConfig, read_section
from elasticflow.errors import ConfigError
from elasticflow.run.config import Count, Positive, PositiveSeconds

UNITS: dict[str, int] = {
    "": 2**20,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
"""Bytes in a unit of memory; a number without one is in MiB."""
MEMORIES = ("master_memory", "server_memory", "memory")


class Acls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who else may see and end the application: as in a specification of Skein. "*": everybody."""

    enable: bool = False
    view_users: tuple[str, ...] = ()
    view_groups: tuple[str, ...] = ()
    modify_users: tuple[str, ...] = ()
    modify_groups: tuple[str, ...] = ()
    ui_users: tuple[str, ...] = ()


class YarnConfig(ClusterConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory is a number with a unit, such as "2 GiB"."""

    queue: str = "default"
    name: str = ""
    # With 2, YARN's default, a run survives one lost node: Skein's second attempt takes itself for the last
    # and deletes the application's files, without which the third, that YARN would start, cannot begin.
    max_attempts: Positive = 6
    """How many ApplicationMasters YARN may start one after the other; nodes that are lost use them up."""
    tags: tuple[str, ...] = ()
    node_label: str = ""
    acls: Acls = Acls()
    user: str = ""
    """On whose behalf to submit, where the cluster lets the submitting user do that."""

    master_memory: str = "1 GiB"
    """Of the ApplicationMaster's container: Skein's Java process and the Python master."""
    master_vcores: Positive = 1
    server_memory: str = "2 GiB"
    server_vcores: Positive = 1
    memory: str = "2 GiB"
    vcores: Count = 0
    """Of a worker; 0: as many as ``threads``."""
    gpus: Count = 1
    gpu_devices: str = ""
    """Numbers of the GPUs of a host that workers may take, such as "0,1"; "": all that are there."""

    env: dict[str, str] = {}
    files: dict[str, str | dict[str, str]] = {}
    """More files for each container: its name there, and where it comes from."""
    poll_s: PositiveSeconds = 1.0
    rm_poll_s: PositiveSeconds = 5.0
    give_back: bool = True
    """Whether workers leave by themselves when the queue has more than its share and others wait."""

    def __post_init__(self) -> None:
        for name in MEMORIES:
            mebibytes(getattr(self, name), f"yarn.{name}")
        if not self.queue:
            raise ConfigError("yarn.queue: is empty; name a queue, such as default.")
        if upper := [tag for tag in self.tags if tag != tag.lower()]:
            raise ConfigError(
                f"yarn.tags: {upper[0]!r}: YARN has tags in lower case; write {upper[0].lower()!r}."
            )
        if self.environment and self.python:
            raise ConfigError(
                "yarn.python: is set, and yarn.environment too: an environment has its own Python; keep one."
            )
        if not re.fullmatch(r"(\d+(,\d+)*)?", self.gpu_devices):
            raise ConfigError(
                f"yarn.gpu_devices: {self.gpu_devices!r}: write the numbers of GPUs, such as '0,1'."
            )
        for name in self.files:
            if "/" in name.removeprefix("./") or name in TAKEN:
                raise ConfigError(
                    f"yarn.files: {name!r}: must be the name of a file, without folders, and none of "
                    f"{', '.join(TAKEN)}."
                )


PROGRAM, ENVIRONMENT, SETTINGS = "program", "environment", "settings.json"
"""What lies in each container's working directory: the program's folder, and the environment."""
TAKEN = (PROGRAM, ENVIRONMENT, SETTINGS)


def mebibytes(text: str, key: str) -> int:
    """An amount of memory, rounded up. Raises ConfigError, which names the key."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if not found or found[2] not in UNITS or float(found[1]) <= 0:
        raise ConfigError(f"{key}: {text!r} is no amount of memory; write 512 MiB or 2 GiB.")
    return math.ceil(float(found[1]) * UNITS[found[2]] / UNITS[""])


def read(section: dict[str, Any]) -> YarnConfig:
    """The checked settings. Raises ConfigError, which names the key."""
    texts: dict[str, Any] = {
        name: str(section[name]) for name in MEMORIES if isinstance(section.get(name), int)
    }
    env = section.get("env")
    if isinstance(env, dict):  # YAML reads numbers, where a shell has words
        texts["env"] = {name: value if isinstance(value, str) else str(value) for name, value in env.items()}
    return read_section(YarnConfig, "yarn", {**section, **texts})
