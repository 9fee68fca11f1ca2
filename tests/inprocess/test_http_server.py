"""An HTTP server that nobody can keep busy."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from elasticflow.process import http_server
from elasticflow.process.http_server import BoundedHttpServer


class Handler(http.server.BaseHTTPRequestHandler):
    server: BoundedHttpServer

    def do_GET(self) -> None:
        self.server.was_asked(self.connection)
        self.send_response_only(200)
        self.end_headers()
        if self.path == "/held":
            self.rfile.read(1)  # until who asked goes


@pytest.fixture
def server() -> Iterator[BoundedHttpServer]:
    with BoundedHttpServer(("127.0.0.1", 0), Handler, most=2) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def connect(server: BoundedHttpServer, said: bytes = b"") -> socket.socket:
    line = socket.create_connection(server.server_address[:2], timeout=60)
    line.sendall(said)
    return line


def test_who_asks_nothing_has_to_go_and_who_has_asked_may_stay(
    server: BoundedHttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(connect(server, b"GET /held HTTP/1.0\r\n\r\n")) as held:
        assert held.recv(12) == b"HTTP/1.0 200"
        monkeypatch.setattr(http_server, "READ_S", 0.2)
        for said in (b"", b"GET / HTTP/1.0\r\nnever: e"):
            with closing(connect(server, said)) as silent:
                assert silent.recv(1) == b""  # closed, however long it would have waited
        assert held.recv(64).endswith(b"\r\n\r\n")
        held.settimeout(0.5)
        with pytest.raises(TimeoutError):
            held.recv(1)


def test_more_than_so_many_are_refused_until_one_goes(server: BoundedHttpServer) -> None:
    held = [connect(server, b"GET /held HTTP/1.0\r\n\r\n") for _ in range(2)]
    for line in held:
        assert line.recv(12) == b"HTTP/1.0 200"
    with closing(connect(server)) as refused:
        assert refused.recv(1) == b""
    for line in held:
        line.close()
    while True:  # its thread ends a moment later
        with closing(connect(server, b"GET / HTTP/1.0\r\n\r\n")) as line:
            try:
                if line.recv(12):
                    return
            except ConnectionError:
                continue
