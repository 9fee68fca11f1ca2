"""What a backend has noticed of its members and of the cluster, as events."""

from __future__ import annotations

import time
from collections.abc import Iterator

from elasticflow.cluster.contract import MASTER, Backend, Ended, How
from elasticflow.master.events import Event, ExitedEvent, ExpiryEvent, LimitEvent, PlacedEvent
from elasticflow.wire.messages import Departing


def exited(ended: Ended) -> ExitedEvent:
    return ExitedEvent(ended.name, ended.how is How.FAILED, ended.text, ended.how is How.TAKEN)


def noticed(backend: Backend) -> Iterator[Event]:
    """Besides ends. Asked for bit by bit: what becomes of one event may change what there is of the next."""
    for name in backend.placed():
        yield PlacedEvent(name)
    for name, why in backend.returns().items():
        yield Departing(name=name, reason=why)
    for name, (replace_s, leave_s) in backend.ends_s().items():
        if name != MASTER:
            yield ExpiryEvent(name, replace_s, leave_s)
        elif time.monotonic() >= replace_s:
            yield LimitEvent(leave_s)
