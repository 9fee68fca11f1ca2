"""A worker's end of the data plane, against servers that answer in any order and at any pace."""

from __future__ import annotations

import random
from collections import deque

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from elasticflow.step.schedule import Schedule
from elasticflow.training.advice import Question, Tuning
from elasticflow.wire.messages import (
    AllSafe,
    Compute,
    Consult,
    FromServer,
    Gone,
    Pull,
    Share,
    Uninitialised,
    Version,
)
from elasticflow_ps.client_state import (
    LATEST,
    AdoptAction,
    AskProgramAction,
    ClientState,
    ComputeSlicesAction,
    GreetedEvent,
    IgnoreAction,
    InitialAction,
    LinkClosedEvent,
    OrderEvent,
    PlaceAction,
    PullAction,
    ReceivedEvent,
    RestoreAction,
    SeveredAction,
)

SCHEDULE = Schedule(num_records=16, num_test=4, batch_size=4, num_slices=4, epochs=20)


def client(*num_parcels: int, has_first: bool = False) -> ClientState:
    """One that has been greeted by all its servers."""
    state = ClientState(num_parcels, SCHEDULE, has_first=has_first)
    for server in range(len(num_parcels)):
        assert state.handle(GreetedEvent(server)) == [PullAction(server, LATEST, -1)]
    return state


def heard(state: ClientState, server: int, message: FromServer, frames: object = "frames") -> list:
    return list(state.handle(ReceivedEvent(server, message, frames)))


def version(number: int, parcel: int = 0, **more: object) -> Version:
    return Version(version=number, parcel=parcel, **more)


def test_nobody_is_asked_before_it_has_answered_the_handshake() -> None:
    state = ClientState([1, 1], SCHEDULE, has_first=False)
    assert state.handle(GreetedEvent(1)) == [PullAction(1, LATEST, -1)]
    assert heard(state, 1, version(5)) == []
    assert state.handle(GreetedEvent(0)) == [PullAction(0, LATEST, -1)]
    (adopted,) = heard(state, 0, version(5))
    assert isinstance(adopted, AdoptAction) and adopted.version == state.held == 5


def test_servers_meet_at_the_oldest() -> None:
    state = client(1, 2)
    assert heard(state, 0, version(8)) == []
    assert heard(state, 1, version(7, 0)) == []
    assert heard(state, 1, version(7, 1)) == [PullAction(0, 7, -1)]
    shares = (Share("worker-1", 0, 4),)
    (adopted,) = heard(state, 0, version(7, shares=shares, cut=True), "theirs")
    assert isinstance(adopted, AdoptAction)
    assert adopted.version == 7 and adopted.orders.shares == shares and adopted.orders.cut
    assert adopted.frames == [{0: "theirs"}, {0: "frames", 1: "frames"}]


def test_if_the_oldest_is_gone_only_those_behind_are_asked_again() -> None:
    state = client(1, 1, 1)
    for server, number in enumerate((9, 8, 7)):
        asked = heard(state, server, version(number))
    assert asked == [PullAction(0, 7, -1), PullAction(1, 7, -1)]
    assert heard(state, 1, version(7)) == []
    # Server 0 has 9 and 10: all others have 9 at least.
    assert heard(state, 0, Gone(latest=10)) == [PullAction(n, LATEST, -1) for n in range(3)]
    assert heard(state, 1, version(9)) == heard(state, 2, version(9)) == []
    (adopted,) = heard(state, 0, version(10)) and heard(state, 0, version(9))
    assert isinstance(adopted, AdoptAction) and adopted.version == 9


def test_whoever_was_late_catches_up() -> None:
    state = client(1, 1)
    heard(state, 0, version(3)), heard(state, 1, version(3))
    assert heard(state, 0, Gone(latest=9)) == [PullAction(0, LATEST, 3), PullAction(1, LATEST, 3)]
    assert heard(state, 1, Gone(latest=8)) == [], "of the question before"
    assert heard(state, 1, version(4)) == [], "as well"
    assert heard(state, 0, version(9)) == []
    (adopted,) = heard(state, 1, version(9))
    assert isinstance(adopted, AdoptAction) and adopted.version == 9


def test_only_the_next_version_is_adopted_while_following() -> None:
    state = client(1, 1)
    heard(state, 0, version(3)), heard(state, 1, version(3))
    assert heard(state, 0, version(5)) == heard(state, 1, version(5)) == []
    assert heard(state, 0, version(3)) == heard(state, 1, version(3)) == []
    assert heard(state, 0, version(4)) == [PlaceAction(0, 0, "frames")]
    assert heard(state, 0, version(4)) == []
    placed, adopted = heard(state, 1, version(4))
    assert placed == PlaceAction(1, 0, "frames")
    assert isinstance(adopted, AdoptAction) and adopted.version == 4


