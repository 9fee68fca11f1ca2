"""What the settings of any cluster have in common, and how a backend's section of them is read."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from elasticflow.errors import ConfigError
from elasticflow.process.decoding import converted
from elasticflow.run.config import Count, Positive, PositiveSeconds


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A backend has other defaults where its cluster is quicker, or slower."""

    setup: str = ""
    """Shell lines that each process's place runs first."""
    python: str = ""
    """The Python there; "": that of the environment, or else the one that submits."""
    environment: str = ""
    """An archive of a virtual environment, which each node unpacks."""
    host: str = ""
    """Name or network (10.1.0.0/16) of the address at which members reach each other; "": the node's own."""

    poll_s: PositiveSeconds = 2.0
    patience_s: PositiveSeconds = 30.0
    """What waits for longer than this is no sign that more would start."""
    exclude_after: Positive = 2
    """Failures of workers on a node, within an hour, after which it is left out."""
    launch_failures: Count = 5
    """So many places in which nothing can be started, with none in which it could, end a run; 0: it waits."""
    leave_drained: bool = True
    """Whether workers leave nodes that their operators are emptying, and others are asked for elsewhere."""
    lease_s: PositiveSeconds = 600.0
    """Workers wait for a master that the cluster starts anew for so long."""


C = TypeVar("C", bound=ClusterConfig)


def read_section(kind: type[C], name: str, section: dict[str, Any]) -> C:
    """The checked settings. Raises ConfigError, which names the key."""
    try:
        return converted(section, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise ConfigError(str(error.__cause__)) from error
        text, _, where = str(error).partition(" - at `$")
        where, hint = where.rstrip("`"), ""
        if "unknown field" in text and not where.strip("."):
            common = ClusterConfig.__struct_fields__  # what is a cluster's own comes first
            own = [field for field in kind.__struct_fields__ if field not in common]
            hint = f" Known keys: {', '.join((*own, *common))}."
        raise ConfigError(f"{name}{where}: {text[0].lower()}{text[1:]}.{hint}") from error
