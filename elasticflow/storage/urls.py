"""URLs: of HDFS, ``hdfs://authority/path``, and of what fsspec knows, such as ``s3://bucket/path``."""

from __future__ import annotations

import posixpath
import re

from elasticflow.errors import ConfigError

SCHEMES = ("hdfs", "webhdfs", "swebhdfs")
"""Of HDFS."""
PATIENCE_S = 30.0
"""For so long HDFS, or a store, is asked again before that fails."""
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
_LOST_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")
_LOGIN = re.compile(r"[^/]*:(?!\d*(/|$))[^@]*@")
"""A name and a password, which may have slashes: behind a colon only a port may stand."""
_SIGNED = re.compile(r"[?&](sig|signature|token|X-Amz-\w+|X-Goog-\w+|AWSAccessKeyId)=", re.IGNORECASE)


def is_url(where: object) -> bool:
    """Whether this names a place in HDFS or a store, and not a folder of this machine."""
    return _URL.match(str(where)) is not None


def is_hdfs(where: object) -> bool:
    """Whether this names a place in HDFS."""
    return str(where).startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def check(where: str) -> None:
    """Raises ConfigError for what is to be a URL and is none, or holds a secret, which is not shown."""
    scheme, separator, rest = where.partition("://")
    if separator and (_LOGIN.match(rest) or _SIGNED.search(rest)):
        raise ConfigError(
            f"{scheme}://...: this URL holds a secret, which would stand in settings and logs. Leave it to "
            "the environment, or to the files of the store's own client."
        )
    if separator and not is_url(where):
        raise ConfigError(f"{where!r} is no URL. Use one such as hdfs://authority/path or s3://bucket/path.")
    if _LOST_SLASH.match(where):
        raise ConfigError(
            f"{where!r} was a URL, and has lost a slash. Give it as text: pathlib.Path is for paths."
        )


def split(url: str) -> tuple[str, str, str]:
    """Scheme, authority and absolute path of a URL, in its shortest form. Raises ConfigError."""
    scheme, separator, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    if not separator or not _URL.match(url):
        raise ConfigError(f"{url!r} is no URL. Use one such as hdfs://authority/path or s3://bucket/path.")
    if scheme in ("webhdfs", "swebhdfs") and not authority:
        raise ConfigError(
            f"{url!r} names no host. Use {scheme}://host:port/path, the NameNode's HTTP address."
        )
    check(url)
    if not authority and scheme not in ("hdfs", "file", "local", "memory"):
        raise ConfigError(f"{url!r} names no bucket, and no host. Use {scheme}://bucket/path.")
    path = f"/{path}"
    if "\0" in path or ".." in path.split("/"):
        raise ConfigError(f"{url!r}: a path with '..' or a zero byte. Use a path from the root.")
    return scheme, authority, posixpath.normpath(path)
