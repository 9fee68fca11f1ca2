"""A parameter server's decisions, case by case: what comes in, and what must go out.

Sums are written with their brackets, so that "((0+1)+(2+3))" is the only right one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

from elasticflow.step.schedule import Schedule
from elasticflow.training.advice import Advice, Tuning, go_on, stop
from elasticflow.training.standing import WatchRules, WatchStanding
from elasticflow.wire.messages import Pull, Push, Share
from elasticflow_ps.backups import ComputeAction
from elasticflow_ps.snapshots import Snapshots
from elasticflow_ps.state import (
    Action,
    ApplyAction,
    AskInitialAction,
    ClipEvent,
    ClosedEvent,
    ConsultAction,
    CutEvent,
    DecidedEvent,
    DropAction,
    Event,
    FinishEvent,
    FollowEvent,
    GoneAction,
    InitialEvent,
    InitialiseAction,
    NormsAction,
    OpenedEvent,
    Orders,
    PlanEvent,
    PullEvent,
    PushEvent,
    ServeAction,
    ServerState,
    SettledEvent,
    TimeEvent,
    VersionAction,
)

A = TypeVar("A")
STEPS = Schedule(num_records=80, num_test=0, batch_size=8, num_slices=4, epochs=1)
"""Ten steps."""
EVALUATED = Schedule(num_records=16, num_test=4, batch_size=8, num_slices=4, epochs=2)
"""Ticks 0, 1, 3 and 4 train, ticks 2 and 5 evaluate."""
HALVES = (Share("anna", 0, 2), Share("berta", 2, 4))
ROOT = "((0+1)+(2+3))"


def only(kind: type[A], actions: Iterable[object]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


class Server:
    """A ServerState with workers at hand."""

    def __init__(
        self, schedule: Schedule = STEPS, *, parcels: int = 1, start: int | None = 0, **more: Any
    ) -> None:
        settings = {"leads": True, "rounds": 0, **more}
        self.num_parcels = parcels
        self.state = ServerState(
            schedule=schedule, num_parcels=parcels, combine="({}+{})".format, start=start, **settings
        )
        self.now_s = 100.0

    def tell(self, event: Event, after_s: float = 0.0) -> list[Action]:
        self.now_s += after_s
        return self.state.handle(event, self.now_s)

    def join(self, *workers: str) -> None:
        for worker in workers:
            self.tell(OpenedEvent(worker))

    def push(self, worker: str, level: int, index: int, **more: Any) -> list[Action]:
        """All parcels of a node of the present tick, unless told otherwise."""
        fields = {"tick": self.state.version, "slice_s": 0.1, **more}
        value = ROOT if level == 2 else ("(0+1)", "(2+3)")[index] if level == 1 else str(index)
        parcels = [fields.pop("parcel")] if "parcel" in fields else range(self.num_parcels)
        actions = []
        for parcel in parcels:
            push = Push(level=level, index=index, parcel=parcel, **fields)
            actions += self.tell(PushEvent(worker, push, None if push.empty else value))
        return actions

    def pull(self, worker: str, version: int, have: int = -1) -> list[Action]:
        return self.tell(PullEvent(worker, Pull(version=version, have=have)))

    def orders(self, version: int) -> Orders:
        (served,) = [a for a in only(ServeAction, self.pull("reader", version)) if a.parcel == 0]
        assert served.orders is not None
        return served.orders

    def step(self, **more: Any) -> list[Action]:
        """One tick, all of it by one worker."""
        return self.push("anna", 2, 0, **more)


def two_at_work(**more: Any) -> Server:
    """Anna has slices 0 and 1, Berta 2 and 3, and it is known that slices take 0.1 s."""
    server = Server(**more)
    server.join("anna", "berta")
    server.tell(PlanEvent(1, HALVES))
    server.orders(0)
    server.push("anna", 1, 0)
    server.push("berta", 1, 1)
    server.orders(1)
    return server


# --- gathering -----------------------------------------------------------------------------------


def test_a_step_is_applied_once_its_tree_is_whole() -> None:
    server = Server()
    assert server.push("anna", 0, 3) == server.push("berta", 1, 0) == []
    applied, whole = server.push("anna", 0, 2, lr=0.5)
    assert applied == ApplyAction(0, 0, ROOT, 0.5, None)
    assert whole == VersionAction(1, cut=False, snapshot=False, last=False)


def test_empty_slices_leave_no_trace_in_the_sum() -> None:
    server = Server()
    server.push("anna", 0, 0)
    server.push("anna", 0, 1, empty=True)
    server.push("anna", 1, 1, empty=True)
    assert server.state.version == 1
    applied = only(ApplyAction, server.push("anna", 2, 0, empty=True))
    assert [action.root for action in applied] == [None]


def test_a_second_push_is_dropped() -> None:
    server = Server()
    server.push("anna", 1, 0)
    assert server.push("berta", 0, 1) == server.push("berta", 1, 0) == []
    assert [action.root for action in only(ApplyAction, server.push("berta", 1, 1))] == [ROOT]


def test_a_late_push_of_an_old_tick_changes_nothing() -> None:
    server = two_at_work()
    assert server.push("anna", 1, 0, tick=0, cut=True, finish=True, lr=9.0) == []
    (applied, whole, *_) = [*server.push("anna", 1, 0), *server.push("berta", 1, 1)]
    assert (applied.lr, whole.cut, whole.last) == (None, False, False)  # type: ignore[union-attr]


def test_a_late_push_still_asks_for_what_is_next() -> None:
    server = two_at_work()
    (served,) = only(ServeAction, server.push("anna", 0, 0, tick=0, pull=True))
    assert (served.worker, served.version) == ("anna", 1)


def test_parcels_that_are_still_coming_are_not_overdue() -> None:
    """A push of a large model takes longer than slices do: as long as it goes on it is waited for."""
    server = two_at_work(parcels=40)
    server.push("anna", 1, 0, pull=True)
    for parcel in range(39):
        server.now_s += 0.05
        assert only(ComputeAction, server.push("berta", 1, 1, parcel=parcel)) == []
    (asked,) = only(ComputeAction, server.tell(TimeEvent(), after_s=1.0))
    assert asked == ComputeAction("anna", 1, (2, 3)), "but not for ever"


def test_the_time_that_a_version_takes_to_a_worker_is_learnt() -> None:
    """Here 2 s, beside slices of 0.1 s: nobody is overdue then, as long as it does not take longer."""
    server = two_at_work()
    for _ in range(3):
        server.orders(server.state.version)
        server.now_s += 2.2
        server.push("anna", 1, 0)
        server.push("berta", 1, 1)
    server.orders(server.state.version)
    server.now_s += 2.2
    server.push("anna", 1, 0, pull=True)
    assert only(ComputeAction, server.tell(TimeEvent(), after_s=0.1)) == []
    (asked,) = only(ComputeAction, server.tell(TimeEvent(), after_s=0.2))
    assert asked.slices == (2, 3)


def test_who_is_in_the_middle_of_a_push_is_asked_for_nothing_else() -> None:
    """It waits for the next version, whose first parcels it can have, but it still computes."""
    server = two_at_work(parcels=2)
    served = server.push("anna", 1, 0, parcel=1, pull=True, more=True)
    assert only(ComputeAction, server.tell(ClosedEvent("berta"))) == [] == served
    (asked,) = only(ComputeAction, server.push("anna", 1, 0, parcel=0))
    assert asked == ComputeAction("anna", 1, (2, 3))


@pytest.mark.parametrize(
    "wrong",
    [
        {"tick": 1},
        {"parcel": 1},
        {"parcel": -1},
        {"level": 3},
        {"level": -1},
        {"index": 2, "level": 1},
        {"index": -1},
        {"level": 2**60, "index": 2**60},
        *({"slice_s": number} for number in (-1.0, math.nan, math.inf)),
        *({"lr": number} for number in (-1.0, math.nan, math.inf)),
    ],
)
def test_nonsense_is_dropped(wrong: dict[str, Any]) -> None:
    server = Server()
    fields: dict[str, Any] = {"tick": 0, "parcel": 0, "level": 0, "index": 0, "finish": True, **wrong}
    (dropped,) = server.tell(PushEvent("mallory", Push(**fields), "?"))
    assert isinstance(dropped, DropAction) and dropped.worker == "mallory"
    assert server.push("anna", 2, 0)[1] == VersionAction(1, False, False, False), "all is as before"


def test_parcels_are_applied_one_by_one_and_make_one_version() -> None:
    server = Server(parcels=2)
    assert server.push("anna", 2, 0, parcel=1) == [ApplyAction(0, 1, ROOT, None, None)]
    assert only(VersionAction, server.push("anna", 2, 0, parcel=0)) == [VersionAction(1, False, False, False)]


# --- serving -------------------------------------------------------------------------------------


def test_the_latest_version_and_the_one_before_are_served() -> None:
    server = Server()
    for _ in range(3):
        server.step()
    assert [action.version for action in only(ServeAction, server.pull("anna", -1))] == [3]
    assert [action.version for action in only(ServeAction, server.pull("anna", 2))] == [2]
    assert server.pull("anna", 1) == [GoneAction("anna", 3)]
    assert only(ServeAction, server.pull("anna", 4)) == []
    assert only(DropAction, server.pull("anna", 5)) and only(DropAction, server.pull("anna", -2))


def test_who_waits_is_served_once() -> None:
    """Also the worker whose own push makes the version whole."""
    server = Server(parcels=2)
    server.join("anna", "berta")
    server.pull("berta", 1, have=0)
    actions = server.push("anna", 2, 0, parcel=0, pull=True) + server.push("anna", 2, 0, parcel=1)
    served = sorted((action.worker, action.parcel) for action in only(ServeAction, actions))
    assert served == [("anna", 0), ("anna", 1), ("berta", 0), ("berta", 1)]


def test_an_evaluation_leaves_the_parameters() -> None:
    server = Server(EVALUATED, start=2)
    server.step()
    assert [a.same for a in only(ServeAction, server.pull("anna", 3, have=2))] == [True]
    assert [a.same for a in only(ServeAction, server.pull("berta", 3, have=1))] == [False]
    server.step()
    assert [a.same for a in only(ServeAction, server.pull("anna", 4, have=3))] == [False]


# --- the first version ---------------------------------------------------------------------------


def test_the_first_worker_brings_the_first_version() -> None:
    server = Server(start=None, parcels=2)
    server.join("anna", "berta")
    assert server.pull("anna", -1) == [AskInitialAction("anna")]
    assert server.pull("berta", -1) == [AskInitialAction("berta")]
    assert server.tell(InitialEvent(0, "zero")) == [InitialiseAction(0, "zero")]
    actions = server.tell(InitialEvent(1, "one"))
    assert actions[0] == InitialiseAction(1, "one")
    served = {(action.worker, action.version, action.parcel) for action in only(ServeAction, actions)}
    assert served == {(worker, 0, parcel) for worker in ("anna", "berta") for parcel in (0, 1)}
    assert server.tell(InitialEvent(1, "again")) == [], "Berta's are the same, and come too late"


def test_nothing_is_pushed_before_the_first_version() -> None:
    assert only(DropAction, Server(start=None).push("anna", 2, 0))


# --- orders --------------------------------------------------------------------------------------


def test_orders_are_the_same_for_all_workers_of_a_version() -> None:
    server = Server()
    first = server.orders(0)
    server.tell(PlanEvent(1, HALVES))
    server.tell(CutEvent())
    server.tell(FinishEvent())
    assert server.orders(0) == first == Orders()
    server.step()
    assert server.orders(1) == Orders(HALVES, cut=True, finish=True)
    server.step(cut=True, finish=True)
    assert server.orders(1) == Orders(HALVES, cut=True, finish=True)


def test_only_the_newest_plan_counts() -> None:
    server = Server()
    server.tell(PlanEvent(2, HALVES))
    server.tell(PlanEvent(1, ()))
    assert server.orders(0).shares == HALVES


def test_another_master_numbers_its_plans_anew() -> None:
    """It may not know how many the one before had told."""
    server = Server()
    server.tell(PlanEvent(7, HALVES))
    server.tell(FollowEvent())
    assert server.orders(0).shares == HALVES, "until it says otherwise"
    server.step()
    server.tell(PlanEvent(1, (Share("anna", 0, 4),)))
    assert server.orders(1).shares == (Share("anna", 0, 4),)


def test_only_the_leader_gives_orders() -> None:
    assert [action.orders for action in only(ServeAction, Server(leads=False).pull("anna", 0))] == [None]


def test_what_the_pushes_repeat_is_done() -> None:
    """So that servers that do not lead cut, and finish, at the same version."""
    server = Server(leads=False)
    server.push("anna", 1, 0, cut=True, snapshot=True, finish=True)
    (whole,) = only(VersionAction, server.push("berta", 1, 1))
    assert whole == VersionAction(1, cut=True, snapshot=True, last=True)
    assert server.state.finished


@pytest.mark.parametrize("event", [CutEvent(), FinishEvent()])
def test_nothing_is_cut_between_a_step_and_its_evaluation(event: Event) -> None:
    server = Server(EVALUATED, start=1)
    server.tell(event)
    ordered = []
    for tick in (1, 2, 3):
        orders = server.orders(tick)
        ordered.append(orders.cut or orders.finish)
        server.step()
    assert ordered == [False, True, False]


class Always(Snapshots):
    """Orders a snapshot of every version it is asked for, and writes down which."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def order(self, version: int, now_s: float) -> bool:
        self.asked.append(version)
        return True


