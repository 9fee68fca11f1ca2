"""The page over HTTP, to those alone who have its token: at first in its address, then in a cookie.

    GET  /, /*.css, /*.js             the page, which asks for all else by itself
    GET  /api/runs                    all runs at a glance; of a service, what that tells too
    GET  /api/run/NAME                one, as 'elasticflow status --json' prints it
    GET  /api/run/NAME/events         the same whenever there is news, as server-sent events
    GET  /api/compare?run=A&run=B     as 'elasticflow compare --json'
    POST /api/run/NAME/scale, /stop   where people may steer

Names are of runs that the page lists, never paths. No other site can have the cookie sent with a request
that changes something (SameSite), nor set the header that steering asks for. Nothing comes from elsewhere,
and the page asks for all that by relative addresses, so it may be seen below a proxy's prefix.
"""

from __future__ import annotations

import contextlib
import hmac
import http.server
import socket
import sys
import traceback
import urllib.parse
from collections.abc import Callable
from importlib.resources import files
from typing import Annotated, Any

import msgspec

from elasticflow.cli.ui.shelf import RunShelf
from elasticflow.errors import ElasticFlowError, NoRunError
from elasticflow.process.decoding import from_json
from elasticflow.process.http_server import BoundedHttpServer
from elasticflow.process.texts import as_json
from elasticflow.run.config import MOST_PROCESSES

MOST = 64
"""Connections at a time, one for each run that somebody looks at; more are refused."""
PATIENCE_S = 10.0
"""A connection on which nothing is asked, or nothing read, for so long is closed."""
MOST_BODY = 1024
Workers = Annotated[int, msgspec.Meta(ge=-MOST_PROCESSES, le=MOST_PROCESSES)]
"""What a message can carry; the master says how many there may be."""
STEERS = "X-ElasticFlow"
"""The header of a request that changes something."""
ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class UiServer(BoundedHttpServer):
    """steers: whether who has the token may change runs, too. Raises OSError."""

    def __init__(self, address: tuple[str, int], token: str, shelf: RunShelf, *, steers: bool) -> None:
        self.token, self.shelf, self.steers = token, shelf, steers
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _UiRequest, MOST)

    @property
    def cookie(self) -> str:
        """Its name: browsers tell servers of one machine apart by nothing else."""
        return f"elasticflow-{self.server_address[1]}"


class _UiRequest(http.server.BaseHTTPRequestHandler):
    """One request, one connection."""

    server: UiServer
    protocol_version = "HTTP/1.0"
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        self.server.was_asked(self.connection)
        path, _, query = self.path.partition("?")
        asked = urllib.parse.parse_qs(query)
        if path == "/" and "token" in asked:
            self._let_in(asked["token"][0])
        elif not self._is_let_in():
            self._send(403, "text/plain", b"The address that 'elasticflow ui' printed lets you in.\n")
        elif path in ASSETS:
            name, kind = ASSETS[path]
            self._send(200, kind, files("elasticflow.cli.ui").joinpath("static").joinpath(name).read_bytes())
        elif path == "/api/runs":
            self._answer(self._all_runs)
        elif path == "/api/compare":
            self._answer(lambda: self.server.shelf.compare(asked.get("run", [])))
        elif path.startswith("/api/run/"):
            name, _, what = path.removeprefix("/api/run/").partition("/")
            name = urllib.parse.unquote(name)
            if what == "events":
                self._follow(name)
            else:
                self._answer(lambda: self._picture(name))
        else:
            self._send(404, "text/plain", b"")

    def do_POST(self) -> None:
        self.server.was_asked(self.connection)
        parts = self.path.split("/")
        if not self._is_let_in() or not self.server.steers or self.headers.get(STEERS) != "steer":
            self._send(403, "text/plain", b"This page only shows runs.\n")
        elif len(parts) == 5 and parts[:3] == ["", "api", "run"] and parts[4] in ("scale", "stop"):
            name = urllib.parse.unquote(parts[3])
            self._answer(lambda: self._steer(name, parts[4]))
        else:
            self._send(404, "text/plain", b"")

    def _let_in(self, token: str) -> None:
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            return self._send(403, "text/plain", b"This is not the token of this page.\n")
        # Both are of where the browser sees this page, which may be below a proxy's prefix, beside others.
        cookie = f"{self.server.cookie}={token}; HttpOnly; SameSite=Lax"
        self._send(303, "text/plain", b"", ("Location", "./"), ("Set-Cookie", cookie))

    def _is_let_in(self) -> bool:
        # Whatever else this host's servers have put there, well-formed or not.
        wanted = f"{self.server.cookie}={self.server.token}".encode()
        given = self.headers.get("Cookie", "").split(";")
        return any(hmac.compare_digest(each.strip().encode("utf-8", "replace"), wanted) for each in given)

    def _all_runs(self) -> dict[str, Any]:
        shelf = self.server.shelf
        runs = [{"name": each.name, **msgspec.to_builtins(each.summary)} for each in shelf.summaries()]
        service = shelf.service()
        return {
            "title": shelf.title,
            "steers": self.server.steers,
            "runs": runs,
            "service": msgspec.to_builtins(service) if service else None,
        }

    def _steer(self, name: str, what: str) -> dict[str, str]:
        if what == "stop":
            return {"text": self.server.shelf.stop(name)}
        length = min(MOST_BODY, max(0, int(self.headers.get("Content-Length") or 0)))
        workers = from_json(self.rfile.read(length), dict[str, Workers]).get("workers", 0)
        self.server.shelf.scale(name, workers)
        return {"text": f"{workers} workers asked for"}

    def _answer(self, ask: Callable[[], Any]) -> None:
        try:
            code, body = 200, as_json(ask())
        except NoRunError as error:
            code, body = 404, as_json({"error": str(error)})
        except (ElasticFlowError, OSError) as error:
            code, body = 503, as_json({"error": str(error)})
        except (ValueError, msgspec.MsgspecError) as error:
            code, body = 400, as_json({"error": str(error)})
        except Exception as error:  # noqa: BLE001  (the page shows it; a connection that ends says nothing)
            traceback.print_exc(file=sys.stderr)
            code, body = 500, as_json({"error": f"{type(error).__name__}: {error}"})
        self._send(code, "application/json", body)

    def _picture(self, name: str) -> Any:
        with contextlib.closing(self.server.shelf.pictures(name)) as pictures:
            return next(picture for picture in pictures if picture is not None)

    def _follow(self, name: str) -> None:
        """Until the run is over, or nobody listens any more."""
        self._begin(200, "text/event-stream")
        with contextlib.closing(self.server.shelf.pictures(name)) as pictures:
            while True:
                try:
                    picture = next(pictures)
                except StopIteration:
                    break
                except (ElasticFlowError, OSError) as error:
                    self.wfile.write(b"event: trouble\ndata: %s\n\n" % as_json({"error": str(error)}))
                    return
                # A line that says nothing shows whether somebody still listens.
                self.wfile.write(b":\n\n" if picture is None else b"data: %s\n\n" % as_json(picture))
        self.wfile.write(b"event: over\ndata: {}\n\n")

    def _send(self, code: int, kind: str, body: bytes, *headers: tuple[str, str]) -> None:
        self._begin(code, kind, ("Content-Length", str(len(body))), *headers)
        self.wfile.write(body)

    def _begin(self, code: int, kind: str, *headers: tuple[str, str]) -> None:
        self.send_response_only(code)
        for name, value in (
            ("Content-Type", kind),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            *headers,
        ):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        """Nothing: the token is in what would be logged."""
