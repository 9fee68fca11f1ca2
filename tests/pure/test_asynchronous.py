"""The asynchronous mode, case by case and at random: each slice once, none too late, whoever comes when."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

from elasticflow.step.schedule import Schedule
from elasticflow.wire.messages import Compute, Gone, Pull, Push, Share, Version
from elasticflow_ps.backups import ComputeAction as HandOutAction
from elasticflow_ps.client_state import (
    LATEST,
    AdoptAction,
    ClientState,
    ComputeSlicesAction,
    GreetedEvent,
    OrderEvent,
    PullAction,
    ReceivedEvent,
    RestoreAction,
)
from elasticflow_ps.state import (
    Action,
    ApplyAction,
    ClosedEvent,
    DropAction,
    GoneAction,
    OpenedEvent,
    PlanEvent,
    PullEvent,
    PushEvent,
    ServeAction,
    ServerState,
    VersionAction,
)
from elasticflow_ps.updating import slowed

A = TypeVar("A")
SCHEDULE = Schedule(num_records=72, num_test=4, batch_size=16, num_slices=4, epochs=2, asynchronous=True)
"""Four steps of four updates and one of two, and an evaluation, twice."""
SLICES, STEPS = 4, 5


def only(kind: type[A], actions: Iterable[object]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


class Server:
    """A ServerState with workers at hand."""

    def __init__(self, *, parcels: int = 1, start: int = 0) -> None:
        self.num_parcels, self.now_s = parcels, 100.0
        self.state = ServerState(
            schedule=SCHEDULE,
            num_parcels=parcels,
            combine="({}+{})".format,
            leads=True,
            rounds=0,
            start=start,
        )

    def tell(self, event: Any, after_s: float = 0.0) -> list[Action]:
        self.now_s += after_s
        return self.state.handle(event, self.now_s)

    def push(self, worker: str, number: int, value: Any = "g", **more: Any) -> list[Action]:
        fields = {"tick": self.state.version, "parcel": 0, "level": 0, "slice_s": 0.1, **more}
        return self.tell(PushEvent(worker, Push(index=number, **fields), value))

    def pull(self, worker: str, version: int, have: int = -1) -> list[Action]:
        return self.tell(PullEvent(worker, Pull(version=version, have=have)))


# --- servers -------------------------------------------------------------------------------------


def test_each_slice_is_applied_as_it_comes() -> None:
    server = Server()
    assert server.push("anna", 2, "a", lr=0.5) == [ApplyAction(0, 0, "a", 0.5, None, before=0, slice=2)]
    assert server.push("berta", 0, "b", base=0) == [
        ApplyAction(0, 0, "b", None, None, before=1, late=1, slice=0)
    ]
    assert server.push("anna", 3, "c", base=2) == [
        ApplyAction(0, 0, "c", None, None, before=2, late=0, slice=3)
    ]
    applied, whole = server.push("berta", 1, "d", base=1)
    assert applied == ApplyAction(0, 0, "d", None, None, before=3, late=2, slice=1)
    assert whole == VersionAction(1, cut=False, snapshot=False, last=False)


def test_of_two_pushes_of_a_slice_the_first_counts_for_each_parcel() -> None:
    """A worker dies between its pushes of two parcels; another computes the slice again, with other bits."""
    server = Server(parcels=2)
    assert only(ApplyAction, server.push("anna", 1, "hers", parcel=0))
    assert server.push("berta", 1, "another's", parcel=0) == []
    assert [a.root for a in only(ApplyAction, server.push("berta", 1, "another's", parcel=1))] == [
        "another's"
    ]
    assert server.push("anna", 1, "hers", parcel=1) == []


def test_slices_without_records_are_no_updates() -> None:
    server = Server()
    (empty,) = server.push("anna", 0, None, empty=True)
    (applied,) = server.push("anna", 1)
    assert empty == ApplyAction(0, 0, None, None, None, slice=0)
    assert applied == ApplyAction(0, 0, "g", None, None, slice=1)


def test_sums_of_slices_are_no_slices() -> None:
    assert only(DropAction, Server().push("anna", 0, level=1))
    assert only(DropAction, Server().push("anna", 0, base=-1))


def test_an_evaluation_is_summed_as_ever() -> None:
    server = Server(start=STEPS)
    assert SCHEDULE.evaluates(STEPS)
    assert server.push("anna", 0, "0") == server.push("anna", 3, "3") == server.push("anna", 1, "1") == []
    applied, _ = server.push("berta", 2, "2")
    assert applied == ApplyAction(STEPS, 0, "((0+1)+(2+3))", None, None)


def test_who_asks_for_the_tick_in_work_gets_what_there_is_by_now() -> None:
    server = Server(parcels=2)
    server.push("anna", 0, parcel=0), server.push("anna", 1, parcel=0)
    served = only(ServeAction, server.pull("berta", 0))
    assert [(a.version, a.parcel, a.updates) for a in served] == [(0, 0, 2), (0, 1, 0)]
    assert [a.same for a in only(ServeAction, server.pull("berta", 0, have=0))] == [False, True]
    assert [a.updates for a in only(ServeAction, server.pull("clara", LATEST))] == [2, 0]


def test_of_a_tick_that_is_past_on_one_server_there_is_the_end_of_it() -> None:
    server = Server()
    for number in range(SLICES):
        server.push("anna", number)
    (served,) = server.pull("berta", 0)
    assert isinstance(served, ServeAction) and (served.version, served.updates) == (0, SLICES)
    for number in range(SLICES):
        server.push("anna", number)
    assert server.pull("berta", 0) == [GoneAction("berta", 2)]


def test_who_reads_is_not_idle_and_the_slices_of_the_dead_go_to_who_is() -> None:
    server = Server()
    for worker in ("anna", "berta"):
        server.tell(OpenedEvent(worker))
    server.tell(PlanEvent(1, (Share("anna", 0, 2), Share("berta", 2, 4))))
    for worker, number in (("anna", 0), ("berta", 2), ("anna", 1), ("berta", 3)):
        server.push(worker, number)
    server.pull("anna", 1)
    server.push("anna", 0), server.push("berta", 2)
    assert only(HandOutAction, server.push("anna", 1, pull=True)) == []
    assert only(HandOutAction, server.pull("berta", 1)) == [], "it reads, to compute slice 3"
    assert only(HandOutAction, server.tell(ClosedEvent("berta"))) == [HandOutAction("anna", 1, (3,))]
    assert server.pull("anna", 1)
    assert only(VersionAction, server.push("anna", 3, pull=True))


def known(*seconds: float) -> Server:
    """Anna has slices 0 and 1, Berta 2 and 3, they are at work, and it is known how long slices take each."""
    server = Server()
    server.tell(OpenedEvent("anna")), server.tell(OpenedEvent("berta"))
    server.tell(PlanEvent(1, (Share("anna", 0, 2), Share("berta", 2, 4))))
    for number in range(SLICES):
        server.push(("anna", "berta")[number // 2], number, slice_s=seconds[number // 2])
    server.pull("anna", 1)
    return server


def test_who_is_idle_gets_what_its_owner_has_not_begun() -> None:
    server = known(0.1, 0.3)
    server.push("anna", 0)
    assert only(HandOutAction, server.push("anna", 1, pull=True)) == [HandOutAction("anna", 1, (3,))]
    (served,) = only(ServeAction, server.pull("anna", 1))
    assert served.given == (), "it is hers"
    server.push("berta", 2, slice_s=0.3)
    (served,) = only(ServeAction, server.pull("berta", 1))
    assert served.given == (3,)
    assert only(VersionAction, server.push("anna", 3, pull=True))


def test_nothing_is_handed_over_that_its_owner_has_done_sooner() -> None:
    server = known(0.3, 0.1)
    server.push("anna", 0, slice_s=0.3)
    assert only(HandOutAction, server.push("anna", 1, slice_s=0.3, pull=True)) == [], "in 0.2 s Berta is done"
    server = known(0.1, 0.1)
    server.push("anna", 0), server.push("berta", 2)
    assert only(HandOutAction, server.push("anna", 1, pull=True)) == [], "Berta is at slice 3"


@pytest.mark.parametrize("seed", range(60))
def test_at_random_each_slice_is_applied_once_and_not_too_late(seed: int) -> None:
    """Workers that read, compute and push any slices at any time, die halfway, and push what is past."""
    rng = random.Random(seed)
    parcels = rng.randint(1, 3)
    server = Server(parcels=parcels)
    applied: Counter[tuple[int, int, str]] = Counter()
    held: dict[str, tuple[int, list[int]]] = {}
    made = [[0] * parcels for _ in range(SCHEDULE.total_ticks + 1)]

    def take(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, ApplyAction) and SCHEDULE.applies_slices(action.tick):
                assert action.before == made[action.tick][action.parcel]
                if action.root is None:
                    continue
                number, base = action.root
                applied[action.tick, action.parcel, number] += 1
                assert action.late == action.before - base < SLICES
                made[action.tick][action.parcel] += 1
            elif isinstance(action, ServeAction):
                version, updates = held.setdefault(action.worker, (action.version, [0] * parcels))
                if version != action.version:
                    updates = [0] * parcels
                updates[action.parcel] = action.updates
                held[action.worker] = action.version, updates
            assert not isinstance(action, DropAction), action

    while not server.state.finished:
        worker, version = rng.choice("abc"), server.state.version
        if rng.random() < 0.3 or worker not in held:
            take(server.pull(worker, rng.choice([LATEST, version])))
            continue
        tick, bases = held[worker]
        number, begun = rng.randrange(SLICES), rng.randint(1, parcels)
        first, stop = SCHEDULE.slice_of(SCHEDULE.at(tick), number)
        for parcel in range(begun if rng.random() < 0.3 else parcels):  # or it dies halfway
            value = (number, bases[parcel]) if first < stop else None
            more = {"tick": tick, "parcel": parcel, "base": bases[parcel], "empty": value is None}
            take(server.push(worker, number, "e" if SCHEDULE.evaluates(tick) else value, **more))
    steps = [tick for tick in range(SCHEDULE.total_ticks) if not SCHEDULE.evaluates(tick)]
    assert set(applied.values()) == {1}
    expected = {
        (tick, parcel, number)
        for tick in steps
        for parcel in range(parcels)
        for number in range(SLICES)
        if len(range(*SCHEDULE.slice_of(SCHEDULE.at(tick), number)))
    }
    assert applied.keys() == expected


# --- workers -------------------------------------------------------------------------------------


def client(*num_parcels: int, at: int = 0) -> ClientState:
    """One that has a version."""
    state = ClientState(num_parcels, SCHEDULE, has_first=False)
    for server in range(len(num_parcels)):
        state.handle(GreetedEvent(server))
    for server, number in enumerate(num_parcels):
        for parcel in range(number):
            actions = heard(state, server, Version(version=at, parcel=parcel))
    assert isinstance(actions[-1], AdoptAction)
    return state


def heard(state: ClientState, server: int, message: Any, frames: Any = "frames") -> list[Any]:
    return list(state.handle(ReceivedEvent(server, message, frames)))


def test_before_a_slice_all_servers_are_asked_for_what_is_new() -> None:
    state = client(1, 2)
    assert state.handle(OrderEvent(0, (2, 3))) == [PullAction(0, 0, 0), PullAction(1, 0, 0)]
    assert state.ordered and state.fills == 1
    assert heard(state, 1, Version(version=0, parcel=1, updates=1)) == []
    assert heard(state, 0, Version(version=0, parcel=0, updates=2)) == []
    restored, compute = heard(state, 1, Version(version=0, parcel=0, same=True), ())
    assert isinstance(restored, RestoreAction) and compute == ComputeSlicesAction(0, (2, 3))
    assert state.bases == [{0: 2}, {0: 0, 1: 1}] and state.fills == 2 and not state.ordered
    assert state.handle(OrderEvent(0, (3,))) == [PullAction(0, 0, -1), PullAction(1, 0, -1)]


def test_overdue_slices_too_are_computed_from_what_is_new() -> None:
    state = client(1)
    assert heard(state, 0, Compute(tick=0, slices=(1,)), ()) == [PullAction(0, 0, 0)]
    assert heard(state, 0, Compute(tick=0, slices=(2,)), ()) == []
    _, compute = heard(state, 0, Version(version=0, parcel=0, updates=1))
    assert compute == ComputeSlicesAction(0, (1, 2))
    (placed, adopted) = heard(state, 0, Version(version=1, parcel=0))
    assert isinstance(adopted, AdoptAction) and state.bases == [{0: 0}]


def test_slices_of_a_tick_that_is_past_everywhere_are_left() -> None:
    state = client(1, 1)
    state.handle(OrderEvent(0, (3,)))
    heard(state, 0, Version(version=0, parcel=0, updates=SLICES))
    restored, *asks = heard(state, 1, Version(version=0, parcel=0, updates=SLICES))
    assert asks == [PullAction(0, 1, 0), PullAction(1, 1, 0)]
    state.handle(OrderEvent(0, (3,)))
    assert heard(state, 0, Gone(latest=2), ()) == [PullAction(n, LATEST, -1) for n in range(2)]
    assert not state.ordered


def test_slices_that_were_given_away_are_left_to_others() -> None:
    state = client(1)
    state.handle(OrderEvent(0, (1, 2, 3), rest=True))
    _, compute = heard(state, 0, Version(version=0, parcel=0, updates=1, given=(3,)))
    assert compute == ComputeSlicesAction(0, (1, 2))
    state.handle(OrderEvent(0, (2,), rest=True))
    restored, *asks = heard(state, 0, Version(version=0, parcel=0, updates=2, given=(2, 3)))
    assert isinstance(restored, RestoreAction) and asks == [PullAction(0, 1, 0)]


def test_what_was_asked_for_is_computed_whoever_else_does() -> None:
    """By the master, who wants to know whether it raises, or by a server."""
    state = client(1)
    state.handle(OrderEvent(0, (1,)))
    assert heard(state, 0, Compute(tick=0, slices=(2,)), ()) == []
    _, compute = heard(state, 0, Version(version=0, parcel=0, given=(1, 2)))
    assert compute == ComputeSlicesAction(0, (1, 2))
    state.handle(OrderEvent(0, (2, 3), rest=True))
    _, compute = heard(state, 0, Version(version=0, parcel=0, updates=1, given=(2, 3)))
    assert compute == ComputeSlicesAction(0, (2,))


def test_an_evaluation_is_computed_from_its_version() -> None:
    state = client(1, at=STEPS)
    assert state.handle(OrderEvent(STEPS, (0,))) == [ComputeSlicesAction(STEPS, (0,))]


# --- what follows from numbers -------------------------------------------------------------------


def test_updates_are_numbered_through() -> None:
    assert [SCHEDULE.update(SCHEDULE.at(0), before) for before in range(SLICES)] == [1, 2, 3, 4]
    assert SCHEDULE.update(SCHEDULE.at(STEPS + 1), 0) == STEPS * SLICES + 1
    assert (
        Schedule(num_records=8, num_test=0, batch_size=4, num_slices=4, epochs=1).update(SCHEDULE.at(3), 0)
        == 4
    )


def test_who_is_late_learns_slower() -> None:
    assert [slowed(0.6, late, "inverse") for late in range(4)] == [0.6, 0.6, 0.3, 0.6 / 3]
    assert slowed(0.6, 3, "none") == 0.6
