"""Which jobs are submitted and cancelled, and why: rule by rule, and in random histories of a cluster."""

from __future__ import annotations

import time

import pytest

from elasticflow.cluster.contract import How
from elasticflow.cluster.launches import LASTS_S
from elasticflow.cluster.member import EXIT_ABANDONED
from elasticflow.cluster.news import taken
from elasticflow.cluster.nodes import WINDOW_S
from elasticflow.cluster.sizing import End, Poll
from elasticflow_slurm import reasons
from elasticflow_slurm.client import (
    LimitReached,
    PlaceClosed,
    SlurmBusy,
    SlurmError,
    SlurmJob,
    SlurmNotInstalled,
    SlurmRefused,
)
from elasticflow_slurm.comments import LEADER, Comment
from elasticflow_slurm.config import PlaceConfig, SlurmConfig
from elasticflow_slurm.places import STRUCK_S
from elasticflow_slurm.reasons import EXIT_NOT_BEGUN
from elasticflow_slurm.sizing import (
    WAYS,
    Action,
    Estimate,
    SlurmSizing,
    Submit,
)

from .slurm_world import EPOCH, RUN, polls_a_minute

GPU, IDLE = PlaceConfig(partition="gpu"), PlaceConfig(partition="idle")
BUSY = SlurmBusy("Socket timed out on send/recv operation")
LIMIT = LimitReached("QOSMaxSubmitJobPerUserLimit")
CLOSED = PlaceClosed("Required partition not available (inactive or drain)")
REFUSED = SlurmRefused("Invalid partition name specified")


class Told:
    """A SlurmSizing and those who talk to it. Jobs that were submitted have the ids 101, 102, ..."""

    def __init__(self, *places: PlaceConfig, num_min: int = 1, **config: object) -> None:
        self.config = SlurmConfig(workers=places or (GPU,), **config)  # type: ignore[arg-type]
        self.sizing = SlurmSizing(self.config, num_min, RUN)
        self.now_s = 1000.0
        self.cancelled: list[int] = []
        self.estimates: list[PlaceConfig] = []
        self.polls_s: list[float] = []
        self.polling = False
        self.asked: list[Submit] = []
        self.jobs: dict[int, SlurmJob] = {}
        """What the next poll shows."""

    @property
    def at(self) -> float:
        return EPOCH + self.now_s

    def after(self, seconds: float) -> Told:
        self.now_s += seconds
        return self

    def want(self, *numbers: int) -> Told:
        for number in numbers:
            self.sizing.want(f"worker-{number}", self.now_s)
        return self

    def unwant(self, number: int) -> Told:
        self.sizing.unwant(f"worker-{number}", self.now_s)
        return self

    def decide(self) -> list[Action]:
        actions = self.sizing.decide(self.now_s)
        for action in actions:
            match action:
                case End():
                    self.cancelled += action.ids
                case Estimate():
                    self.estimates.append(action.place)
                case Poll():
                    self.polling = True
                    self.polls_s.append(self.now_s)
                case Submit():
                    self.asked.append(action)
        return actions

    def submits(self) -> list[int]:
        """Numbers of the workers that were submitted, and SLURM has not answered."""
        self.decide()
        return [_number(submit.name) for submit in self.asked]

    def accept(self, **changes: object) -> Told:
        """SLURM takes all that it was asked for."""
        for submit in self.asked:
            id = 101 + len(self.jobs)
            self.show(id, _number(submit.name), partition=submit.place.partition, **changes)
            self.sizing.accepted(submit.name, id, self.now_s)
        self.asked.clear()
        return self

    def fail(self, error: SlurmError) -> Told:
        for submit in self.asked:
            self.sizing.refused(submit.name, error, self.now_s)
        self.asked.clear()
        return self

    def show(self, id: int, number: int = 0, /, **changes: object) -> Told:
        """A job is from now on as the changes say."""
        known = self.jobs.get(id)
        fields = {name: getattr(known, name) for name in SlurmJob.__struct_fields__} if known else {}
        new = {"id": id, "comment": str(Comment(RUN, f"worker-{number}")), "state": "PENDING"}
        self.jobs[id] = SlurmJob(**{**new, **fields, **changes})
        return self

    def run(self, *ids: int) -> Told:
        for id in ids or self.jobs:
            self.show(id, state="RUNNING", reason="", node=self.jobs[id].node or f"g{id}")
        return self

    def poll(self) -> Told:
        """Lets time pass until a poll is due, and answers it."""
        self.await_poll()
        return self.observe()

    def observe(self) -> Told:
        self.polling = False
        self.sizing.observed(list(self.jobs.values()), self.now_s, self.at)
        return self

    def await_poll(self) -> Told:
        self.decide()
        while not self.polling:
            due_s = self.sizing.next_time_s()
            assert due_s is not None, "there is no poll to come"
            self.now_s = max(self.now_s, due_s)
            self.decide()
        return self

    def poll_for(self, seconds: float) -> Told:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.poll()
        return self

    def poll_fails(self, error: SlurmError = BUSY) -> Told:
        self.await_poll().polling = False
        self.sizing.unobserved(error, self.now_s)
        return self

    def started(self, number: int = 1, id: int = 101, node: str = "g3") -> Told:
        """A worker that runs."""
        self.want(number).decide()
        self.accept().show(id, node=node)
        return self.run(id).poll()

    def ended(self) -> list[tuple[int, How, str]]:
        return [(_number(ended.name), ended.how, ended.text) for ended in taken(self.sizing.news.ended)]

    def notes(self) -> list[str]:
        return [text for _, text in taken(self.sizing.news.notes)]


def _number(name: str) -> int:
    return int(name.removeprefix("worker-"))


# --- polls --------------------------------------------------------------------------------------------


