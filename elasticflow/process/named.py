"""Classes that settings name, loaded when they are chosen: what nobody asks for need not be installed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from elasticflow.errors import ConfigError


def load_named(key: str, name: str, homes: Mapping[str, str]) -> Any:
    """The class of this name. homes: ``module:Class`` by name.

    Raises ConfigError for other names, and if its package is not installed.
    """
    if name not in homes:
        raise ConfigError(f"{key}: {name!r} is unknown; there are {', '.join(sorted(homes))}.")
    module, _, attribute = homes[name].partition(":")
    package = module.partition(".")[0]
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ConfigError(f"{key}: {name} needs the package {package}, which is not here.") from error
