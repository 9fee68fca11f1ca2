"""How members and clients tell whether a leader lives, will come back, or will not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from elasticflow.cluster import finder as asking
from elasticflow.cluster import presence as presences
from elasticflow.cluster.finder import ASK_LAST_S, Orphaned
from elasticflow.cluster.presence import KEEP_S, NoMaster, RunEnd, find_address, how_it_ended, how_to_kill
from elasticflow.errors import UnknownError
from elasticflow.run.config import Config
from elasticflow.run.folder import Address, HostJob, RunDir, publish
from elasticflow.storage import DirectoryStorage
from elasticflow_slurm import finder
from elasticflow_slurm.client import SlurmBusy, SlurmJob, SlurmRefused
from elasticflow_slurm.comments import Comment
from elasticflow_slurm.finder import ASK_S, REPAIR_S, LeaderFinder, SlurmPresence
from tests.clock import Clock
from tests.slurm.fakes import FakeClient

RUN, ID = "0123456789ab", 12
BEAT_S = 0.5
ENDPOINT = "tcp://node1:4711"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch, finder, asking, presences)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path)
    publish(made.job, HostJob("slurm", str(ID), RUN))
    publish(made.address, Address(ENDPOINT, "node1", 1))
    return made


def leader(state: str, *, number: int = 0, of: str = RUN, reason: str = "", het: bool = True) -> SlurmJob:
    """Component 0 of the leader, or another."""
    return SlurmJob(
        id=ID + number,
        comment=str(Comment(of, "leader", "/runs/a")),
        state=state,
        reason=reason,
        het=number if het else None,
        leader_id=ID if het else None,
    )


def servers(state: str) -> SlurmJob:
    return leader(state, number=1)


class Member:
    """One that hears nothing of its master any more, and asks the finder with each heartbeat."""

    def __init__(self, run: RunDir, clock: Clock, *known: SlurmJob) -> None:
        self.client, self._clock = FakeClient(*known), clock
        self._finder = LeaderFinder(str(run.path), 300.0, client=self.client)

    def search(self, seconds: float = 60.0, *, beat_s: float = BEAT_S) -> str | None:
        """What it found last. Raises Orphaned."""
        end_s, found = self._clock.now_s + seconds, None
        while self._clock.now_s < end_s:
            found = self._finder.find()
            self._clock.now_s += beat_s
        return found

    @property
    def num_asked(self) -> int:
        return self.client.asked["job"]


Search = Callable[..., Member]


@pytest.fixture
def member(run: RunDir, clock: Clock) -> Search:
    return lambda *known: Member(run, clock, *known)


# --- a member whose master is silent -------------------------------------------------------------


def test_it_goes_on_looking_while_the_leader_runs(member: Search) -> None:
    """A master that was killed is back at once, in the same job or in another place."""
    for state in ("RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED"):
        one = member(leader(state), servers(state))
        assert one.search() == ENDPOINT and one.client.calls == []


def test_a_new_endpoint_is_found(member: Search, run: RunDir) -> None:
    one = member(leader("RUNNING"))
    one.search()
    publish(run.address, Address("tcp://node2:1", "node2", 2))
    assert one.search(1.0) == "tcp://node2:1"
    run.address.unlink()
    assert one.search(1.0) is None


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"])
def test_it_ends_when_the_leader_is_over(member: Search, state: str) -> None:
    one = member(leader(state), servers(state))
    with pytest.raises(Orphaned, match=f"its leader, job {ID}, is {state}"):
        one.search(ASK_S + BEAT_S)


@pytest.mark.parametrize("first", [[], [leader("NODE_FAIL")]])
def test_what_is_gone_once_may_be_there(
    member: Search, clock: Clock, monkeypatch: pytest.MonkeyPatch, first: list[SlurmJob]
) -> None:
    """An answer may be cut off, and a job that is being requeued may look as if it was over."""
    one = member(*first)

    def sleep(seconds: float) -> None:
        clock.now_s += seconds
        one.client.known = [leader("RUNNING")]

    monkeypatch.setattr(clock.time, "sleep", sleep)
    assert one.search() == ENDPOINT and one.client.calls == []


def test_a_leader_that_is_not_known_twice_is_gone(member: Search) -> None:
    one = member()
    with pytest.raises(Orphaned, match="does not know its leader's job any more"):
        one.search()
    assert one.num_asked == 2


def test_its_id_is_another_jobs_by_now(member: Search) -> None:
    one = member(leader("RUNNING", of="ffffffffffff"))
    with pytest.raises(Orphaned, match="not know"):
        one.search()


def test_its_id_is_another_jobs_that_waits(member: Search) -> None:
    """Which is nobody's to start."""
    one = member(leader("PENDING", of="ffffffffffff", reason="BeginTime"))
    with pytest.raises(Orphaned):
        one.search()
    assert one.client.calls == []