def test_polls_come_at_their_pace_while_there_is_somebody_to_ask_about() -> None:
    told = Told(poll_s=2.0)
    assert told.sizing.next_time_s() is None and told.decide() == []
    told.started().poll().poll()
    assert told.polls_s == [1000.0, 1002.0, 1004.0]
    told.unwant(1).show(101, state="CANCELLED").poll()
    assert told.sizing.next_time_s() is None and told.after(60).decide() == []


def test_there_is_one_poll_at_a_time() -> None:
    told = Told().want(1).await_poll()
    assert told.after(60).decide() == []
    assert told.sizing.next_time_s() is None


def test_polls_do_not_depend_on_the_number_of_workers() -> None:
    assert polls_a_minute(1, 2) == polls_a_minute(100, 2) <= 30


def test_to_look_is_to_poll_at_once_but_once_a_second() -> None:
    told = Told(poll_s=20.0).started()
    told.after(5).sizing.look()
    told.poll()
    told.after(0.2).sizing.look()
    told.poll()
    assert told.polls_s == [1000.0, 1005.0, 1006.0]
    assert told.sizing.next_time_s() == 1026.0


def test_what_happens_during_a_poll_needs_another() -> None:
    told = Told(poll_s=20.0).started()
    told.await_poll().sizing.look()
    told.after(3).observe()
    assert told.sizing.next_time_s() == told.polls_s[-1] + 1


def test_who_does_not_answer_is_left_alone_for_longer_and_longer() -> None:
    told = Told(poll_s=2.0).started()
    for _ in range(7):
        told.poll_fails()
    told.sizing.look()
    told.poll()
    waits_s = [after - before for before, after in zip(told.polls_s[1:], told.polls_s[2:], strict=False)]
    assert waits_s == [2, 4, 8, 16, 30, 30, 30]
    assert told.sizing.next_time_s() == told.now_s + 2


def test_people_read_once_that_slurmctld_is_away_and_once_that_it_is_back() -> None:
    told = Told().started().poll_fails().poll()
    assert told.notes() == []
    told.poll_fails().poll_fails().poll_fails().poll()
    away, back = told.notes()
    assert away.startswith("slurmctld does not answer: Socket timed out")
    assert back == "slurmctld answers again, after 14 s"


def test_nothing_is_submitted_while_slurmctld_does_not_answer() -> None:
    told = Told().started().poll_fails().want(2)
    assert told.submits() == []
    assert told.poll().submits() == [2]


# --- growth -------------------------------------------------------------------------------------------


def test_the_least_number_is_submitted_at_once_the_lowest_numbers_first() -> None:
    assert Told(num_min=8).want(*range(12, 0, -1)).submits() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_beyond_it_twice_as_many_whenever_all_have_started() -> None:
    told = Told().want(*range(1, 200))
    sizes = []
    for _ in range(7):
        sizes.append(len(told.submits()))
        told.accept().run().poll()
    assert sizes == [4, 8, 16, 32, 64, 64, 199 - 188] and WAYS.ahead == (4, 64)


def test_who_waits_takes_a_place_in_line() -> None:
    told = Told().want(*range(1, 20))
    assert told.submits() == [1, 2, 3, 4]
    told.accept().run(101, 102).poll()
    assert told.submits() == [5, 6]


def test_a_job_that_waits_long_is_the_bell() -> None:
    told = Told(patience_s=30.0).want(*range(1, 20))
    assert told.submits() == [1, 2, 3, 4]
    told.accept(reason="Resources").run(101).poll()
    assert told.submits() == [5]
    told.accept(reason="Resources").poll_for(31)
    told.run(102, 103, 104).poll()
    assert told.submits() == [], "one waits still, and one is enough"
    told.run(105).poll()
    assert told.submits() == [6, 7], "it rang"
    told.accept().run().poll()
    assert len(told.submits()) == 4
    assert told.cancelled == []


def test_whoever_ends_below_the_least_number_is_replaced_at_once() -> None:
    told = Told(num_min=2, patience_s=30.0).want(1, 2, 3)
    told.decide()
    told.accept(reason="Resources").run(101).poll().poll_for(31)
    told.show(101, state="PREEMPTED").poll().want(4)
    assert told.submits() == [], "two wait still"
    told.show(102, state="PREEMPTED").poll().want(5)
    assert told.submits() == [4]


# --- places -------------------------------------------------------------------------------------------


def crowded() -> Told:
    """Two workers have waited too long in the first of two places."""
    told = Told(GPU, IDLE, num_min=2, patience_s=30.0).want(1, 2)
    assert [action.place for action in told.decide() if isinstance(action, Submit)] == [GPU, GPU]
    told.accept(reason="Resources").poll()
    while not told.estimates:
        told.poll()
        told.decide()
    assert told.estimates == [IDLE] and told.now_s >= 1030
    return told


def test_a_worker_moves_to_where_it_would_start_at_once() -> None:
    told = crowded()
    told.sizing.estimated(IDLE, told.at + 2, told.now_s, told.at)
    assert told.submits() == [] and told.cancelled == [101]
    told.show(101, state="CANCELLED").poll()
    told.decide()
    assert told.asked == [Submit("worker-1", IDLE, ())]
    told.accept().run(103).poll()
    assert told.ended() == [] and told.sizing.num_places == 2
    assert told.notes() == ["worker-1 moves to partition idle, where it would start at once"]


def test_it_moves_only_when_its_old_job_is_over() -> None:
    told = crowded()
    told.sizing.estimated(IDLE, told.at, told.now_s, told.at)
    for _ in range(5):
        assert told.submits() == []
        told.poll()
    assert told.cancelled == [101]
    told.poll_for(31)
    told.decide()
    assert told.cancelled == [101, 101], "the first cancel was lost"


