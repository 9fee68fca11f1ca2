"""``elasticflow serve-model``, from its options to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket as sockets
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import uvicorn
import uvloop

from elasticflow.errors import RunError
from elasticflow.process.fingerprint import environment
from elasticflow.process.own_folders import own_folder
from elasticflow.run.settings import MemberSettings
from elasticflow.serving.app import ModelApp
from elasticflow.serving.counts import ServingCounts
from elasticflow.serving.crew import ModelCrew
from elasticflow.serving.idle import IdleConnections
from elasticflow.serving.reloading import ServedCheckpoint, follow
from elasticflow.serving.settings import ServingSettings

DRAIN_S = 30
"""So long requests that are under way may take once the server is told to end."""


class _ModelServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._idle = IdleConnections()

    def end(self) -> None:
        """Takes nothing new, answers what is under way, and returns."""
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Every tenth of a second."""
        if counter % 10 == 0:
            self._hang_up()
        return await super().on_tick(counter)

    def _hang_up(self) -> None:
        """On who asks nothing, or does not take what it was answered."""
        asked = {each: getattr(each, "cycle", None) for each in self.server_state.connections}
        idle = {each: last for each, last in asked.items() if last is None or last.response_complete}
        for each in self._idle.look(idle, time.monotonic()):
            each.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the command's: uvicorn would raise them again, before all is put away."""
        yield


def serve(serving: ServingSettings) -> None:
    """Serves until it is told to end. Raises ElasticFlowError."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # each who waits takes one
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listener = _listener(serving.address, serving.port)
    try:
        with own_folder("elasticflow-model-") as folder:
            uvloop.run(_serve(serving, listener, folder))
    finally:
        listener.close()


def _listener(address: str, port: int) -> sockets.socket:
    try:
        family = sockets.AF_INET6 if ":" in address else sockets.AF_INET
        listener = sockets.create_server((address, port), family=family, backlog=1024)
    except OSError as error:
        raise RunError(f"{address}:{port}: cannot be listened on: {error.strerror or error}.") from error
    # For all connections; asyncio sets it only where it has made the socket. Without it answers wait 40 ms.
    listener.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
    return listener


async def _serve(serving: ServingSettings, listener: sockets.socket, folder: Path) -> None:
    choice = ServedCheckpoint(serving.run, serving.step, serving.best)
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
    counts = ServingCounts()
    crew = ModelCrew(
        settings,
        folder,
        environment(config.threads),
        num=serving.workers or max(1, len(os.sched_getaffinity(0)) // config.threads),
        most=serving.most_waiting,
        most_bytes=4 * serving.most_bytes,
        limit_s=2 * serving.patience_s,
        told=counts.computed,
    )
    counts.watch("processes", "That answer", lambda: crew.ready)
    counts.watch("waiting_requests", "That no process has yet", lambda: crew.waiting)
    counts.watch("step", "Of the checkpoint that is served", lambda: crew.step)
    counts.watch("process_deaths", "Since the start", lambda: crew.deaths)
    app = ModelApp(crew, counts, serving)
    following: asyncio.Task[None] | None = None
    try:
        weights = await asyncio.to_thread(choice.unpacked, manifest, folder)
        await crew.begin(weights)
        if choice.moves and serving.reload_s:
            following = asyncio.create_task(
                follow(choice, manifest, weights, serving.reload_s, crew.replace, counts.reloaded)
            )
        port, scheme = listener.getsockname()[1], "https" if serving.certificate else "http"
        print(f"serving step {weights.step} on {scheme}://{serving.address}:{port}", flush=True)
        server = _ModelServer(
            uvicorn.Config(
                app.asgi,
                log_level="warning",
                access_log=False,
                server_header=False,
                # More connections than requests that may wait: which of these is too many is known later.
                limit_concurrency=serving.most_waiting + max(serving.most_waiting, 64),
                timeout_graceful_shutdown=DRAIN_S,
                ssl_certfile=serving.certificate or None,
                ssl_keyfile=serving.key or None,
            )
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, server.end)
        await server.serve(sockets=[listener])
    finally:
        if following:
            following.cancel()
        await crew.close()
