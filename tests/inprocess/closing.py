"""A process that closes connections, half of a message on its way: see ``test_closing``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import zmq

from elasticflow.wire.data import DataLink
from elasticflow.wire.keys import Pass
from elasticflow.wire.messages import Push
from elasticflow.wire.seal import Guard
from elasticflow.wire.sockets import Context

PUSH = Push(tick=1, parcel=0, level=0, index=3)
ARRAYS = [np.zeros(1 << 22, np.uint8)] * 4


def slow_down_reaper(cpu: int) -> None:
    """ZeroMQ's thread that ends what is closed gets what others leave of one core: next to nothing."""
    named = None
    while named is None:  # it names itself once it runs
        tasks = Path("/proc/self/task").iterdir()
        named = next((task for task in tasks if (task / "comm").read_text() == "ZMQbg/Reaper\n"), None)
    os.sched_setaffinity(int(named.name), {cpu})
    os.sched_setscheduler(int(named.name), os.SCHED_IDLE, os.sched_param(0))


def main(endpoint: str, key: str, cpu: str) -> None:
    """Connects for each line that it gets; sends, and closes at once, for the next one."""
    context: Context = zmq.Context()
    context.socket(zmq.PAIR).close()  # ZeroMQ begins its threads with the first one
    slow_down_reaper(int(cpu))
    way = Pass("worker-1", 1, bytes.fromhex(key))
    for _ in sys.stdin:
        link = DataLink(context, way, endpoint, Guard.ALL)
        while not link.greeted:
            link.socket.poll()
            link.receive()
        print("greeted", flush=True)
        sys.stdin.readline()
        link.send(PUSH, ARRAYS)
        print("closing", flush=True)
        link.close(linger_ms=0)
    context.term()


if __name__ == "__main__":
    main(*sys.argv[1:])