def test_one_that_has_started_before_it_was_cancelled_is_kept() -> None:
    told = crowded()
    told.sizing.estimated(IDLE, told.at, told.now_s, told.at)
    told.decide()
    told.run(101).poll().poll()
    assert told.submits() == [] and told.ended() == []
    told.show(101, state="CANCELLED").poll()
    assert told.ended() == [(1, How.TAKEN, "was cancelled on g101 (job 101)")]


def test_one_that_ran_between_two_polls_is_not_submitted_under_the_same_name() -> None:
    told = crowded()
    told.sizing.estimated(IDLE, told.at, told.now_s, told.at)
    told.decide()
    told.show(101, state="CANCELLED", node="g3").poll()
    assert told.submits() == [] and told.ended()[0][:2] == (1, How.TAKEN)


def test_the_other_place_is_asked_once_in_a_while() -> None:
    told = crowded()
    told.sizing.estimated(IDLE, told.at + 3600, told.now_s, told.at)
    start_s = told.now_s
    while len(told.estimates) < 4:
        told.poll()
        told.sizing.estimated(IDLE, told.at + 3600, told.now_s, told.at)
    assert told.now_s - start_s >= 90
    assert told.cancelled == []


def test_a_worker_moves_once_in_a_long_time() -> None:
    told = crowded()
    told.sizing.estimated(IDLE, told.at, told.now_s, told.at)
    told.poll()
    told.show(101, state="CANCELLED").run(102).poll()
    told.decide()
    told.accept(reason="Resources").poll()
    moved_s = told.now_s
    told.estimates.clear()
    while not told.estimates:
        told.poll()
        told.decide()
    assert told.estimates == [GPU] and 250 < told.now_s - moved_s < 310


def test_a_new_job_goes_to_the_first_place_that_has_not_been_found_full() -> None:
    told = crowded()
    told.show(101, state="PREEMPTED").want(3)
    told.poll().decide()
    assert told.asked == [Submit("worker-3", IDLE, ())]


def test_a_place_that_refuses_is_left_out_for_ten_minutes() -> None:
    told = Told(GPU, IDLE).want(1)
    assert told.submits() == [1]
    told.fail(REFUSED).decide()
    assert told.asked == [Submit("worker-1", IDLE, ())]
    assert told.notes() == [
        "partition gpu refuses jobs, and gets none for 10 min: Invalid partition name specified"
    ]
    told.accept().run().poll().after(500).poll().want(2).decide()
    assert told.asked[0].place == IDLE
    told.accept().poll().after(101).want(3).decide()
    assert told.asked[0].place == GPU


def test_if_no_place_takes_the_first_job_the_run_can_end() -> None:
    told = Told(GPU, IDLE).want(1)
    told.decide()
    told.fail(REFUSED).decide()
    assert not told.sizing.fatal
    told.fail(SlurmRefused("Requested node configuration is not available"))
    assert told.sizing.fatal == "Requested node configuration is not available"
    assert told.after(3600).submits() == []


def test_if_a_job_was_ever_taken_a_run_goes_on() -> None:
    told = Told().started().want(2)
    told.decide()
    told.fail(REFUSED)
    assert told.sizing.reason == "1 of 2: refused in partition gpu: Invalid partition name specified"
    assert not told.sizing.fatal and told.poll().submits() == []
    told.poll_for(600)
    assert told.submits() == [2]


def test_without_slurm_a_run_can_end() -> None:
    told = Told().want(1)
    told.decide()
    told.fail(SlurmNotInstalled("sbatch: command not found"))
    assert told.sizing.fatal == "sbatch: command not found"


# --- refusals -----------------------------------------------------------------------------------------


def limited() -> Told:
    told = Told().started().want(2, 3, 4)
    assert told.submits() == [2, 3, 4]
    return told.fail(LIMIT)


def test_a_limit_is_told_once() -> None:
    told = limited()
    assert told.sizing.reason == "1 of 4: QOSMaxSubmitJobPerUserLimit (SLURM's limit)"
    for _ in range(5):
        told.poll_for(100).decide()
        told.fail(LIMIT)
    assert told.notes() == ["a limit of SLURM's is reached in partition gpu: QOSMaxSubmitJobPerUserLimit"]


def test_at_a_limit_one_job_tries_after_longer_and_longer() -> None:
    told, tries_s = limited(), [1000.0]
    while len(tries_s) < 9:
        told.poll()
        if numbers := told.submits():
            assert numbers == [2]
            tries_s.append(told.now_s)
            told.fail(LIMIT)
    waits_s = [after - before for before, after in zip(tries_s, tries_s[1:], strict=False)]
    assert waits_s == pytest.approx([5, 10, 20, 40, 80, 160, 300, 300], abs=2)


def test_the_end_of_a_pause_is_told() -> None:
    told = limited()
    told.await_poll()
    assert told.sizing.next_time_s() == 1005.0
    told.after(5).decide()
    assert told.sizing.next_time_s() is None


def test_at_a_limit_the_end_of_a_job_makes_room() -> None:
    told = limited()
    told.show(101, state="COMPLETED").poll()
    assert told.submits() == [2]
    told.accept()
    assert told.submits() == [3, 4]


def test_a_limit_of_one_place_is_none_of_another() -> None:
    told = Told(GPU, IDLE).want(1)
    told.decide()
    told.fail(LIMIT).decide()
    assert told.asked == [Submit("worker-1", IDLE, ())]