@pytest.mark.parametrize("error", [SlurmBusy("no answer"), SlurmRefused("Access denied")])
def test_no_answer_ends_nobody(member: Search, error: Exception) -> None:
    one = member(leader("CANCELLED"))
    one.client.error = error
    assert one.search(100.0) == ENDPOINT and one.num_asked > 2
    one.client.error = None
    with pytest.raises(Orphaned):
        one.search(2 * ASK_LAST_S)


def test_a_run_that_is_in_no_job(member: Search, run: RunDir) -> None:
    """Somebody has removed what the run's folder told of it."""
    run.job.unlink()
    with pytest.raises(Orphaned):
        member(leader("RUNNING")).search()


# --- a leader that SLURM starts again ------------------------------------------------------------

START = [("start_now", [ID])]
REPAIR = [("requeue", ID), *START]


def test_one_that_was_requeued_is_started_now(member: Search) -> None:
    one = member(leader("PENDING", reason="BeginTime"), leader("PENDING", number=1, reason="BeginTime"))
    one.search(ASK_S + BEAT_S)
    assert one.client.calls == START


def test_so_is_one_that_is_a_single_job(member: Search) -> None:
    one = member(leader("PENDING", reason="BeginTime", het=False))
    one.search(ASK_S + BEAT_S)
    assert one.client.calls == START and one.client.asked["jobs"] == 0


@pytest.mark.parametrize("state", ["NODE_FAIL", "CANCELLED", "FAILED", "COMPLETED"])
@pytest.mark.parametrize("reason", ["BeginTime", "", "Resources"])
def test_a_component_has_ended_for_good(member: Search, state: str, reason: str) -> None:
    """SLURM would never start the others."""
    one = member(leader("PENDING", reason=reason), servers(state))
    one.search(ASK_S + BEAT_S)
    assert one.client.calls == REPAIR


def test_that_slurm_refuses_to_requeue_it_says_nothing(member: Search) -> None:
    """It says that the job is pending, and repairs it all the same."""
    one = member(leader("PENDING", reason="BeginTime"), servers("NODE_FAIL"))
    one.client.refusals["requeue"] = SlurmRefused("Job is pending execution")
    one.client.refusals["start_now"] = SlurmBusy("no answer")
    one.search(ASK_S + BEAT_S)
    assert one.client.calls == REPAIR
    one.search(REPAIR_S + 2 * ASK_LAST_S)
    assert one.client.calls[: 2 * len(REPAIR)] == REPAIR * 2, "until it runs"


def test_one_member_alone_repairs_it(run: RunDir, clock: Clock) -> None:
    """A second requeue would hit the leader that the first has started."""
    clock.now_s = 10 * REPAIR_S
    members = [Member(run, clock, leader("PENDING"), servers("NODE_FAIL")) for _ in range(5)]
    for one in members:
        now_s = clock.now_s
        one.search(ASK_S + BEAT_S)
        clock.now_s = now_s
    assert [one.client.calls for one in members] == [REPAIR, [], [], [], []]


