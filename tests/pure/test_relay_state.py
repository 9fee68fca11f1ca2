"""What a relay does between the workers of its group and their server."""

from __future__ import annotations

import math
from typing import Any

from elasticflow.step.schedule import Kind, Schedule
from elasticflow.step.slices import Node, nodes_of
from elasticflow.training.advice import Tuning
from elasticflow.wire.messages import Compute, Pull, Push, Version
from elasticflow_ps import relay_state as rs
from elasticflow_ps import state as st
from elasticflow_ps.backups import ComputeAction

SLICES, PARCELS = 8, 2
SCHEDULE = Schedule(num_records=64, num_test=8, batch_size=16, num_slices=SLICES, epochs=2)
"""Four steps and an evaluation in each epoch."""
LEARNT = 3
"""Steps after which is known how long they take; the next is one as well."""


class Relay:
    """A relay that has version ``start``, and workers a and b that have it too."""

    def __init__(self, start: int = 0, workers: str = "ab") -> None:
        self.now_s = 100.0
        self.state = rs.RelayState(
            SCHEDULE, PARCELS, start, lambda parcel, work: work.kind is Kind.TRAIN, lambda a, b: f"({a}+{b})"
        )
        self.said: list[rs.RelayAction] = []
        for worker in workers:
            self.do(self.state.opened(worker))
            self.ask(worker, -1, -1)
        self.version(start)

    def do(self, actions: list[rs.RelayAction]) -> list[rs.RelayAction]:
        self.said += actions
        return actions

    def ask(self, worker: str, version: int, have: int) -> list[rs.RelayAction]:
        return self.do(self.state.asked(worker, Pull(version=version, have=have), self.now_s))

    def part(self, version: int, parcel: int, *, same: bool = False) -> list[rs.RelayAction]:
        message = Version(version=version, parcel=parcel, same=same, cut=parcel == 0, checks=(version,))
        return self.do(self.state.came(message, None if same else f"v{version}.{parcel}", self.now_s))

    def version(self, number: int) -> list[rs.RelayAction]:
        return [action for parcel in range(PARCELS) for action in self.part(number, parcel)]

    def push(self, worker: str, slices: tuple[int, ...], *, tick: int | None = None) -> list[rs.RelayAction]:
        """All it has of a tick."""
        tick = self.state.version if tick is None else tick
        actions: list[rs.RelayAction] = []
        nodes = nodes_of(slices)
        for node in nodes:
            last = node == nodes[-1]
            for parcel in range(PARCELS):
                push = Push(
                    tick=tick, parcel=parcel, level=node.level, index=node.index, slice_s=0.1,
                    pull=last and parcel == 0, more=parcel < PARCELS - 1,
                )  # fmt: skip
                value = f"{worker}{node.first}-{node.stop}"
                actions += self.do(self.state.pushed(worker, push, value, self.now_s))
        return actions

    def step(self) -> None:
        """Both in time, and the next version comes."""
        for worker, slices in (("a", (0, 1)), ("b", (2, 3))):
            self.now_s += 0.1
            self.push(worker, slices)
        self.version(self.state.version + 1)


