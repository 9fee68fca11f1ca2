"""A process outlives that it closes a connection, half of a message on its way, while the other end goes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import zmq

from elasticflow.wire.data import DataListener
from elasticflow.wire.gate import admit_only_members
from elasticflow.wire.keys import make_keys
from tests.relay import Relay

ROUNDS = 40
LATER_S = 0.002
"""So much later than in the round before the other end goes: ZeroMQ closes when it finds the time."""
SPIN = "import os\nos.sched_setaffinity(0, {%d})\nwhile True: pass"


@pytest.fixture
def busy_cpu() -> Iterator[int]:
    """A core that another process has to itself, as far as it can."""
    cpu = max(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", SPIN % cpu]) as spinning:
        yield cpu
        spinning.kill()


@pytest.fixture
def way() -> Iterator[tuple[str, str]]:
    """To a listener that reads whatever comes: its endpoint, and the key of worker-1."""
    keys, over, context = make_keys().of("server-0"), threading.Event(), zmq.Context()
    gate = admit_only_members(context, keys)
    listener = DataListener(context, keys, "127.0.0.1", 0)
    listener.enter(1)

    def listen() -> None:
        while not over.is_set():
            listener.socket.poll(50)
            for _ in listener.receive():
                pass

    listening = threading.Thread(target=listen)
    listening.start()
    yield f"tcp://127.0.0.1:{listener.port}", keys.pass_for("worker-1", 1).key.hex()
    over.set()
    listening.join()
    listener.close()
    gate.stop()
    context.term()


def test_it_closes_while_the_other_end_goes(way: tuple[str, str], busy_cpu: int) -> None:
    with (
        Relay() as relay,
        subprocess.Popen(
            [sys.executable, "-m", "tests.inprocess.closing", *way, str(busy_cpu)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **relay.environment},
        ) as closing,
    ):
        assert closing.stdin and closing.stdout and closing.stderr

        def ask(for_: str) -> str:
            print(file=closing.stdin, flush=True)
            return closing.stdout.readline()

        for number in range(ROUNDS):
            assert ask("a connection") == "greeted\n", closing.stderr.read()
            relay.hold()
            assert ask("its end") == "closing\n", closing.stderr.read()
            threading.Event().wait(number * LATER_S)
            relay.reset()
            relay.go_on()
        closing.stdin.close()
        assert closing.wait() == 0, closing.stderr.read()