def test_a_snapshot_is_ordered_like_a_cut_and_may_be_of_any_version() -> None:
    always = Always()
    server = Server(EVALUATED, snapshots=always)
    for version in range(6):
        assert server.orders(version) == server.orders(version) == Orders(snapshot=True)
        (whole,) = only(VersionAction, server.step(snapshot=True))
        assert whole.snapshot and not (whole.cut and version < 5)
    assert always.asked == [1, 2, 3, 4, 5, 6], "once for each version"
    assert not Server(leads=False, snapshots=always).pull("anna", 0)[0].orders  # type: ignore[union-attr]


def cuts(server: Server, *, settled: bool) -> list[int]:
    """The versions that are ordered to be cut, until the end."""
    found = []
    while not server.state.finished:
        if server.orders(server.state.version).cut:
            found.append(server.state.version + 1)
            if settled:
                server.tell(SettledEvent(found[-1]))
        server.step()
    return found


def test_cuts_come_every_so_many_steps() -> None:
    assert cuts(Server(cut_every_steps=3), settled=True) == [3, 6, 9]
    assert cuts(Server(EVALUATED, cut_every_steps=1), settled=True) == [1, 3, 4, 6]


def test_a_cut_that_is_due_while_another_is_written_is_left_out() -> None:
    assert cuts(Server(cut_every_steps=2), settled=False) == [2]
    server = Server(cut_every_steps=2)
    for _ in range(5):
        server.orders(server.state.version)
        server.step()
    server.tell(SettledEvent(1))
    assert not server.orders(5).cut, "that was an older one"
    server.step()
    server.tell(SettledEvent(2))
    assert not server.orders(6).cut, "those due at 4 and 6 are left out"
    server.step()
    assert server.orders(7).cut, "the next is due at 8"


