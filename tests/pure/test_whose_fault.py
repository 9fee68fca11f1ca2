"""Errors of each class, alone and at the bottom of others: only a record's own lets it be left out."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticflow.errors import BrokenError, DataError, ProgramError, UnreadableError
from elasticflow.frameworks import CostError
from elasticflow.program.loading import describe
from elasticflow.worker.whose_fault import (
    Culprit,
    OutsideError,
    cause_of,
    is_of_files,
    lacks_memory,
    spare_records,
    whose_fault,
)

FULL = OSError(errno.ENOSPC, "No space left on device")


class OutOfMemoryError(RuntimeError):
    """PyTorch's, by its name."""


class ResourceExhaustedError(Exception):
    """TensorFlow's, by its name."""


def of(module: str, name: str) -> Exception:
    """An error of a library that need not be there."""
    return type(name, (Exception,), {"__module__": module})("said so")  # type: ignore[no-any-return]


def raised(act: Callable[[], object]) -> BaseException:
    try:
        act()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("it raises nothing")


def after(first: BaseException, then: BaseException, *, cause: bool = False) -> BaseException:
    """``then``, raised while ``first`` was handled, or from it."""

    def act() -> None:
        try:
            raise first
        except BaseException as error:
            if cause:
                raise then from error
            raise then  # noqa: B904

    return raised(act)


def hidden(first: BaseException, then: BaseException) -> BaseException:
    def act() -> None:
        try:
            raise first
        except BaseException:  # noqa: BLE001  (whichever the case raises)
            raise then from None

    return raised(act)


