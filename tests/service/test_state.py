"""The service's decisions, on random histories of runs that hear late, answer late, and lie never."""

from __future__ import annotations

import copy
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticflow.errors import ConfigError, RunError
from elasticflow.master.fence import Superseded
from elasticflow.scheduler.answers import AnswerKind
from elasticflow.scheduler.overheads import Overheads
from elasticflow.service import happenings as hp
from elasticflow.service.journal import ServiceJournal, ServiceRules
from elasticflow.service.learned import believed
from elasticflow.service.state import ENDS, ServiceState, TaskStanding

RULES = ServiceRules(policy="elastic", nodes=4, gpus_per_node=2, overheads=Overheads(1.0, 1.0, 0.5, 2.0))
BEGIN_S = 1.7e9


def task(name: str, deadline_s: float | None = None, **more: Any) -> hp.Task:
    fields = {"run_dir": f"/runs/{name}", "user": "ann", "kind": name, "most_workers": 8, **more}
    return hp.Task(name=name, deadline_s=deadline_s, **fields)


def measured(name: str, steps: int, deadline_s: float | None) -> hp.HandedIn:
    rates = {1: 1.0, 2: 1.9, 4: 3.5, 8: 6.0}
    return hp.HandedIn(task=task(name, deadline_s, steps=steps, rates=rates, kind="known"))


def fresh() -> ServiceState:
    return RULES.new_state()


def test_one_that_is_known_is_promised_at_once_and_gets_what_is_idle() -> None:
    state = fresh()
    state.handle([measured("a", 300, BEGIN_S + 200)], BEGIN_S)
    assert state.tickets["a"].standing is TaskStanding.PROMISED
    assert state.granted("a").workers == 8
    assert "no deadline needs them" in state.granted("a").why


def test_one_that_cannot_be_in_time_is_refused_and_told_what_could_be_kept() -> None:
    state = fresh()
    state.handle([measured("a", 3000, BEGIN_S + 200)], BEGIN_S)
    ticket = state.tickets["a"]
    assert ticket.standing is TaskStanding.REFUSED
    assert ticket.earliest_s is not None and BEGIN_S + 500 <= ticket.earliest_s <= BEGIN_S + 800
    assert not state.ledger.accounts


def test_one_for_which_there_is_no_room_hears_what_could_be_promised_and_then_is() -> None:
    state = fresh()
    state.handle([measured("a", 1000, BEGIN_S + 190)], BEGIN_S)
    assert state.tickets["a"].standing is TaskStanding.PROMISED and state.instead("a") is None
    state.handle([measured("b", 600, BEGIN_S + 195)], BEGIN_S)
    assert state.tickets["b"].standing is TaskStanding.HOPEFUL
    instead = state.instead("b")
    assert instead is not None and instead.kind is AnswerKind.NOT_BEFORE and instead.earliest_s is not None
    assert BEGIN_S + 195 < instead.earliest_s
    state.handle([hp.Cancelled(name="b", by="ann")], BEGIN_S)
    state.handle([measured("c", 600, instead.earliest_s)], BEGIN_S)
    assert state.tickets["c"].standing is TaskStanding.PROMISED


def test_one_that_was_never_measured_begins_and_is_promised_its_deadline_once_it_is_known() -> None:
    state = fresh()
    state.handle([hp.HandedIn(task=task("a", BEGIN_S + 1000))], BEGIN_S)
    assert state.tickets["a"].standing is TaskStanding.UNMEASURED
    assert state.granted("a").workers == 1
    state.handle([hp.Counted(name="a", steps=600)], BEGIN_S + 3)
    assert state.tickets["a"].standing is TaskStanding.UNMEASURED
    state.handle([hp.Paced(name="a", workers=1, rate=2.0), hp.Advanced(done={"a": 20})], BEGIN_S + 13)
    assert state.tickets["a"].standing is TaskStanding.PROMISED
    assert state.granted("a").workers > 1