def test_the_last_version_is_cut_without_orders() -> None:
    server = Server(start=9)
    assert only(VersionAction, server.step()) == [VersionAction(10, cut=True, snapshot=False, last=True)]


def test_a_finished_server_serves_and_gathers_no_more() -> None:
    server = Server(start=9)
    server.join("anna", "berta")
    server.step()
    assert server.push("berta", 2, 0, tick=10) == [], "of one that joined after the end: not its fault"
    assert [a.version for a in only(ServeAction, server.push("berta", 0, 3, tick=9, pull=True))] == [10]
    assert server.pull("berta", 11) == [] and server.state.next_due_s() is None
    assert Server(start=10).state.finished


# --- clipping ------------------------------------------------------------------------------------


def test_nothing_is_applied_before_the_norm_is_known() -> None:
    server = Server(parcels=2, rounds=1)
    assert server.push("anna", 2, 0, parcel=1) == []
    assert server.tell(ClipEvent(0, 1.0)) == [], "it cannot be known yet"
    assert server.push("anna", 2, 0, parcel=0) == [NormsAction(0, (ROOT, ROOT))]
    assert server.push("berta", 2, 0) == [], "nor is it asked for again"
    assert server.tell(ClipEvent(1, 9.0)) == server.tell(ClipEvent(-1, 9.0)) == []
    assert only(DropAction, server.tell(ClipEvent(0, -9.0)))
    actions = server.tell(ClipEvent(0, 3.0))
    assert only(ApplyAction, actions) == [ApplyAction(0, parcel, ROOT, None, 3.0) for parcel in (0, 1)]
    assert only(VersionAction, actions) == [VersionAction(1, False, False, False)]


