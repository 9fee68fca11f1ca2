"""Which copies are held where: case by case, and in random histories with losses.

What must hold in all of them: once a snapshot was safe everywhere, any one server can die, and there
still is a version of all places, as new as that; and nobody ever holds more than two versions of a place.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from elasticflow.wire.messages import AllSafe, Keep, Kept, Safe
from elasticflow_ps.snapshots import (
    Action,
    AllSafeAction,
    ForgetAction,
    KeepAction,
    KeptAction,
    RefuseAction,
    SafeAction,
    ServerRow,
    Snapshots,
    StoreAction,
    TakeAction,
)

NAMES = ("anna", "berta", "carla")
PARCELS = (2, 1, 3)
LAST = 1000


def at(
    place: int, *, start: int | None = None, parcels: tuple[int, ...] = PARCELS, now_s: float = 0.0
) -> Snapshots:
    """The server at a place of a row of three, in its first generation."""
    snapshots = Snapshots()
    assert snapshots.enter(ServerRow(NAMES, parcels, place, LAST), start, 1.0, now_s) == []
    return snapshots


def keep(snapshots: Snapshots, version: int, place: int = 0, parcels: Iterable[int] = (0, 1)) -> list[Action]:
    actions = []
    for parcel in parcels:
        message = Keep(place=place, version=version, parcel=parcel)
        actions += snapshots.receive(NAMES[place], message, 0.0)
    return actions


# --- the leading server's order ------------------------------------------------------------------


def test_a_snapshot_from_order_to_safety() -> None:
    anna = at(0)
    assert anna.order(5, 10.0)
    assert not anna.order(6, 99.0), "one at a time"
    assert anna.made(5, 10.1) == [TakeAction(5), KeepAction(5)]
    assert anna.receive("berta", Safe(place=1, version=5), 10.2) == []
    assert anna.receive("carla", Safe(place=2, version=5), 10.3) == []
    assert anna.receive("berta", Kept(place=0, version=5), 10.5) == [AllSafeAction(5)]
    assert anna.held == ((0, 5),)


def settled(took_s: float) -> Snapshots:
    """A leading server whose first snapshot, ordered at 0 s, took so long."""
    anna = at(0)
    assert anna.order(5, 0.0)
    anna.made(5, 0.0)
    anna.receive("berta", Safe(place=1, version=5), took_s)
    anna.receive("carla", Safe(place=2, version=5), took_s)
    assert anna.receive("berta", Kept(place=0, version=5), took_s) == [AllSafeAction(5)]
    return anna


def test_the_next_comes_after_the_interval_and_most_time_is_free_of_it() -> None:
    assert not settled(0.1).order(6, 0.99) and settled(0.1).order(6, 1.0)
    assert not settled(2.0).order(6, 7.9) and settled(2.0).order(6, 8.0)


def test_the_next_comes_sooner_where_it_costs_next_to_nothing() -> None:
    assert not settled(0.01).order(6, 0.19) and settled(0.01).order(6, 0.2)


def test_one_comes_sooner_where_there_are_so_many_versions_between_them() -> None:
    """Not sooner than most time is free of it: which counts from where it was whole, not from the order."""
    anna = Snapshots()
    anna.enter(ServerRow(NAMES, PARCELS, 0, LAST), 1, 9.0, 0.0, 4)
    for place in (1, 2):
        anna.hold((0, 1))
        anna.receive(NAMES[place], Safe(place=place, version=1), 0.0)
    anna.made(1, 0.0)
    assert anna.receive("berta", Kept(place=0, version=1), 0.0) == [AllSafeAction(1)]
    assert not anna.order(4, 1.0) and anna.order(5, 1.0)
    anna.made(5, 3.0)
    for message in (Safe(place=1, version=5), Safe(place=2, version=5)):
        anna.receive(NAMES[message.place], message, 3.1)
    assert AllSafeAction(5) in anna.receive("berta", Kept(place=0, version=5), 3.5)
    assert not anna.order(8, 3.5), "but three versions"
    assert not anna.order(9, 2.9) and anna.order(9, 3.5), "that took half a second, since it was whole"


def test_only_the_leading_server_orders_and_only_where_somebody_keeps() -> None:
    assert not at(1).order(5, 10.0)
    alone = Snapshots()
    alone.enter(ServerRow(("anna",), (2,), 0, LAST), None, 1.0, 0.0)
    assert not alone.order(5, 10.0) and alone.made(5, 10.0) == []
    off = Snapshots()
    off.enter(ServerRow(NAMES, PARCELS, 0, LAST, snapshots=False), None, 0.0, 0.0)
    assert not off.order(5, 10.0) and off.made(5, 10.0) == []


def test_others_hear_of_safety_through_the_leading_server() -> None:
    berta = at(1)
    assert berta.made(5, 0.0) == [TakeAction(5), KeepAction(5)]
    assert berta.receive("carla", Kept(place=1, version=5), 0.0) == [SafeAction(5)]
    assert berta.made(9, 0.0) == [TakeAction(9), KeepAction(9)]
    keep(berta, 5), keep(berta, 9)
    assert berta.held == ((0, 5), (0, 9), (1, 5), (1, 9))
    assert berta.receive("anna", AllSafe(version=9), 0.0) == [ForgetAction(0, 5), ForgetAction(1, 5)]


def test_an_order_shows_that_the_last_one_is_safe() -> None:
    """The flag on a version may overtake the word that the one before is safe."""
    berta = at(1)
    for version in (5, 9):
        berta.made(version, 0.0)
    assert berta.made(13, 0.0) == [ForgetAction(1, 5), TakeAction(13), KeepAction(13)]
    assert berta.receive("anna", AllSafe(version=9), 0.0) == []


def test_the_newest_before_the_start_stays_until_that_is_safe() -> None:
    """A generation begins from what is in one memory alone, mostly: should somebody die, the other stays."""
    berta = at(1)
    for version in (3, 5):
        berta.made(version, 0.0)
        keep(berta, version)
    berta.hold((1, 8))
    row = ServerRow(("anna", "berta", "dora"), PARCELS, 1, LAST)
    assert berta.enter(row, 8, 1.0, 0.0) == [ForgetAction(0, 3), ForgetAction(1, 3)]
    assert berta.held == ((0, 5), (1, 5), (1, 8))
    assert berta.made(8, 0.0) == [KeepAction(8)]
    berta.receive("dora", Kept(place=1, version=8), 0.0)
    assert berta.receive("anna", AllSafe(version=8), 0.0) == [ForgetAction(0, 5), ForgetAction(1, 5)], (
        "of a place that somebody else keeps now, too"
    )


# --- the keeper ----------------------------------------------------------------------------------


def test_a_keeper_says_so_once_it_has_all() -> None:
    berta = at(1)
    first, last = StoreAction(0, 5, 0), StoreAction(0, 5, 1)
    assert keep(berta, 5) == [first, last, KeptAction(0, 5)]
    assert berta.held == ((0, 5),)
    assert keep(berta, 5) == [KeptAction(0, 5)], "its owner did not know"


def test_a_keeper_holds_one_that_is_whole_and_one_that_comes() -> None:
    berta = at(1)
    keep(berta, 5), keep(berta, 9)
    assert keep(berta, 13, parcels=[0]) == [ForgetAction(0, 5), StoreAction(0, 13, 0)]
    assert keep(berta, 17, parcels=[0]) == [ForgetAction(0, 13), StoreAction(0, 17, 0)]
    assert berta.held == ((0, 9),)


def test_who_keeps_for_the_only_one_needs_no_word_of_safety() -> None:
    berta = Snapshots()
    berta.enter(ServerRow(("anna", "berta"), (2, 0), 1, LAST), None, 1.0, 0.0)
    keep(berta, 5)
    assert keep(berta, 9)[-1] == ForgetAction(0, 5)
    assert berta.held == ((0, 9),) and berta.made(9, 0.0) == []


# --- generations ---------------------------------------------------------------------------------


def test_a_new_generation_keeps_what_it_begins_from() -> None:
    berta = at(1)
    berta.made(5, 0.0), keep(berta, 5), keep(berta, 9, parcels=[0])
    assert berta.receive("carla", Kept(place=1, version=5), 0.0) == [SafeAction(5)]
    row = ServerRow(("anna", "berta", "carla"), PARCELS, 1, LAST)
    assert berta.enter(row, 5, 1.0, 0.0) == [ForgetAction(0, 9)]
    assert berta.held == ((0, 5), (1, 5))
    assert berta.made(5, 0.0) == [SafeAction(5)], "Carla has it still"
    another = ServerRow(("anna", "berta", "dora"), PARCELS, 1, LAST)
    berta.enter(another, 5, 1.0, 0.0)
    assert berta.made(5, 0.0) == [KeepAction(5)], "Dora has not"
    assert berta.enter(another, None, 1.0, 0.0) == [ForgetAction(0, 5), ForgetAction(1, 5)]


def test_whoever_fetched_its_chunks_from_its_keeper_is_safe() -> None:
    dora = Snapshots()
    dora.enter(ServerRow(("anna", "dora", "carla"), PARCELS, 1, LAST), 5, 1.0, 0.0)
    dora.fetched(5, "carla")
    assert dora.made(5, 0.0) == [TakeAction(5), SafeAction(5)]


def test_the_leading_server_orders_no_other_before_the_first_is_safe_again() -> None:
    anna = at(0, start=5, now_s=10.0)
    assert anna.made(5, 10.0) == [TakeAction(5), KeepAction(5)]
    assert not anna.order(6, 99.0)
    anna.receive("berta", Safe(place=1, version=5), 99.0)
    anna.receive("carla", Safe(place=2, version=5), 99.0)
    assert anna.receive("berta", Kept(place=0, version=5), 99.0) == [AllSafeAction(5)]


# --- nonsense ------------------------------------------------------------------------------------

numbers = some.integers(-2, 4) | some.sampled_from([5, 9, LAST, LAST + 1, 2**62, -(2**62)])
messages = (
    some.builds(Keep, place=numbers, version=numbers, parcel=numbers)
    | some.builds(Kept, place=numbers, version=numbers)
    | some.builds(Safe, place=numbers, version=numbers)
    | some.builds(AllSafe, version=numbers)
)


@settings(max_examples=500)
@given(place=some.integers(0, 2), wrong=some.lists(messages, max_size=20))
def test_a_strangers_message_changes_nothing(place: int, wrong: list[Any]) -> None:
    snapshots = at(place)
    snapshots.order(5, 0.0)
    snapshots.made(5, 0.0)
    before = snapshots.held
    for message in wrong:
        (refused,) = snapshots.receive("mallory", message, 0.0)
        assert isinstance(refused, RefuseAction) and refused.sender == "mallory"
    assert snapshots.held == before


@settings(max_examples=500)
@given(
    place=some.integers(0, 2), wrong=some.lists(some.tuples(some.sampled_from(NAMES), messages), max_size=30)
)
def test_a_members_nonsense_takes_two_versions_of_a_place_at_most(place: int, wrong: list[Any]) -> None:
    snapshots, copies = at(place), Copies(place)
    copies.do(snapshots.made(5, 0.0))
    for sender, message in wrong:
        copies.do(snapshots.receive(sender, message, 0.0))
        copies.check(snapshots, PARCELS)


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        ("carla", Keep(place=0, version=5, parcel=0)),
        ("anna", Keep(place=0, version=5, parcel=2)),
        ("anna", Keep(place=0, version=LAST + 1, parcel=0)),
        ("anna", Keep(place=0, version=3, parcel=0)),
        ("berta", Keep(place=1, version=5, parcel=0)),
        ("anna", Kept(place=1, version=4)),
        ("carla", Kept(place=1, version=9)),
        ("anna", Safe(place=0, version=4)),
        ("carla", AllSafe(version=4)),
        ("anna", AllSafe(version=9)),
    ],
)
def test_nonsense_is_refused(sender: str, message: Any) -> None:
    berta = at(1)
    berta.made(4, 0.0), keep(berta, 4)
    (refused,) = berta.receive(sender, message, 0.0)
    assert isinstance(refused, RefuseAction) and berta.held == ((0, 4), (1, 4))


# --- random histories ----------------------------------------------------------------------------


class Copies:
    """The arrays of a process, as far as ``Snapshots`` has them held."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.parcels: dict[tuple[int, int], set[int]] = {}

    def do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, TakeAction):
                assert (self.place, action.version) not in self.parcels
                self.parcels[self.place, action.version] = set()
            elif isinstance(action, StoreAction):
                parcels = self.parcels.setdefault((action.place, action.version), set())
                assert action.parcel not in parcels and action.place != self.place
                parcels.add(action.parcel)
            elif isinstance(action, ForgetAction):
                del self.parcels[action.place, action.version]

    def check(self, snapshots: Snapshots, parcels: tuple[int, ...]) -> None:
        whole = {
            copy
            for copy, stored in self.parcels.items()
            if copy[0] == self.place or len(stored) == parcels[copy[0]]
        }
        assert set(snapshots.held) == whole
        for place in range(len(parcels)):
            assert sum(copy[0] == place for copy in self.parcels) <= 2


