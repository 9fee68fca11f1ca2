"""A run's story: what faults cost, where the seconds went, and what a new master remembers of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from elasticflow.cli.progress import start_line
from elasticflow.cli.report import page
from elasticflow.master.actions import EndAction, NoteAction
from elasticflow.master.members import RunState
from elasticflow.master.status import SHOWN, Story, StoryMemory
from elasticflow.run.config import Config
from elasticflow.run.telling import Event
from elasticflow.wire.messages import Progress, Usage, Written

from ..telling import SCHEDULE, Told


@pytest.fixture
def told() -> Told:
    return Told()


# --- what faults cost ---------------------------------------------------------------------------------


def test_a_server_costs_the_time_until_the_next_version_and_the_steps_it_had(told: Told) -> None:
    told.after(1).progress(9)
    told.after(1).fault("server-1")
    assert told.status().standstill_s == 0
    told.after(0.5).regrouped(9, 6)
    told.after(0.5).progress(6)
    assert told.faults() == [("server-1", 0, 3, None)]
    assert told.status().standstill_s == 1
    told.after(0.5).progress(7)
    told.after(5).progress(8)
    assert told.faults() == [("server-1", 1.5, 3, None)]
    told.after(1).progress(9)
    assert told.faults() == [("server-1", 1.5, 3, 7.5)]
    status = told.status()
    assert (status.standstill_s, status.steps_redone, status.num_faults) == (1.5, 3, 1)
    assert status.faults[0].done == "went on from what the others held in memory"


def test_a_server_that_is_lost_before_there_is_a_version_costs_the_time_until_the_first(told: Told) -> None:
    told.after(2).fault("server-0", early=True)
    told.after(3).progress(0)
    assert told.status().standstill_s == 3 and told.faults() == [("server-0", 0, 0, None)]
    told.after(1).progress(1)
    told.after(60).progress(2)
    assert told.status().standstill_s == 4 and told.faults() == [("server-0", 4, 0, 4)]


def test_steps_are_counted_not_ticks(told: Told) -> None:
    """Tick 10 evaluates, after 10 steps."""
    told.progress(12)
    told.fault("server-1")
    told.regrouped(12, 9)
    assert told.faults() == [("server-1", 0, 2, None)]


def test_two_servers_at_once_stand_still_once(told: Told) -> None:
    told.progress(9)
    told.fault("server-0")
    told.after(1).fault("server-1")
    told.after(1).regrouped(9, 4, "storage")
    told.after(1).progress(9)
    assert told.faults() == [("server-0", 3, 5, 3), ("server-1", 2, 5, 2)]
    status = told.status()
    assert (status.standstill_s, status.steps_redone) == (3, 5)


def test_a_server_lost_while_the_others_are_being_put_in_order(told: Told) -> None:
    """Only what each of them cost is its own."""
    told.progress(9)
    told.fault("server-0")
    told.after(1).regrouped(9, 8)
    told.after(1).fault("server-1")
    told.after(1).regrouped(8, 5)
    told.after(1).progress(6)
    assert told.faults() == [("server-0", 4, 1, None), ("server-1", 2, 3, None)]
    told.after(1).progress(8)
    told.after(1).progress(9)
    assert told.faults() == [("server-0", 4, 1, 6), ("server-1", 2, 3, 3)]
    status = told.status()
    assert (status.standstill_s, status.steps_redone) == (4, 4)


def test_servers_put_in_order_though_none_is_known_to_be_lost(told: Told) -> None:
    told.progress(9)
    told.regrouped(9, 9)
    told.after(1).progress(10)
    assert told.faults() == [("", 1, 0, 1)]


def test_news_of_a_past_generation_are_none(told: Told) -> None:
    told.progress(9)
    told.fault("server-1")
    told.regrouped(9, 6)
    told.story.progress(told.state, Progress(name="server-0", generation=1, version=9))
    assert told.faults() == [("server-1", 0, 3, None)]
    assert told.status().step == 9


@pytest.mark.parametrize("news_first", [True, False])
def test_a_worker_costs_what_the_ticks_around_it_took_longer(told: Told, news_first: bool) -> None:
    told.state.has("worker-1")
    told.progress(3, stalls=((1, 0.7),))  # at the start, of which nobody died
    told.after(10)
    if news_first:
        told.fault("worker-2")
        told.after(0.1).progress(4, stalls=((3, 0.04),))
    else:
        told.progress(4, stalls=((3, 0.04),))
        told.after(2).fault("worker-2", "is silent")
    told.story.keep_usage(told.state)
    assert [(fault[1], fault[3]) for fault in told.faults()] == [(0.04, None)]
    told.state.has("worker-1", "worker-3")
    told.after(1).story.keep_usage(told.state)
    (fault,) = told.status().faults
    assert fault.lasted_s == pytest.approx(1.1 if news_first else 1)
    assert fault.done == "the others did its slices"
    told.after(100).progress(5, stalls=((4, 3.0),))
    assert told.status().stalled_s == 0.04


def test_a_worker_that_is_silent_and_then_given_up_is_one_fault(told: Told) -> None:
    told.state.has("worker-1")
    told.fault("worker-2", "is silent")
    told.after(3).fault("worker-2", "is given up")
    (fault,) = told.status().faults
    assert fault.text == "is silent; is given up" and fault.told == 2
    told.state.has("worker-1", "worker-2")
    told.story.keep_usage(told.state)
    told.fault("worker-2", "is silent")
    assert told.status().num_faults == 2


def test_what_a_server_holds_up_is_not_counted_as_a_workers_as_well(told: Told) -> None:
    told.progress(5)
    told.fault("worker-1")
    told.fault("server-0")
    told.regrouped(5, 4)
    told.after(1).progress(5, stalls=((4, 1.0),))
    assert [fault[1] for fault in told.faults()] == [0, 1]
    assert told.status().stalled_s == 0


def test_a_master_costs_nothing_if_the_steps_went_on(told: Told) -> None:
    told.progress(5)
    told.next_master()
    died_s = told.clock_s
    told.after(2)
    told.story.fault("master", "master", "was killed by SIGKILL", died_s)
    told.after(0.5).progress(25)
    (fault,) = told.status().faults
    assert (fault.seconds, fault.steps, fault.lasted_s) == (0, 0, 2.5)
    assert fault.done == "another took over, and found 18 more steps done"
    told.after(1).progress(26)
    assert told.faults() == [("master", 0, 0, 2.5)]


def test_a_master_costs_what_the_steps_stood_still_meanwhile(told: Told) -> None:
    told.progress(5)
    told.next_master()
    told.fault("master", role="master")
    told.after(60).progress(6, stalls=((5, 58.0),))
    assert told.faults() == [("master", 58, 0, 60)]


def test_storage_that_fails_costs_nothing_but_is_told(told: Told) -> None:
    told.state.troubles = {"server-0": "no space left"}
    assert told.status().storage_trouble == "server-0: no space left"
    told.state.troubles = {"server-0": "still none"}
    told.after(4).status()
    told.next_master()
    told.state.troubles = {}
    told.after(1)
    (fault,) = told.status().faults
    assert fault.text == "still none" and fault.told == 2
    assert (fault.seconds, fault.steps, fault.lasted_s) == (0, 0, 5)
    assert told.status().storage_trouble == ""


# --- seconds ------------------------------------------------------------------------------------------


def test_where_the_seconds_went(told: Told) -> None:
    """Of 48 slices computed, 40 were needed and 4 of them twice, since a server was lost."""
    usage = Usage(
        computing_s=12, waiting_s=5, starting_s=2, recovering_s=1, redone_s=1, num_slices=24, num_backup=9
    )
    told.state.has("worker-1", "worker-2", usage=usage)
    told.state.committed_tick = 5
    told.progress(11)
    told.fault("server-0")
    told.regrouped(11, 10)
    told.progress(10)
    told.story.keep_usage(told.state)
    for name, copy_s in (("server-0", 0.25), ("server-1", 0.5), ("server-1", 0.5)):
        told.story.written(5, _written(name, copy_s))
    status = told.status()
    assert status.workers_seconds.by_name() == {
        "productive": 20,
        "redone": 2,
        "duplicated": 2,
        "starting": 4,
        "waiting": 9,
        "recovering": 2,
        "checkpointing": 1,
    }
    assert status.goodput == 0.5
    assert status.checkpoint_step == 5 and len(status.checkpoints) == 2
    assert status.records_covered == 100 and status.records_total == 300


def _written(name: str, copy_s: float = 0.0, error: str = "") -> Written:
    return Written(
        name=name, generation=1, tick=5, last=False, part=None, error=error, copy_s=copy_s, write_s=1.0
    )


def test_seconds_of_workers_that_are_gone_are_kept(told: Told) -> None:
    for number in range(500):
        told.state.has(f"worker-{number}", usage=Usage(computing_s=1, num_slices=1))
        told.story.keep_usage(told.state)
    told.state.has("worker-499")  # a new master does not know of its seconds yet
    told.story.keep_usage(told.state)
    assert sum(told.status().workers_seconds.by_name().values()) == 500
    assert len(told.story.remembered().usage) < 250


# --- the rest -----------------------------------------------------------------------------------------


def test_an_evaluation_that_is_told_twice_is_one(told: Told) -> None:
    told.progress(12, evaluations=((10, (0.5, 0.8)),))
    told.next_master()
    told.progress(23, evaluations=((21, (0.3, 0.9)), (10, (0.4, 0.8))))
    status = told.status()
    assert status.evaluations == [
        {"epoch": 1, "step": 10, "cost": 0.4, "accuracy": 0.8},
        {"epoch": 2, "step": 20, "cost": 0.3, "accuracy": 0.9},
    ]
    assert status.evaluation["epoch"] == 2 and status.num_evaluations == 2


def test_what_is_remembered_is_bounded(told: Told) -> None:
    for number in range(3000):
        told.story.note(NoteAction("info", f"event {number}"))
        told.fault(f"worker-{number}")
        told.story.resized(number, number + 1, "asked")
        told.story.written(number, _written("server-0"))
        told.after(10)
    memory = told.story.remembered()
    kept = (memory.events, memory.faults.kept, memory.resizes, memory.parts)
    assert [len(each) for each in kept] == [1000] * 4
    status = told.status()
    assert status.num_events == status.num_faults == 3000
    assert all(len(getattr(status, name)) == SHOWN for name in ("events", "faults", "resizes", "checkpoints"))
    assert status.events[-1] == Event(29990, "info", "event 2999")


def test_time_goes_on_through_masters_also_where_the_walls_clock_is_set_back(told: Told) -> None:
    told.after(10)
    memory = told.story.remembered()
    later = Story(Config(), "run", 0, memory, clock=lambda: 7.0, wall=lambda: 3700.0)
    assert later.so_far().elapsed_s == 100
    earlier = Story(Config(), "run", 0, memory, clock=lambda: 7.0, wall=lambda: 3600.0)
    assert earlier.so_far().elapsed_s == 10


@pytest.mark.parametrize("wall_s", [-1e9, 0.0, 1e9])
def test_on_the_same_machine_it_does_not_matter_what_the_walls_clock_is_set_to(wall_s: float) -> None:
    """A time limit would be over, or never."""
    config = Config(time_limit="1h")
    first = Story(config, "run", 0, wall=lambda: 5e8, clock=lambda: 0.0, boot=lambda: ("this", 100.0))
    memory = msgspec.json.decode(msgspec.json.encode(first.remembered()), type=StoryMemory)
    clocks: dict[str, Any] = {"wall": lambda: 5e8 + wall_s, "clock": lambda: 7.0}
    later = Story(config, "run", 0, memory, boot=lambda: ("this", 160.0), **clocks)
    assert later.so_far().elapsed_s == 60 and later.stop_at_s == 7 - 60 + 3600
    elsewhere = Story(config, "run", 0, memory, boot=lambda: ("another", 160.0), **clocks)
    assert elsewhere.so_far().elapsed_s == max(0, wall_s)


def test_the_report_is_the_status_and_the_end(told: Told) -> None:
    told.state.has("worker-1")
    told.progress(33)
    end = EndAction(RunState.FINISHED, "all is done", "no trace")
    report = told.story.report(told.state, end, refused=3)
    assert report.state == "finished" and report.text == "all is done"
    assert report.records_covered == report.records_total == 300
    assert report.workers[0].state == report.master.state == "ended"
    assert report.master.refused_connections == 3


# --- whatever happens ---------------------------------------------------------------------------------

HAPPENINGS = some.lists(
    some.one_of(
        some.tuples(some.just("fault"), some.integers(0, 3)),
        some.tuples(some.just("back"), some.integers(0, 6)),
        some.tuples(some.just("on"), some.integers(0, 4)),
        some.tuples(some.just("stall"), some.integers(0, 3)),
        some.tuples(some.just("workers"), some.integers(0, 4)),
        some.tuples(some.just("trouble"), some.integers(0, 1)),
        some.tuples(some.just("written"), some.integers(0, 3)),
        some.tuples(some.just("master"), some.integers(0, 1)),
    ),
    max_size=40,
)


@given(HAPPENINGS)
def test_nothing_is_counted_twice_nothing_is_negative_and_nothing_is_forgotten(
    happenings: list[tuple[str, int]],
) -> None:
    """By a new master at any time, either."""
    told, version, spent = Told(), 0, Usage()
    members = ("worker-1", "worker-2", "server-0", "server-1")
    for what, number in happenings:
        told.after(1)
        if what == "fault":
            told.fault(members[number])
        elif what == "back":
            told.regrouped(version, max(0, version - number))
            version = max(0, version - number)
        elif what == "on":
            version = min(version + number, SCHEDULE.total_ticks)
            told.progress(version)
        elif what == "stall":
            told.progress(version, stalls=((version, float(number)),))
        elif what == "workers":
            spent = Usage(**{name: getattr(spent, name) + number for name in Usage.__struct_fields__})
            told.state.has(*[f"worker-{each}" for each in range(number)], usage=spent)
            told.story.keep_usage(told.state)
        elif what == "trouble":
            told.state.troubles = {"server-0": "full"} if number else {}
        elif what == "written":
            told.story.written(version, _written("server-0", float(number)))
        elif what == "master":
            before = told.story.so_far()
            told.next_master()
            assert told.story.so_far() == before
    status = told.status()
    seconds = status.workers_seconds.by_name()
    assert all(value >= 0 for value in seconds.values())
    memory = told.story.remembered()
    lived = [
        usage.computing_s + usage.waiting_s + usage.starting_s + usage.recovering_s
        for usage in (memory.gone, *memory.usage.values())
    ]
    assert sum(seconds.values()) == pytest.approx(sum(lived))
    assert 0 <= (status.goodput or 0) <= 1
    faults = status.faults
    for fault in faults:
        assert fault.seconds >= 0 and fault.steps >= 0
        assert fault.lasted_s is None or fault.lasted_s >= fault.seconds or fault.role == "worker"
    by_role = {
        role: sum(fault.seconds for fault in faults if fault.role == role)
        for role in ("worker", "master", "server")
    }
    assert by_role["worker"] + by_role["master"] == pytest.approx(status.stalled_s)
    assert status.standstill_s <= status.elapsed_s
    standing = memory.faults.still_since_s is not None
    assert by_role["server"] >= status.standstill_s - 1e-9 or standing


# --- the start ----------------------------------------------------------------------------------------


def test_the_time_until_the_first_step_is_made_of_parts(told: Told) -> None:
    told.after(5).story.began((("imports", 2.0), ("first slice", 0.5)))
    told.after(1).story.began((("imports", 9.0),))  # of the next worker
    assert told.status().start == []
    told.after(1).progress(1)
    found = told.status()
    assert [(part.what, part.seconds) for part in found.start] == [
        ("master", 2.5),
        ("imports", 2.0),
        ("first slice", 0.5),
        ("servers and first step", 2.0),
    ]
    assert sum(part.seconds for part in found.start) == found.first_step_s == 7
    told.after(1).story.began((("imports", 9.0),))
    assert told.status().start == found.start
    assert start_line(found) == (
        "first step after 7.00 s: master 2.50, imports 2.00, first slice 0.50, servers and first step 2.00"
    )
    assert f"  {start_line(found)}" in page(
        told.story.report(told.state, EndAction(RunState("finished"), "done"))
    )


def test_of_a_worker_that_does_not_tell_there_are_no_parts(told: Told) -> None:
    told.after(5).story.began(())
    told.progress(1)
    assert told.status().start == [] and start_line(told.status()) == ""