def test_of_two_at_once_one_repairs_it(run: RunDir, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again, too, when the last repair was long ago: both see it, and neither takes the other's for it."""
    clock.now_s = 10 * REPAIR_S
    assert finder._is_first(run, "repair-12-0", REPAIR_S)
    assert not finder._is_first(run, "repair-12-0", REPAIR_S)
    assert finder._is_first(run, "repair-12-1", REPAIR_S), "another repair"
    clock.now_s += 2 * REPAIR_S
    listed, both = DirectoryStorage.list, threading.Barrier(2)

    def together(storage: DirectoryStorage, folder: str = "") -> list[str]:
        found = listed(storage, folder)
        both.wait(10)
        return found

    monkeypatch.setattr(DirectoryStorage, "list", together)
    with ThreadPoolExecutor(2) as pool:
        first = list(pool.map(lambda _: finder._is_first(run, "repair-12-0", REPAIR_S), range(2)))
    assert sorted(first) == [False, True]


@pytest.mark.parametrize("reason", ["Resources", "Priority", "Nodes required for job are DOWN", ""])
def test_one_that_waits_for_room_is_not_requeued(member: Search, reason: str) -> None:
    """Its begin time may wait behind the reason that SLURM names."""
    one = member(leader("PENDING", reason=reason), leader("PENDING", number=1, reason=reason))
    one.search(ASK_S + BEAT_S)
    assert one.client.calls == START


def test_components_of_other_leaders_do_not_matter(member: Search) -> None:
    other = SlurmJob(
        id=99, state="NODE_FAIL", het=1, leader_id=98, comment=str(Comment(RUN, "leader", "/runs/a"))
    )
    one = member(leader("PENDING", reason="Resources"), servers("PENDING"), other)
    one.search(ASK_S + BEAT_S)
    assert one.client.calls == START


# --- how often SLURM is asked --------------------------------------------------------------------


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
@pytest.mark.parametrize("beat_s", [0.01, 0.5, 5.0])
def test_slurm_is_asked_seldom(member: Search, state: str, beat_s: float) -> None:
    one = member(leader(state, reason="BeginTime"), servers(state))
    one.search(600.0, beat_s=beat_s)
    assert 600 / (1.5 * ASK_LAST_S + 2 * beat_s) - 1 <= one.num_asked <= 600 / ASK_LAST_S + 5


def test_a_short_silence_is_no_reason_to_ask(run: RunDir, clock: Clock) -> None:
    """Nor are many, as there are when masters die and come back."""
    asked = 0
    for _ in range(50):
        one = Member(run, clock, leader("RUNNING"))
        one.search(0.2, beat_s=0.1)
        asked += one.num_asked
    assert asked < 10


def test_members_do_not_ask_all_at_once(run: RunDir, clock: Clock) -> None:
    members = [Member(run, clock, leader("RUNNING")) for _ in range(100)]
    begun_s, most, before = clock.now_s, 0, 0
    while clock.now_s < begun_s + 30.0:
        now_s = clock.now_s
        for one in members:
            one.search(0.05, beat_s=0.1)
            clock.now_s = now_s
        clock.now_s += 0.1
        asked = sum(one.num_asked for one in members)
        most, before = max(most, asked - before), asked
    assert before > 150 and most < 20


# --- clients -------------------------------------------------------------------------------------


def presence(run: RunDir, *known: SlurmJob) -> tuple[SlurmPresence, FakeClient]:
    client = FakeClient(*known)
    return SlurmPresence(str(run.path), client), client


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETING", "REQUEUED", "SUSPENDED"])
def test_a_run_has_a_master_or_will(run: RunDir, clock: Clock, state: str) -> None:
    assert presence(run, leader(state))[0].is_alive()


def test_a_run_is_over(run: RunDir, clock: Clock) -> None:
    assert not presence(run, leader("CANCELLED"))[0].is_alive()
    assert not presence(run)[0].is_alive()
    assert not presence(run, leader("RUNNING", of="ffffffffffff"))[0].is_alive()


def test_another_run_in_its_folder_is_its_end(run: RunDir, clock: Clock) -> None:
    """Whoever follows it does not go over to that one, nor takes its report for this one's."""
    client = FakeClient(leader("RUNNING"), leader("RUNNING", number=2, of="ffffffffffff"))
    one = SlurmPresence(str(run.path), client)
    assert one.is_alive() and not one.is_anothers()
    publish(run.job, HostJob("slurm", str(ID + 2), "ffffffffffff"))
    clock.now_s += KEEP_S
    assert not one.is_alive() and one.is_anothers()
    assert "its folder is another run's by now" in how_it_ended(run, one)
    assert SlurmPresence(str(run.path), client).is_alive(), "that one goes on"


def test_a_report_is_the_end(run: RunDir, clock: Clock) -> None:
    one, client = presence(run, leader("RUNNING"))
    run.report.write_text("{}")
    assert not one.is_alive() and client.asked["job"] == 0


def test_a_client_may_ask_again_and_again(run: RunDir, clock: Clock) -> None:
    one, client = presence(run, leader("RUNNING"))
    for _ in range(1000):
        assert one.is_alive()
        clock.now_s += KEEP_S / 100
    assert client.asked["job"] <= 12


def test_a_busy_slurm_is_no_end(run: RunDir, clock: Clock) -> None:
    one, client = presence(run, leader("RUNNING"))
    client.error = SlurmBusy("no answer")
    assert one.is_alive()
    client.error, client.known = None, []
    clock.now_s += KEEP_S
    assert not one.is_alive()
    client.error = SlurmBusy("no answer")
    clock.now_s += KEEP_S
    assert not one.is_alive(), "what was known last"


def test_an_error_of_slurm_is_told(run: RunDir, clock: Clock) -> None:
    one, client = presence(run)
    client.error = SlurmRefused("Access denied")
    with pytest.raises(UnknownError, match="Access denied"):
        one.is_alive()


def test_while_slurm_is_silent_nobody_is_told_that_a_run_is_over_or_not(run: RunDir, clock: Clock) -> None:
    """Unless its master answers, who may be there."""
    one, client = presence(run)
    client.error = SlurmBusy("no answer")
    assert one.is_alive() and one.has_master() and one.silence() == "no answer"
    run.address.unlink()
    with pytest.raises(NoMaster, match="whether it goes on is not known just now: no answer"):
        find_address(run, one, 0.0)
    assert one.waits_for() == "no answer"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("", "SLURM has not looked at it yet"),
        ("Resources", "partition cpu has no idle CPUs"),
        ("PartitionTimeLimit", "it will not start by itself. Cancel it, and submit it with a shorter"),
        ("launch failed requeued held", "see the run's folder"),
        ("launch failed requeued held", f"once that is mended, 'scontrol release {ID}' lets it go on"),
        ("AssocMaxJobsLimit", "AssocMaxJobsLimit (SLURM's limit)"),
        (
            "QOSMaxWallDurationPerJobLimit",
            "start by itself. Cancel it, and submit it with a shorter slurm.lea",
        ),
        (
            "AssocMaxCpuPerJobLimit",
            "no job (AssocMaxCpuPerJobLimit), and will not start by itself. Cancel it",
        ),
        ("Cleaning", f"job {ID} waits: Cleaning"),
    ],
)
def test_what_a_leader_waits_for_is_told_in_words(run: RunDir, clock: Clock, reason: str, words: str) -> None:
    waits = SlurmJob(id=ID, state="PENDING", reason=reason, partition="cpu", comment=leader("X").comment)
    one, _ = presence(run, waits)
    assert one.is_alive() and not one.has_master()
    assert one.waits_for().startswith(f"its leader, job {ID}, waits: ") and words in one.waits_for()


