"""Which connections of a served model are closed, as nothing is asked on them."""

from __future__ import annotations

from elasticflow.serving.idle import IDLE_S, IdleConnections


def test_who_asks_nothing_is_closed_and_who_asks_is_not() -> None:
    idle, first, second = IdleConnections(), object(), object()
    assert idle.look({"silent": None, "asks": None}, 0.0) == []
    assert idle.look({"silent": None, "asks": first}, IDLE_S) == []
    assert idle.look({"silent": None, "asks": first}, IDLE_S + 0.1) == ["silent"]
    assert idle.look({"asks": second}, 2 * IDLE_S + 0.1) == [], "it has asked again"
    assert idle.look({"asks": second}, 3 * IDLE_S + 0.2) == ["asks"]


def test_who_has_something_to_be_answered_begins_anew_afterwards() -> None:
    idle = IdleConnections()
    assert idle.look({"busy": None}, 0.0) == []
    assert idle.look({}, IDLE_S) == []
    assert idle.look({"busy": object()}, IDLE_S + 1.0) == []
