"""URLs of HDFS: ``hdfs://authority/path``, ``webhdfs://host:port/path``, ``swebhdfs://host:port/path``."""

from __future__ import annotations

import posixpath

from elasticflow.errors import ConfigError

SCHEMES = ("hdfs", "webhdfs", "swebhdfs")
PATIENCE_S = 30.0
"""For so long HDFS is asked again before that fails."""


def is_url(where: object) -> bool:
    """Whether this names a place in HDFS, and not a folder of this machine."""
    return str(where).startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def split(url: str) -> tuple[str, str, str]:
    """Scheme, authority and absolute path of a URL, in its shortest form. Raises ConfigError."""
    scheme, separator, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    if scheme not in SCHEMES or not separator:
        raise ConfigError(
            f"{url!r} is no URL of HDFS. Use hdfs://authority/path or webhdfs://host:port/path."
        )
    if scheme != "hdfs" and not authority:
        raise ConfigError(
            f"{url!r} names no host. Use {scheme}://host:port/path, the NameNode's HTTP address."
        )
    path = f"/{path}"
    if "\0" in path or ".." in path.split("/"):
        raise ConfigError(f"{url!r}: no path of HDFS has '..' or a zero byte. Use a path from the root.")
    return scheme, authority, posixpath.normpath(path)
