"""Who may stand in the door of a listener, and whom the kernel keeps away from it."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as some

from elasticflow.wire.door import BLOCK_S, EVERYBODY, MOST_BLOCKED, Door, block

CONNECT_S = 0.1
"""Within one machine the kernel has connected, or not, before anybody waits."""


def test_one_address_has_a_quarter_of_the_room_or_is_kept_away_for_a_while() -> None:
    door = Door(16)
    assert [door.come(fd, "mallory", 10.0) for fd in range(6)] == [True] * 4 + [False] * 2
    assert door.come(10, "ada", 10.0) and door.blocked(10.0) == {"mallory"}
    for fd in range(6):
        door.go(fd)
    assert door.blocked(9.9 + BLOCK_S) == {"mallory"} and door.blocked(10.0 + BLOCK_S) == frozenset()
    again_s = 11.0 + BLOCK_S
    assert [door.come(fd, "mallory", again_s) for fd in range(6)] == [True] * 4 + [False] * 2
    assert door.blocked(again_s + 1.9 * BLOCK_S) == {"mallory"}
    assert door.blocked(again_s + 2 * BLOCK_S) == frozenset() and door._blocks
    assert door.blocked(again_s + 4 * BLOCK_S) == frozenset() and not door._blocks


def test_it_is_shut_from_full_to_half_empty() -> None:
    door, shut = Door(8), []
    for fd in range(8):
        door.come(fd, f"10.0.0.{fd}", 0.0)
        shut.append(EVERYBODY in door.blocked(0.0))
    for fd in range(8):
        door.go(fd)
        shut.append(EVERYBODY in door.blocked(0.0))
    assert shut == [False] * 7 + [True] * 5 + [False] * 4


def test_too_many_addresses_are_everybody() -> None:
    door = Door(4)
    for number in range(MOST_BLOCKED + 1):
        for fd in (0, 1):
            door.come(fd, f"10.0.0.{number}", 0.0)
        for fd in (0, 1):
            door.go(fd)
    assert door.blocked(1.0) == {EVERYBODY} and door.blocked(BLOCK_S) == frozenset()


@given(some.lists(some.tuples(some.integers(0, 20), some.sampled_from(("come a", "come b", "go")))))
def test_what_is_counted_is_who_is_there(happens: list[tuple[int, str]]) -> None:
    """Also where a descriptor comes again before its end was told."""
    door, there = Door(16), dict[int, str]()
    for fd, what in happens:
        if what == "go":
            door.go(fd)
            there.pop(fd, None)
        else:
            there[fd] = what
            assert door.come(fd, what, 0.0) == (list(there.values()).count(what) <= 4)
        assert all(door.holds(each) == (each in there) for each in range(21))
    assert sum(door._taken.values()) == len(there)


def test_the_kernel_keeps_away_who_is_meant_and_nobody_else() -> None:
    """Real sockets; what was connected stays so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        before = socket.create_connection(listener.getsockname(), 10, ("127.0.0.2", 0))
        taken, _ = listener.accept()

        def gets_in(source: str) -> bool:
            try:
                with socket.create_connection(listener.getsockname(), CONNECT_S, (source, 0)):
                    listener.accept()[0].close()
                    return True
            except TimeoutError:
                return False

        for addresses, let_in in (
            (["127.0.0.2", "127.0.0.4"], [True, False, True, False]),
            ([EVERYBODY], [False] * 4),
            ([], [True] * 4),
        ):
            try:
                block(listener.fileno(), addresses)
            except OSError as error:
                pytest.skip(f"this kernel has no such filters: {error}")
            assert [gets_in(f"127.0.0.{number}") for number in (1, 2, 3, 4)] == let_in
            before.sendall(b"x")
            assert taken.recv(1) == b"x"
        before.close()
        taken.close()