def test_a_leader_of_two_components_says_what_either_waits_for(run: RunDir, clock: Clock) -> None:
    """SLURM says of the first that it waits for resources, idle or not."""
    first = {"state": "PENDING", "partition": "cpu", "leader_id": ID}
    waits = SlurmJob(id=ID, het=0, reason="Resources", comment=leader("X").comment, **first)
    others = SlurmJob(id=ID + 1, het=1, reason="AssocGrpCpuLimit", **first)
    one, client = presence(run, waits, others)
    assert one.is_alive() and "waits: AssocGrpCpuLimit (SLURM's limit)" in one.waits_for()
    client.known = [waits, msgspec.structs.replace(others, reason="Priority")]
    clock.now_s += KEEP_S
    assert one.is_alive() and "waits: partition cpu has no idle CPUs" in one.waits_for()


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        ("RESV_DEL_HOLD", "Cancel it, and submit it with another slurm.leader."),
        ("REQUEUE_HOLD", f"'scontrol release {ID}' lets it go on; or cancel it."),
    ],
)
def test_a_leader_that_slurm_holds_can_be_told_of_and_cancelled(
    run: RunDir, clock: Clock, state: str, advice: str
) -> None:
    """As one whose reservation ended before it could begin."""
    words = "Reservation mine was deleted"
    held = {"state": state, "reason": words, "het": 0, "leader_id": ID}
    one, client = presence(run, SlurmJob(id=ID, comment=leader("X").comment, **held))
    assert one.is_alive() and not one.has_master()
    assert one.waits_for().endswith(f"job {ID} waits: {words}: it will not start by itself. {advice}")
    assert one.cancel() == f"job {ID} is cancelled; it had not begun"
    assert client.calls == [("cancel", [ID])]


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED"])
def test_a_leader_that_is_suspended_is_not_to_be_killed(run: RunDir, clock: Clock, state: str) -> None:
    """Its master says nothing, as one that hangs."""
    one, _ = presence(run, leader(state))
    assert one.is_alive() and one.has_master()
    words = {
        "RUNNING": "'kill -9 1' there ends it",
        "SUSPENDED": f"once a job is over that preempted it, else by 'scontrol resume {ID}'",
    }
    assert words.pop(state) in how_to_kill(run, one) and words.popitem()[1] not in how_to_kill(run, one)


