"""The service's decisions, on random histories of runs that hear late, answer late, and lie never."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elasticflow.errors import ConfigError, RunError
from elasticflow.master.fence import Superseded
from elasticflow.master.gain import REGROW_S
from elasticflow.scheduler import events as ev
from elasticflow.scheduler.answers import AnswerKind
from elasticflow.scheduler.decisions import Decision
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.policies.elastic import Elastic
from elasticflow.service import happenings as hp
from elasticflow.service import journal as journals
from elasticflow.service.beginnings import ENOUGH, LAST, Beginning
from elasticflow.service.history import read_history
from elasticflow.service.journal import JournalFiles, ServiceJournal, ServiceRules, UndecidedError, UserQuota
from elasticflow.service.learned import believed
from elasticflow.service.state import BEHIND_S, ENDS, ServiceState, TaskStanding
from elasticflow.service.task_log import TaskLog
from tests.full_disk import room_of

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


def test_one_that_falls_behind_is_planned_anew_and_not_said_to_be_done_in_the_past() -> None:
    """Such as one whose workers never come. Its promise stands, and people see that it will be late."""
    state = fresh()
    state.handle([measured("a", 300, BEGIN_S + 200)], BEGIN_S)
    eta_s = state.eta_s("a")
    assert eta_s is not None and BEGIN_S < eta_s < BEGIN_S + 200 and state.due_s == eta_s
    state.handle([hp.Held(name="a", workers=8, number=1)], BEGIN_S + 1)
    assert state.due_s == eta_s, "nothing was decided"
    now_s = BEGIN_S
    for _ in range(10):
        now_s = state.due_s
        state.handle([hp.Woken()], now_s)
        assert now_s < (state.eta_s("a") or 0.0) and state.due_s >= now_s + BEHIND_S
    assert now_s > BEGIN_S + 200 and state.tickets["a"].standing is TaskStanding.PROMISED
    assert state.granted("a").workers == 8


def test_who_has_fewer_since_nodes_are_gone_is_told_so() -> None:
    state = fresh()
    state.handle([measured("a", 300, BEGIN_S + 200)], BEGIN_S)
    state.handle([hp.NodeSeen(node=node, up=False) for node in range(4)], BEGIN_S + 1)
    assert (state.granted("a").workers, state.granted("a").why) == (0, "8 to 0: its nodes are gone")
    state.handle([hp.Held(name="a", workers=0, number=2)], BEGIN_S + 2)
    state.handle([hp.NodeSeen(node=node, up=True) for node in range(4)], BEGIN_S + 3)
    assert state.granted("a").why == "0 to 8: no deadline needs them"


def test_one_without_a_deadline_needs_no_workers_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    state = fresh()
    told = [hp.HandedIn(task=task("a"))]
    state.handle(told, BEGIN_S)
    assert state.tickets["a"].standing is TaskStanding.UNMEASURED
    assert state.granted("a").why == "0 to 1: to be measured"
    known = [measured("b", 300, None)]
    state.handle(known, BEGIN_S + 1)
    log = TaskLog(state)
    log.say_news([*told, *known])
    assert "b: best effort; " in capsys.readouterr().out


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


def test_one_that_was_never_measured_hears_of_no_deadline_if_it_has_none() -> None:
    state = fresh()
    state.handle([hp.HandedIn(task=task("a", None))], BEGIN_S)
    assert state.tickets["a"].said == "was never measured: it begins, and is measured as it goes"


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


def test_a_share_that_shrinks_is_given_back_at_once_and_what_is_known_ahead_is_planned_for() -> None:
    state = fresh()
    state.handle([hp.Foreseen(steps=[(BEGIN_S, 8), (BEGIN_S + 50, 2), (BEGIN_S + 1000, 8)])], BEGIN_S)
    state.handle([measured("a", 600, BEGIN_S + 200)], BEGIN_S)
    assert state.tickets["a"].standing is TaskStanding.HOPEFUL, "50 s by 6.0 and 150 s by 1.9 are too few"
    assert state.capacity == 8 and state.wake_s <= BEGIN_S + 50
    state.handle([hp.Woken()], BEGIN_S + 50)
    assert state.capacity == 2
    assert sum(account.granted for account in state.ledger.accounts.values()) <= 2
    state.handle([hp.Shared(workers=0)], BEGIN_S + 60)
    assert state.capacity == 0 and not any(one.granted for one in state.ledger.accounts.values())
    state.handle([hp.Shared()], BEGIN_S + 61)
    assert state.capacity == 2


def test_promises_to_a_user_take_no_more_than_the_quota() -> None:
    quotas = {"ann": UserQuota(most_workers=2)}
    state = msgspec.structs.replace(RULES, quotas=quotas).new_state()
    state.handle([measured("a", 300, BEGIN_S + 400)], BEGIN_S)
    state.handle([measured("b", 300, BEGIN_S + 100)], BEGIN_S)
    assert state.tickets["a"].standing is TaskStanding.PROMISED
    assert state.tickets["b"].standing is TaskStanding.HOPEFUL
    assert state.tickets["b"].said == "no promise yet: ann's promises may take 2 GPUs"
    assert state.ledger.accounts["b"].wanted, "it runs on what no promise needs"


def test_a_soft_deadline_is_promised_later_where_it_has_to_be() -> None:
    state = fresh()
    soft = [(100.0, 0.5), (400.0, 0.0)]
    rates = {1: 1.0, 2: 1.9, 4: 3.5, 8: 6.0}
    late = task("a", BEGIN_S + 100, steps=900, rates=rates, soft=soft)
    state.handle([hp.HandedIn(task=late)], BEGIN_S)
    ticket = state.tickets["a"]
    assert ticket.standing is TaskStanding.PROMISED and ticket.by_s is not None
    assert BEGIN_S + 150 < ticket.by_s <= BEGIN_S + 200 and "of all by then" in ticket.said
    hard = msgspec.structs.replace(late, name="b", soft=[])
    state.handle([hp.HandedIn(task=hard)], BEGIN_S + 1)
    assert state.tickets["b"].standing is TaskStanding.REFUSED


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


def test_what_was_guessed_of_a_wrong_pace_is_guessed_anew() -> None:
    """A first pace that was too slow must not make all larger numbers look as if they brought nothing."""
    state = fresh()
    rates = {1: 0.5, 8: 1.0}
    state.handle([hp.HandedIn(task=task("a", steps=100_000, rates=rates))], BEGIN_S)
    state.handle([hp.Shared(workers=1)], BEGIN_S + 10)
    state.handle([hp.Paced(name="a", workers=1, rate=2.0), hp.Shared()], BEGIN_S + 60)
    assert state.ledger.accounts["a"].wanted == 4, "2 and 4 follow from what 1 does; 8 was measured"
    state.handle([hp.Paced(name="a", workers=4, rate=2.1)], BEGIN_S + 120)
    assert state.ledger.accounts["a"].wanted == 2


def tried_in_vain(deadline_s: float | None) -> ServiceState:
    """One worker is as fast as two: that was known when it was handed in."""
    state = fresh()
    rates = {1: 1.0, 2: 0.95, 4: 0.9, 8: 0.9}
    state.handle([hp.HandedIn(task=task("a", deadline_s, steps=100_000, rates=rates))], BEGIN_S)
    assert state.ledger.accounts["a"].wanted == 1
    return state


def test_workers_that_brought_nothing_are_tried_again_later() -> None:
    """The machine may have been busy when that was measured."""
    state = tried_in_vain(None)
    assert state.due_s == BEGIN_S + REGROW_S
    state.handle([hp.Woken()], BEGIN_S + REGROW_S)
    assert state.ledger.accounts["a"].wanted > 1
    state.handle(
        [hp.Paced(name="a", workers=8, rate=0.9), hp.Paced(name="a", workers=4, rate=0.9)], BEGIN_S + 1900
    )
    assert state.ledger.accounts["a"].wanted == 2
    state.handle([hp.Paced(name="a", workers=2, rate=1.8)], BEGIN_S + 1950)
    assert state.ledger.accounts["a"].wanted == 2
    assert state.due_s == BEGIN_S + 1900 + 2 * REGROW_S, "of 4 and 8"


def test_a_run_that_stays_small_since_more_brought_nothing_says_so() -> None:
    """Where a node was away, and is back, it would look as if it was forgotten."""
    state = tried_in_vain(None)
    assert state.in_vain("a") == (2, BEGIN_S + REGROW_S)
    state.handle([hp.Shared(workers=1)], BEGIN_S + 1)
    assert state.in_vain("a") is None, "there is no room for two"
    state.handle([hp.Shared()], BEGIN_S + 2)
    state.handle([hp.Woken()], BEGIN_S + REGROW_S)
    assert state.in_vain("a") is None
    assert tried_in_vain(BEGIN_S + 150_000).in_vain("a") is None, "its promise rests on what was measured"


def test_no_promise_rests_on_workers_that_brought_nothing() -> None:
    state = tried_in_vain(BEGIN_S + 150_000)
    assert state.tickets["a"].standing is TaskStanding.PROMISED
    state.handle([hp.Woken()], BEGIN_S + 2 * REGROW_S)
    assert state.tickets["a"].rates[2] == 0.95


def test_a_guess_grows_with_the_workers_and_keeps_what_was_measured() -> None:
    guessed = believed({2: 10.0}, 8)
    assert guessed.sizes == (1, 2, 4, 8)
    assert guessed.rate(2) == 10.0 and guessed.rate(1) == 5.0
    assert 10 < guessed.rate(4) < 20 < guessed.rate(8) < 40


def test_plans_count_on_beginnings_as_they_are_seen() -> None:
    state = fresh()
    least_s = state.policy.overheads.base_s
    state.handle([measured("a", 300, BEGIN_S + 900)], BEGIN_S)
    for number in range(ENOUGH):
        assert state.policy.overheads.base_s == least_s
        state.handle([hp.Began(name="a", seconds=20.0)], BEGIN_S + number)
    assert state.policy.overheads.base_s == 20.0
    assert state.policy.tracks["a"].ladders.safe.change_s(0, 1) >= 20.0
    state.handle([measured("b", 300, BEGIN_S + 320)], BEGIN_S + 10)
    assert state.tickets["b"].standing is TaskStanding.PROMISED
    state.handle([measured("c", 10, BEGIN_S + 25)], BEGIN_S + 10)
    assert state.tickets["c"].standing is TaskStanding.REFUSED, "it would begin too late"
    for number in range(LAST):
        state.handle([hp.Began(name="a", seconds=0.1)], BEGIN_S + 20 + number)
    assert state.policy.overheads.base_s == least_s


def test_a_beginning_is_from_the_first_grant_to_the_first_worker() -> None:
    one = Beginning()
    one.note(2, None, True, 10.0)
    one.note(2, 0, False, 11.0)
    assert one.ready(13.0) == 3.0 and one.ready(14.0) is None
    one.note(0, 2, False, 20.0)
    one.note(4, None, False, 30.0)
    assert one.ready(35.0) == 5.0
    one.note(0, 4, False, 40.0)
    one.note(2, 3, False, 41.0)
    assert one.ready(41.1) is None, "those that it had were still there"
    under_way = Beginning()
    under_way.note(2, 2, False, 50.0)
    assert under_way.ready(50.1) is None, "the service begins, and not the run"


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
        if what == "foresee":
            later_s = self.now_s + 30.0 * which
            return [hp.Foreseen(steps=[(self.now_s, 8), (later_s + 1, much % 9), (later_s + 200, 8)])]
        if what == "share":
            return [hp.Shared(workers=None if much % 3 else which % 9)]
        if what in ("wake", "later"):
            self.now_s = state.due_s if what == "later" and state.due_s < inf else self.now_s
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
                hp.Paced(name=name, workers=1 + which % 8, rate=0.5 + much % 7),
            ]
        if what == "begin":
            return [hp.Began(name=name, seconds=1.0 + much / 2)]
        if what == "cancel":
            return [hp.Cancelled(name=name, by="ann")]
        self.holds.pop(name, None)
        return [hp.Over(name=name, state="finished")]


MOVES = st.tuples(
    st.sampled_from(
        ["hand in", "hand in", "hear", "hear", "leave", "leave", "pace", "over", "cancel", "node", "wake"]
        + ["foresee", "share", "begin", "later"]
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
@example([("hand in", 1, 0), ("share", 0, 0)])
@example([("hand in", 11, 0), ("hand in", 1, 0), ("foresee", 0, 0)])  # all give way, also who is almost done
@settings(max_examples=50, deadline=None)
def test_laws(moves: Sequence[tuple[str, int, int]]) -> None:
    state, crowd, lost = fresh(), Crowd(), False
    promised: set[str] = set()
    for move in moves:
        lost |= move[0] in ("node", "foresee", "share")
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


@given(
    st.lists(MOVES, max_size=40),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 400)), max_size=3),
    st.sampled_from([100, 4000, journals.LONG_BYTES]),
)
@settings(max_examples=50, deadline=None)
def test_after_a_crash_all_is_as_it_was(
    tmp_path_factory: pytest.TempPathFactory,
    moves: Sequence[tuple[str, int, int]],
    crashes: list[tuple[int, int]],
    long_bytes: int,
) -> None:
    """Of a line that was being written, any part may be on the disk: nobody has acted on it.

    The journal goes on in new files when one is longer than that.
    """
    folder = tmp_path_factory.mktemp("service")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals, "LONG_BYTES", long_bytes)
        _crash(folder, moves, crashes)


def _crash(folder: Path, moves: Sequence[tuple[str, int, int]], crashes: list[tuple[int, int]]) -> None:
    journal, crowd = ServiceJournal(folder, RULES), Crowd()
    for number, move in enumerate(moves):
        journal.handle(crowd.next(journal.state, move), crowd.now_s)
        for at, torn in crashes:
            if at == number:
                before = told(journal.state)
                journal.handle([hp.Woken()], crowd.now_s)
                *kept, line = journal.path.read_bytes().splitlines(keepends=True)
                journal.path.write_bytes(b"".join(kept) + line[: min(torn, len(line) - 1)])
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


def test_a_journal_that_was_put_back_without_its_terms_is_gone_on_with(tmp_path: Path) -> None:
    for number, name in enumerate("abc"):
        journal = ServiceJournal(tmp_path, RULES)
        journal.handle([measured(name, 300, BEGIN_S + 200)], BEGIN_S + number)
        journal.close()
    shutil.rmtree(tmp_path / "terms")
    for path in JournalFiles(tmp_path / "journal").all()[:-1]:
        (tmp_path / "journal" / str(path)).unlink()
    put_back = ServiceJournal(tmp_path, RULES)
    put_back.handle([measured("d", 300, BEGIN_S + 200)], BEGIN_S + 3)
    put_back.close()
    after = ServiceJournal(tmp_path, RULES)
    assert set(after.state.tickets) == set("abcd"), "what was handed in since is known to the next one"
    after.close()


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


def test_a_long_journal_goes_on_in_files_that_begin_with_all_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "LONG_BYTES", 1)
    journal, crowd = ServiceJournal(tmp_path, RULES), Crowd()
    kept = tmp_path / "journal"
    for number in range(120):
        name = f"run-{number}"
        crowd.now_s += 1.0
        journal.handle([measured(name, 300, crowd.now_s + 200)], crowd.now_s)
        if number >= 2:
            journal.handle([hp.Over(name=f"run-{number - 2}", state="finished")], crowd.now_s)
    assert {path.name[:8] for path in kept.iterdir()} == {"00000001"} and len(list(kept.iterdir())) == 3
    seen = told(journal.state)
    history = read_history(tmp_path)
    assert history.state.tickets.keys() == {f"run-{number}" for number in range(120)}
    newest = journal.path
    for path in kept.iterdir():
        if path != newest:
            path.unlink()
    again = ServiceJournal(tmp_path, RULES)
    assert told(again.state) == seen, "no other file is needed"
    monkeypatch.setattr(journals, "KEPT_BYTES", 0)
    once_more = ServiceJournal(tmp_path, RULES)
    assert told(once_more.state) == seen and list(kept.iterdir()) == [once_more.path]
    assert "run-119" in read_history(tmp_path).state.tickets


def test_of_those_that_are_over_the_last_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticflow.service.records.ENDED", 2)
    journal = ServiceJournal(tmp_path, RULES)
    for number, name in enumerate("abcd"):
        journal.handle([measured(name, 300, BEGIN_S + 900)], BEGIN_S + number)
    for number, name in enumerate("cdb"):
        journal.handle([hp.Over(name=name, state="finished")], BEGIN_S + 5 + number)
    state = ServiceJournal(tmp_path, RULES).state
    assert set(state.tickets) == {"a", "d", "b"} and state.numbered == 4


def test_a_disk_that_becomes_full_in_a_line_takes_nothing_more_and_loses_nothing(tmp_path: Path) -> None:
    journal = ServiceJournal(tmp_path, RULES)
    journal.handle([measured("a", 300, BEGIN_S + 200)], BEGIN_S)
    path = journal.path
    with room_of(path.stat().st_size + 20), pytest.raises(OSError, match="No space left on device"):
        journal.handle([measured("b", 300, BEGIN_S + 200)], BEGIN_S + 1)
    assert set(journal.state.tickets) == {"a"}, "nobody acts on what is not on the disk"
    again = ServiceJournal(tmp_path, RULES)
    again.handle([measured("c", 300, BEGIN_S + 200)], BEGIN_S + 2)
    assert set(ServiceJournal(tmp_path, RULES).state.tickets) == {"a", "c"}


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that raises, half done, when it is told of a job of this name."""
    decide = Elastic.handle

    def handle(policy: Elastic, events: Sequence[ev.Event], now_s: float) -> list[Decision]:
        decisions = decide(policy, events, now_s)
        if any(isinstance(event, ev.ArrivalEvent) and event.job.job_id == "poison" for event in events):
            raise KeyError("poison")
        return decisions

    monkeypatch.setattr(Elastic, "handle", handle)