def only(kind: type[Any], actions: list[rs.RelayAction]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def pushed(actions: list[rs.RelayAction]) -> list[tuple[int, Node, Any]]:
    return [
        (each.push.parcel, Node(each.push.level, each.push.index), each.value)
        for each in only(rs.PushOnAction, actions)
    ]


def given(actions: list[rs.RelayAction], worker: str) -> list[tuple[int, int, Any]]:
    mine = [each for each in only(rs.HandDownAction, actions) if each.worker == worker]
    return [(each.message.version, each.message.parcel, each.value) for each in mine]


def test_it_asks_once_somebody_asks_and_hands_down_what_comes() -> None:
    relay = Relay()
    first, following = only(rs.PullOnAction, relay.said)
    assert first.pull == Pull(version=-1) and following.pull == Pull(version=1, have=0, idle=False)
    assert given(relay.said, "a") == given(relay.said, "b") == [(0, 0, "v0.0"), (0, 1, "v0.1")]
    assert all(each.message.checks == (0,) for each in only(rs.HandDownAction, relay.said)), "end to end"


def test_sums_of_all_leave_together_and_the_last_says_that_nothing_more_comes() -> None:
    relay = Relay()
    assert pushed(relay.push("a", (0, 1))) == []
    relay.now_s += 0.4
    actions = relay.push("b", (2, 3))
    assert pushed(actions) == [(n, Node(2, 0), "(a0-2+b2-4)") for n in range(PARCELS)]
    one, other = (each.push for each in only(rs.PushOnAction, actions))
    assert (one.pull, other.pull) == (False, True) and abs(one.slice_s - 0.1) < 1e-9, "0.4 s for four slices"
    assert not only(rs.PullOnAction, actions)
    assert given(relay.part(1, 1), "a") == [(1, 1, "v1.1")], "each parcel as it comes"
    assert given(relay.part(1, 0), "b") == [(1, 0, "v1.0")]


def test_who_has_nothing_to_push_is_not_waited_for() -> None:
    relay = Relay()
    assert relay.ask("b", 1, 0) == []
    actions = relay.push("a", (5,))
    assert pushed(actions) == [(n, Node(0, 5), "a5-6") for n in range(PARCELS)]
    relay = Relay()
    relay.ask("a", 1, 0)
    (idle,) = only(rs.PullOnAction, relay.ask("b", 1, 0))
    assert idle.pull == Pull(version=1, have=0), "nobody has anything: the server may ask for what is overdue"


def test_who_goes_is_not_waited_for_and_what_it_has_pushed_stays() -> None:
    relay = Relay()
    relay.push("a", (0, 1))
    assert [node for _, node, _ in pushed(relay.do(relay.state.closed("b", relay.now_s)))] == [Node(1, 0)] * 2
    relay = Relay()
    relay.push("a", (0, 1))
    relay.do(relay.state.closed("a", relay.now_s))
    assert pushed(relay.push("b", (2, 3)))[0][2] == "(a0-2+b2-4)"


def test_who_is_later_than_ever_is_not_waited_for_and_what_it_pushes_then_goes_on_as_it_is() -> None:
    relay = Relay()
    for _ in range(LEARNT):
        relay.step()
    relay.now_s += 0.1
    relay.push("a", (0, 1))
    due_s = relay.state.due_s()
    assert due_s is not None and relay.now_s + 0.1 < due_s < relay.now_s + 0.5, "0.2 s, and twice a slice"
    relay.now_s = due_s - 0.01
    assert relay.do(relay.state.passed(relay.now_s)) == []
    relay.now_s = due_s
    actions = relay.do(relay.state.passed(relay.now_s))
    assert [node for _, node, _ in pushed(actions)] == [Node(1, 0)] * 2
    assert only(rs.PushOnAction, actions)[-1].push.pull, "what is missing is nobody's now"
    assert [value for _, _, value in pushed(relay.push("b", (2, 3)))] == ["b2-4"] * 2


def test_who_is_always_later_than_others_is_waited_for() -> None:
    relay = Relay()
    for _ in range(LEARNT):
        relay.now_s += 0.1
        relay.push("a", (0, 1))
        relay.now_s += 3.0
        relay.push("b", (2, 3))
        relay.version(relay.state.version + 1)
    relay.now_s += 0.1
    relay.push("a", (0, 1))
    due_s = relay.state.due_s()
    assert due_s is not None and due_s > relay.now_s + 3.0


def test_overdue_slices_are_asked_of_the_idle_and_of_another_if_one_is_late() -> None:
    relay = Relay()
    relay.push("a", (0, 1))
    assert relay.do(relay.state.is_asked(Compute(tick=0, slices=(6, 7), careful=(7,)), relay.now_s)) == [
        ComputeAction("a", 0, (6, 7), (7,))
    ]
    assert pushed(relay.push("b", (2, 3)))
    relay.do(relay.state.closed("a", relay.now_s))
    assert ComputeAction("b", 0, (6, 7), (7,)) in relay.said, "it has died of something else, for all we know"
    assert [value for _, _, value in pushed(relay.push("b", (6, 7)))] == ["b6-8"] * 2
    assert relay.do(relay.state.is_asked(Compute(tick=1, slices=(6,)), relay.now_s)) == [], "of another tick"


def test_it_has_two_versions_and_says_what_is_past() -> None:
    relay = Relay()
    relay.step()
    relay.step()
    assert given(relay.ask("a", 1, -1), "a") == [(1, 0, "v1.0"), (1, 1, "v1.1")]
    assert relay.ask("b", 0, -1) == [st.GoneAction("b", 2)]
    assert only(st.DropAction, relay.ask("b", 5, 2)), "nobody can know of that"


def test_what_a_worker_has_is_not_sent_again() -> None:
    relay = Relay(workers="a")
    for _ in range(4):
        relay.push("a", (0,))
        relay.version(relay.state.version + 1)
    relay.ask("a", 5, 4)  # after the evaluation
    relay.part(5, 0, same=True)
    assert given(relay.part(5, 1, same=True), "a") == [(5, 1, None)]
    relay.do(relay.state.opened("c"))
    assert given(relay.ask("c", -1, -1), "c") == [(5, 0, "v4.0"), (5, 1, "v4.1")], "which it has not"


def test_who_comes_late_gets_two_versions_before_it_hands_down_any() -> None:
    """Others of the servers may be a version behind, and workers meet there."""
    relay = Relay(start=3)
    assert given(relay.said, "a")[0][0] == 3, "there is none before the first"
    relay = Relay(start=0, workers="")
    relay.do(relay.state.opened("a"))
    relay.ask("a", -1, -1)
    relay.state = rs.RelayState(SCHEDULE, PARCELS, 0, lambda *_: True, lambda a, b: f"({a}+{b})")
    relay.do(relay.state.opened("a"))
    relay.ask("a", -1, -1)
    actions = relay.version(6)
    assert given(actions, "a") == [] and only(rs.PullOnAction, actions)[0].pull == Pull(version=5)
    assert only(rs.PullOnAction, relay.do(relay.state.gone(7)))[0].pull == Pull(version=-1), "it was too slow"
    assert given(relay.version(7), "a") == [(7, 0, "v7.0"), (7, 1, "v7.1")]
    assert given(relay.ask("a", 6, -1), "a") == [(6, 0, "v6.0"), (6, 1, "v6.1")]


def test_first_values_are_asked_of_one_worker_after_the_other() -> None:
    relay = Relay(workers="")
    relay.state = rs.RelayState(SCHEDULE, PARCELS, 0, lambda *_: True, lambda a, b: f"({a}+{b})")
    for worker in "ab":
        relay.do(relay.state.opened(worker))
        relay.ask(worker, -1, -1)
    assert relay.do(relay.state.lacks_first()) == [st.AskInitialAction("a")]
    assert relay.do(relay.state.closed("a", relay.now_s)) == [st.AskInitialAction("b")]
    assert given(relay.version(0), "b") == [(0, 0, "v0.0"), (0, 1, "v0.1")]


def test_all_who_wait_are_asked_what_the_program_says_each_once() -> None:
    relay = Relay()
    relay.push("a", (0,))
    assert relay.do(relay.state.is_consulted()) == [st.ConsultAction("a")]
    assert st.ConsultAction("b") in relay.push("b", (1,)) and relay.do(relay.state.is_consulted()) == []
    relay.version(1)
    assert not only(st.ConsultAction, relay.ask("a", 2, 1)), "that was of another"


def test_orders_are_handed_down_as_they_are() -> None:
    relay = Relay()
    first, other = [each.message for each in only(rs.HandDownAction, relay.said) if each.worker == "a"]
    assert first.cut and not other.cut and first.tuning == Tuning()


def test_what_makes_no_sense_is_dropped() -> None:
    relay = Relay()
    bad = [
        Push(tick=0, parcel=PARCELS, level=0, index=0),
        Push(tick=0, parcel=-1, level=0, index=0),
        Push(tick=0, parcel=0, level=-1, index=0),
        Push(tick=0, parcel=0, level=4, index=0),
        Push(tick=0, parcel=0, level=0, index=SLICES),
        Push(tick=0, parcel=0, level=0, index=-1),
        Push(tick=0, parcel=0, level=0, index=0, slice_s=math.nan),
        Push(tick=1, parcel=0, level=0, index=0),
    ]
    for push in bad:
        assert only(st.DropAction, relay.state.pushed("a", push, "x", relay.now_s)), push
    assert only(st.DropAction, relay.state.came(Version(version=99, parcel=0), "x", relay.now_s))
    assert only(st.DropAction, relay.state.came(Version(version=1, parcel=PARCELS), "x", relay.now_s))
    assert relay.state.is_asked(Compute(tick=0, slices=(SLICES,)), relay.now_s) == []