def test_slices_of_the_present_tick_are_computed() -> None:
    state = client(1)
    assert heard(state, 0, Compute(tick=3, slices=(1,))) == []
    heard(state, 0, version(3))
    assert heard(state, 0, Compute(tick=3, slices=(1, 2))) == [ComputeSlicesAction(3, (1, 2))]
    assert heard(state, 0, Compute(tick=2, slices=(1,))) == []


def test_the_leading_server_asks_what_the_program_says() -> None:
    """Whether there is a version already or not; nobody else asks, and of nothing but evaluations."""
    state = ClientState([1, 1], SCHEDULE, has_first=False)
    question = Question(tick=4, values="{}", memory="", tuning=Tuning())
    assert heard(state, 0, Consult(question=question)) == [AskProgramAction(question)]
    assert isinstance(heard(state, 1, Consult(question=question))[0], IgnoreAction)
    other = msgspec.structs.replace(question, tick=1)
    assert isinstance(heard(state, 0, Consult(question=other))[0], IgnoreAction)


def test_a_warning_is_kept_until_the_next_version() -> None:
    """Also while the present one is got again, and for those alone that it was given for."""
    state = client(1, 2)
    heard(state, 0, version(3)), heard(state, 1, version(3, 0)), heard(state, 1, version(3, 1))
    heard(state, 0, Compute(tick=2, slices=(0,), careful=(0,)))
    assert heard(state, 0, Compute(tick=3, slices=(0, 1), careful=(1,))) == [
        ComputeSlicesAction(3, (0, 1), (1,))
    ]
    heard(state, 1, version(4, 1))
    heard(state, 0, Compute(tick=3, slices=(2,), careful=(2,)))
    heard(state, 1, Compute(tick=3, slices=(2, 3)))
    heard(state, 0, version(3)), heard(state, 1, version(3, 1))
    assert heard(state, 1, version(3, 0))[-1] == ComputeSlicesAction(3, (2, 3), (2,))
    heard(state, 0, version(4)), heard(state, 1, version(4, 0)), heard(state, 1, version(4, 1))
    assert heard(state, 0, Compute(tick=4, slices=(1, 2))) == [ComputeSlicesAction(4, (1, 2))]


@pytest.mark.parametrize("by_master", [False, True])
def test_a_version_that_is_partly_overwritten_is_got_again_before_slices_are_computed(
    by_master: bool,
) -> None:
    state = client(1, 2)
    heard(state, 0, version(3)), heard(state, 1, version(3, 0)), heard(state, 1, version(3, 1))
    assert heard(state, 1, version(4, 1)) == [PlaceAction(1, 1, "frames")]
    again = [PullAction(0, 3, -1), PullAction(1, 3, -1)]
    if by_master:
        assert state.handle(OrderEvent(3, (2,))) == again
    else:
        assert heard(state, 0, Compute(tick=3, slices=(2,))) == again
    assert heard(state, 1, Compute(tick=3, slices=(1, 2))) == [], "it is on its way"
    assert heard(state, 1, version(4, 0)) == [], "of the question before"
    assert heard(state, 0, version(3)) == heard(state, 1, version(3, 1)) == []
    restored, *asks, compute = heard(state, 1, version(3, 0))
    assert restored == RestoreAction([{0: "frames"}, {0: "frames", 1: "frames"}])
    assert asks == [PullAction(0, 4, 3), PullAction(1, 4, 3)]
    assert compute == ComputeSlicesAction(3, (1, 2))
    assert state.handle(OrderEvent(3, (0,))) == [ComputeSlicesAction(3, (0,))], "it is whole"
    assert heard(state, 0, version(4)) == [PlaceAction(0, 0, "frames")]


def test_who_finds_a_version_gone_that_was_partly_overwritten_goes_on_with_the_latest() -> None:
    state = client(1, 1)
    heard(state, 0, version(3)), heard(state, 1, version(3))
    heard(state, 1, version(4))
    heard(state, 0, Compute(tick=3, slices=(2,)))
    assert heard(state, 0, Gone(latest=5)) == [PullAction(0, LATEST, -1), PullAction(1, LATEST, -1)]
    assert not state.handle(OrderEvent(3, (2,)))
    assert heard(state, 1, version(5)) == []
    (adopted,) = heard(state, 0, version(5))
    assert isinstance(adopted, AdoptAction) and adopted.version == 5


def test_what_is_the_same_says_nothing_of_a_parcel_that_is_of_the_next_version() -> None:
    state = client(2, 1)
    heard(state, 0, version(3, 0)), heard(state, 0, version(3, 1)), heard(state, 1, version(3))
    heard(state, 0, version(4, 0))
    heard(state, 1, Gone(latest=4))
    assert heard(state, 0, version(3, 1, same=True)) == [], "it is of version 3"
    assert heard(state, 0, version(3, 0, same=True)) == [], "it is late: the other one is there by now"
    assert heard(state, 1, version(3)) == []
    assert heard(state, 0, version(3, 0)), "now all of it is there"