def test_a_place_that_is_closed_for_now_closes_no_other() -> None:
    told = Told(GPU, IDLE).want(1)
    told.decide()
    told.fail(CLOSED).decide()
    assert told.asked == [Submit("worker-1", IDLE, ())]
    told.fail(CLOSED)
    closed = f"partition gpu takes no jobs just now: {CLOSED}"
    assert told.notes()[0] == closed and told.sizing.reason == f"0 of 1: {closed}"
    assert not told.sizing.fatal, "an operator opens it again"
    told.after(5).decide()
    assert told.asked == [Submit("worker-1", GPU, ())]


def test_where_jobs_could_not_be_over_before_their_deadline_no_more_are_asked_for() -> None:
    """SLURM takes them, and ends each at once."""
    told = Told().want(1)
    told.decide()
    told.accept().poll()
    told.show(101, state="DEADLINE").poll().want(2)
    assert told.submits() == []
    late = "job 101 would not be over before its deadline"
    assert told.sizing.reason == f"0 of 1: refused in partition gpu: {late}"
    assert told.notes() == [f"partition gpu refuses jobs, and gets none for 10 min: {late}"]
    told.poll_for(STRUCK_S)
    assert told.submits() == [2] and not told.sizing.fatal


def test_a_lost_answer_is_repeated_when_a_poll_shows_no_job() -> None:
    told = Told().want(1).await_poll()
    told.after(1).fail(BUSY)
    told.observe()
    assert told.after(1.5).submits() == [], "that poll began before"
    told.poll()
    assert told.submits() == [1]


def test_a_lost_answer_is_not_repeated_when_a_poll_shows_the_job() -> None:
    told = Told().want(1)
    told.decide()
    told.fail(BUSY).show(7, 1)
    told.poll().poll_for(60)
    assert told.submits() == [] and told.sizing.num_places == 1


def test_busy_pauses_grow_and_the_reason_says_so() -> None:
    told = Told(poll_s=0.5).want(1, 2)
    tries_s = []
    while len(tries_s) < 8:
        if told.submits():
            tries_s.append(told.now_s)
            told.fail(BUSY)
        told.poll()
    waits_s = [after - before for before, after in zip(tries_s, tries_s[1:], strict=False)]
    assert waits_s == pytest.approx([1, 2, 4, 8, 16, 30, 30], abs=1.1)
    assert told.sizing.reason == (
        "0 of 2: slurmctld takes no jobs just now: Socket timed out on send/recv operation"
    )


# --- ends ---------------------------------------------------------------------------------------------

ENDS = [
    ({"state": "COMPLETED"}, How.DONE, "ended (job 101 on g3)"),
    (
        {"state": "FAILED", "exit_code": 1, "reason": "NonZeroExitCode"},
        How.FAILED,
        "failed (job 101 on g3: FAILED, NonZeroExitCode, exit code 1)",
    ),
    ({"state": "FAILED", "exit_code": 137}, How.KILLED, "was killed by SIGKILL on g3 (job 101)"),
    ({"state": "FAILED", "exit_code": 255}, How.FAILED, "failed (job 101 on g3: FAILED, exit code 255)"),
    ({"state": "FAILED", "exit_code": EXIT_ABANDONED}, How.KILLED, "ended with exit code 75 on g3 (job 101)"),
    (
        {"state": "OUT_OF_MEMORY", "exit_code": 137},
        How.FAILED,
        "failed (job 101 on g3: OUT_OF_MEMORY, exit code 137); slurm.mem gives it more memory",
    ),
    ({"state": "PREEMPTED"}, How.TAKEN, "was preempted on g3 (job 101)"),
    ({"state": "NODE_FAIL"}, How.TAKEN, "lost its node g3 (job 101)"),
    ({"state": "BOOT_FAIL"}, How.TAKEN, "lost its node g3, which did not boot (job 101)"),
    ({"state": "TIMEOUT"}, How.TAKEN, "reached its time limit on g3 (job 101)"),
    ({"state": "DEADLINE"}, How.TAKEN, "reached its deadline on g3 (job 101)"),
    ({"state": "CANCELLED"}, How.TAKEN, "was cancelled on g3 (job 101)"),
    ({"state": "CANCELLED", "node": ""}, How.TAKEN, "was cancelled (job 101)"),
    ({"state": "REQUEUED"}, How.TAKEN, "was requeued (job 101); its job is cancelled"),
    ({"state": "PENDING", "restarts": 1}, How.TAKEN, "was requeued (job 101); its job is cancelled"),
]


@pytest.mark.parametrize(("changes", "how", "text"), ENDS)
def test_an_end_is_told_once(changes: dict[str, object], how: How, text: str) -> None:
    told = Told().started().want(2)
    told.decide()
    told.accept().run(102)
    told.show(101, **changes).poll()
    assert told.ended() == [(1, how, text)]
    told.poll().poll()
    assert told.ended() == [] and told.sizing.num_places == 1


def test_a_requeued_job_is_cancelled() -> None:
    told = Told().started().show(101, state="PENDING", reason="BeginTime").poll()
    told.decide()
    assert told.cancelled == [101] and told.ended()[0][1] is How.TAKEN


def test_a_job_that_completes_has_not_ended_yet() -> None:
    told = Told().started().show(101, state="COMPLETING").poll()
    assert told.ended() == [] and told.sizing.num_places == 1


def test_a_place_is_one_once_its_node_has_booted() -> None:
    told = Told().want(1)
    told.decide()
    told.accept().show(101, state="CONFIGURING", node="g3").poll()
    assert taken(told.sizing.news.placed) == []
    for _ in range(2):
        told.show(101, state="RUNNING").poll()
    assert taken(told.sizing.news.placed) == ["worker-1"]


def test_nodes_whose_places_give_no_process_are_left_out() -> None:
    told = Told(exclude_after=2)
    for number in (1, 2):
        told.started(number, 100 + number)
        told.sizing.blame(f"worker-{number}", told.now_s)
        told.unwant(number)
    told.sizing.blame("worker-9", told.now_s)
    assert [text for _, text in taken(told.sizing.news.notes) if "node g3 is left out" in text]


