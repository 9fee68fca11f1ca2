"""``elasticflow serve-model``: a run's model over HTTP."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path

from elasticflow.cli.folders import find_run
from elasticflow.errors import ConfigError, RunError
from elasticflow.process.packages import require
from elasticflow.run.config import check_texts
from elasticflow.wire.tokens import token_for

MOST_PORT = 65535


def serve_model(arguments: argparse.Namespace) -> int:
    """Serves until it is told to end."""
    for package in ("starlette", "uvicorn", "uvloop", "httptools", "pyarrow", "prometheus_client"):
        require(package, "serve-model", "serving")
    if arguments.best and arguments.step is not None:
        raise ConfigError("--best and --step name two checkpoints; give one of them.")
    leasts = {
        "workers": 1,
        "max_request_mb": 1,
        "max_waiting": 1,
        "timeout_s": 0.001,
        "reload_s": 0,
        "port": 0,
    }
    for name, least in leasts.items():
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: must be at least {least}.")
    if arguments.port > MOST_PORT:
        raise ConfigError(f"--port {arguments.port}: must be at most {MOST_PORT}.")
    if bool(arguments.tls_cert) != bool(arguments.tls_key):
        raise ConfigError("--tls-cert and --tls-key: give both, or none.")
    if arguments.tls_cert:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(arguments.tls_cert, arguments.tls_key)
        except OSError as error:
            files = f"--tls-cert {arguments.tls_cert}, --tls-key {arguments.tls_key}"
            raise ConfigError(f"{files}: are no certificate and its key: {error}.") from error
    run = find_run(arguments.run, arguments.trust)
    if not run.settings.exists():
        raise RunError(f"{run.path}: is not the folder of a run.")
    check_texts({"RUN": str(run.path), "--program": arguments.program})
    local = isinstance(run.path, Path)
    own = (run.client_keys.parent if local else Path.home() / ".elasticflow") / "model.token"
    token, file = token_for("--token-file", arguments.address, arguments.token_file, Path(str(own)))
    from elasticflow.serving.command import serve
    from elasticflow.serving.settings import ServingSettings

    if file:
        print(f"requests are to have the token in {file}", flush=True)
    serve(
        ServingSettings(
            run,
            arguments.step,
            arguments.best,
            program=arguments.program,
            device=arguments.device,
            workers=arguments.workers or 0,
            address=arguments.address,
            port=arguments.port,
            token=token,
            certificate=arguments.tls_cert,
            key=arguments.tls_key,
            most_bytes=arguments.max_request_mb << 20,
            most_waiting=arguments.max_waiting,
            patience_s=arguments.timeout_s,
            reload_s=arguments.reload_s,
        )
    )
    return 0
