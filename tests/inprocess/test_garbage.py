"""Collections of garbage wait for those who would wait for them."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from elasticflow.process.garbage import uncollected


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_the_last_one_has_them_begin_again() -> None:
    first, second = uncollected(), uncollected()
    first.__enter__()
    second.__enter__()
    assert not gc.isenabled()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_who_has_none_gets_none() -> None:
    gc.disable()
    with pytest.raises(ZeroDivisionError), uncollected():
        1 / 0  # noqa: B018
    assert not gc.isenabled()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12: a process with threads is forked
def test_a_child_does_not_wait_for_its_parents_threads() -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait() -> None:
        with uncollected():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    entered.wait()
    if not (child := os.fork()):
        was_enabled = gc.isenabled()
        with uncollected():
            is_off = not gc.isenabled()
        os._exit(0 if was_enabled and is_off and gc.isenabled() else 1)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0 and gc.isenabled()
