"""The process that tells Prometheus of a run: it ends with its master, and the next one starts another.

It asks the master as any client does, when somebody asks it; so it costs a run nothing while nobody looks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from elasticflow.master.log import say
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir


class MetricsSettings(Protocol):
    """A run's, or a service's."""

    @property
    def metrics_port(self) -> int: ...
    @property
    def metrics_address(self) -> str: ...
    @property
    def metrics_token_file(self) -> str: ...


def metrics_command(settings: MetricsSettings, *whose: str) -> list[str]:
    """Of the process, which ends with this one. whose: arguments that say of what it tells."""
    where = ["--port", str(settings.metrics_port), "--address", settings.metrics_address]
    token = ["--token-file", settings.metrics_token_file] if settings.metrics_token_file else []
    own = ["--own", str(os.getpid())]
    return [sys.executable, "-m", "elasticflow.cli", "metrics", *whose, *where, *token, *own]


def begin_metrics(run: RunDir, config: Config) -> subprocess.Popen[bytes] | None:
    """Starts it, if the settings want it. The process is the caller's to keep; None: there is none."""
    if not config.metrics_port:
        return None
    command = [*metrics_command(config, str(run.path)), "--trust"]
    try:
        if not isinstance(run.path, Path):  # its words are the master's
            return subprocess.Popen(command, stdin=subprocess.DEVNULL)
        with (run.logs / "metrics.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    except OSError as error:
        say(f"warning: nobody tells Prometheus of the run: {error}")
        return None
