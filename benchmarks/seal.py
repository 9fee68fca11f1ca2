"""What authentication costs on the data plane: nothing, sealed headers, or CURVE, 4 MB messages."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import zmq

from benchmarks.figures import Figure, figure, median
from elasticflow.wire.data import DataLink, DataListener, Received
from elasticflow.wire.gate import admit_only_members
from elasticflow.wire.keys import MemberKeys, make_keys
from elasticflow.wire.messages import Initial

MEGABYTES, PARTS, ROUNDS = 4, 25, 5
COMMAND = "python -m benchmarks seal"


def _bare_s() -> float:
    """100 MB one way over plain ZeroMQ, seconds."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    receiver = context.socket(zmq.ROUTER)
    port = receiver.bind_to_random_port("tcp://127.0.0.1")
    sender = context.socket(zmq.DEALER)
    sender.connect(f"tcp://127.0.0.1:{port}")
    array = np.ones(MEGABYTES << 20, np.uint8)
    since_s = time.perf_counter()
    for _ in range(PARTS):
        sender.send_multipart([b"header", array], copy=False)
    for _ in range(PARTS):
        receiver.recv_multipart(copy=False)
    seconds = time.perf_counter() - since_s
    context.destroy(linger=0)
    return seconds


def _sealed_s(keys: MemberKeys, encrypt: bool) -> float:
    """The same through our sockets."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    gate = admit_only_members(context, keys)
    listener = DataListener(context, keys, "127.0.0.1", 0, encrypt)
    listener.enter(1)
    link = DataLink(context, keys, f"tcp://127.0.0.1:{listener.port}", encrypt)
    link.hello("worker-1", generation=1)
    poller = zmq.Poller()
    for socket in (listener.socket, link.socket):
        poller.register(socket, zmq.POLLIN)
    while not link.greeted:
        poller.poll()
        list(listener.receive())
        link.receive()
    array = np.ones(MEGABYTES << 20, np.uint8)
    since_s = time.perf_counter()
    for _ in range(PARTS):
        link.send(Initial(parcel=0), [array])
    received = 0
    while received < PARTS:
        listener.socket.poll()
        received += sum(isinstance(each, Received) for each in listener.receive())
    seconds = time.perf_counter() - since_s
    link.close()
    listener.close()
    gate.stop()
    context.term()
    return seconds


def run() -> Iterator[Figure]:
    """In turns."""
    keys = make_keys().member
    bare, sealed, encrypted = [], [], []
    for _ in range(ROUNDS):
        bare.append(_bare_s())
        sealed.append(_sealed_s(keys, False))
        encrypted.append(_sealed_s(keys, True))
    reference = 1000 * median(bare)
    yield figure("100 MB one way, sealed headers / bare", 1000 * median(sealed), "ms", reference, COMMAND)
    yield figure("100 MB one way, CURVE / bare", 1000 * median(encrypted), "ms", reference, COMMAND)