def test_a_leader_that_is_a_task_is_named_alone(run: RunDir, clock: Clock) -> None:
    """The last task of an array has the array's id, which would name all of them."""
    task = {"id": ID, "comment": leader("X").comment, "task": f"{ID}_1"}
    one, _ = presence(run, SlurmJob(**task, state="SUSPENDED"))
    assert one.is_alive() and f"else by 'scontrol resume {ID}_1'" in one.paused()
    one, client = presence(run, SlurmJob(**task, state="PENDING", reason="JobHeldUser"))
    assert one.is_alive() and f"scontrol release {ID}_1 " in one.waits_for()
    assert one.cancel() and client.calls == [("cancel", [f"{ID}_1"])]
    member = Member(run, clock, SlurmJob(**task, state="PENDING", reason="BeginTime"))
    member.search(5.0)
    assert member.client.calls == [("start_now", [f"{ID}_1"])]


def test_slurms_own_word_of_an_end(run: RunDir, clock: Clock) -> None:
    killed = {"id": ID, "reason": "NonZeroExitCode", "node": "node1", "exit_code": 137}
    one, client = presence(run, SlurmJob(**killed, state="FAILED", comment=leader("FAILED").comment))
    end = "ended as FAILED on node1 (NonZeroExitCode, by SIGKILL, exit code 137)"
    assert one.end() == RunEnd(f"job {ID}", "FAILED", end)
    assert f"left no report: job {ID} {end}; the last line in its leader's log: " in how_it_ended(run, one)


def test_a_leader_that_never_began_is_not_only_to_be_resumed(run: RunDir, clock: Clock) -> None:
    """The jobs' Python is missing, say: to resume it as it is would fail as well."""
    run.logs.mkdir()
    (run.logs / "leader.log").write_text("slurm_script: line 21: /nope/python: No such file or directory\n")
    publish(run.settings, Config(slurm={"python": "/nope/python"}))
    lost = leader("FAILED", reason="NonZeroExitCode")
    one, _ = presence(run, lost)
    told = how_it_ended(run, one)
    assert "may be slurm.python (/nope/python now), slurm.setup or" in told
    assert told.endswith(f": elasticflow submit FILE --resume --run-dir {run.path}")
    run.journal.write_text("{}")
    assert how_it_ended(run, one).endswith(f"; go on with --resume: {run.resume_command}")
    run.journal.unlink()
    one, _ = presence(run, leader("CANCELLED"))
    assert how_it_ended(run, one).endswith(f"; go on with --resume: {run.resume_command}")


def test_slurms_accounting_knows_more(run: RunDir, clock: Clock) -> None:
    one, client = presence(run)
    client.past = [SlurmJob(id=ID, state="CANCELLED", exit_code=0)]
    assert one.end() == RunEnd(f"job {ID}", "CANCELLED", "ended as CANCELLED (exit code 0)")
    client.past = []
    assert one.end() == RunEnd(f"job {ID}", "", "is not known to SLURM any more, which forgets jobs")


def test_waiting_for_the_end(run: RunDir, clock: Clock) -> None:
    one, client = presence(run, leader("RUNNING"))
    end_s = clock.now_s + 20.0
    sleep = clock.time.sleep

    def until(seconds: float) -> None:
        sleep(seconds)
        client.known = [leader("RUNNING" if clock.now_s < end_s else "COMPLETED")]

    clock.time.sleep = until  # type: ignore[assignment]
    one.wait_until_over(60.0)
    assert end_s <= clock.now_s <= end_s + 2 * KEEP_S
