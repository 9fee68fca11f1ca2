"""A process that forks others: what its owner is told, and what it bears."""

from __future__ import annotations

import errno
import os
import socket as sockets
from typing import NoReturn

import pytest

from elasticflow.process.forker import ForkEnd, Forker, ForkOrder, forker_sockets, heard_end, send_order


def test_what_cannot_be_forked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, "too many processes")

    def leave(order: ForkOrder, fds: list[int]) -> NoReturn:
        os._exit(len(fds))

    ours, theirs = forker_sockets()
    with ours, theirs:
        send_order(ours, ForkOrder("first"), ours.fileno())
        ours.shutdown(sockets.SHUT_WR)
        with monkeypatch.context() as context:
            context.setattr(os, "fork", refused)
            Forker(theirs, leave).run()
        assert heard_end(ours) == ForkEnd("first", os.EX_OSERR)