def test_one_that_turns_out_too_slow_is_told_so_and_goes_on() -> None:
    state = fresh()
    state.handle([hp.HandedIn(task=task("a", BEGIN_S + 100, steps=10_000))], BEGIN_S)
    state.handle([hp.Paced(name="a", workers=1, rate=2.0)], BEGIN_S + 10)
    ticket = state.tickets["a"]
    assert ticket.standing is TaskStanding.LATE and ticket.earliest_s is not None
    assert state.granted("a").workers >= 1


def test_what_a_run_still_holds_is_given_to_nobody() -> None:
    state = fresh()
    state.handle([measured("a", 3000, None)], BEGIN_S)
    had = state.granted("a")
    assert had.workers == 8
    state.handle([measured("b", 300, BEGIN_S + 100)], BEGIN_S + 1)
    now = state.granted("a")
    assert now.workers < 8 and state.granted("b").workers == 0
    state.handle([hp.Held(name="a", workers=now.workers, number=had.number)], BEGIN_S + 2)
    assert state.granted("b").workers == 0, "an older grant says nothing of now"
    state.handle([hp.Held(name="a", workers=now.workers, number=now.number)], BEGIN_S + 2)
    assert state.granted("b").workers > 0


def test_who_is_cancelled_holds_what_it_has_until_it_has_left() -> None:
    state = fresh()
    state.handle([measured("a", 3000, None)], BEGIN_S)
    state.handle([hp.Cancelled(name="a", by="ann")], BEGIN_S + 1)
    assert state.tickets["a"].standing is TaskStanding.LEAVING and state.granted("a").workers == 0
    state.handle([measured("b", 3000, None)], BEGIN_S + 1)
    assert state.granted("b").workers == 0
    state.handle([hp.Held(name="a", workers=0, number=state.granted("a").number)], BEGIN_S + 2)
    assert state.tickets["a"].state == "cancelled"
    assert state.granted("b").workers == 8


def test_more_workers_that_bring_nothing_are_given_back() -> None:
    state = fresh()
    state.handle([hp.HandedIn(task=task("a", steps=100_000))], BEGIN_S)
    now_s = BEGIN_S
    seen = []
    for _ in range(12):
        workers = state.granted("a").workers
        seen.append(workers)
        now_s += 30
        state.handle([hp.Paced(name="a", workers=workers, rate=2.0), hp.Advanced(done={"a": 60})], now_s)
        state.handle([hp.Held(name="a", workers=workers, number=state.granted("a").number)], now_s)
    assert max(seen) > 1 and state.granted("a").workers == 1


def test_a_guess_grows_with_the_workers_and_keeps_what_was_measured() -> None:
    guessed = believed({2: 10.0}, 8)
    assert guessed.sizes == (1, 2, 4, 8)
    assert guessed.rate(2) == 10.0 and guessed.rate(1) == 5.0
    assert 10 < guessed.rate(4) < 20 < guessed.rate(8) < 40


# --- random histories ---------------------------------------------------------------------------------


