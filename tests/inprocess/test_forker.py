"""A process that forks others: what its owner is told, and what it bears."""

from __future__ import annotations

import errno
import os
import socket as sockets
import sys
from contextlib import suppress
from io import StringIO
from typing import NoReturn

import pytest

from elasticflow.process.forker import (
    ForkEnd,
    Forker,
    ForkOrder,
    ends_here,
    forker_sockets,
    heard_end,
    send_order,
)


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


class FullLog(StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self) -> None:
        self.write("")


@pytest.mark.parametrize("is_wrong", [False, True])
def test_one_whose_log_takes_no_more_words_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch, is_wrong: bool
) -> None:
    """As where its disk is full. A child that did not would go on as who forked it."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(sys, "stdout", FullLog())
    monkeypatch.setattr(sys, "stderr", FullLog())
    with suppress(OSError), ends_here():  # what follows nobody sees of a process that has ended
        if is_wrong:
            raise ValueError("its program's")
    assert ended == [int(is_wrong)]
