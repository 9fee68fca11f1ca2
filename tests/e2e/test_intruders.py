"""A member that is out of its mind, or taken over: all that its own keys open changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import zmq

from benchmarks.fuzz import await_welcome
from elasticflow.run.telling import LiveStatus
from elasticflow.wire.control import control_link, signed_frame
from elasticflow.wire.data import DataLink
from elasticflow.wire.keys import MasterKeys, MemberKeys, Pass, read_keys
from elasticflow.wire.messages import (
    Failed,
    Fetch,
    Heartbeat,
    Hello,
    Join,
    Keep,
    Leaving,
    Norms,
    Offer,
    Progress,
    Push,
    ScaleRequest,
    StopRequest,
    ToMaster,
    ToServer,
    encode,
)
from elasticflow.wire.seal import NONCE_BYTES, Guard, Seal
from elasticflow.wire.sockets import Context

from .conftest import Run
from .test_commands import listening_ports

OPTIONS = ("--workers", 2, "--servers", 2, "--epochs", 4)
HELD = "step 10"
POSED: tuple[ToMaster, ...] = (
    Join(name="server-0", role="server", host="h", pid=1, endpoint="tcp://127.0.0.1:1"),
    Progress(name="server-0", generation=1, version=10**6, last=True),
    Offer(name="server-0", generation=2, held=()),
    Leaving(name="worker-1"),
    Failed(name="worker-2", kind="OSError", text="no", for_all=True),
    ScaleRequest(workers=1),
    StopRequest(),
)
NOT_ITS_PART: tuple[ToServer, ...] = (
    Norms(tick=10, norms=()),
    Fetch(place=0, version=10),
    Keep(place=1, version=10, parcel=0),
)


@contextmanager
def sockets() -> Iterator[Context]:
    context: Context = zmq.Context()
    yield context
    context.destroy(linger=0)


def port_of(run: Run, status: LiveStatus, name: str) -> int:
    (pid,) = (server.pid for server in status.servers if server.name == name)
    (port,) = listening_ports(pid)
    return port


def speak_for_others(context: Context, run: Run, keys: MemberKeys) -> None:
    """To the master, signed with a key that is another's."""
    socket = control_link(context, keys, run.dir.read_address().endpoint)
    socket.linger = 10_000
    for message in (Heartbeat(name=keys.name, tick=0, generation=1), *POSED):
        socket.send(signed_frame(keys, message))
    socket.close()


def pose(context: Context, way: Pass, endpoint: str) -> None:
    """To a server, with another's name, or what is known of another server: nobody opens."""
    link = DataLink(context, way, endpoint, Guard.HEADERS)
    while not link.is_closed():
        assert link.socket.poll(0) == 0 and not link.greeted
        link.monitor.poll(1000)
    link.close()


def say_hello_for(context: Context, name: str, way: Pass, port: int) -> None:
    """Past the gate as itself, and then as somebody else."""
    socket = context.socket(zmq.DEALER)
    socket.plain_username, socket.plain_password = way.user, way.password
    socket.linger = 10_000
    socket.connect(f"tcp://127.0.0.1:{port}")
    hello = encode(Hello(name=name, generation=way.generation, nonce=os.urandom(NONCE_BYTES)))
    socket.send(Seal(way.key, b"worker", b"server").close(hello))
    socket.close()


def do_what_is_not_its_part(context: Context, way: Pass, endpoint: str, *messages: ToServer) -> None:
    link = DataLink(context, way, endpoint, Guard.HEADERS)
    await_welcome(link)
    for message in messages:
        link.send(message, [np.full(1000, 7.0, np.float32)])
    link.close()


@pytest.mark.whole
def test_a_member_taken_over(start: Callable[..., Run]) -> None:
    undisturbed = start("small_torch.py", *OPTIONS).digest()
    run = start("small_torch.py", *OPTIONS, shut=[HELD])
    run.held_at(HELD)
    status = run.status()
    all_keys = read_keys(run.dir.master_keys, MasterKeys)
    server_0, server_1 = all_keys.of("server-0"), read_keys(run.dir.keys_of("server-1"), MemberKeys)
    endpoint = f"tcp://127.0.0.1:{port_of(run, status, 'server-0')}"
    mine, of_worker = server_0.pass_for("server-1", 1), server_0.pass_for("worker-2", 1)
    with sockets() as context:
        speak_for_others(context, run, server_1)
        for way in (
            mine._replace(name="worker-1"),
            of_worker._replace(name="server-1"),
            mine._replace(generation=2),
            server_1.pass_for("worker-1", 1),  # what it relays of those who come to it
        ):
            pose(context, way, endpoint)
        say_hello_for(context, "worker-1", mine, int(endpoint.rpartition(":")[2]))
        push = Push(tick=10, parcel=0, level=0, index=0, slice_s=0.01, pull=True)
        do_what_is_not_its_part(context, mine, endpoint, push)
        do_what_is_not_its_part(context, of_worker, endpoint, *NOT_ITS_PART)
        told = run.wait_until(lambda s: s.master.dropped_messages >= len(POSED))
    run.open(HELD)
    assert run.digest() == undisturbed
    output = run.output()
    for claim in ("Progress in the name of server-0", "StopRequest in the name of client"):
        assert f"server-1 says {claim}, and has not its key: dropped" in output
    log = (run.path / "logs" / "server-0.log").read_text()
    assert "says to be worker-1, and has not its key: refused" in log
    assert "says to be worker-1, and has not its key: dropped" in log
    report = run.dir.read_report()
    assert report and told
    (first,) = (each for each in report.servers if each.name == "server-0")
    assert first.dropped_messages >= 5 and first.refused_connections >= 4
