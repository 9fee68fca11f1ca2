"""``elasticflow metrics``: tells Prometheus of a run, or a service, for as long as that is there.

A master, or service, that has ``metrics_port`` in its settings starts this, and it ends with that.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from elasticflow.cli.connection import Connection
from elasticflow.cli.folders import find_run
from elasticflow.cluster.presence import presence_of
from elasticflow.errors import ConfigError, ElasticFlowError
from elasticflow.master.log import say
from elasticflow.openmetrics.exposing import Figures, MetricsServer
from elasticflow.openmetrics.figures import Sample
from elasticflow.openmetrics.of_run import figures_of
from elasticflow.openmetrics.of_service import figures_of_service
from elasticflow.process.packages import require
from elasticflow.process.parent import die_with_parent
from elasticflow.process.stamps import stamp_output
from elasticflow.run.folder import RunDir
from elasticflow.service import talk
from elasticflow.service.settings import folder_of
from elasticflow.wire.tokens import token_for

ANSWER_S = 5.0
LOOK_S = 1.0
"""By hand: so often it is looked whether the run is over."""
NICE = 10


def metrics(arguments: argparse.Namespace) -> int:
    """Serves until the run is over, whoever started this is gone, or Ctrl-C."""
    if arguments.own:
        die_with_parent(arguments.own)
        os.nice(NICE)
        stamp_output()
    if bool(arguments.run) == bool(arguments.service):
        raise ConfigError("metrics: of what? Name a run, or a service with --service; one of both.")
    require("prometheus_client", "metrics_port", "metrics")
    run = find_run(arguments.run, arguments.trust) if arguments.run else None
    if run:
        run.config()
        home = run.client_keys.parent if isinstance(run.path, Path) else Path.home() / ".elasticflow"
        ask = partial(_of_run, run)
    else:
        home = folder_of(arguments.service)
        ask = partial(_of_service, home)
    assert isinstance(home, Path)
    own = home / "metrics.token"
    token, file = token_for("metrics_token_file", arguments.address, arguments.token_file, own)
    server = MetricsServer(arguments.address, arguments.port, token, Figures(ask))
    port = server.server_address[1]
    asks = f"; it asks for the token in {file}" if file else ""
    say(f"metrics: http://{arguments.address}:{port}/metrics{asks}")
    presence = presence_of(run) if run and not arguments.own else None
    server.timeout = LOOK_S
    try:
        while presence is None or presence.is_alive():
            server.handle_request()
            server.service_actions()
    except KeyboardInterrupt:
        return 130
    finally:
        server.server_close()
    return 0


def _of_run(run: RunDir) -> Iterable[Sample]:
    name = run.path.name
    try:
        with Connection(run) as connection:
            return figures_of(name, connection.status(ANSWER_S))
    except (ElasticFlowError, OSError):
        return figures_of(name, None)


def _of_service(folder: Path) -> Iterable[Sample]:
    try:
        return figures_of_service(folder.name, talk.ask(folder, talk.ListTasks(over=0)))
    except (ElasticFlowError, OSError):
        return figures_of_service(folder.name, None)