@pytest.mark.usefixtures("faulty")
def test_what_the_policy_cannot_decide_has_never_happened(tmp_path: Path) -> None:
    """Each service would decide it again, and end of it."""
    journal = ServiceJournal(tmp_path, RULES)
    state = journal.state
    journal.handle([measured("a", 300, BEGIN_S + 200)], BEGIN_S)
    before = told(state)
    with pytest.raises(UndecidedError, match=r"'elastic' could not decide \(HandedIn\).* KeyError: 'poison'"):
        journal.handle([measured("poison", 300, BEGIN_S + 200)], BEGIN_S + 1)
    assert journal.state is state and told(state) == before
    journal.handle([measured("b", 300, BEGIN_S + 900)], BEGIN_S + 2)
    state.check_invariants()
    after = told(state)
    again = ServiceJournal(tmp_path, RULES)
    assert told(again.state) == after and set(again.state.tickets) == {"a", "b"}
    assert set(read_history(tmp_path).state.tickets) == {"a", "b"}


@pytest.mark.usefixtures("faulty")
def test_what_the_policy_cannot_decide_never_counts_though_the_service_is_killed_as_it_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = ServiceJournal(tmp_path, RULES)
    journal.handle([measured("a", 300, BEGIN_S + 200)], BEGIN_S)
    before = told(journal.state)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(journals, "told_again", raises(KeyboardInterrupt))
        journal.handle([measured("poison", 300, BEGIN_S + 200)], BEGIN_S + 1)
    assert b"poison" in journal.path.read_bytes()
    assert set(read_history(tmp_path).state.tickets) == {"a"}
    again = ServiceJournal(tmp_path, RULES)
    assert told(again.state) == before
    again.handle([measured("b", 300, BEGIN_S + 900)], BEGIN_S + 2)
    assert set(ServiceJournal(tmp_path, RULES).state.tickets) == {"a", "b"}


