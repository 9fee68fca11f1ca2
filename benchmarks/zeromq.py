"""What ZeroMQ alone can do with the same bytes: asked and answered from Python, nothing done in between."""

from __future__ import annotations

import subprocess
import sys
import time

import zmq


def round_seconds(num_bytes: int, rounds: int, back: int) -> list[float]:
    """Seconds of each round in which so many bytes go to a process by TCP, and then ``back`` come back."""
    command = [sys.executable, "-m", "benchmarks.zeromq", str(back)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as answering,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as socket,
    ):
        assert answering.stdout
        socket.connect(f"tcp://127.0.0.1:{int(answering.stdout.readline())}")
        question, seconds = bytes(num_bytes), []
        for _ in range(rounds):
            since_s = time.perf_counter()
            socket.send(question)
            socket.recv(copy=False)
            seconds.append(time.perf_counter() - since_s)
        socket.linger = 0
        answering.terminate()
    return seconds


def _answer(num_bytes: int) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
        answer = bytes(num_bytes)
        while True:
            route = socket.recv_multipart(copy=False)[0]
            socket.send_multipart([route, answer], copy=False)


if __name__ == "__main__":
    _answer(int(sys.argv[1]))