def test_norms_of_tensors_come_after_those_that_clip() -> None:
    server = Server(parcels=2, rounds=2)
    assert server.step() == [NormsAction(0, (ROOT, ROOT))]
    assert server.tell(ClipEvent(0, 1.0, round=1)) == [], "it cannot be known yet"
    assert server.tell(ClipEvent(0, 3.0)) == [NormsAction(0, (ROOT, ROOT), 1, 3.0)]
    assert server.tell(ClipEvent(0, 3.0)) == [], "nor is it said again"
    actions = server.tell(ClipEvent(0, 0.0, round=1, trust=((0, 0.5),)))
    applied = [ApplyAction(0, parcel, ROOT, None, 3.0, trust=((0, 0.5),)) for parcel in (0, 1)]
    assert only(ApplyAction, actions) == applied and only(VersionAction, actions)
    assert server.step() == [NormsAction(1, (ROOT, ROOT))]
    actions = server.tell(ClipEvent(1, 0.0, skip=True))
    assert [a.root for a in only(ApplyAction, actions)] == [None, None], "of what is left out none are asked"


def test_a_step_that_is_skipped_is_a_version_of_the_same_values() -> None:
    server = Server(parcels=2, rounds=1)
    server.step()
    actions = server.tell(ClipEvent(0, 0.0, skip=True))
    assert [(a.parcel, a.root) for a in only(ApplyAction, actions)] == [(0, None), (1, None)]
    assert only(VersionAction, actions) == [VersionAction(1, False, False, False)]
    assert server.step() == [NormsAction(1, (ROOT, ROOT))], "the next is a step like any other"


