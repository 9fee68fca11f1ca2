"""A page about the run for a browser, served by its master's process to one who lets others look.

On YARN that is Skein's web UI, which people open through YARN's proxy. That asks the ApplicationMaster's
process, and that asks here: always from the same machine, so this listens on the loopback alone, and to those
alone who know a token. Only the ApplicationMaster is told it, and tells it in its own log, which those may
read who may see the page. Whoever else finds the port gets a 404, whatever he asks for. Through the proxy
only GET comes, and the page does not know its own address there, so it names no other but relative ones:

    (the page)    for people; anew every few seconds, by a script or without
    status.json   for programs: what 'elasticflow status --json' prints

What it shows it asks of the master as any client does, over its socket, at most once a second however many
look; so the master's own thread never waits for anybody here.
"""

from __future__ import annotations

import contextlib
import hmac
import html
import http.server
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import zmq

from elasticflow.errors import RunError
from elasticflow.process.decoding import converted
from elasticflow.process.guard import guarded_thread
from elasticflow.process.http_server import BoundedHttpServer
from elasticflow.process.network import LOOPBACK
from elasticflow.process.texts import harmless
from elasticflow.run.folder import RunDir
from elasticflow.run.telling import (
    AnyMember,
    Event,
    LiveStatus,
    Status,
    ToldFault,
    ToldMaster,
    ToldServer,
    Untold,
)
from elasticflow.wire.control import control_link, signed_frame
from elasticflow.wire.keys import MemberKeys, read_keys
from elasticflow.wire.messages import Answer, StatusRequest, decode_from_master
from elasticflow.wire.sockets import Context, Socket

TITLE = "ElasticFlow"
FRESH_S = 1.0
"""So old a status may be shown again."""
ANSWER_S = 3.0
AGAIN_S = 3
"""The page shows what is new so often."""
MOST = 32
"""Connections at a time; more are refused."""
PATIENCE_S = 10.0
"""A connection on which nothing comes is closed."""
SHOWN = 30
"""So many events, faults and sizes are on the page, the last ones."""


def start_page(run_dir: str, show: Callable[[str], None]) -> None:
    """To be called in the master's process; the page goes when that does.

    show: is told its address. Raises what that raises.
    """
    server = _Server(_Source(RunDir(run_dir)))
    try:
        show(server.target)
    except BaseException:
        server.server_close()
        raise
    guarded_thread(server.serve_forever, "page").start()


class _Source:
    """The status, as this process's master tells it."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._endpoint = ""
        self._keys: MemberKeys | None = None
        self._context: Context | None = None
        self._socket: Socket | None = None
        self._kept: LiveStatus | None = None
        self._kept_s = float("-inf")

    def status(self) -> LiveStatus | None:
        """Raises RunError if it cannot be had just now."""
        with self._lock:
            if time.monotonic() >= self._kept_s + FRESH_S:
                self._kept, self._kept_s = self._ask(), time.monotonic()
            return self._kept

    def _ask(self) -> LiveStatus | None:
        if self._socket is None:
            self._connect()
        assert self._socket is not None and self._keys is not None
        self._socket.send(signed_frame(self._keys, StatusRequest()))
        if not self._socket.poll(int(1000 * ANSWER_S)):
            self._socket.close(linger=0)  # what comes later must not be taken for the answer to the next one
            self._socket = None
            raise RunError("the master is busy; it does not answer just now")
        answer = decode_from_master(self._socket.recv())
        assert isinstance(answer, Answer)
        return None if answer.status is None else converted(answer.status, LiveStatus)

    def _connect(self) -> None:
        if not self._endpoint:
            address = self._run.read_address()
            if address.pid != os.getpid():
                raise RunError("the master is just starting")  # this is the address of one before it
            self._endpoint = address.endpoint
            self._keys = read_keys(self._run.client_keys, MemberKeys)
        if self._context is None:
            self._context = zmq.Context()
        assert self._keys is not None
        self._socket = control_link(self._context, self._keys, self._endpoint)


class _Server(BoundedHttpServer):
    """Serves the page to those who know the token."""

    def __init__(self, source: _Source) -> None:
        self.source = source
        self.token = secrets.token_urlsafe(32)
        super().__init__((LOOPBACK, 0), _Handler, MOST)

    @property
    def target(self) -> str:
        """The page's address. Skein's links end in a slash if this does."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/{self.token}/"


