"""Packages that are needed only by who asks for what they do."""

from __future__ import annotations

import importlib.util

from elasticflow.errors import ConfigError


def require(package: str, setting: str, extra: str) -> None:
    """Raises ConfigError if it is not installed; does not import it. extra: of ours, that installs it."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"{setting}: needs the package {package}, which is not installed here: "
            f"pip install 'elasticflow-trainer[{extra}]', or leave {setting.partition(':')[0]} out."
        )