def test_what_is_not_trained_is_the_same_beside_what_is_placed() -> None:
    state = client(2)
    heard(state, 0, version(3, 0)), heard(state, 0, version(3, 1))
    assert heard(state, 0, version(4, 0)) == [PlaceAction(0, 0, "frames")]
    (adopted,) = heard(state, 0, version(4, 1, same=True))
    assert isinstance(adopted, AdoptAction) and adopted.version == 4


def test_first_values_are_sent_by_those_who_have_them() -> None:
    state = client(1, 1, has_first=True)
    assert heard(state, 1, Uninitialised()) == [InitialAction(1)]
    assert heard(state, 0, version(0)) == []
    assert heard(state, 1, version(0))
    assert isinstance(heard(state, 1, Uninitialised())[0], IgnoreAction), "its state is another by now"
    assert isinstance(heard(client(1), 0, Uninitialised())[0], IgnoreAction)


def test_nothing_comes_after_the_end() -> None:
    state = client(1, 1)
    heard(state, 0, version(3))
    assert state.handle(LinkClosedEvent(1)) == [SeveredAction(1)]
    assert list(state.handle(LinkClosedEvent(0))) == heard(state, 1, version(3)) == []


@pytest.mark.parametrize(
    "message",
    [
        version(3, 1),
        version(3, -1),
        version(-1),
        version(SCHEDULE.total_ticks + 1),
        version(3, same=True),
        version(3, shares=(Share("worker-1", 2, 5),)),
        version(3, shares=(Share("worker-1", 3, 2),)),
        Gone(latest=10**9),
        AllSafe(version=3),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_dropped(message: FromServer) -> None:
    state = client(1)
    assert [type(action) for action in heard(state, 0, message)] == [IgnoreAction]
    assert isinstance(heard(state, 0, version(3))[0], AdoptAction), "and changes nothing"


@pytest.mark.parametrize("slices", [(), (4,), (-1,), (2, 1), (1, 1)])
def test_slices_that_do_not_exist_are_dropped(slices: tuple[int, ...]) -> None:
    state = client(1)
    heard(state, 0, version(3))
    assert isinstance(heard(state, 0, Compute(tick=3, slices=slices))[0], IgnoreAction)


def test_arrays_that_do_not_fit_are_dropped() -> None:
    state = client(1)
    assert isinstance(heard(state, 0, version(3), None)[0], IgnoreAction)


# --- any order -----------------------------------------------------------------------------------


def content(number: int) -> int:
    """Versions with the same one have the same parameters."""
    return number - 1 if number and SCHEDULE.evaluates(number - 1) else number


class Server:
    """Keeps two versions, makes the next parcel by parcel, and answers the last question alone."""

    def __init__(self, num_parcels: int, at: int) -> None:
        self.num_parcels, self.version = num_parcels, at
        self.made: list[int] = []
        self.inbox: deque[Pull] = deque()
        self.outbox: deque[tuple[FromServer, object]] = deque()
        self._wait: Pull | None = None
        self._served: set[int] = set()

    def take(self) -> None:
        pull = self.inbox.popleft()
        if pull.version == LATEST:
            pull = Pull(version=self.version, have=pull.have)
        assert pull.version <= self.version + 1, "an honest worker does not ask for more"
        if self._wait is None or self._wait.version != pull.version:
            self._wait, self._served = pull, set()
        self._serve()

    def make(self, parcel: int) -> None:
        self.made.append(parcel)
        if len(self.made) == self.num_parcels:
            self.version, self.made = self.version + 1, []
        self._serve()

    def _serve(self) -> None:
        wait = self._wait
        if wait is None:
            return
        if wait.version < self.version - 1:
            self._wait = None
            self.outbox.append((Gone(latest=self.version), None))
            return
        parcels = self.made if wait.version > self.version else range(self.num_parcels)
        for parcel in [each for each in parcels if each not in self._served]:
            same = wait.have >= content(wait.version)
            frames = None if same else content(wait.version)
            self.outbox.append((version(wait.version, parcel, same=same), frames))
            self._served.add(parcel)
        if wait.version <= self.version:
            self._wait = None


class World:
    """A worker and its servers; ``rng`` decides who is next."""

    def __init__(self, num_parcels: list[int], seed: int) -> None:
        self.rng = random.Random(seed)
        start = self.rng.randrange(5)
        self.servers = [Server(number, start) for number in num_parcels]
        self.state = ClientState(num_parcels, SCHEDULE, has_first=False)
        self.values: list[dict[int, int]] = [{} for _ in num_parcels]
        self.ungreeted = set(range(len(num_parcels)))
        self.asks = False
        self.placed = self.recalled = 0

    def step(self, pace: int) -> bool:
        """Something happens; False: nothing can. pace: 0 if the servers stand still."""
        can: list[tuple[object, int]] = []
        overdue = pace > 0 and self.rng.random() < 0.05
        for number, server in enumerate(self.servers):
            can += [(self._greet, number)] * (number in self.ungreeted)
            can += [(self._answer, number)] * bool(server.inbox)
            can += [(self._hear, number)] * bool(server.outbox)
            can += [(self._order, number)] * (overdue and self.state.held >= 0)
            oldest = min(each.version for each in self.servers)
            if server.version <= oldest and server.version < SCHEDULE.total_ticks:
                can += [(self._make, number)] * pace
        can += [(self._ask, 0)] * self.asks
        can += [(self._order_by_master, 0)] * overdue
        if not can:
            return False
        act, number = self.rng.choice(can)
        act(number)
        return True

    def _greet(self, number: int) -> None:
        self.ungreeted.remove(number)
        self._do(self.state.handle(GreetedEvent(number)))

    def _answer(self, number: int) -> None:
        self.servers[number].take()

    def _make(self, number: int) -> None:
        server = self.servers[number]
        server.make(self.rng.choice([n for n in range(server.num_parcels) if n not in server.made]))

    def _hear(self, number: int) -> None:
        message, frames = self.servers[number].outbox.popleft()
        same = isinstance(message, Version) and message.same
        self._do(self.state.handle(ReceivedEvent(number, message, () if same else (frames,))))

    def _order(self, number: int) -> None:
        """A slice of the tick that is being gathered is overdue, and the worker may not have left it yet."""
        server = self.servers[number]
        server.outbox.append((Compute(tick=server.version, slices=(0,)), None))

    def _order_by_master(self, _: int) -> None:
        self._do(self.state.handle(OrderEvent(self.state.held, (1,))))

    def _ask(self, _: int) -> None:
        """What a worker says when it has pushed: maybe twice, if it was asked for more slices."""
        self.asks = self.rng.random() < 0.2
        for server in self.servers:
            server.inbox.append(Pull(version=self.state.held + 1, have=self.state.held))

    def _do(self, actions: object) -> None:
        for action in actions:
            assert not isinstance(action, IgnoreAction), action
            if isinstance(action, PullAction):
                self.asks = False
                self.recalled += 0 <= action.version == self.state.held
                self.servers[action.server].inbox.append(Pull(version=action.version, have=action.have))
            elif isinstance(action, PlaceAction):
                (self.values[action.server][action.parcel],) = action.frames
                self.placed += 1
            elif isinstance(action, AdoptAction):
                self._adopt(action)
            elif isinstance(action, RestoreAction):
                self._fill(action.frames)
            elif isinstance(action, ComputeSlicesAction):
                assert self._contents() == {content(action.tick)}, "computes from a mixture of versions"
                assert action.tick == self.state.held

    def _contents(self) -> set[int]:
        return {value for values in self.values for value in values.values()}

    def _fill(self, row: list[dict[int, object]]) -> None:
        for number, frames in enumerate(row):
            assert sorted(frames) == list(range(self.servers[number].num_parcels))
            for parcel, frame in frames.items():
                if frame:
                    self.values[number][parcel] = frame[0]

    def _adopt(self, action: AdoptAction) -> None:
        self._fill(action.frames)
        assert self._contents() == {content(action.version)}, "a mixture of versions"
        assert all(server.version >= action.version for server in self.servers)
        assert action.version == action.orders.version == self.state.held
        self.asks = action.version < SCHEDULE.total_ticks


@settings(max_examples=400)
@given(
    some.lists(some.integers(1, 3), min_size=1, max_size=3),
    some.integers(0, 1 << 32),
    some.lists(some.tuples(some.integers(0, 20), some.integers(1, 60)), max_size=10),
)
def test_versions_are_never_mixed_and_always_come(
    num_parcels: list[int], seed: int, stretches: list[tuple[int, int]]
) -> None:
    """stretches: how fast the servers are, and for how many events."""
    world = World(num_parcels, seed)
    for pace, events in stretches:
        for _ in range(events):
            world.step(pace)
    while world.step(0):
        pass  # the servers stand still: all that is on its way arrives
    assert world.state.held >= min(server.version for server in world.servers), "it waits in vain"


def test_workers_are_late_and_servers_apart_in_these_histories() -> None:
    apart = late = placed = recalled = 0
    for seed in range(400):
        world = World([2, 1, 1], seed)
        for number in range(400):
            before = world.state.held
            world.step(20 if number % 50 < 20 else 1)
            late += 0 <= before < world.state.held - 1
            apart += len({server.version for server in world.servers}) > 1
        placed, recalled = placed + world.placed, recalled + world.recalled
    assert apart > 1000 and late > 100 and placed > 100 and recalled > 15