RECORDS = [
    ValueError("cannot read record 57"),
    KeyError("label"),
    ZeroDivisionError(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    RecursionError("nested too deeply"),
    OSError("image file is truncated"),
    OSError(errno.ENAMETOOLONG, "File name too long"),
    OSError(errno.EINVAL, "Invalid argument"),
    RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
    DataError("it is ragged"),
    CostError("forward() returned a cost of nan; it must be finite."),
    ProgramError("it is no scalar"),
    NameError("name 'lable' is not defined"),
]
NUMBERS = (
    "ENOSPC EDQUOT EIO EROFS ENOENT ESTALE EACCES EPERM EMFILE ENFILE ENOMEM ENODEV ETIMEDOUT ECONNRESET"
    " ECONNREFUSED EHOSTUNREACH ENETUNREACH EPIPE EBUSY EAGAIN EREMOTEIO"
).split()
PLACES = [
    *(OSError(getattr(errno, name), os.strerror(getattr(errno, name))) for name in NUMBERS),
    FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/3.png"),
    MemoryError(),
    OutOfMemoryError("out of memory"),
    ResourceExhaustedError("OOM when allocating tensor"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("can't start new thread"),
    ConnectionError("hung up"),
    ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    TimeoutError("timed out"),
    KeyboardInterrupt(),
    of("requests.exceptions", "HTTPError"),
    of("urllib.error", "URLError"),
    of("tensorflow.python.framework.errors_impl", "NotFoundError"),
]
PROGRAMS = [
    ImportError("cannot import name 'x'"),
    ModuleNotFoundError("No module named 'ujson'"),
    SystemExit(3),
]


@pytest.mark.parametrize("error", RECORDS, ids=repr)
def test_faults_of_a_record(error: Exception) -> None:
    assert whose_fault(error) is Culprit.RECORD
    spare_records(error, "program.py")


@pytest.mark.parametrize("error", PLACES, ids=repr)
def test_faults_of_a_place(error: BaseException) -> None:
    assert whose_fault(error) is Culprit.PLACE
    with pytest.raises(OutsideError, match="no record is to blame") as told:
        spare_records(error, "program.py")
    assert not told.value.for_all


def test_smaller_slices_may_do_where_memory_is_short_alone() -> None:
    short = [error for error in PLACES if lacks_memory(error)]
    assert {type(error) for error in short} == {
        MemoryError,
        OutOfMemoryError,
        ResourceExhaustedError,
        RuntimeError,
    }
    assert lacks_memory(after(MemoryError(), ValueError("in the program"), cause=True))
    assert not any(map(lacks_memory, [*RECORDS, *PROGRAMS, RuntimeError("can't start new thread")]))


@pytest.mark.parametrize("kind", [UnreadableError, BrokenError])
def test_our_own_errors_say_themselves_what_is_wrong(kind: type[Exception]) -> None:
    assert whose_fault(kind("so")) is Culprit.PLACE
    with pytest.raises(kind, match="^so$"):
        spare_records(kind("so"), "program.py")
    with pytest.raises(OutsideError, match="no record is to blame"):
        spare_records(after(kind("so"), ValueError(), cause=True), "program.py")


@pytest.mark.parametrize("error", PROGRAMS, ids=repr)
def test_faults_of_the_program(error: BaseException) -> None:
    assert whose_fault(error) is Culprit.PROGRAM
    with pytest.raises(OutsideError) as told:
        spare_records(error, "program.py")
    assert told.value.for_all


@pytest.mark.parametrize("error", [*PLACES, *PROGRAMS], ids=repr)
def test_what_an_error_is_raised_from_counts(error: BaseException) -> None:
    above = after(error, ValueError("a bad record"), cause=True)
    assert whose_fault(above) is whose_fault(error) and cause_of(above) is error
    assert whose_fault(after(above, KeyError("x"), cause=True)) is whose_fault(error)
    with pytest.raises(OutsideError, match=f"ValueError: a bad record, from {type(error).__name__}"):
        spare_records(above, "program.py")


def test_what_was_handled_counts_if_nobody_handles_it_in_passing() -> None:
    """Programs look whether something is there, and go another way; nobody does so with a full disk."""
    bad = ValueError("a bad record")
    assert whose_fault(after(FULL, bad)) is Culprit.PLACE
    assert whose_fault(after(MemoryError(), ValueError())) is Culprit.PLACE
    assert whose_fault(after(FileNotFoundError(errno.ENOENT, "no cache"), ValueError())) is Culprit.RECORD
    assert whose_fault(after(ModuleNotFoundError("No module named 'ujson'"), ValueError())) is Culprit.RECORD
    assert whose_fault(after(ValueError(), OSError(errno.EIO, "it was first"))) is Culprit.PLACE
    assert whose_fault(hidden(FULL, ValueError("from None"))) is Culprit.RECORD


def test_the_place_is_believed_before_the_record_and_the_program_before_both() -> None:
    assert whose_fault(after(FULL, KeyError())) is Culprit.PLACE
    assert whose_fault(after(FULL, ImportError())) is Culprit.PROGRAM


class WordlessError(RuntimeError):
    """Of a user whose ``__str__`` has a mistake of its own."""

    def __str__(self) -> str:
        raise AttributeError("no such thing")


def test_an_error_that_cannot_say_what_it_is_is_a_fault_of_the_record() -> None:
    error = WordlessError("lost")
    spare_records(error, "prog.py")
    assert not lacks_memory(error)
    assert describe(error, "prog.py") == "WordlessError: (its __str__ raises AttributeError)"


def test_a_chain_that_goes_in_a_circle_ends() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    assert whose_fault(one) is Culprit.RECORD


def test_the_real_errors_of_this_machine() -> None:
    """Not only those that were made up above."""
    torch = pytest.importorskip("torch")
    assert whose_fault(raised(lambda: torch.empty(1 << 60, dtype=torch.uint8))) is Culprit.PLACE
    assert whose_fault(raised(lambda: Path("/dev/full").write_bytes(b"x"))) is Culprit.PLACE
    assert whose_fault(raised(lambda: Path("/nowhere/at/all").read_bytes())) is Culprit.PLACE
    assert whose_fault(raised(lambda: __import__("no_such_module"))) is Culprit.PROGRAM
    assert whose_fault(raised(lambda: torch.ones(3) @ torch.ones(4))) is Culprit.RECORD
    assert whose_fault(raised(lambda: bytearray(1 << 62))) is Culprit.PLACE


def test_the_real_errors_of_a_process_that_may_have_no_more() -> None:
    """File descriptors and threads, in a process of its own."""
    code = """
import resource, threading
from elasticflow.worker.whose_fault import Culprit, whose_fault
def fault(act):
    try:
        act()
    except Exception as error:
        return whose_fault(error)
kept = []
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
assert fault(lambda: [kept.append(open("/dev/null")) for _ in range(30)]) is Culprit.PLACE
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
threading.stack_size(1 << 30)
assert fault(lambda: threading.Thread(target=print).start()) is Culprit.PLACE
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_another_machine_may_have() -> None:
    """So it is said on which it was missed; not where a program has only tried whether it is there."""
    missing, wrong = FileNotFoundError(errno.ENOENT, "No such file"), ProgramError("data() raised")
    assert is_of_files(missing) and is_of_files(after(missing, wrong, cause=True))
    assert is_of_files(DataError("data='/d/*.csv': there is no such file"))
    assert not is_of_files(after(missing, ValueError("bad"))) and not is_of_files(ProgramError("bad"))
