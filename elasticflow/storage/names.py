"""Names of files in a storage, wherever that is."""

from __future__ import annotations

from functools import lru_cache
from pathlib import PurePosixPath

from elasticflow.errors import ConfigError

TEMPORARY = ".partial"
"""How the names of files end that are not whole yet."""


@lru_cache(maxsize=1 << 12)
def check_name(name: str) -> None:
    """Raises ConfigError if that is not below the storage's folder, or kept for temporaries."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        raise ConfigError(f"name {name!r} leaves the storage's folder. Use a relative name without '..'.")
    if name == "." or str(pure) != name or "\0" in name or name.endswith(TEMPORARY):
        raise ConfigError(f"name {name!r} is no file's name. Use one such as 'folder/file.h5'.")