def test_the_newest_job_of_a_name_counts_and_others_are_cancelled() -> None:
    told = Told().started().show(103, 1, state="RUNNING").show(102, 1, state="RUNNING").poll()
    told.decide()
    assert set(told.cancelled) == {101, 102}
    told.show(101, state="CANCELLED").show(102, state="CANCELLED").poll()
    assert told.ended() == []
    told.show(103, state="COMPLETED").poll()
    assert told.ended() == [(1, How.DONE, "ended (job 103)")]


def test_one_that_runs_counts_before_one_that_waits() -> None:
    told = Told().started().show(102, 1).poll()
    told.decide()
    assert told.cancelled == [102]


def test_a_job_that_slurmctld_has_forgotten_is_told_after_two_polls() -> None:
    told = Told(poll_s=2.0).started()
    told.jobs.clear()
    lost_s = told.now_s
    told.poll_for(10)
    assert told.ended() == []
    told.poll().poll()
    assert told.ended() == [(1, How.TAKEN, "is lost: slurmctld does not know job 101 any more")]
    assert told.now_s - lost_s < 16


def test_a_site_that_keeps_no_comments_gets_no_more_jobs_than_workers() -> None:
    """Its submit plugin writes its own there: the id, with the name, has to do."""
    told = Told(poll_s=2.0).want(1)
    told.decide()
    told.accept(comment="project 7", name="digits-worker-1").run(101).poll_for(60)
    assert told.ended() == [] and told.sizing.reason == ""
    assert [text for text in told.notes() if "keeps no comments" in text]
    told.show(101, state="PREEMPTED").poll()
    assert told.ended() == [(1, How.TAKEN, "was preempted on g101 (job 101)")]


def test_a_job_that_has_a_forgotten_ones_id_is_not_taken_for_it() -> None:
    told = Told(poll_s=2.0).started()
    told.show(101, comment="", name="mine").poll_for(10)
    told.poll().poll()
    assert told.ended() == [(1, How.TAKEN, "is lost: slurmctld does not know job 101 any more")]
    told.decide()
    assert told.cancelled == []


def test_one_poll_without_a_job_means_nothing() -> None:
    told = Told(poll_s=20.0).started()
    jobs = dict(told.jobs)
    for _ in range(5):
        told.jobs = {}
        told.poll()
        told.jobs = dict(jobs)
        told.poll()
    assert told.ended() == []


def test_jobs_of_others_are_left_alone() -> None:
    told = Told().started()
    told.show(1, comment="", state="RUNNING").show(2, comment=str(Comment("ba9876543210", "worker-1")))
    told.show(3, comment=str(Comment(RUN, LEADER, "/runs/7")), state="RUNNING").poll()
    told.decide()
    assert told.cancelled == []


# --- held jobs ----------------------------------------------------------------------------------------


def test_a_job_that_could_not_be_launched_is_submitted_anew_after_a_pause() -> None:
    told = Told(poll_s=1.0).want(1)
    told.decide()
    told.accept(priority=0, reason="launch failed requeued held").poll()
    held_s = told.now_s
    told.decide()
    assert told.cancelled == [101]
    told.show(101, state="CANCELLED").poll()
    assert told.submits() == []
    while not told.submits():
        told.poll()
    assert told.now_s - held_s >= 5 and told.ended() == []


def test_where_no_node_sees_the_runs_folder_a_few_places_are_enough_to_know() -> None:
    told = Told(poll_s=1.0).want(1)
    for number in range(1, 6):
        assert not told.sizing.fatal
        while told.submits() != [number]:
            told.poll()
        told.accept().poll()
        node = f"g{number}"
        told.show(100 + number, state="FAILED", reason="NonZeroExitCode", node=node, exit_code=79).poll()
        (ended,) = told.ended()
        assert ended[1] is How.TAKEN and f"{node} cannot write into the run's folder" in ended[2]
        told.want(number + 1)
    assert "nothing could be started in 5 places (nodes g1, g2, g3, g4, g5)" in told.sizing.fatal
    assert told.asked == [] and told.submits() == []


def test_where_a_worker_cannot_begin_its_node_is_left_out_at_once() -> None:
    """Its Python is missing there, say: job after job would end so, within a second each."""
    told = Told().started(1, 101).started(2, 102, node="g4")
    told.show(102, state="FAILED", reason="NonZeroExitCode", exit_code=EXIT_NOT_BEGUN).poll()
    (ended,) = told.ended()
    assert ended[1] is How.TAKEN and "on g4 ended before the worker began: slurm.setup" in ended[2]
    assert told.notes()[0].startswith("node g4 is left out of new jobs for an hour: job 102 on g4 ended")


def test_once_a_job_starts_launches_are_trusted_again() -> None:
    told = Told(num_min=4, poll_s=1.0).want(1, 2)
    told.decide()
    told.accept(priority=0, reason="launch failed requeued held").show(102, priority=1, reason="").poll()
    held_s = told.now_s
    told.run(102).show(101, state="CANCELLED").poll()
    while not told.submits():
        told.poll()
    assert told.now_s <= held_s + LASTS_S + 2


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("JobHeldUser", "job 101 is held; scontrol release 101 lets it start"),
        ("JobHeldAdmin", "job 101 is held by an administrator"),
    ],
)
def test_a_job_that_is_held_on_purpose_stays(reason: str, text: str) -> None:
    told = Told(GPU, IDLE).want(1)
    told.decide()
    told.accept(priority=0, reason=reason).poll_for(400).decide()
    assert told.cancelled == [] and told.estimates == []
    assert told.sizing.reason == f"0 of 1: {text}"


