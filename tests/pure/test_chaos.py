"""Whom chaos hits, and when: a function of the seed and of who there is."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import msgspec
import pytest

from benchmarks.soak import AIMS, EVERYTHING, MOST_MASTERS, MOST_RESET, PROGRAMS, SOAKED, manner_of, plan_of
from elasticflow.cli.killing import GROUPS, KINDS, Roster, Strike, Victim, choose, kinds_of, roster, strikes
from elasticflow.errors import ConfigError
from elasticflow.run.telling import ToldMaster, ToldServer, ToldWorker

from ..telling import Told


def _process(name: str) -> Victim:
    return Victim(name, "here", 1, f"ef-{name}")


THERE = Roster(
    workers=tuple(_process(f"worker-{n}") for n in (2, 5, 6)),
    servers=tuple(_process(f"server-{n}") for n in (0, 3, 4)),
    **{role: (_process(role),) for role in ("master", "supervisor", "nursery", "client")},
)


def _hit(kind: str, pick: int, count: int = 1, there: Roster = THERE) -> list[str]:
    strike = Strike(after_s=0, kind=kind, pick=pick, count=count)
    return [process.name for process in choose(strike, there)]


def test_a_plan_follows_from_the_seed() -> None:
    first, again, other = (list(islice(strikes(seed, 6, tuple(KINDS)), 100)) for seed in (1, 1, 2))
    assert first == again != other
    assert {strike.kind for strike in first} == set(KINDS)
    assert all(bool(strike.frozen_s) == KINDS[strike.kind].freezes for strike in first)
    assert 5 < sum(strike.after_s for strike in first) / 100 < 20


def test_another_rate_changes_when_but_not_what() -> None:
    slow, fast = (list(islice(strikes(1, rate, ("worker", "workers")), 20)) for rate in (6, 60))
    assert [(s.kind, s.pick, s.count) for s in slow] == [(s.kind, s.pick, s.count) for s in fast]
    assert [s.after_s for s in slow] == pytest.approx([10 * s.after_s for s in fast], abs=0.01)


def test_whom_each_kind_hits() -> None:
    assert [_hit("worker", pick) for pick in range(4)] == [
        ["worker-2"],
        ["worker-5"],
        ["worker-6"],
        ["worker-2"],
    ]
    assert _hit("freeze-server", 7) == ["server-3"]
    assert _hit("workers", 2, count=2) == ["worker-6", "worker-2"]
    assert _hit("workers", 2, count=9) == ["worker-6", "worker-2", "worker-5"]
    assert _hit("servers", 1) == ["server-0", "server-3", "server-4"]
    assert _hit("server+keeper", 2) == ["server-4", "server-0"]
    assert _hit("server+worker", 1) == ["server-3", "worker-5"]
    assert _hit("master+server", 0) == ["master", "server-0"]
    for role in ("master", "supervisor", "nursery", "client"):
        assert _hit(role, 1) == [role]


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_there_is_nobody_hit(kind: str) -> None:
    assert _hit(kind, 3, 2, Roster()) == []


def test_a_keeper_of_its_own_is_hit_once() -> None:
    assert _hit("server+keeper", 1, there=Roster(servers=(_process("server-0"),))) == ["server-0"]


def test_who_is_there_by_the_status() -> None:
    def member(kind: type[Any], name: str, pid: int) -> Any:
        return kind(**{**dict.fromkeys(kind.__struct_fields__), "name": name, "host": "here", "pid": pid})

    status = msgspec.structs.replace(
        Told().status(),
        master=member(ToldMaster, "master", 7),
        servers=[member(ToldServer, "server-0", 8)],
        workers=[member(ToldWorker, "worker-12345678", 9), member(ToldWorker, "worker-2", 0)],
    )
    there = roster(status, Roster(nursery=(_process("nursery"),)))
    assert [process.pid for process in there.workers] == [9], "who has not joined has no number yet"
    assert there.workers[0].mark == "ef-worker-12345", "the kernel keeps 15 letters of a name"
    assert [process.pid for process in (*there.servers, *there.master)] == [8, 7]
    assert there.nursery == (_process("nursery"),)


def test_kinds_and_groups() -> None:
    assert kinds_of("server, freeze,server") == ("server", *GROUPS["freeze"])
    assert kinds_of("all") == tuple(KINDS)
    assert set(kinds_of("usual")) == set(kinds_of("kill,freeze"))
    assert set(kinds_of("several")).isdisjoint(kinds_of("usual"))
    with pytest.raises(ConfigError, match="kinds: 'sever' is unknown; there are worker, .* usual"):
        kinds_of("worker,sever")


@pytest.mark.parametrize("seed", range(5))
def test_plans_of_the_soak(seed: int) -> None:
    """Each kind comes up; none is more than the run is to survive."""
    plans = [plan_of(seed, number) for number in range(25)]
    assert plans == [plan_of(seed, number) for number in range(25)]
    for plan in plans:
        kinds = [aim.strike.kind for aim in plan.aims]
        assert len(kinds) == AIMS
        assert sum(kind.startswith("master") for kind in kinds) <= MOST_MASTERS
        assert "supervisor" not in kinds[:-1]
        assert [aim.step for aim in plan.aims] == sorted(aim.step for aim in plan.aims)
        assert plan.aims[0].moment == "settled"
        assert plan.aims[-1].step < plan.steps
    assert {plan.program for plan in plans} == set(PROGRAMS)
    counts = Counter(aim.strike.kind for plan in plans for aim in plan.aims)
    assert set(counts) == set(SOAKED)
    assert min(counts.values()) >= 25 * AIMS // len(SOAKED) - 3
    assert EVERYTHING not in KINDS


def test_throttled_connections_of_the_soak() -> None:
    """Most are slow, some break off; the same again for the same seed, run and number."""
    manners = [manner_of(1, 2, connection) for connection in range(100)]
    assert manners == [manner_of(1, 2, connection) for connection in range(100)]
    assert any(manner.reset for manner in manners) and not any(
        manner.reset for manner in manners[MOST_RESET:]
    )