class _Handler(http.server.BaseHTTPRequestHandler):
    """One request, one connection."""

    server: _Server
    protocol_version = "HTTP/1.0"
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        self.server.was_asked(self.connection)
        token, *rest = self.path.partition("?")[0].lstrip("/").split("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            return self.send_error(404)
        name = "/".join(part for part in rest if part)
        if name not in ("", "status.json"):
            return self.send_error(404)
        try:
            status, why = self.server.source.status(), ""
        except Exception as error:  # noqa: BLE001  (such as a storage that is away; a page can say so)
            status, why = None, str(error) or type(error).__name__
        if name:
            body = msgspec.json.encode(status or Untold(state="unknown", text=why))
            self._answer(200 if status else 503, "application/json", body)
        else:
            nonce = secrets.token_urlsafe(16)
            body = page(status, why, nonce).encode()
            self._answer(200, "text/html; charset=utf-8", body, f"'nonce-{nonce}'")

    def _answer(self, code: int, kind: str, body: bytes, script: str = "'none'") -> None:
        policy = f"default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; script-src {script}"
        self.send_response_only(code)
        for header, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """To all who ask for anything else: there is nothing here."""
        with contextlib.suppress(OSError):
            self.wfile.write(b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the token is in what would be logged."""


# --- the page itself ------------------------------------------------------------------------------

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 62em; padding: 0 1em; color: #222 }
h1 { font-size: 1.4em } h2 { font-size: 1.05em; margin: 1.6em 0 .3em }
table { border-collapse: collapse }
td, th { text-align: left; padding: .15em 1em .15em 0; vertical-align: top }
th { font-weight: normal; color: #777 } progress { width: 100% } .fault, .failed { color: #b00020 }
.warning { color: #8a5a00 } .quiet { color: #777 }
"""
SCRIPT = """
const again = async () => {
  try {
    const text = await (await fetch(location.href, {cache: "no-store"})).text();
    const main = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    if (main) document.querySelector("main").replaceWith(main);
  } catch (error) {}
  setTimeout(again, %d);
};
setTimeout(again, %d);
"""


def page(status: Status | None, why: str = "", nonce: str = "") -> str:
    """The page as HTML. status: as the master has it; None: why it is not to be had."""
    script = SCRIPT % (1000 * AGAIN_S, 1000 * AGAIN_S)
    title = f"{os.path.basename(status.program)}: {status.state}" if status else TITLE
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        f'<noscript><meta http-equiv="refresh" content="{AGAIN_S}"></noscript><style>{STYLE}</style></head>'
        f"<body><main>{_main(status) if status else _nothing(why)}</main>"
        f'<script nonce="{nonce}">{script}</script></body></html>'
    )


def _text(value: object) -> str:
    return html.escape(harmless(str(value)))


def _nothing(why: str) -> str:
    return f'<h1>{TITLE}</h1><p class="warning">{_text(why)}</p>'


def _main(status: Status) -> str:
    from elasticflow.cli.progress import duration, eta, evaluation_line
    from elasticflow.cli.watching import faults_line

    total, loss, rate = status.steps_total, status.loss, status.records_per_s
    ready = sum(worker.state == "ready" for worker in status.workers)
    state = status.state + (", regrouping" if status.regrouping else "")
    notes = [
        ("epoch", f"{status.epoch} of {status.epochs}"),
        ("step", f"{status.step:,} of {'?' if total is None else format(total, ',')}"),
        ("loss", "" if loss is None else f"{loss:.4f}"),
        ("test", evaluation_line(status.evaluation) if status.evaluation else ""),
        ("speed", "" if rate is None else f"{rate:,.0f} records/s"),
        ("outlook", eta(status)),
        ("workers", f"{ready} of {status.target_workers} ({status.target_reason})"),
        ("size", status.shortage),
        ("checkpoint", "" if status.checkpoint_step is None else f"step {status.checkpoint_step:,}"),
        ("quarantined rows", ", ".join(map(str, status.quarantined))),
        ("faults", faults_line(status) if status.num_faults else "none"),
        ("storage", status.storage_trouble),
    ]
    bar = "" if total is None else f'<progress value="{status.step}" max="{total}"></progress>'
    return "".join(
        (
            f"<h1>{_text(os.path.basename(status.program))}: "
            f'<span class="{_text(status.state)}">{_text(state)}</span> '
            f'<span class="quiet">for {duration(status.elapsed_s)}</span></h1>',
            f'<p class="quiet">{_text(status.run)}</p>{bar}',
            _table((), ((name, value) for name, value in notes if value)),
            "<h2>Members</h2>",
            _table(("", "state", "step", "host", "place"), map(_member, status.members)),
            _events(status.events, duration),
            _faults(status.faults, duration),
            _sizes(status, duration),
        )
    )


def _member(member: AnyMember) -> tuple[object, ...]:
    role = member.role if isinstance(member, ToldServer) else ""
    state = f"{member.state}, {role}" if role else member.state
    place = ("" if isinstance(member, ToldMaster) else member.place) or f"process {member.pid}"
    return member.name, state, f"{member.step:,}", member.host, place


def _events(events: Iterable[Event], duration: Any) -> str:
    rows = [(duration(event.time_s), event.text) for event in events][: -SHOWN - 1 : -1]
    kinds = [event.kind for event in events][: -SHOWN - 1 : -1]
    return f"<h2>Events</h2>{_table((), rows, kinds)}" if rows else ""


def _faults(faults: Iterable[ToldFault], duration: Any) -> str:
    rows = [
        (
            duration(fault.time_s),
            fault.member or fault.role,
            fault.text,
            f"{fault.seconds:.2f} s" + (f", {fault.steps} steps" if fault.steps else ""),
            fault.done,
        )
        for fault in faults
    ][: -SHOWN - 1 : -1]
    return f"<h2>Faults</h2>{_table(('when', 'who', 'what', 'cost', 'what was done'), rows)}" if rows else ""


def _sizes(status: Status, duration: Any) -> str:
    asked = [(e.time_s, f"{e.old} to {e.new} asked for", e.reason) for e in status.resizes]
    there = [(e.time_s, f"{e.ready} of {e.wanted} there", e.why) for e in status.sizes]
    rows = [(duration(time_s), what, why) for time_s, what, why in sorted(asked + there, reverse=True)]
    return f"<h2>Size</h2>{_table(('when', 'workers', 'why'), rows[:SHOWN])}" if rows else ""


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]], classes: Iterable[str] = ()) -> str:
    kinds = iter(classes)
    lines = [f"<tr>{''.join(f'<th>{_text(cell)}</th>' for cell in head)}</tr>"] if head else []
    for row in rows:
        cells = "".join(f"<td>{_text(cell)}</td>" for cell in row)
        lines.append(f'<tr class="{_text(next(kinds, ""))}">{cells}</tr>')
    return f"<table>{''.join(lines)}</table>"