class World:
    """Servers that make versions, connections that deliver in order but whenever they like, and losses."""

    def __init__(self, seed: int, places: int, standby: bool) -> None:
        self.rng = random.Random(seed)
        self.parcels = tuple(self.rng.randint(1, 3) for _ in range(places)) + ((0,) if standby else ())
        self.size = len(self.parcels)
        self.names = [f"server-{number}" for number in range(self.size)]
        self.next = self.size
        self.servers = [Snapshots() for _ in self.names]
        self.copies = [Copies(place) for place in range(self.size)]
        self.now_s = 0.0
        self.safe: int | None = None
        self.begin(None, {})

    def row(self, place: int) -> ServerRow:
        return ServerRow(tuple(self.names), self.parcels, place, 10**6)

    def begin(self, start: int | None, fetched: dict[int, str]) -> None:
        self.ways: dict[tuple[int, int], deque[Any]] = {}
        self.flags: dict[int, bool] = {}
        self.versions = [start or 0] * self.size
        self.safe = None
        for place, server in enumerate(self.servers):
            self.do(place, server.enter(self.row(place), start, 0.5, self.now_s))
        for place, holder in fetched.items():
            self.servers[place].fetched(start or 0, holder)
        for place, server in enumerate(self.servers):
            if start is not None and self.parcels[place]:
                self.do(place, server.made(start, self.now_s))

    def send(self, source: int, to: int, message: Any) -> None:
        self.ways.setdefault((source, to), deque()).append(message)

    def do(self, place: int, actions: list[Action]) -> None:
        self.copies[place].do(actions)
        for action in actions:
            assert not isinstance(action, RefuseAction), action
            if isinstance(action, KeepAction):
                for parcel in range(self.parcels[place]):
                    keep = Keep(place=place, version=action.version, parcel=parcel)
                    self.send(place, (place + 1) % self.size, keep)
            elif isinstance(action, KeptAction):
                self.send(place, action.place, Kept(place=action.place, version=action.version))
            elif isinstance(action, SafeAction):
                self.send(place, 0, Safe(place=place, version=action.version))
            elif isinstance(action, AllSafeAction):
                self.safe = action.version
                for other in range(1, self.size):
                    if self.parcels[other]:
                        self.send(place, other, AllSafe(version=action.version))
        self.copies[place].check(self.servers[place], self.parcels)

    def deliver(self) -> None:
        """One message, of whichever connection."""
        ready = sorted(way for way, messages in self.ways.items() if messages)
        if ready:
            source, to = self.rng.choice(ready)
            message = self.ways[source, to].popleft()
            self.do(to, self.servers[to].receive(self.names[source], message, self.now_s))

    def step(self) -> None:
        """Somebody who is not ahead makes the next version."""
        holding = [place for place, count in enumerate(self.parcels) if count]
        behind = min(self.versions[place] for place in holding)
        if behind not in self.flags:
            self.flags[behind] = self.servers[0].order(behind + 1, self.now_s)
        place = self.rng.choice([place for place in holding if self.versions[place] == behind])
        self.versions[place] += 1
        if self.flags[behind]:
            self.do(place, self.servers[place].made(behind + 1, self.now_s))

    def common(self, lost: set[int]) -> int | None:
        """The newest version of all places that the others have in snapshots."""
        held = {copy for place in range(self.size) if place not in lost for copy in self.servers[place].held}
        versions = [
            {version for at, version in held if at == place}
            for place, count in enumerate(self.parcels)
            if count
        ]
        return max(set.intersection(*versions), default=None)

    def lose(self, lost: set[int]) -> None:
        start = self.common(lost)
        fetched = {}
        for place in lost:
            holder = (place + 1) % self.size
            if start is not None and self.parcels[place]:
                assert (place, start) in self.servers[holder].held and holder not in lost
                fetched[place] = self.names[holder]
            self.names[place], self.next = f"server-{self.next}", self.next + 1
            self.servers[place], self.copies[place] = Snapshots(), Copies(place)
        self.begin(start, fetched)

    def check(self) -> None:
        for place in range(self.size) if self.safe is not None else ():
            common = self.common({place})
            assert common is not None and common >= self.safe


@settings(max_examples=400)
@given(
    seed=some.integers(0, 2**32),
    places=some.integers(1, 4),
    standby=some.booleans(),
    haste=some.floats(0.2, 0.9),
)
def test_any_one_server_can_be_lost_at_any_moment(
    seed: int, places: int, standby: bool, haste: float
) -> None:
    if places == 1:
        standby = True
    world = World(seed, places, standby)
    for _ in range(300):
        world.now_s += 0.1
        chance = world.rng.random()
        if chance < 0.01:
            lost = {world.rng.randrange(world.size)}
            if chance < 0.003:
                lost.add(world.rng.randrange(world.size))
            world.lose(lost)
        elif chance < haste:
            world.deliver()
        else:
            world.step()
        world.check()
    while any(world.ways.values()):  # once nothing fails any more, every snapshot becomes safe
        world.deliver()
    world.now_s += 1000.0
    before = max(world.versions)
    while max(world.versions) < before + 2:
        world.step()
    while any(world.ways.values()):
        world.deliver()
    assert world.safe is not None and world.safe >= before