# --- unwanted workers ---------------------------------------------------------------------------------


def test_one_that_was_not_submitted_never_is() -> None:
    told = Told().want(1).unwant(1)
    assert told.decide() == [] and told.sizing.num_places == 0


def test_one_that_runs_is_cancelled_and_its_end_is_not_told() -> None:
    told = Told().started().unwant(1)
    told.decide()
    assert told.cancelled == [101] and told.sizing.num_places == 1
    told.show(101, state="COMPLETING").poll().show(101, state="CANCELLED").poll()
    assert told.ended() == [] and told.sizing.num_places == 0


def test_one_that_is_submitted_just_now_is_cancelled_when_its_id_is_known() -> None:
    told = Told().want(1)
    told.decide()
    told.unwant(1).decide()
    assert told.cancelled == []
    told.accept().decide()
    assert told.cancelled == [101]


@pytest.mark.parametrize("error", [LIMIT, CLOSED, REFUSED])
def test_one_that_is_refused_is_forgotten(error: SlurmError) -> None:
    told = Told().want(1)
    told.decide()
    told.unwant(1).fail(error)
    assert told.sizing.num_places == 0


def test_one_whose_answer_was_lost_is_looked_for() -> None:
    told = Told(poll_s=2.0).want(1)
    told.decide()
    told.unwant(1).fail(BUSY)
    told.poll().poll().show(7, 1).poll()
    told.decide()
    assert told.cancelled == [7]
    told.show(7, state="CANCELLED").poll()
    assert told.sizing.num_places == 0


def test_one_that_nobody_knows_is_given_up() -> None:
    told = Told(poll_s=2.0).want(1)
    told.decide()
    told.unwant(1).fail(BUSY)
    lost_s = told.now_s
    while told.sizing.num_places:
        told.poll()
    assert told.now_s - lost_s < 16 and told.ended() == []


def test_a_cancel_that_was_lost_is_repeated() -> None:
    told = Told().started().unwant(1).poll_for(50)
    told.decide()
    assert told.cancelled == [101, 101]


def test_one_with_another_job_on_its_way_is_waited_for() -> None:
    """Its first job was taken though the answer was lost, and only after it was asked for again."""
    told = Told().want(1).await_poll()
    told.fail(BUSY).observe().poll()
    assert told.submits() == [1]
    told.show(90, 1, state="RUNNING").poll().unwant(1)
    told.show(90, state="CANCELLED").poll()
    assert told.sizing.num_places == 1
    told.accept().poll().decide()
    assert 102 in told.cancelled, "90 being over does not mean that it is"
    told.show(102, state="CANCELLED").poll()
    assert told.sizing.num_places == 0 and told.ended() == []


def test_unknown_names_are_nothing_to_end() -> None:
    assert Told().unwant(1).decide() == []


# --- a new master -------------------------------------------------------------------------------------


def test_a_new_master_adopts_what_lives() -> None:
    told = Told(num_min=2).show(7, 1, state="RUNNING", node="g1").show(8, 2)
    told.observe()
    told.sizing.adopt("worker-1", told.now_s)
    told.sizing.adopt("worker-2", told.now_s)
    assert told.poll().submits() == [] and told.cancelled == []
    assert told.sizing.num_places == 2
    told.show(7, state="PREEMPTED").poll()
    assert told.ended() == [(1, How.TAKEN, "was preempted on g1 (job 7)")]


def test_a_job_that_it_does_not_find_is_lost() -> None:
    told = Told()
    told.sizing.adopt("worker-1", told.now_s)
    told.poll().poll()
    assert told.ended() == [(1, How.TAKEN, "is lost: slurmctld does not know a job of it")]


def test_strangers_are_cancelled_once() -> None:
    """A master before died just after it had submitted them."""
    told = Told().started().show(90, 9).poll().poll().poll()
    told.decide()
    assert told.cancelled == [90]
    assert told.notes() == ["job 90 is cancelled: nobody waits for worker-9"]


def test_an_old_job_of_a_name_is_not_its_end() -> None:
    """It was not written down that the name was used."""
    told = Told(num_min=2).show(50, 1, state="FAILED")
    told.observe()
    told.want(1).await_poll()
    told.observe()
    told.accept().poll()
    assert told.ended() == [] and told.sizing.num_places == 1


def test_an_id_that_slurm_gives_again_is_cancelled_again() -> None:
    """slurmctld has crashed and forgotten the job that was cancelled: now its id is another job's."""
    told = Told().want(1)
    told.submits()
    told.accept(submit_at=told.at).show(102, 1, partition="gpu", submit_at=told.at)
    told.poll().decide()
    assert told.cancelled == [101], "the newer one counts"
    told.poll().decide()
    assert told.cancelled == [101], "it takes its time to end"
    del told.jobs[101]
    told.poll().show(101, 1, partition="gpu", submit_at=told.at).poll().decide()
    assert told.cancelled == [101, 101]


def test_adopted_workers_cannot_be_submitted_again() -> None:
    told = Told(GPU, IDLE).show(7, 1, partition="gpu", reason="Resources")
    told.sizing.adopt("worker-1", told.now_s)
    told.poll().show(7, priority=0, reason="launch failed requeued held").poll()
    told.decide()
    assert told.cancelled == [7]
    why = "was given up (job 7): it could not be launched: launch failed requeued held"
    assert told.ended() == [(1, How.TAKEN, why)]


def test_an_adopted_worker_whose_job_waits_too_long_gives_way_to_another() -> None:
    told = Told(GPU, IDLE).show(7, 1, partition="gpu", reason="Resources")
    told.sizing.adopt("worker-1", told.now_s)
    told.poll_for(40).decide()
    assert told.estimates == [IDLE]
    told.sizing.estimated(IDLE, told.at, told.now_s, told.at)
    told.want(2).decide()
    assert told.cancelled == [7] and told.asked == [Submit("worker-2", IDLE, ())]
    assert told.ended() == [(1, How.TAKEN, "was given up (job 7): it would start in partition idle")]


