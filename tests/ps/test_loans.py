"""Blocks that one process lends and another maps."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from elasticflow.step.layout import ALIGN_BYTES
from elasticflow.wire.messages import Lend
from elasticflow_ps.arena import Arena
from elasticflow_ps.loans import Block, _tell_once, borrow, try_block
from tests.full_disk import room_of

LENDER = """
import sys, msgspec
from elasticflow_ps.loans import Block
block = Block(1 << 20)
block.memory[:5] = list(b"hello")
sys.stdout.buffer.write(msgspec.json.encode(block.lend()) + b"\\n")
sys.stdout.flush()
sys.stdin.readline()
sys.stdout.buffer.write(block.memory[:5].tobytes() + b"\\n")
sys.stdout.flush()
sys.stdin.readline()
"""


def mappings() -> int:
    """How many blocks this process has mapped."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:elasticflow")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def lender() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", LENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        yield process
        process.kill()


def lent_by(process: subprocess.Popen[bytes]) -> Lend:
    assert process.stdout
    return msgspec.json.decode(process.stdout.readline(), type=Lend)


def test_both_see_what_either_writes_and_nothing_is_left(lender: subprocess.Popen[bytes]) -> None:
    before = mappings(), descriptors()
    memory = borrow(lent_by(lender), writable=True)
    assert memory[:5].tobytes() == b"hello" and memory.nbytes == 1 << 20
    assert memory.ctypes.data % ALIGN_BYTES == 0
    memory[:5] = list(b"there")
    assert lender.stdin and lender.stdout
    lender.stdin.write(b"\n")
    lender.stdin.flush()
    assert lender.stdout.readline() == b"there\n"
    lender.kill()
    lender.wait()
    assert memory[:5].tobytes() == b"there", "a dead lender takes nothing away"
    assert mappings() == before[0] + 1
    del memory
    assert (mappings(), descriptors()) == before


def test_who_may_only_read_cannot_write(lender: subprocess.Popen[bytes]) -> None:
    memory = borrow(lent_by(lender), writable=False)
    with pytest.raises(ValueError, match="read-only"):
        memory[0] = 1


def test_what_is_not_the_block_is_not_borrowed(tmp_path: Path) -> None:
    block = Block(4096)
    lend = block.lend()
    assert borrow(lend, writable=True).nbytes == 4096
    plain, (left, right) = (tmp_path / "file").open("w+b"), socket.socketpair()
    plain.truncate(lend.num_bytes)
    reading, writing = os.pipe()
    before = mappings(), descriptors()
    replace = msgspec.structs.replace
    for other in (
        replace(lend, secret=bytes(16)),
        replace(lend, host="another"),
        replace(lend, host=""),
        replace(lend, num_bytes=lend.num_bytes + 1),
        replace(lend, num_bytes=0),
        replace(lend, fd=plain.fileno()),
        replace(lend, fd=left.fileno()),
        replace(lend, fd=reading),
        replace(lend, fd=1 << 20),
        replace(lend, pid=1 << 30),
        replace(lend, pid=-1),
    ):
        with pytest.raises(OSError):
            borrow(other, writable=True)
    assert (mappings(), descriptors()) == before
    plain.close()
    for each in (left, right):
        each.close()
    os.close(reading)
    os.close(writing)


def test_nobody_can_cut_off_what_is_lent(lender: subprocess.Popen[bytes]) -> None:
    lend = lent_by(lender)
    with open(f"/proc/{lend.pid}/fd/{lend.fd}", "r+b") as file, pytest.raises(PermissionError):
        file.truncate(10)


@pytest.mark.parametrize("missing", ["memfd_create", "room"])
def test_where_there_is_no_such_memory_there_is_none(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files may not be so large; or Python was built where the system did not have it."""
    _tell_once.cache_clear()
    before = descriptors()
    if missing == "memfd_create":
        monkeypatch.delattr(os, "memfd_create")
    with room_of(64) if missing == "room" else contextlib.nullcontext():
        assert try_block(4096) is None and try_block(4096) is None
        array, place = Arena(lends=True).empty(1 << 20)
    assert array.nbytes == 1 << 20 and place is None
    assert capsys.readouterr().out.count("no memory that can be lent") == 1
    assert descriptors() == before


def test_a_block_that_is_dropped_is_gone() -> None:
    before = mappings(), descriptors()
    block = Block(4096)
    part = block.memory[10:20]
    del block
    assert mappings() == before[0] + 1
    del part
    assert (mappings(), descriptors()) == before