def test_an_evaluation_is_not_clipped() -> None:
    actions = Server(EVALUATED, start=2, rounds=1).step()
    assert not only(NormsAction, actions) and only(VersionAction, actions)


# --- who does what nobody does -------------------------------------------------------------------


def computes(actions: Iterable[Action]) -> list[tuple[str, tuple[int, ...]]]:
    return [(action.worker, action.slices) for action in only(ComputeAction, actions)]


def test_the_dead_ones_slices_are_handed_out_at_once() -> None:
    server = two_at_work()
    server.push("anna", 1, 0, pull=True)
    assert computes(server.tell(ClosedEvent("berta"))) == [("anna", (2, 3))]


def test_what_two_workers_may_have_died_of_is_handed_out_with_a_warning() -> None:
    """Of berta's slices, which anna had next, the one that anna had pushed is harmless."""
    server = two_at_work(parcels=2)
    server.join("carla", "dora")
    server.push("anna", 1, 0, pull=True)
    (first,) = only(ComputeAction, server.tell(ClosedEvent("berta")))
    assert (first.slices, first.careful) == ((2, 3), ())
    server.push("anna", 0, 2)
    server.tell(ClosedEvent("anna"))
    (second,) = only(ComputeAction, server.pull("carla", 2, have=1))
    assert second == ComputeAction("carla", 1, (3,), (3,))
    server.tell(ClosedEvent("carla"))
    (third,) = only(ComputeAction, server.pull("dora", 2, have=1))
    assert third.careful == (3,), "and so to all who come"
    server.push("dora", 0, 3)
    assert server.state.version == 2
    (fresh,) = only(ComputeAction, server.pull("dora", 3, have=2))
    assert fresh.slices == (0, 1, 2, 3) and not fresh.careful, "another tick has other records"


def test_who_only_had_let_go_has_died_of_nothing() -> None:
    """Berta's connection closed, and there is another one; so anna's death is the first."""
    server = two_at_work()
    server.join("carla")
    server.push("anna", 1, 0, pull=True)
    server.tell(ClosedEvent("berta"))
    server.join("berta")
    server.pull("berta", 2, have=1)
    server.pull("carla", 2, have=1)
    asked = only(ComputeAction, server.tell(ClosedEvent("anna")))
    assert asked == [ComputeAction("berta", 1, (2,)), ComputeAction("carla", 1, (3,))]


