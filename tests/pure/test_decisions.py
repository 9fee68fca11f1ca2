"""What evaluations have decided, as servers and the master know it."""

from __future__ import annotations

from msgspec.structs import replace

from elasticflow.master.standings import Standings
from elasticflow.step.schedule import Schedule
from elasticflow.training.standing import WatchRules, WatchStanding
from elasticflow_ps.decisions import Decisions

RULES = WatchRules(consults="its hash")


def standing(tick: int, *, asks: bool = False, factor: float = 1.0) -> WatchStanding:
    return WatchStanding(rules=RULES, tick=tick, asks=asks, factor=factor)


def test_who_offers_versions_tells_what_had_been_decided_by_them() -> None:
    decisions = Decisions()
    assert decisions.newest is None and decisions.of([3]) == ()
    decisions.begin(standing(-1))
    decisions.learn(standing(1))
    decisions.learn(standing(3))
    assert decisions.newest == standing(3)
    assert decisions.at(1) == standing(-1) and decisions.at(2) == decisions.at(3) == standing(1)
    assert decisions.of([6, 2, 4]) == (standing(1), standing(3))
    assert decisions.after([0, 1, 2]) == (standing(1),)
    decisions.begin(standing(1))
    assert decisions.of([6]) == (standing(1),), "what came later has not happened"
    decisions.begin(None)
    assert decisions.newest is None


SCHEDULE = Schedule(num_records=8, num_test=4, batch_size=4, num_slices=4, epochs=4, evaluate_every=1)


def test_a_master_learns_of_decisions_by_who_holds_the_version() -> None:
    tick = SCHEDULE.last_evaluation(SCHEDULE.total_ticks)
    standings = Standings()
    standings.hear(standing(tick, asks=True))
    standings.hear(standing(tick, factor=0.5))
    standings.hear(standing(tick, asks=True))
    standings.go_by(RULES, SCHEDULE)
    standings.begin(0)  # the program is known only now
    assert standings.at(SCHEDULE.total_ticks) == standing(tick, factor=0.5)
    assert standings.know(0) and standings.know(SCHEDULE.total_ticks)
    assert standings.learn(replace(standing(tick), factor=0.5)), "its people are still to be told"


def test_what_other_rules_had_decided_is_not_gone_by() -> None:
    standings = Standings()
    standings.hear(standing(5))
    standings.go_by(WatchRules(consults="another"), SCHEDULE)
    standings.begin(0)
    assert [each.tick for each in standings.all] == [-1]
