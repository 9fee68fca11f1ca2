"""An HTTP server that nobody can keep busy: so many connections at a time, whose questions come soon."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from contextlib import suppress
from typing import Any

READ_S = 10.0
"""A connection on which nothing was asked after so long is closed, however it is kept alive."""


class BoundedHttpServer(http.server.ThreadingHTTPServer):
    """most: connections at a time; more are closed at once. Raises OSError if it cannot listen there."""

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], handler: type[http.server.BaseHTTPRequestHandler], most: int
    ) -> None:
        self._free = threading.BoundedSemaphore(most)
        self._unread: dict[socket.socket, float] = {}
        """Connections on which nothing was asked yet, and until when that is waited for."""
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Without asking for this machine's name, which may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of one before it, just gone
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._unread[request] = time.monotonic() + READ_S
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._let_go(request)
            raise

    def was_asked(self, request: socket.socket) -> None:
        """To be called by who has read a question."""
        self._unread.pop(request, None)

    def service_actions(self) -> None:
        """To be called now and then, as ``serve_forever`` does."""
        for request, until_s in list(self._unread.items()):
            if time.monotonic() > until_s:
                with suppress(OSError):  # it has ended just now
                    request.shutdown(socket.SHUT_RDWR)

    def _let_go(self, request: socket.socket) -> None:
        self._unread.pop(request, None)
        self._free.release()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._let_go(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked has gone, or said nothing for too long; that is no news."""
