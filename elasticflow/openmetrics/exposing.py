"""The server that Prometheus asks: OpenMetrics over HTTP, written by ``prometheus-client``.

It listens on the loopback unless it is told otherwise, and then asks for a token (``Authorization: Bearer``).
"""

from __future__ import annotations

import hmac
import http.server
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from elasticflow.errors import RunError
from elasticflow.openmetrics.figures import Sample
from elasticflow.process.http_server import BoundedHttpServer

FRESH_S = 1.0
"""So old figures may be told again, however many ask."""
MOST = 16
"""Connections at a time; more are refused."""
PATIENCE_S = 10.0


class Figures:
    """What is told now: asked for at most once a second, by one at a time."""

    def __init__(self, ask: Callable[[], Iterable[Sample]]) -> None:
        self._ask, self._lock = ask, threading.Lock()
        self._kept: list[Sample] = []
        self._kept_s = float("-inf")

    def now(self) -> list[Sample]:
        with self._lock:
            if time.monotonic() >= self._kept_s + FRESH_S:
                self._kept, self._kept_s = list(self._ask()), time.monotonic()
            return self._kept


class MetricsServer(BoundedHttpServer):
    """Answers ``GET /metrics``. token: empty: everybody who reaches it may ask. Raises RunError."""

    def __init__(self, address: str, port: int, token: str, figures: Figures) -> None:
        self.token, self.figures = token, figures
        try:
            super().__init__((address, port), _Metrics, MOST)
        except OSError as error:
            raise RunError(
                f"metrics_port: {port} of {address} cannot be listened on: {error.strerror}; choose another."
            ) from error


class _Metrics(http.server.BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        self.server.was_asked(self.connection)
        from prometheus_client.exposition import choose_encoder

        given = self.headers.get("Authorization", "")
        if self.server.token and not hmac.compare_digest(
            given.encode("latin-1"), f"Bearer {self.server.token}".encode()
        ):
            self._send(401, b"", "text/plain", ("WWW-Authenticate", "Bearer"))
        elif self.path.partition("?")[0] != "/metrics":
            self._send(404, b"", "text/plain")
        else:
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._send(200, encode(registry(self.server.figures.now())), kind)

    def _send(self, code: int, body: bytes, kind: str, *headers: tuple[str, str]) -> None:
        self.send_response_only(code)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        """Nothing: it would be a line for each question."""


def registry(samples: Iterable[Sample]) -> Any:
    """As ``prometheus_client`` wants to be given figures."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
    from prometheus_client.registry import CollectorRegistry

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "info": InfoMetricFamily}
    families: dict[str, Any] = {}
    for sample in samples:
        figure = sample.figure
        if figure.name not in families:
            families[figure.name] = kinds[figure.kind](figure.name, figure.help)
        ending = {"counter": "_total", "gauge": "", "info": "_info"}[figure.kind]
        families[figure.name].add_sample(figure.name + ending, sample.labels, sample.value)

    class Told:
        def collect(self) -> Iterable[Any]:
            return families.values()

    made = CollectorRegistry(auto_describe=False)
    made.register(Told())
    return made