def raises(error: type[BaseException]) -> Callable[..., None]:
    def do(*_: object) -> None:
        raise error

    return do


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    journal = ServiceJournal(tmp_path, RULES)
    journal.handle([measured("a", 300, BEGIN_S + 200)], BEGIN_S)
    journal.handle([hp.Woken()], BEGIN_S + 1)
    path = tmp_path / "journal" / "00000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"b"', 1))
    with pytest.raises(RunError, match="line 2 is damaged"):
        ServiceJournal(tmp_path, RULES)


def test_a_journal_whose_newest_file_is_damaged_at_its_beginning_is_named(tmp_path: Path) -> None:
    """And not taken for that of a service which died before it had decided anything."""
    ServiceJournal(tmp_path, RULES).handle([measured("a", 300, BEGIN_S + 200)], BEGIN_S)
    journal = ServiceJournal(tmp_path, RULES)
    journal.handle([measured("b", 300, BEGIN_S + 900)], BEGIN_S + 1)
    whole = journal.path.read_bytes()
    journal.path.write_bytes(b"#" + whole[1:])
    with pytest.raises(RunError, match=r"00000002\.jsonl: line 1 is damaged"):
        ServiceJournal(tmp_path, RULES)
    journal.path.write_bytes(whole)
    assert set(ServiceJournal(tmp_path, RULES).state.tickets) == {"a", "b"}
