"""Two masters of one run: the newer one goes on, the older one ends, also where it cannot look."""

from __future__ import annotations

import errno
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import pytest

from elasticflow.errors import RunError
from elasticflow.local.process import has_ended
from elasticflow.master.fence import FOLDER, KEPT, Fence, Superseded, claim, newest
from elasticflow.storage import DirectoryStorage

LOOK_S = 0.01
LEASE_S = 0.15
PATIENCE_S = 20.0
Fences = Callable[..., Fence]


@pytest.fixture
def storage(tmp_path: Path) -> DirectoryStorage:
    return DirectoryStorage(tmp_path)


@pytest.fixture
def fence(storage: DirectoryStorage) -> Iterator[Fences]:
    made: list[Fence] = []

    def make(term: int, at: DirectoryStorage = storage, lease_s: float = 60.0) -> Fence:
        made.append(Fence(at, term, LOOK_S, lease_s))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Unwell(DirectoryStorage):
    """A storage that works, fails, or hangs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.works = threading.Event()
        self.works.set()
        self.hangs = False

    def list(self, folder: str = "") -> list[str]:
        if self.hangs:
            self.works.wait()
        if not self.works.is_set():
            raise OSError(errno.EIO, "the file server is gone")
        return super().list(folder)


def is_told(fence: Fence, timeout_s: float = PATIENCE_S) -> bool:
    return has_ended(fence.fd, timeout_s)  # that a descriptor is readable


# --- claims --------------------------------------------------------------------------------------


def test_each_claim_is_a_higher_one(storage: DirectoryStorage) -> None:
    assert newest(storage) == 0
    assert [claim(storage) for _ in range(3)] == [1, 2, 3] and newest(storage) == 3


def test_old_claims_are_forgotten_and_the_newest_is_not(storage: DirectoryStorage) -> None:
    for _ in range(3 * KEPT):
        last = claim(storage)
    assert len(storage.list(FOLDER)) == KEPT and newest(storage) == last == 3 * KEPT


def test_what_is_no_claim_does_no_harm(storage: DirectoryStorage, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "README~").touch()
    (tmp_path / FOLDER / ".nfs0001").touch()
    assert claim(storage) == 1
    for _ in range(2 * KEPT):
        claim(storage)
    assert newest(storage) == 2 * KEPT + 1


def test_threads_get_distinct_terms(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        terms = list(pool.map(lambda _: claim(DirectoryStorage(tmp_path)), range(64)))
    assert len(set(terms)) == 64 and newest(DirectoryStorage(tmp_path)) == max(terms)


def _claim_some(folder: Path) -> list[int]:
    return [claim(DirectoryStorage(folder)) for _ in range(8)]


def test_processes_get_distinct_terms(tmp_path: Path) -> None:
    with multiprocessing.get_context("forkserver").Pool(4) as pool:
        found = pool.map(_claim_some, [tmp_path] * 4)
    terms = [term for each in found for term in each]
    assert len(set(terms)) == 32 and newest(DirectoryStorage(tmp_path)) == max(terms)
    assert all(each == sorted(each) for each in found), "whoever claims later has the higher one"


def test_who_slept_while_others_claimed_gets_no_number_twice(tmp_path: Path) -> None:
    """What it saw as the next one was claimed since, and forgotten."""
    others: list[int] = []

    class Sleepy(DirectoryStorage):
        def create(self, name: str) -> AbstractContextManager[BinaryIO]:
            if not others:
                others.extend(claim(DirectoryStorage(tmp_path)) for _ in range(2 * KEPT))
            return super().create(name)

    assert claim(Sleepy(tmp_path)) == 2 * KEPT + 1 == newest(DirectoryStorage(tmp_path))
    assert others[0] == 1 and len(DirectoryStorage(tmp_path).list(FOLDER)) == KEPT


def test_a_claim_needs_the_storage(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path / "gone")
    with pytest.raises(OSError, match="gone"):
        claim(storage)


# --- two masters ---------------------------------------------------------------------------------


def test_the_older_one_ends_and_the_newer_one_goes_on(storage: DirectoryStorage, fence: Fences) -> None:
    old = fence(claim(storage))
    old.check()
    assert not is_told(old, 5 * LOOK_S)
    new = fence(claim(storage))
    assert is_told(old) and not is_told(new, 5 * LOOK_S)
    with pytest.raises(Superseded, match="master of term 1 is superseded by that of term 2"):
        old.check()
    new.check()


def test_it_is_known_at_once_to_one_who_looks(storage: DirectoryStorage) -> None:
    """Before each commit, however seldom the thread looks."""
    old = Fence(storage, claim(storage), 60.0, 60.0)
    claim(storage)
    with pytest.raises(Superseded):
        old.check()
    assert is_told(old, 0.0)
    old.close()


def test_an_old_term_stays_superseded_when_its_files_are_gone(
    storage: DirectoryStorage, fence: Fences
) -> None:
    old = fence(claim(storage))
    claim(storage)
    assert is_told(old)
    storage.remove(FOLDER)
    with pytest.raises(Superseded):
        old.check()


def test_its_error_is_one_for_people() -> None:
    assert issubclass(Superseded, RunError)


# --- a storage that cannot be looked at ----------------------------------------------------------


@pytest.mark.parametrize("hangs", [False, True])
def test_who_cannot_look_for_long_must_end(tmp_path: Path, fence: Fences, hangs: bool) -> None:
    storage = Unwell(tmp_path)
    mine = fence(claim(storage), storage, LEASE_S)
    assert not is_told(mine, 2 * LEASE_S), "while it can look"
    storage.hangs = hangs
    storage.works.clear()
    begun_s = time.monotonic()
    assert is_told(mine) and time.monotonic() - begun_s > LEASE_S / 2
    storage.works.set()
    with pytest.raises(Superseded, match="the storage cannot be read for 0.15 s: another may be the master"):
        mine.check()


def test_a_check_does_not_wait_for_a_storage_that_hangs(tmp_path: Path, fence: Fences) -> None:
    """Once it is known that the term is over."""
    storage = Unwell(tmp_path)
    mine = fence(claim(storage), storage, LEASE_S)
    storage.hangs = True
    storage.works.clear()
    assert is_told(mine)
    with ThreadPoolExecutor(1) as pool:
        try:
            with pytest.raises(Superseded):
                pool.submit(mine.check).result(timeout=5.0)
        finally:
            storage.works.set()


def test_a_short_failure_ends_nobody(tmp_path: Path, fence: Fences) -> None:
    storage = Unwell(tmp_path)
    mine = fence(claim(storage), storage, 5.0)
    storage.works.clear()
    with pytest.raises(OSError, match="file server"):
        mine.check()
    time.sleep(5 * LOOK_S)
    storage.works.set()
    mine.check()
    assert not is_told(mine, 5 * LOOK_S)


def test_one_that_is_closed_looks_no_more(storage: DirectoryStorage) -> None:
    mine = Fence(storage, claim(storage), LOOK_S, LEASE_S)
    mine.close()
    time.sleep(3 * LOOK_S)
    claim(storage)
    assert not is_told(mine, 5 * LOOK_S)


STOPPED = """
import sys, time
from elasticflow.master.fence import Fence, claim
from elasticflow.storage import DirectoryStorage

storage = DirectoryStorage(sys.argv[1])
fence = Fence(storage, claim(storage), 0.2, 1.0)
print("begun", flush=True)
sys.stdin.readline()
time.sleep(1.0)
fence.check()
"""


def test_time_in_which_a_master_is_stopped_ends_nobody(tmp_path: Path) -> None:
    """As a suspended job is: whether there is another, it sees when it goes on."""
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", STOPPED, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None and child.stdout.readline() == b"begun\n"
        child.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        child.send_signal(signal.SIGCONT)
        child.communicate(b"\n", PATIENCE_S)
        assert child.returncode == 0
