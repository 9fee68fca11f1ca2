"""A stranger connects, again and again, and says nothing: to processes that may have few descriptors."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from .conftest import Run
from .test_commands import listening_ports

DESCRIPTORS = 160
OPTIONS = ("--epochs", 16, "--batch-size", 64, "--checkpoint-every", 4, "--keep-checkpoints", 100)
LATE = "step 250"
"""Of 256: so far the run goes until all has been seen."""


class Flood(threading.Thread):
    """Holds so many connections to each port as it can, and makes a new one for each that is closed."""

    def __init__(self, ports: set[int], each: int) -> None:
        super().__init__()
        self._ports, self._each = ports, each
        self.made = 0
        self.over = threading.Event()

    def run(self) -> None:
        selector = selectors.DefaultSelector()
        held = {port: 0 for port in self._ports}
        while not self.over.is_set():
            for port in self._ports:
                while held[port] < self._each:
                    connection = socket.socket()
                    connection.setblocking(False)
                    connection.bind(("127.0.0.2", 0))  # as from another host
                    with suppress(BlockingIOError):
                        connection.connect(("127.0.0.1", port))
                    selector.register(connection, selectors.EVENT_READ, port)
                    held[port] += 1
                    self.made += 1
            for key, _ in selector.select(0.05):
                closed = False
                with suppress(BlockingIOError):
                    try:
                        closed = not key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    except OSError as error:
                        if isinstance(error, BlockingIOError):
                            raise
                        closed = True
                if closed:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    held[key.data] -= 1
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        selector.close()


@contextmanager
def flooded(*ports: int, each: int) -> Iterator[Flood]:
    flood = Flood(set(ports), each)
    flood.start()
    try:
        yield flood
    finally:
        flood.over.set()
        flood.join()


def test_checkpoints_are_committed_and_members_come_in(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLICE_S", "0.02")
    calm = start("small_torch.py", *OPTIONS, name="calm")
    run = start("small_torch.py", *OPTIONS, name="flooded", descriptors=DESCRIPTORS, shut=[LATE])
    status = run.wait_for_workers(2)
    pids = [status.master.pid, *(server.pid for server in status.servers)]
    ports = [port for pid in pids for port in listening_ports(pid)]
    with flooded(*ports, each=4 * DESCRIPTORS) as flood:
        before = run.wait_until(lambda s: flood.made >= 8 * DESCRIPTORS and s.checkpoint_step)
        run.kill("worker-2")  # another has to come in, through the flood
        after = run.wait_until(lambda s: s.num_faults and [w.state for w in s.workers] == ["ready"] * 2)
        seen = run.wait_until(lambda s: s.checkpoint_step >= after.step + 4)
        # Who was let in, and says nothing, is sent away in time; the kernel keeps away the others.
        run.wait_until(lambda s: min(each.refused_connections for each in (s.master, *s.servers)) > 10)
    run.open(LATE)
    assert seen.checkpoint_step > before.checkpoint_step
    assert run.digest() == calm.digest()
