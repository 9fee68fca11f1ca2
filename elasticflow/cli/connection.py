"""A client's line to the master of a run."""

from __future__ import annotations

import time
from types import TracebackType

import zmq

from elasticflow.errors import RunError
from elasticflow.keys import MemberKeys, read_keys
from elasticflow.messages import Answer, ToMaster, decode_from_master, encode
from elasticflow.run_dir import RunDir
from elasticflow.transport import control_link

LOOK_S = 1.0
"""How often somebody who waits for an answer looks whether there still is a master."""


class Connection:
    """Asks the master and waits for its answers. Raises RunError if no master runs, or none answers."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self.address = run.read_address()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = control_link(
            self._context, read_keys(run.member_keys, MemberKeys), self.address.endpoint
        )

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close(linger=500)
        self._context.term()

    def send(self, message: ToMaster) -> None:
        self.socket.send(encode(message))

    def receive(self, timeout_s: float) -> Answer | None:
        """The next answer; None if none comes in time."""
        if not self.socket.poll(int(timeout_s * 1000)):
            return None
        answer = decode_from_master(self.socket.recv())
        assert isinstance(answer, Answer)
        return answer

    def ask(self, message: ToMaster, timeout_s: float = 10.0) -> Answer:
        """Raises RunError if the run is over, the master does not answer in time, or it refuses."""
        self.send(message)
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            answer = self.receive(min(left_s, LOOK_S))
            if answer is None:
                self._run.read_address()  # raises, if the run is over
            elif answer.error:
                raise RunError(answer.error)
            else:
                return answer
        raise RunError(f"{self._run.path}: its master ({self.address.endpoint}) does not answer.")