def test_whoever_the_master_has_given_up_counts_before_its_connection_closes() -> None:
    server = two_at_work()
    server.join("carla")
    server.push("anna", 1, 0, pull=True)
    server.tell(ClosedEvent("berta"))
    server.tell(PlanEvent(2, (Share("anna", 0, 4),)))
    server.pull("carla", 2, have=1)
    (asked,) = only(ComputeAction, server.tell(PlanEvent(3, (Share("carla", 0, 4),))))
    assert asked == ComputeAction("carla", 1, (2, 3), (2, 3))


def test_whoever_becomes_idle_after_a_death_gets_its_slices() -> None:
    server = two_at_work()
    server.tell(ClosedEvent("berta"))
    assert computes(server.push("anna", 1, 0, pull=True)) == [("anna", (2, 3))]


def test_they_are_spread_over_all_who_are_idle() -> None:
    server = two_at_work()
    server.join("carla")
    server.pull("carla", 2, have=1)
    server.push("anna", 1, 0, pull=True)
    assert computes(server.tell(ClosedEvent("berta"))) == [("anna", (2,)), ("carla", (3,))]


def test_the_slow_ones_slices_are_handed_out_when_overdue() -> None:
    """Two slices of 0.1 s, and patience for two more."""
    server = two_at_work()
    assert computes(server.push("anna", 1, 0, pull=True)) == []
    assert server.state.next_due_s() == pytest.approx(server.now_s + 0.4)
    assert server.tell(TimeEvent(), after_s=0.39) == []
    assert computes(server.tell(TimeEvent(), after_s=0.02)) == [("anna", (2, 3))]
    assert server.state.next_due_s() is None, "nobody is left to ask"


def test_who_was_found_missing_is_not_waited_for_again() -> None:
    server = two_at_work()
    server.push("anna", 1, 0, pull=True)
    server.tell(TimeEvent(), after_s=1.0)
    server.push("anna", 1, 1, pull=True)
    server.orders(2)
    assert computes(server.push("anna", 1, 0, pull=True)) == [("anna", (2, 3))], "without a wait"
    server.push("berta", 0, 3, tick=1)
    server.push("anna", 1, 1, pull=True)
    server.orders(3)
    assert computes(server.push("anna", 1, 0, pull=True)) == [("anna", (2, 3))], "it was late again"
    server.push("berta", 1, 1, pull=True)
    server.orders(4)
    assert computes(server.push("anna", 1, 0, pull=True)) == [], "Berta is in time again"


def test_nobody_is_asked_twice_for_a_slice() -> None:
    """Two who wait for a slice that takes long: neither drowns in messages, and neither do we."""
    server = two_at_work()
    server.push("anna", 1, 0, pull=True)
    server.join("carla")
    server.pull("carla", 2, have=1)
    asked = computes(server.tell(ClosedEvent("berta")))
    for _ in range(100):
        asked += computes(server.tell(TimeEvent(), after_s=0.1))
        asked += computes(server.pull("anna", 2, have=1))
    assert asked == [("anna", (2,)), ("carla", (3,))]
    assert server.state.next_due_s() is None
    assert computes(server.push("carla", 0, 3, pull=True)) == [("carla", (2,))], "Anna takes too long"


def test_who_waits_does_not_compute_what_the_plan_says() -> None:
    """Other servers may know of a newer plan than the workers: they must not wait for the idle."""
    server = Server(leads=False)
    server.join("anna")
    server.tell(PlanEvent(1, (Share("anna", 0, 4),)))
    assert computes(server.pull("anna", 1, have=0)) == [("anna", (0, 1, 2, 3))]


def test_parcels_on_their_way_are_not_handed_out() -> None:
    server = two_at_work(parcels=2)
    server.push("berta", 1, 1)
    assert computes(server.push("anna", 1, 0, parcel=0, pull=True)) == []
    assert computes(server.tell(ClosedEvent("anna"))) == []
    server.join("carla")
    assert computes(server.pull("carla", 2, have=1)) == [("carla", (0, 1))]


def test_an_evaluation_takes_its_own_time() -> None:
    """A slice of the test source is not like one of a batch: nothing is known of it at first."""
    server = two_at_work(schedule=EVALUATED)
    server.push("anna", 1, 0)
    server.push("berta", 1, 1)
    server.orders(2)
    server.push("anna", 1, 0, slice_s=5.0, pull=True)
    assert server.state.next_due_s() == pytest.approx(server.now_s + 20.0)


