"""What a served model tells Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
TOGETHER = (1, 2, 4, 8, 16, 32, 64)


class ServingCounts:
    """By the field's names, of one server."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        name = "elasticflow_model_{}".format
        self._requests = Counter(name("requests"), "Answered, by status code", ["code"], registry=own)
        text = "From question to answer"
        self._seconds = Histogram(name("request_seconds"), text, buckets=SECONDS, registry=own)
        self._records = Counter(name("records"), "Predicted", registry=own)
        text = "Computed at once"
        self._together = Histogram(name("batch_requests"), text, buckets=TOGETHER, registry=own)
        self._computing = Counter(name("computing_seconds"), "Of all processes", registry=own)
        self._reloads = Counter(name("reloads"), "Other models, loaded or not", ["result"], registry=own)

    def watch(self, name: str, text: str, now: Callable[[], float]) -> None:
        """A figure that is looked up when somebody asks."""
        Gauge(f"elasticflow_model_{name}", text, registry=self._registry).set_function(now)

    def answered(self, code: int, seconds: float) -> None:
        """A request."""
        self._requests.labels(str(code)).inc()
        self._seconds.observe(seconds)

    def computed(self, requests: int, records: int, seconds: float) -> None:
        """A batch of them."""
        self._together.observe(requests)
        self._records.inc(records)
        self._computing.inc(seconds)

    def reloaded(self, well: bool) -> None:
        """Another model was there."""
        self._reloads.labels("loaded" if well else "refused").inc()

    def told(self) -> tuple[bytes, str]:
        """All of it, and its media type."""
        text: bytes = generate_latest(self._registry)  # type: ignore[no-untyped-call]
        return text, CONTENT_TYPE_LATEST
