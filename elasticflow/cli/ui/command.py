"""Finds what is to be shown, and serves the page until Ctrl-C."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path

from elasticflow.cli.folders import RUNS
from elasticflow.cli.history import is_place
from elasticflow.cli.ui.serving import UiServer
from elasticflow.cli.ui.shelf import FolderShelf, RunShelf, ServiceShelf
from elasticflow.errors import ConfigError, RunError
from elasticflow.run.folder import RunDir
from elasticflow.service.settings import folder_of
from elasticflow.wire.tokens import is_local


def ui(arguments: argparse.Namespace) -> int:
    """Serves until Ctrl-C. Raises ConfigError, RunError."""
    shelf = _shelf(arguments)
    token = secrets.token_urlsafe(24)
    try:
        server = UiServer((arguments.address, arguments.port), token, shelf, steers=arguments.steer)
    except (OSError, OverflowError) as error:
        what = getattr(error, "strerror", None) or error
        raise RunError(
            f"--address {arguments.address} --port {arguments.port}: cannot be listened on: {what}; "
            "choose another."
        ) from error
    host = f"[{arguments.address}]" if ":" in arguments.address else arguments.address
    print(f"http://{host}:{server.server_address[1]}/?token={token}", flush=True)
    what = "look and steer" if arguments.steer else "look"
    print(f"Whoever has this address may {what}. Ctrl-C ends it; runs go on.", flush=True)
    if not is_local(arguments.address):
        print(
            "It is not encrypted: on a network that others listen to, use a tunnel (docs/ui.md).", flush=True
        )
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    finally:
        server.server_close()
    return 0


def _shelf(arguments: argparse.Namespace) -> RunShelf:
    if arguments.where and arguments.service:
        raise ConfigError("ui: of what? Name a run or a folder, or a service with --service; one of both.")
    if arguments.service:
        shelf = ServiceShelf(folder_of(arguments.service), arguments.trust)
        shelf.service()  # raises, and says that there is none
        return shelf
    where = arguments.where or str(RUNS)
    if not arguments.where and not Path(where).is_dir():
        raise ConfigError(
            f"ui: there is no folder {RUNS} here. Name a run, or a folder in which runs have theirs."
        )
    is_folder = not is_place(where) and RunDir(where).path.is_dir() and not RunDir(where).settings.exists()
    return FolderShelf.of(where, arguments.trust, is_folder=is_folder)