def test_whom_the_master_suspects_is_not_waited_for() -> None:
    """Where nothing is known of slices yet, the new plan is what tells."""
    server = Server()
    server.join("anna", "berta")
    server.tell(PlanEvent(1, (Share("anna", 0, 4),)))
    server.orders(0)
    assert computes(server.pull("berta", 1, have=0)) == []
    assert server.state.next_due_s() is None
    assert computes(server.tell(PlanEvent(2, (Share("berta", 0, 4),)))) == [("berta", (0, 1, 2, 3))]


def test_without_a_plan_the_first_who_asks_does_it_all() -> None:
    server = Server()
    server.join("anna")
    assert computes(server.pull("anna", 1, have=0)) == [("anna", (0, 1, 2, 3))]


# --- what the program says to an evaluation ------------------------------------------------------


def asking(**more: Any) -> Server:
    """Before the evaluation of tick 2, of a program with on_epoch."""
    server = Server(EVALUATED, standing=WatchStanding(rules=WatchRules(consults="it")), **more)
    server.join("anna", "berta")
    for _ in range(2):
        server.step()
    return server


def evaluated(server: Server, *who: str) -> list[Action]:
    """All wait for what comes after the evaluation, which is made then."""
    for worker in who:
        server.pull(worker, 3)
    return server.step()


def advised(server: Server, advice: Advice) -> list[Action]:
    version = server.state.version
    standing = WatchStanding(rules=WatchRules(consults="it")).after(version - 1, 2, {"cost": 1.0})
    return server.tell(DecidedEvent(version, standing.given(advice)))


def test_all_who_wait_are_asked_and_nobody_is_served_before_there_is_an_answer() -> None:
    server = asking()
    actions = evaluated(server, "anna", "berta")
    assert only(ConsultAction, actions) == [ConsultAction("anna"), ConsultAction("berta")]
    assert not only(ServeAction, actions) and server.state.version == 3
    assert not server.tell(TimeEvent(), 100.0), "each is asked once"
    served = advised(server, go_on(lr_scale=0.5))
    assert {action.worker for action in only(ServeAction, served)} == {"anna", "berta"}
    assert all(a.orders and a.orders.tuning == Tuning(factor=0.5) and not a.orders.ends for a in served)
    assert not only(ConsultAction, server.step())


def test_who_comes_in_place_of_the_dead_is_asked() -> None:
    server = asking()
    evaluated(server, "anna")
    server.tell(ClosedEvent("anna"))
    server.join("carla", "anna")
    assert only(ConsultAction, server.pull("carla", -1)) == [ConsultAction("carla")]
    assert only(ConsultAction, server.pull("anna", -1)) == [ConsultAction("anna")]


def test_a_run_ends_with_the_evaluation_if_the_program_says_so() -> None:
    server = asking()
    evaluated(server, "anna")
    (served,) = only(ServeAction, advised(server, stop("enough")))
    assert served.orders and served.orders.ends and server.state.finished


def test_the_last_evaluation_is_asked_of_as_well() -> None:
    server = asking()
    evaluated(server, "anna")
    advised(server, go_on())
    for _ in range(2):
        server.step()
    server.pull("anna", 6)
    actions = server.step()
    assert only(VersionAction, actions)[0].last and only(ConsultAction, actions) == [ConsultAction("anna")]
    assert only(ServeAction, advised(server, go_on()))


def test_one_leads() -> None:
    server = asking(leads=False)
    actions = evaluated(server, "anna")
    assert only(ServeAction, actions) and not only(ConsultAction, actions)


def test_what_was_not_answered_before_is_asked_as_it_begins() -> None:
    standing = WatchStanding(rules=WatchRules(consults="it")).after(2, 2, {"cost": 1.0})
    server = Server(EVALUATED, start=3, standing=standing)
    server.join("anna")
    assert server.pull("anna", -1) == [ConsultAction("anna")]
    assert only(ServeAction, advised(server, go_on()))
    known = Server(EVALUATED, start=3, standing=standing.given(go_on()))
    assert only(ServeAction, known.pull("anna", -1))
