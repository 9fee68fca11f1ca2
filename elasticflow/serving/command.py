"""``elasticflow serve-model``, from its options to its end."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket as sockets
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvicorn

from elasticflow.errors import RunError
from elasticflow.process.fingerprint import environment
from elasticflow.run.folder import RunDir
from elasticflow.run.settings import MemberSettings
from elasticflow.serving.app import ModelApp
from elasticflow.serving.counts import Counts
from elasticflow.serving.crew import ModelCrew
from elasticflow.serving.reloading import Choice, follow, own_folder

DRAIN_S = 30
"""So long requests that are under way may take once the server is told to end."""


@dataclass(frozen=True)
class Serving:
    """program: in the place of the run's copy; "": none. workers: processes; 0: one for as many cores as each
    computes with. most_bytes: of a request. most_waiting: requests. patience_s: until a request is answered.
    reload_s: between looks for another checkpoint; 0: none."""

    run: RunDir
    step: int | None
    best: bool
    program: str = ""
    device: str = "cpu"
    workers: int = 0
    address: str = "127.0.0.1"
    port: int = 8500
    token: str = ""
    certificate: str = ""
    key: str = ""
    most_bytes: int = 64 << 20
    most_waiting: int = 1024
    patience_s: float = 30.0
    reload_s: float = 5.0


def serve(serving: Serving) -> None:
    """Serves until it is told to end. Raises ElasticFlowError."""
    listener = _listener(serving.address, serving.port)
    folder, _held = own_folder()
    try:
        asyncio.run(_serve(serving, listener, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        listener.close()


def _listener(address: str, port: int) -> sockets.socket:
    try:
        family = sockets.AF_INET6 if ":" in address else sockets.AF_INET
        return sockets.create_server((address, port), family=family, backlog=1024)
    except OSError as error:
        raise RunError(f"{address}:{port}: cannot be listened on: {error.strerror or error}.") from error


async def _serve(serving: Serving, listener: sockets.socket, folder: Path) -> None:
    choice = Choice(serving.run, serving.step, serving.best)
    manifest = choice.now()
    config = serving.run.config()
    config = config.fixed(int(manifest.work.get("slices") or config.num_slices))
    settings = MemberSettings.of(
        config, name="model", role="worker", host="", master="", run_dir=str(serving.run.path)
    )
    settings = msgspec.structs.replace(settings, device=serving.device, free_slices=False, read_processes=0)
    if serving.program:
        path = os.path.abspath(serving.program)
        settings = msgspec.structs.replace(settings, program=path, program_sha256="")
    counts = Counts()
    crew = ModelCrew(
        settings,
        folder,
        environment(config.threads),
        num=serving.workers or max(1, len(os.sched_getaffinity(0)) // config.threads),
        most=serving.most_waiting,
        limit_s=2 * serving.patience_s,
        told=counts.computed,
    )
    counts.watch("processes", "That answer", lambda: crew.ready)
    counts.watch("waiting_requests", "That no process has yet", lambda: crew.waiting)
    counts.watch("step", "Of the checkpoint that is served", lambda: crew.step)
    counts.watch("process_deaths", "Since the start", lambda: crew.deaths)
    name = Path(str(serving.run.path)).name
    app = ModelApp(
        crew,
        counts,
        name=name,
        token=serving.token,
        most_bytes=serving.most_bytes,
        patience_s=serving.patience_s,
    )
    following: asyncio.Task[None] | None = None
    try:
        weights = await asyncio.to_thread(choice.unpacked, manifest, folder)
        await crew.begin(weights)
        if choice.moves and serving.reload_s:
            following = asyncio.create_task(
                follow(choice, weights, serving.reload_s, crew.replace, counts.reloaded)
            )
        port, scheme = listener.getsockname()[1], "https" if serving.certificate else "http"
        print(f"serving step {weights.step} on {scheme}://{serving.address}:{port}", flush=True)
        server = uvicorn.Server(
            uvicorn.Config(
                app.routes,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=DRAIN_S,
                ssl_certfile=serving.certificate or None,
                ssl_keyfile=serving.key or None,
            )
        )
        await server.serve(sockets=[listener])
    finally:
        if following:
            following.cancel()
        await crew.close()
