"""An HTTP server that nobody can keep busy: so many connections at a time, each for a while."""

from __future__ import annotations

import http.server
import socket
import threading
from typing import Any


class BoundedHttpServer(http.server.ThreadingHTTPServer):
    """most: connections at a time; more are closed at once. Raises OSError if it cannot listen there."""

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], handler: type[http.server.BaseHTTPRequestHandler], most: int
    ) -> None:
        self._free = threading.BoundedSemaphore(most)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Without asking for this machine's name, which may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of one before it, just gone
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked has gone, or said nothing for too long; that is no news."""