class Crowd:
    """Runs as the service sees them: each obeys the last grant that has reached it."""

    def __init__(self) -> None:
        self.now_s = BEGIN_S
        self.heard: dict[str, tuple[int, int]] = {}
        """By name: workers and number of the grant that it knows."""
        self.holds: dict[str, int] = {}
        self.steps: dict[str, int] = {}
        self.count = 0

    def next(self, state: ServiceState, move: tuple[str, int, int]) -> list[hp.Happening]:
        what, which, much = move
        self.now_s += 1 + much % 40
        names = [ticket.task.name for ticket in state.under_way()]
        if what == "hand in":
            self.count += 1
            name, left_s = f"t{self.count}", 60.0 + 37 * much
            if which % 3:
                return [measured(name, 50 + 13 * which, None if which % 5 == 0 else self.now_s + left_s)]
            return [hp.HandedIn(task=task(name, self.now_s + left_s, most_workers=1 << which % 4))]
        if what == "node":
            return [hp.NodeSeen(node=which % RULES.nodes, up=bool(much % 2))]
        if what == "wake":
            return [hp.Woken()]
        if not names:
            return []
        name = names[which % len(names)]
        if what == "hear":  # it gets the newest grant; surplus workers have not left yet
            granted = state.granted(name)
            self.heard[name] = granted.workers, granted.number
            self.holds[name] = max(self.holds.get(name, 0), granted.workers)
            return []
        if what == "leave":
            workers, number = self.heard.get(name, (0, 0))
            self.holds[name] = workers
            return [hp.Held(name=name, workers=workers, number=number)]
        if what == "pace":
            return [
                hp.Counted(name=name, steps=400),
                hp.Advanced(done={name: min(400, 5 * much)}),
                hp.Paced(name=name, workers=1 << which % 4, rate=0.5 + much % 7),
            ]
        if what == "cancel":
            return [hp.Cancelled(name=name, by="ann")]
        self.holds.pop(name, None)
        return [hp.Over(name=name, state="finished")]


MOVES = st.tuples(
    st.sampled_from(
        ["hand in", "hand in", "hear", "hear", "leave", "leave", "pace", "over", "cancel", "node", "wake"]
    ),
    st.integers(0, 40),
    st.integers(0, 40),
)


def laws(state: ServiceState, crowd: Crowd, lost: bool) -> None:
    state.check_invariants()
    for name, holds in crowd.holds.items():
        if name in state.ledger.accounts:
            assert state.ledger.accounts[name].held >= holds, "a run holds what the service takes to be free"
    living = [holds for name, holds in crowd.holds.items() if name in state.ledger.accounts]
    if not lost:
        assert sum(living) <= state.capacity
        assert sum(each.held for each in state.ledger.accounts.values()) <= state.capacity


@given(st.lists(MOVES, max_size=60))
@settings(max_examples=50, deadline=None)
def test_laws(moves: Sequence[tuple[str, int, int]]) -> None:
    state, crowd, lost = fresh(), Crowd(), False
    promised: set[str] = set()
    for move in moves:
        lost |= move[0] == "node"
        before = {name: account.held for name, account in state.ledger.accounts.items()}
        state.handle(crowd.next(state, move), crowd.now_s)
        laws(state, crowd, lost)
        grew = [n for n, account in state.ledger.accounts.items() if account.held > before.get(n, 0)]
        assert not grew or sum(each.held for each in state.ledger.accounts.values()) <= state.capacity
        for name in promised:
            assert state.tickets[name].standing in (TaskStanding.PROMISED, TaskStanding.LEAVING, *ENDS), name
        promised |= {n for n, t in state.tickets.items() if t.standing is TaskStanding.PROMISED}


def told(state: ServiceState) -> list[Any]:
    """All that anybody could see of its decisions."""
    return [
        state.now_s,
        state.wake_s,
        copy.deepcopy(state.tickets),
        copy.deepcopy(state.ledger.accounts),
        {name: track.gpus for name, track in state.policy.tracks.items()},
    ]


@given(st.lists(MOVES, max_size=40), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 400)), max_size=3))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_a_crash_all_is_as_it_was(
    tmp_path_factory: pytest.TempPathFactory,
    moves: Sequence[tuple[str, int, int]],
    crashes: list[tuple[int, int]],
) -> None:
    """Of a line that was being written, any part may be on the disk: nobody has acted on it."""
    folder = tmp_path_factory.mktemp("service")
    journal, crowd = ServiceJournal(folder, RULES), Crowd()
    for number, move in enumerate(moves):
        journal.handle(crowd.next(journal.state, move), crowd.now_s)
        for at, torn in crashes:
            if at == number:
                before = told(journal.state)
                path = folder / "journal" / f"{journal.term:08}.jsonl"
                whole = path.read_bytes()
                journal.handle([hp.Woken()], crowd.now_s)
                line = path.read_bytes()[len(whole) :]
                path.write_bytes(whole + line[: min(torn, len(line) - 1)])
                journal.close()
                journal = ServiceJournal(folder, RULES)
                assert told(journal.state) == before
    journal.close()


