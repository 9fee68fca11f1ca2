"""The page about a run: what it shows, to whom, and what it costs the master."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from elasticflow.cli import page
from elasticflow.master.actions import NoteAction
from elasticflow.run.folder import Address, RunDir, publish
from elasticflow.run.telling import Event, Resize, Size, ToldFault
from elasticflow.wire.messages import StatusRequest
from elasticflow_yarn.errors import ApplicationGone

from ..telling import Told
from .fake_master import FakeMaster, new_run


class WebUi:
    """Where people would find the page."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.is_gone = False

    def show(self, target: str) -> None:
        self.addresses.append(target)
        if self.is_gone:
            raise ApplicationGone("the ApplicationMaster does not answer")


class Answer:
    """What was answered to one request. after: what to append to the page's address."""

    def __init__(self, target: str, after: str = "", method: str = "GET") -> None:
        parts = urlsplit(target)
        with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=30)) as connection:
            connection.request(method, parts.path + after)
            answer = connection.getresponse()
            self.code, self.headers, self.body = answer.status, answer.headers, answer.read()

    @property
    def text(self) -> str:
        return self.body.decode()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return new_run(tmp_path / "run")


@pytest.fixture
def begin(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Starts the page of this process's master; returns its address."""
    servers: list[page._Server] = []
    init = page._Server.__init__

    def remembered(server: page._Server, source: page._Source) -> None:
        servers.append(server)
        init(server, source)

    monkeypatch.setattr(page._Server, "__init__", remembered)

    def start() -> str:
        ui = WebUi()
        page.start_page(str(run.path), ui.show)
        (target,) = ui.addresses
        return target

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
        if server.source._socket is not None:
            server.source._socket.close(linger=0)
        if server.source._context is not None:
            server.source._context.term()


@pytest.fixture
def master(run: RunDir) -> Iterator[FakeMaster]:
    """In this process, as its address says."""
    master = FakeMaster(run, os.getpid())
    yield master
    master.die()


class Tags(HTMLParser):
    """What is open, and every attribute; fails where tags do not fit together."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_what_people_see(begin: Callable[[], str], master: FakeMaster) -> None:
    master.change(lambda told: told.story.note(NoteAction("fault", "worker-2 <was> lost & found")))
    master.wait_for_changes()
    answer = Answer(begin())
    assert answer.code == 200 and answer.headers["Content-Type"] == "text/html; charset=utf-8"
    tags = Tags(answer.text)
    assert {"progress", "table", "main"} <= tags.seen
    for shown in ("running", "workers", "2 of 2 (asked for)", "worker-1", "worker-2", "Events"):
        assert shown in answer.text, shown
    assert '<tr class="fault"><td>' in answer.text
    assert "worker-2 &lt;was&gt; lost &amp; found" in answer.text


def test_nothing_that_a_cluster_or_a_program_says_becomes_html(begin: Callable[[], str]) -> None:
    evil = "\"><script>alert(1)</script>'"
    told = Told()
    told.state.has(evil)
    texts = dict.fromkeys(("run", "program", "state", "target_reason", "shortage", "storage_trouble"), evil)
    status = msgspec.structs.replace(
        told.status(),
        **texts,
        quarantined=[7],
        regrouping=True,
        events=[Event(1.0, evil, evil)],
        faults=[
            ToldFault(
                number=1,
                time_s=1.0,
                role=evil,
                member=evil,
                text=evil,
                seconds=1.0,
                steps=2,
                lasted_s=None,
                done=evil,
                told=1,
            )
        ],
        sizes=[Size(1.0, 1, 2, evil)],
        resizes=[Resize(1.0, 1, 2, evil)],
    )
    for member in status.members:
        member.host = member.state = evil
    text = page.page(status)
    Tags(text)
    assert "<script>alert" not in text and text.count("&lt;script&gt;alert(1)") >= 14
    assert "<script>alert" not in page.page(None, evil)


def test_it_names_no_address_but_its_own(begin: Callable[[], str], master: FakeMaster) -> None:
    """Through YARN's proxy it lies elsewhere; and it is shown without scripts, too."""
    text = Answer(begin()).text
    assert not re.search(r"https?:|//[a-z]|(src|href|action)=", text)
    assert '<noscript><meta http-equiv="refresh" content="3"></noscript>' in text


def test_its_script_runs_and_no_other(begin: Callable[[], str], master: FakeMaster) -> None:
    first, second = Answer(begin()), Answer(begin())
    for answer in (first, second):
        (nonce,) = re.findall(r"script-src 'nonce-([\w-]+)'", answer.headers["Content-Security-Policy"])
        assert answer.text.count(f'<script nonce="{nonce}">') == answer.text.count("<script") == 1
    assert first.headers["Content-Security-Policy"] != second.headers["Content-Security-Policy"]


def test_programs_get_json(begin: Callable[[], str], master: FakeMaster) -> None:
    answer = Answer(begin(), "status.json")
    status = json.loads(answer.body)
    assert (
        answer.headers["Content-Type"] == "application/json" and answer.headers["Cache-Control"] == "no-store"
    )
    assert status["state"] == "running" and status["master"]["pid"] == os.getpid()


def test_without_the_token_there_is_nothing(
    begin: Callable[[], str], master: FakeMaster, capfd: pytest.CaptureFixture[str]
) -> None:
    target = begin()
    parts = urlsplit(target)
    here, token = f"http://{parts.netloc}", parts.path.strip("/")
    assert len(token) >= 40
    wrong = token[:-1] + ("a" if token[-1] != "a" else "b")
    for path in (
        "/",
        "",
        "/status.json",
        f"/{wrong}/",
        f"/{wrong}/status.json",
        f"/x/{token}/",
        f"/?{token}",
    ):
        assert (Answer(here, path).code, path) == (404, path)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as raw:
        raw.sendall(b"GET /\xc3\xa9\xff HTTP/1.0\r\n\r\n")
        assert raw.recv(1000).startswith(b"HTTP/1.0 404 ")
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "NONSENSE"):
        answer = Answer(target, method=method)
        assert (answer.code, answer.body, list(answer.headers)) == (404, b"", ["Content-Length"]), method
    assert Answer(target, "nothing").code == 404
    assert master.heard == []
    out, err = capfd.readouterr()
    assert token not in out + err and not err


