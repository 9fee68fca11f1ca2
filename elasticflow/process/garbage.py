"""When Python looks for garbage."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_waiting = 0
_was_enabled = False


@contextmanager
def uncollected() -> Iterator[None]:
    """In no thread of this process does a collection of garbage begin by itself meanwhile.

    For whoever holds a lock that objects need to die, and waits for another thread: a collection there may
    come upon such objects, and wait for that lock.
    """
    global _waiting, _was_enabled
    with _lock:
        if not _waiting:
            _was_enabled = gc.isenabled()
            gc.disable()
        _waiting += 1
    try:
        yield
    finally:
        with _lock:
            _waiting -= 1
            if not _waiting and _was_enabled:
                gc.enable()


def _begin_anew() -> None:
    """In a process that was forked: whoever waited there is the parent's, and may have held the lock."""
    global _lock, _waiting
    _lock = threading.Lock()
    if _waiting and _was_enabled:
        gc.enable()
    _waiting = 0


os.register_at_fork(after_in_child=_begin_anew)