# --- nodes --------------------------------------------------------------------------------------------


def test_a_node_on_which_workers_fail_is_left_out_for_an_hour() -> None:
    told = Told(exclude_after=2)
    for number in (1, 2):
        told.started(number, 100 + number).show(100 + number, state="FAILED", exit_code=1).poll()
    assert told.notes() == ["node g3 is left out of new jobs for an hour: 2 failures within an hour"]
    told.want(3).decide()
    assert told.asked[0].exclude == ("g3",)
    told.accept().run().poll().after(WINDOW_S).poll().want(4).decide()
    assert told.asked[0].exclude == ()


@pytest.mark.parametrize(
    ("changes", "blamed"),
    [
        ({"state": "FAILED", "exit_code": 1}, True),
        ({"state": "FAILED", "exit_code": 139}, True),
        ({"state": "NODE_FAIL"}, False),
        ({"state": "BOOT_FAIL"}, True),
        ({"state": "PENDING", "reason": "launch failed requeued held"}, True),
        ({"state": "FAILED", "exit_code": 137}, False),
        ({"state": "FAILED", "exit_code": EXIT_ABANDONED}, False),
        ({"state": "PREEMPTED"}, False),
        ({"state": "TIMEOUT"}, False),
        ({"state": "COMPLETED"}, False),
    ],
)
def test_which_ends_speak_against_a_node(changes: dict[str, object], blamed: bool) -> None:
    assert reasons.blames_node(SlurmJob(id=1, node="g1", **changes)) == blamed  # type: ignore[arg-type]


def test_a_node_that_was_lost_and_is_up_again_is_used_again() -> None:
    """Set down twice for repairs, say: who leaves it out stays small for an hour, while it is idle."""
    told = Told(exclude_after=2)
    for number in (1, 2):
        told.started(number, 100 + number).show(100 + number, state="NODE_FAIL").poll()
    told.want(3).decide()
    assert told.asked[0].exclude == () and not told.notes()


def test_the_reason_names_nodes_that_are_left_out_as_they_may_be_idle() -> None:
    told = Told(exclude_after=1).started().show(101, state="FAILED", exit_code=1).poll().want(2)
    told.decide()
    told.accept(reason="Resources").poll()
    why = "0 of 1: partition gpu has no idle GPU (g3 is left out after failures there)"
    assert told.sizing.reason == why


def test_nothing_is_submitted_while_the_cluster_takes_a_place_for_somebody_else() -> None:
    sizing = SlurmSizing(SlurmConfig(), 1, RUN)
    sizing.want("worker-1", 0.0)
    sizing.give_way(0.0)
    assert not [action for action in sizing.decide(0.0) if isinstance(action, Submit)]
    assert sizing.reason == "0 of 1: makes way for a job that SLURM prefers"
    sizing.observed([], 1.0, 1.0)
    sizing.decide(1.0)
    assert sizing.next_time_s() is not None
    assert [action.name for action in sizing.decide(10.0) if isinstance(action, Submit)] == ["worker-1"]


def test_if_there_are_no_other_nodes_those_left_out_are_used_again() -> None:
    told = Told(exclude_after=1).started().show(101, state="FAILED", exit_code=1).poll().want(2)
    told.decide()
    told.notes()
    told.fail(SlurmRefused("Requested node configuration is not available")).decide()
    assert told.asked == [Submit("worker-2", GPU, ())]
    assert told.notes()[0].startswith("partition gpu has no node but g3: used again")


def test_a_job_that_waits_for_other_nodes_than_those_left_out_moves_when_they_are_in_again() -> None:
    told = Told(exclude_after=1).started().show(101, state="FAILED", exit_code=1).poll().want(2)
    told.decide()
    assert told.asked[0].exclude == ("g3",)
    told.accept(reason="Resources").poll_for(100).decide()
    assert told.cancelled == []
    told.after(WINDOW_S).poll().decide()
    assert told.cancelled == [102]
    told.show(102, state="CANCELLED").poll().decide()
    assert told.asked == [Submit("worker-2", GPU, ())]


# --- reasons ------------------------------------------------------------------------------------------


def local(time_at: float) -> str:
    return time.strftime("%H:%M", time.localtime(time_at))


def why(**changes: object) -> str:
    """The reason while one of two workers runs and the other's job waits."""
    told = Told().started().want(2)
    told.decide()
    return told.accept(**changes).poll().sizing.reason