@pytest.mark.parametrize("after", ["status.json", "/status.json", "status.json?x=y"])
def test_the_ways_in_which_proxies_put_addresses_together(
    begin: Callable[[], str], master: FakeMaster, after: str
) -> None:
    assert Answer(begin(), after).code == 200


def test_only_this_machine_reaches_it(begin: Callable[[], str]) -> None:
    assert urlsplit(begin()).hostname == "127.0.0.1"


def test_many_who_look_ask_the_master_once(
    begin: Callable[[], str], master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "FRESH_S", 1000.0)
    target = begin()
    assert {Answer(target).code for _ in range(20)} == {200}
    assert [type(each) for each in master.heard] == [StatusRequest]


def test_a_master_that_is_busy_is_waited_for_a_while(
    begin: Callable[[], str], run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "ANSWER_S", 0.2)
    mute = FakeMaster(run, os.getpid(), mute=True)
    target = begin()
    assert Answer(target, "status.json").code == 503
    assert "the master is busy; it does not answer just now" in Answer(target).text
    port = mute.port
    mute.die()
    monkeypatch.setattr(page, "ANSWER_S", 20.0)
    speaks = FakeMaster(run, os.getpid(), port=port)
    assert Answer(target, "status.json").code == 200
    speaks.die()


def test_a_master_that_does_not_listen_yet(begin: Callable[[], str], run: RunDir) -> None:
    target = begin()
    assert "there is no master.json" in Answer(target).text
    publish(run.address, Address("tcp://127.0.0.1:1", "here", os.getpid() + 1))
    assert "the master is just starting" in Answer(target).text
    master = FakeMaster(run, os.getpid())
    assert "worker-1" in Answer(target).text
    master.die()


def test_more_connections_than_it_takes(
    begin: Callable[[], str], master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MOST", 3)
    target = begin()
    where = (urlsplit(target).hostname, urlsplit(target).port)
    idle = [socket.create_connection(where, timeout=30) for _ in range(3)]
    with socket.create_connection(where, timeout=30) as refused:
        assert refused.recv(1) == b""
    for each in idle:
        each.close()
    while True:  # a thread for each lets go when it notices
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            assert Answer(target).code == 200
            break


def test_an_application_that_does_not_take_it(run: RunDir) -> None:
    ui = WebUi()
    ui.is_gone = True
    with pytest.raises(ApplicationGone):
        page.start_page(str(run.path), ui.show)
    with pytest.raises(ConnectionRefusedError):
        Answer(ui.addresses[0])
