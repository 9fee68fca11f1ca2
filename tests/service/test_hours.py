"""A share by hours, as a table of what there is when."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import inf
from pathlib import Path

import pytest

from elasticflow.cluster.share import ShareNode
from elasticflow.errors import ConfigError
from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.service.hours import AHEAD_DAYS, Foresight, Hours, both, foreseen, left_by
from elasticflow.service.settings import read_service_config

MONDAY = datetime(2026, 11, 23)


def seconds(local: datetime) -> float:
    """The tests' clock knows no summer time."""
    return local.timestamp()


def workers_at(steps: list[tuple[float, int]], local: datetime) -> int:
    return [size for from_s, size in steps if from_s <= local.timestamp()][-1]


def test_each_day_the_night_and_a_window_and_where_several_apply_the_least() -> None:
    hours = [
        Hours(since="08:00", until="18:00", workers=4, days=["mon", "tue"]),
        Hours(since="22:00", until="06:00", workers=6),
        Hours(since="2026-11-24T09:00", until="2026-11-24T10:00", workers=0),
    ]
    steps = foreseen(hours, 8, (MONDAY + timedelta(hours=3)).timestamp(), seconds)
    at = {
        hour: workers_at(steps, MONDAY + timedelta(hours=hour))
        for hour in (3, 7, 8, 17, 18, 23, 30, 33, 34, 57)
    }
    assert at == {3: 6, 7: 8, 8: 4, 17: 4, 18: 8, 23: 6, 30: 8, 33: 0, 34: 4, 57: 8}
    assert workers_at(steps, MONDAY + timedelta(days=AHEAD_DAYS + 5)) == 0, (
        "nothing is promised on what is not known"
    )
    assert all(a[0] < b[0] and a[1] != b[1] for a, b in zip(steps, steps[1:], strict=False))


def test_without_hours_there_is_what_there_is() -> None:
    assert foreseen([], 8, 1e9) == [(1e9, 8)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{from: noon, until: '18:00', workers: 1}", "both have to be times of day"),
        ("{from: '08:00', until: '2026-11-24T09:00', workers: 1}", "both have to be times of day"),
        (
            "{from: '2026-11-24T09:00', until: '2026-11-24T08:00', workers: 1}",
            "a window ends after it begins",
        ),
        ("{from: '08:00', until: '18:00', workers: -1}", "cannot be fewer than none"),
        ("{from: '08:00', until: '18:00', workers: 1, days: [someday]}", "days someday"),
        ("{from: '08:00', until: '18:00'}", "missing required field `workers`"),
        ("{from: '08:00', until: '18:00', workers: 1, node: 3}", "unknown field `node`"),
    ],
)
def test_what_makes_no_sense_is_said(tmp_path: Path, line: str, words: str) -> None:
    (path := tmp_path / "service.yaml").write_text(f"hours: [{line}]\n")
    with pytest.raises(ConfigError, match=words):
        read_service_config(str(path))


def test_quotas_are_of_users_by_name(tmp_path: Path) -> None:
    (path := tmp_path / "service.yaml").write_text("quotas: {ann: {most_workers: 4}, bob: {weight: 2}}\n")
    quotas = read_service_config(str(path)).rules.quotas
    assert quotas["ann"].most_workers == 4 and quotas["bob"].weight == 2.0
    path.write_text("quotas: {ann: {most: 4}}\n")
    with pytest.raises(ConfigError, match="unknown field `most`"):
        read_service_config(str(path))


def test_a_file_has_them(tmp_path: Path) -> None:
    (path := tmp_path / "service.yaml").write_text("hours:\n- {from: '08:00', until: '18:00', workers: 1}\n")
    assert read_service_config(str(path)).hours == [Hours(since="08:00", until="18:00", workers=1)]


def node(name: str, *taken: tuple[float, float], away: str = "", slots: int = 2) -> ShareNode:
    return ShareNode(name, slots, away, taken=taken)


def test_nodes_that_will_be_somebody_elses_leave_the_others_until_then_and_meanwhile() -> None:
    nodes = [node("g1"), node("g2", (100, 200)), node("g3", (150, inf)), node("g4")]
    assert left_by(nodes, 2, 8, 0.0) == [(0.0, 8), (100, 6), (150, 4), (200, 6)]
    assert left_by(nodes, 2, 5, 0.0) == [(0.0, 5), (150, 4), (200, 5)], "there are more than the service uses"
    assert left_by([node("g1"), node("g2")], 2, 4, 0.0) == [], "nothing is known ahead"
    assert left_by([node("big", (100, 200), slots=5)], 2, 4, 0.0) == [(0.0, 4), (100, 0), (200, 4)]


def test_a_node_that_is_drained_is_not_counted_on_beside_one_that_goes_and_one_that_is_taken_comes_back() -> (
    None
):
    """Of four: one is drained, one is in its maintenance, one will be."""
    nodes = [
        node("g1"),
        node("g2", away="drained"),
        node("g3", (50, 120), away="maint"),
        node("g4", (100, 200)),
    ]
    assert left_by(nodes, 2, 8, 60.0) == [(0.0, 6), (50, 4), (100, 2), (120, 4), (200, 6)]


def test_one_that_is_taken_for_ever_and_since_ever_never_counts() -> None:
    assert left_by([node("g1", (-inf, inf)), node("g2")], 2, 4, 0.0) == [(0.0, 2)]


def test_of_hours_and_nodes_the_least_counts() -> None:
    assert both([(10.0, 8), (100.0, 2), (200.0, 8)], [(0.0, 8), (50.0, 4), (150.0, 8)], 10.0) == [
        (10.0, 8),
        (50.0, 4),
        (100.0, 2),
        (200.0, 8),
    ]
    assert both([(10.0, 8)], [], 20.0) == [(20.0, 8)] and both([], [], 20.0) == []


def test_what_is_ahead_is_told_when_it_changes_and_taken_back_when_it_is_over() -> None:
    foresight = Foresight([], ClusterShape(4, 2))
    assert foresight.news(0.0, was_told=False) == []
    nodes = [node("g1"), node("g2", (100, 200)), node("g3"), node("g4")]
    words = foresight.see(nodes, 10.0)
    assert words.startswith("8 workers now, 6 from 1970") and foresight.see(nodes, 20.0) == ""
    assert foresight.news(20.0, was_told=False) == [(20.0, 8), (100, 6), (200, 8)]
    assert foresight.news(21.0, was_told=True) == [], "once"
    gone = [each._replace(taken=()) for each in nodes]
    assert foresight.see(gone, 30.0) == "all workers from now on"
    assert foresight.news(30.0, was_told=True) == [(30.0, 8)]
    assert foresight.news(30.0 + 86400, was_told=True), "and now and then"