REASONS = {
    "Resources": "1 of 2: partition gpu has no idle GPU",
    "Priority": "1 of 2: other jobs come first in partition gpu",
    "QOSMaxGRESPerUser": "1 of 2: QOSMaxGRESPerUser (SLURM's limit)",
    "AssocGrpCpuLimit": "1 of 2: AssocGrpCpuLimit (SLURM's limit)",
    "QOSMaxGRESPerJob": "1 of 2: job 102 asks for what a limit of SLURM's gives to no job (QOSMaxGRESPerJob)",
    "QOSMaxWallDurationPerJobLimit": "1 of 2: job 102 asks for what a limit of SLURM's gives to no job "
    "(QOSMaxWallDurationPerJobLimit); it will not start: stop the run, and resume it with a shorter "
    "slurm.time",
    "QOSNotAllowed": "1 of 2: job 102 waits: QOSNotAllowed",
    "ReqNodeNotAvail, UnavailableNodes:g4": "1 of 2: nodes of partition gpu are down, drained or reserved",
    "PartitionDown": "1 of 2: partition gpu is down",
    "BeginTime": "1 of 2: job 102 waits for its begin time",
    "Licenses": "1 of 2: job 102 waits: Licenses",
    "": "1 of 2: 1 job starts",
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_a_job_waits_for(reason: str) -> None:
    assert why(reason=reason) == REASONS[reason]


def test_when_the_next_one_is_expected() -> None:
    at = EPOCH + 1000
    assert why(reason="Resources", start_at=at + 60) == (
        f"1 of 2: partition gpu has no idle GPU, next expected {local(at + 60)}"
    )
    tomorrow = time.strftime("%Y-%m-%d %H:%M", time.localtime(at + 86400))
    assert why(reason="Priority", start_at=at + 86400).endswith(f"next expected {tomorrow}")
    for untold in (at - 60, at + 365 * 86400):  # SLURM's year, of a job without a time limit
        assert why(reason="Resources", start_at=untold) == "1 of 2: partition gpu has no idle GPU"


def test_the_expected_time_does_not_flap() -> None:
    told = Told().want(1)
    told.decide()
    start_at = EPOCH + 5000
    told.accept(reason="Resources", start_at=start_at).poll()
    first = told.sizing.reason
    for shift_s in (50, -50, 100, -100, 0):
        told.show(101, start_at=start_at + shift_s).poll()
        assert told.sizing.reason == first
    told.show(101, start_at=start_at + 1000).poll()
    assert told.sizing.reason == f"0 of 1: partition gpu has no idle GPU, next expected {local(EPOCH + 6000)}"


def test_in_a_line_of_ours_it_is_the_first_that_tells() -> None:
    told = Told(num_min=3).want(1, 2, 3)
    told.decide()
    told.accept(reason="Priority").show(103, reason="Resources").poll()
    assert told.sizing.reason == "0 of 3: partition gpu has no idle GPU"


def test_reasons_of_a_start() -> None:
    told = Told(num_min=3)
    assert told.sizing.reason == ""
    told.want(1, 2, 3).decide()
    assert told.sizing.reason == "0 of 3: 3 jobs start"
    told.accept().run(101).poll()
    assert told.sizing.reason == "1 of 3: 2 jobs start"
    told.run(102, 103).poll()
    assert told.sizing.reason == ""
    told.show(103, state="SUSPENDED").poll()
    assert told.sizing.reason == "2 of 3: job 103 on g103 is SUSPENDED"


def test_unwanted_workers_are_not_missed() -> None:
    told = Told(num_min=2).want(1, 2)
    told.decide()
    told.accept().run(101).poll().unwant(2)
    assert told.sizing.reason == ""


def test_the_reason_says_since_when_slurmctld_is_away() -> None:
    told = Told().started().want(2).poll_fails()
    assert told.sizing.reason == "1 of 2: 1 job starts"
    since = local(told.at)
    told.poll_fails().poll_fails()
    assert told.sizing.reason == f"1 of 2: slurmctld does not answer since {since}: {BUSY}"


def test_one_that_moves() -> None:
    told = crowded()
    told.run(102).poll()
    told.sizing.estimated(IDLE, told.at, told.now_s, told.at)
    assert told.sizing.reason == "1 of 2: 1 job moves to another place"


# --- other runs ---------------------------------------------------------------------------------------


def _other(told: Told, id: int, number: int, **changes: object) -> Told:
    comment = str(Comment("fedcba987654", f"worker-{number}"))
    fields = {"name": f"clicks-worker-{number}", "partition": "gpu", **changes}
    return told.show(id, comment=comment, **fields)


def _six_run(**config: object) -> Told:
    told = Told(**config).want(*range(1, 7))
    while len(told.jobs) < 6:
        told.decide()
        told.accept().run().poll()
    told.want(7).decide()
    told.accept().poll()
    assert told.jobs[107].state == "PENDING", "the bell"
    return told


def test_a_run_that_waits_gets_half_of_the_difference_and_the_bell_is_taken_back() -> None:
    told = _six_run()
    _other(told, 900, 1, reason="Resources")
    told.poll()
    assert told.sizing.reason == "6 of 7: run clicks (fedcba987654) waits for workers, and has 0"
    told.decide()
    assert told.cancelled == [107], "else it would have the place that is given back"
    told.show(107, state="CANCELLED").poll_for(20.0)
    assert not taken(told.sizing.news.returns) and not told.asked
    told.poll_for(20.0)
    assert [name for name, _ in taken(told.sizing.news.returns)] == ["worker-6"], "one waits"
    _other(told, 900, 1, state="RUNNING", node="g106")
    told.unwant(6).show(106, state="CANCELLED").poll()
    assert told.submits() == [7], "nobody waits any more"


def test_who_waits_for_something_else_or_elsewhere_or_is_somebody_elses_leader_holds_up_nobody() -> None:
    told = _six_run()
    _other(told, 900, 1, reason="QOSMaxGRESPerUser")
    _other(told, 901, 2, reason="Resources", partition="cpu")
    _other(told, 902, 3, reason="JobHeldUser")
    _other(told, 903, 4, state="COMPLETED")
    told.show(
        904, comment=str(Comment("fedcba987654", LEADER, "/runs/7")), partition="gpu", reason="Priority"
    )
    told.poll_for(100.0)
    assert not taken(told.sizing.news.returns) and not told.cancelled


def test_sharing_may_be_switched_off_and_is_a_services_where_that_grants_workers() -> None:
    for off in ({"give_back": False}, {}):
        told = _six_run(**off)
        if not off:
            told.sizing.limit_workers(7)
        _other(told, 900, 1, reason="Resources")
        told.poll_for(100.0)
        assert not taken(told.sizing.news.returns) and not told.cancelled