def test_a_second_service_takes_over_and_the_first_decides_nothing_more(tmp_path: Path) -> None:
    first = ServiceJournal(tmp_path, RULES)
    first.handle([measured("a", 300, BEGIN_S + 200)], BEGIN_S)
    second = ServiceJournal(tmp_path, RULES)
    with pytest.raises(Superseded, match="term 1 is superseded by that of term 2"):
        first.handle([measured("b", 300, BEGIN_S + 200)], BEGIN_S + 1)
    assert set(first.state.tickets) == set(second.state.tickets) == {"a"}
    second.handle([measured("c", 300, BEGIN_S + 200)], BEGIN_S + 1)
    third = ServiceJournal(tmp_path, RULES)
    assert set(third.state.tickets) == {"a", "c"}, "what the first wrote when it was superseded never counts"
    for journal in (first, second, third):
        journal.close()


def test_other_rules_have_to_wait_until_nobody_relies_on_these(tmp_path: Path) -> None:
    other = ServiceRules(policy="elastic", nodes=2, gpus_per_node=2, overheads=RULES.overheads)
    journal = ServiceJournal(tmp_path, RULES)
    journal.handle([measured("a", 300, BEGIN_S + 200)], BEGIN_S)
    with pytest.raises(ConfigError, match="1 runs are under way"):
        ServiceJournal(tmp_path, other)
    again = ServiceJournal(tmp_path, RULES)
    again.handle([hp.Over(name="a", state="finished")], BEGIN_S + 90)
    changed = ServiceJournal(tmp_path, other)
    assert changed.state.capacity == 4 and not changed.state.tickets
    assert changed.state.numbered == 1, "names are never given twice"
    assert ServiceJournal(tmp_path, other).state.numbered == 1


def test_a_long_journal_ends_when_nobody_relies_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticflow.service.journal.MOST_BYTES", 400)
    journal = ServiceJournal(tmp_path, RULES)
    journal.handle([measured("a", 300, BEGIN_S + 200)], BEGIN_S)
    again = ServiceJournal(tmp_path, RULES)
    assert "a" in again.state.tickets
    again.handle([hp.Over(name="a", state="finished")], BEGIN_S + 90)
    assert not ServiceJournal(tmp_path, RULES).state.tickets
    assert len(list((tmp_path / "journal").iterdir())) == 1


def test_a_disk_that_becomes_full_in_a_line_takes_nothing_more_and_loses_nothing(tmp_path: Path) -> None:
    journal = ServiceJournal(tmp_path, RULES)
    journal.handle([measured("a", 300, BEGIN_S + 200)], BEGIN_S)
    path = tmp_path / "journal" / "00000001.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="No space left on device"):
            journal.handle([measured("b", 300, BEGIN_S + 200)], BEGIN_S + 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert set(journal.state.tickets) == {"a"}, "nobody acts on what is not on the disk"
    again = ServiceJournal(tmp_path, RULES)
    again.handle([measured("c", 300, BEGIN_S + 200)], BEGIN_S + 2)
    assert set(ServiceJournal(tmp_path, RULES).state.tickets) == {"a", "c"}


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    journal = ServiceJournal(tmp_path, RULES)
    journal.handle([measured("a", 300, BEGIN_S + 200)], BEGIN_S)
    journal.handle([hp.Woken()], BEGIN_S + 1)
    path = tmp_path / "journal" / "00000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"b"', 1))
    with pytest.raises(RunError, match="line 2 is damaged"):
        ServiceJournal(tmp_path, RULES)
