"""Tokens of those who may ask over HTTP: none on the loopback, unless a file has one."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
from pathlib import Path

from elasticflow.errors import ConfigError
from elasticflow.wire.keys import write_secret

LEAST_TOKEN = 16
"""Characters of a token: a shorter one can be guessed."""


def is_local(address: str) -> bool:
    """Whether only this machine can reach it."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


def token_for(setting: str, address: str, named: str, own: Path) -> tuple[str, Path | None]:
    """The token, and the file that it is in; none for the loopback where no file is named.

    setting: names it in errors. named: a file of the user's; own: where one is made, if there is none.
    Raises ConfigError, OSError.
    """
    if not named and is_local(address):
        return "", None
    path = Path(named).expanduser() if named else own
    if not named and not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_secret(path, secrets.token_urlsafe(32).encode())
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"{setting}: {path}: others may read or write it; 'chmod 600' it.")
    token = path.read_text(encoding="ascii").strip()
    if len(token) < LEAST_TOKEN:
        raise ConfigError(
            f"{setting}: {path}: holds {len(token)} characters; {LEAST_TOKEN} or more are a token."
        )
    return token, path
