"""An S3 for tests: moto's, in a process of its own, with faults in its network.

``python -m tests.clusters.s3 HOST PORT`` serves. What is put to ``/__faults`` as JSON befalls the next
requests that fit, each so many times.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

ACTS = ("refuse", "lose", "cut", "hang", "deny", "overwrite")
"""refuse: 503, be slower. lose: it is done, and its answer never comes. cut: half of the answer comes.
hang: nothing is done, and nothing is answered. deny: 403. overwrite: a put's condition is not heeded."""
START_S = 60.0


class S3Server:
    """Runs while it is a context manager."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        with socket.socket() as free:
            free.bind((host, 0))
            self._at: tuple[str, int] = free.getsockname()
        self.url = f"http://{host}:{self._at[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What leads clients here."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "of-tests",
            "AWS_SECRET_ACCESS_KEY": "of-tests",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",  # s3fs tries again itself
        }

    def __enter__(self) -> S3Server:
        command = [sys.executable, "-m", "tests.clusters.s3", *map(str, self._at)]
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(command, stderr=self._log)
        until_s = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(self._at, timeout=5).close()
                break
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until_s:
                    self._log.seek(0)
                    raise RuntimeError(f"no S3: {self._log.read().decode()}") from None
                time.sleep(0.05)  # whoever listens tells nobody
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def fail(self, act: str, method: str, path: str, times: int = 1, after: int = 0) -> None:
        """From now on. path: part of it, or of its query. after: so many that fit are spared first."""
        assert act in ACTS
        self._put({"act": act, "method": method, "path": path, "times": times, "after": after})

    def heal(self) -> int:
        """Ends all faults; how many requests they have befallen since the last time."""
        return int(self._put(None))

    def _put(self, fault: dict[str, Any] | None) -> bytes:
        request = urllib.request.Request(f"{self.url}/__faults", json.dumps(fault).encode(), method="PUT")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())


class _Faulty:
    """Between clients and moto."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._faults: list[dict[str, Any]] = []
        self._befallen = 0

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/__faults":
            return self._told(environ, start)
        act = self._next(environ["REQUEST_METHOD"], f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}")
        if act in ("refuse", "deny"):
            _read(environ)
            status, code = {
                "refuse": ("503 Slow Down", "SlowDown"),
                "deny": ("403 Forbidden", "AccessDenied"),
            }[act]
            body = f"<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>".encode()
            start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]
        if act == "hang":
            while not environ["werkzeug.socket"].recv(1 << 16) == b"":
                pass
            raise ConnectionError("whoever asked has gone")
        if act == "lose":
            list(self._app(environ, lambda *told: lambda data: None))
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionError("the answer is lost")
        if act == "overwrite":
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if act == "cut":
            return _half(self._app(environ, start), environ["werkzeug.socket"])
        return self._app(environ, start)  # type: ignore[no-any-return]

    def _told(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        fault = json.loads(_read(environ))
        with self._lock:
            befallen = self._befallen
            if fault is None:
                self._faults, self._befallen = [], 0
            else:
                self._faults.append(fault)
        start("200 OK", [("Content-Type", "text/plain")])
        return [str(befallen).encode()]

    def _next(self, method: str, path: str) -> str:
        with self._lock:
            for fault in self._faults:
                if fault["method"] in ("", method) and fault["path"] in path and fault["times"]:
                    if fault["after"]:
                        fault["after"] -= 1
                        continue
                    fault["times"] -= 1
                    self._befallen += 1
                    return str(fault["act"])
        return ""


def _read(environ: dict[str, Any]) -> bytes:
    return bytes(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))


def _half(answer: Iterable[bytes], line: socket.socket) -> Iterator[bytes]:
    whole = b"".join(answer)
    yield whole[: len(whole) // 2]
    line.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """See the module's docstring."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    host, port = sys.argv[1:]
    os.environ["MOTO_PORT"] = port
    app = _Faulty(DomainDispatcherApplication(create_backend_app))
    run_simple(host, int(port), app, threaded=True)


if __name__ == "__main__":
    main()
