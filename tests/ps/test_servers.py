"""Servers die, freeze and come back from each other's memory: the bits are those of a quiet run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_job import (
    LAYOUT,
    PARCEL_BYTES,
    SCHEDULE,
    WAIT_S,
    FakeWorker,
    Job,
    Process,
    evaluations,
)

from elasticflow.checkpoint import Reader, commits, load_manifest
from elasticflow.step.layout import Rule, Vector
from elasticflow.storage import DirectoryStorage
from elasticflow.wire.messages import (
    Beat,
    Compute,
    Cut,
    Fetch,
    Halt,
    Initial,
    Join,
    Keep,
    Lost,
    Norms,
    Offer,
    Progress,
    Pull,
    Push,
    Ready,
    Safe,
    Settled,
    Troubled,
    Version,
    Written,
)  # fmt: skip

END = SCHEDULE.total_ticks

Start = Callable[..., tuple[Job, FakeWorker]]


@pytest.fixture(autouse=True)
def many_parcels_and_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticflow_ps.parcels.CHUNK_BYTES", PARCEL_BYTES)
    monkeypatch.setattr("elasticflow_ps.snapshots.REST", 0.0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers and a worker; ends them after the test."""
    begun: list[Any] = []

    def begin(*arguments: Any, **more: Any) -> tuple[Job, FakeWorker]:
        job, worker = Job(DirectoryStorage(tmp_path), *arguments, **more), FakeWorker()
        begun.extend([worker, job])
        worker.connect(job.assign())
        return job, worker

    yield begin
    for each in begun:
        each.close()


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[list[bytes], Any]]:
    """The model, and what is told of it, where nothing happens: without and with clipping."""
    found = {}
    for clips in (False, True):
        job, worker = Job(DirectoryStorage(tmp_path_factory.mktemp("quiet")), 1, clips=clips), FakeWorker()
        worker.connect(job.assign())
        worker.train(END)
        job.row[0].link.hear(Progress, lambda progress: progress.last)
        found[clips] = worker.model(), evaluations(job)
        worker.close()
        job.close()
    return found


def finish(job: Job, worker: FakeWorker, quiet: dict[bool, Any], clips: bool = False) -> None:
    """Trains to the end, and looks at what came of it."""
    worker.train(END)
    job.row[0].link.hear(Progress, lambda p: p.last and p.generation == job.generation)
    job.written()
    assert worker.model() == quiet[clips][0]
    assert evaluations(job) == quiet[clips][1]
    assert all(process.server._dropped == 0 for process in job.row)
    assert all(process.server._keeping.dropped == 0 for process in job.row)


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize(("servers", "lost"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_a_lost_server_comes_back_from_its_keeper(
    start: Start, quiet: dict[bool, Any], servers: int, lost: int, clips: bool
) -> None:
    job, worker = start(servers, clips=clips)
    worker.train_until_kept(2)
    kept, before = worker.snapshots[-2], worker.version
    job.replace(lost)
    for place, process in enumerate(job.row):
        neighbour = (place - lost) % servers in (1, servers - 1)  # its keeper, and whom it keeps for
        if place != lost and neighbour:
            process.link.hear(Lost, lambda message: message.member == job.dead[0].name)
    assignment = job.regroup(lost)
    assert assignment.in_memory and kept <= assignment.start_tick <= before + 1
    worker.connect(assignment)
    worker.train_until_kept()
    job.replace((lost + 1) % servers)  # who has just become, or just kept for, the new one
    worker.connect(job.regroup((lost + 1) % servers))
    finish(job, worker, quiet, clips)


def test_that_all_is_done_is_said_before_who_has_left(start: Start) -> None:
    """Else the master would start another worker in its place. The server finds both at once."""
    job, worker = start(1)
    worker.train(END - 1)
    (server,) = job.row
    server.freeze()
    assert server.link.frozen.wait(WAIT_S)
    worker.push()
    worker.disconnect(linger_ms=int(WAIT_S * 1000))
    server.thaw_after_loss()
    lost = server.link.hear(Lost)
    said = [each for each in server.link.said if isinstance(each, (Progress, Lost))]
    assert said.index(lost) > 0
    before = said[said.index(lost) - 1]
    assert isinstance(before, Progress) and before.last


def test_who_comes_again_is_asked_for_nothing_before_it_has_the_version(start: Start) -> None:
    """The end of its other connection is not heard before: there it waited, and it has no version here."""
    job, before = start(1)
    before.links[0][0].send(Pull(version=1, have=0))
    assert isinstance(before.wait_for_anything(0), Compute), "nobody computes"
    again = FakeWorker()
    again.greet(job.assignment)
    again.links[0][0].send(Pull(version=-1))
    parcels = len(again.links[0][1])
    assert [type(again.wait_for_anything(0)) for _ in range(parcels)] == [Version] * parcels
    again.links[0][0].send(Pull(version=1, have=0))
    assert isinstance(again.wait_for_anything(0), Compute)
    again.close()


def test_a_standby_keeps_for_the_only_server(start: Start, quiet: dict[bool, Any]) -> None:
    job, worker = start(2, standby=True)
    worker.train_until_kept(2)
    job.replace(0)
    assignment = job.regroup(0)
    assert assignment.servers[0].holder == "server-1" and assignment.in_memory
    worker.connect(assignment)
    worker.train_until_kept()
    job.replace(1)
    worker.connect(job.regroup(1))
    worker.train_until_kept()
    (kept,) = job.offers([1])[1]
    assert kept[0] == 0, "of the only place with chunks, and one version of it"
    worker.connect(job.regroup())
    finish(job, worker, quiet)


def test_a_standby_can_take_the_place_itself(start: Start, quiet: dict[bool, Any]) -> None:
    job, worker = start(2, standby=True)
    worker.train_until_kept()
    job.replace(0)
    job.row.reverse()
    offers = job.offers([0])[0]
    worker.connect(job.assign(start_tick=max(v for _, v in offers), in_memory=True))
    assert worker.version > 0
    finish(job, worker, quiet)


def test_servers_that_are_halted_in_the_middle_of_a_step_go_back(
    start: Start, quiet: dict[bool, Any]
) -> None:
    """One of them has made the next version, one half of it, one nothing of it."""
    job, worker = start(3)
    worker.train_until_kept()
    worker.push([0])
    worker.push([1], parcels=1)
    worker.wait_for_one_parcel(0)
    worker.wait_for_one_parcel(1)
    offers = job.offers(range(3))
    whole = [{v for at, v in offers[place] if at == place} for place in range(3)]
    assert worker.version not in whole[1] and max(whole[1]) < worker.version
    assignment = job.regroup()
    assert 0 < assignment.start_tick <= worker.version
    worker.connect(assignment)
    finish(job, worker, quiet)


def test_without_a_loss_they_go_on_where_they_are(start: Start, quiet: dict[bool, Any]) -> None:
    """The master could not be sure that one still lives; it does."""
    job, worker = start(2, snapshot_s=0.0)
    worker.train(7)
    assignment = job.regroup()
    assert assignment.in_memory and assignment.start_tick == 7
    worker.connect(assignment)
    finish(job, worker, quiet)


def test_without_snapshots_all_begins_anew(start: Start, quiet: dict[bool, Any]) -> None:
    job, worker = start(2, snapshot_s=0.0)
    worker.train(7)
    assert not worker.snapshots
    job.replace(1)
    assignment = job.regroup(1)
    assert not assignment.in_memory
    worker.connect(assignment)
    finish(job, worker, quiet)


def test_a_snapshot_that_its_keeper_did_not_take_in_is_not_gone_back_to(
    start: Start, quiet: dict[bool, Any]
) -> None:
    job, worker = start(3)
    worker.train_until_kept()
    job.row[2].freeze()  # keeper of place 1
    ordered = worker.orders.snapshot
    worker.push([0, 1])
    worker.wait_for_one_parcel(0)
    worker.wait_for_one_parcel(1)
    assert ordered
    job.replace(2)
    assignment = job.regroup(2)
    assert assignment.in_memory and assignment.start_tick in worker.snapshots[:-1]
    worker.connect(assignment)
    finish(job, worker, quiet)


def test_a_holder_dies_while_it_is_asked(start: Start, quiet: dict[bool, Any]) -> None:
    """The new server hears of it, waits, and obeys."""
    job, worker = start(3)
    worker.train_until_kept()
    job.replace(1)
    job.offers([0, 2])
    job.row[2].freeze()
    kept = max(v for at, v in job.row[2].link.hear(Offer).held if at == 1)
    job.assign(wait=False, start_tick=kept, in_memory=True, holders={1: job.row[2].name})
    job.row[0].link.hear(Ready, lambda ready: ready.generation == job.generation)
    assert not [m for m in job.row[1].link.said if isinstance(m, Ready)]
    holder = job.row[2].name
    job.replace(2)
    job.row[1].link.hear(Lost, lambda lost: lost.member == holder)
    assignment = job.regroup(2)
    assert not assignment.in_memory, "both who had place 1 are dead"
    worker.connect(assignment)
    finish(job, worker, quiet)


def test_a_halt_ends_a_fetch(start: Start, quiet: dict[bool, Any]) -> None:
    """The holder hangs, without a word, and lives on when the others have given it up."""
    job, worker = start(3)
    worker.train_until_kept()
    job.replace(1)
    job.offers([0, 2])
    frozen = job.row[2]
    frozen.freeze()
    kept = max(v for at, v in frozen.link.hear(Offer).held if at == 1)
    job.assign(wait=False, start_tick=kept, in_memory=True, holders={1: frozen.name})
    assert job.offers([1])[1] == set(), "what it has not got yet it cannot give"
    job.row[2] = Process(job, "server-9")
    job.dead.append(frozen)
    worker.connect(job.regroup(2))
    finish(job, worker, quiet)
    frozen.kill()


def test_a_generation_that_begins_at_the_end_writes_its_parts(start: Start, quiet: dict[bool, Any]) -> None:
    job, worker = start(2)
    worker.train(END)
    for process in job.row:
        process.link.hear(Written, lambda written: written.last)
    assignment = job.regroup()
    assert (assignment.start_tick, assignment.in_memory) == (END, True)
    worker.connect(assignment)
    finish(job, worker, quiet)
    assert all(part.file.startswith("generation-2-server-") for part in job.written()[1])


def checkpointed(job: Job, worker: FakeWorker) -> int:
    """Has a checkpoint cut and commits it; its step."""
    job.row[0].link.tell(Cut())
    while not worker.orders.cut:
        worker.step()
    worker.step()
    return job.commit().step


def test_from_storage(start: Start, quiet: dict[bool, Any]) -> None:
    """After a fault that took what there was in memory; and by servers that have it all in memory still."""
    job, worker = start(2)
    worker.train(3)
    step = checkpointed(job, worker)
    tick = worker.version
    worker.train_until_kept(2)
    job.offers([0, 1])
    worker.connect(job.assign(start_tick=tick, restore_step=step))
    worker.train_until_kept()
    job.offers([0, 1])
    job.replace(0)
    job.replace(1)
    worker.connect(job.assign(start_tick=tick, restore_step=step))
    finish(job, worker, quiet)


def test_a_part_is_what_was_cut_and_bears_the_generations_name(start: Start) -> None:
    job, worker = start(2)
    worker.train(5)
    step = checkpointed(job, worker)
    at_cut = worker.model()
    worker.train(30)  # while it is written, as far as the disk is slow
    assert commits(job.storage) == [step]
    manifest = load_manifest(job.storage, step)
    assert [part.file for part in manifest.parts] == [f"generation-1-server-{n}.h5" for n in range(2)]
    saved = Vector(LAYOUT)
    with Reader(job.storage, manifest) as reader:
        for part in manifest.parts:
            for number in part.chunks:
                saved.chunk(LAYOUT.chunks[number])[:] = reader.read_chunk(number)["value"]
    kept = zip(saved.groups, LAYOUT.groups, strict=True)
    assert [flat.tobytes() for flat, group in kept if group.rule is not Rule.REPORT] == at_cut


def test_a_checkpoint_of_a_generation_that_is_over_is_told_as_such(start: Start) -> None:
    job, worker = start(2)
    worker.train(5)
    job.row[0].link.tell(Cut())
    while not worker.orders.cut:
        worker.step()
    worker.step()
    worker.connect(job.regroup())
    for process in job.row:
        assert process.link.hear(Written).generation == 1


def test_storage_that_fails_is_told_and_training_goes_on(
    start: Start, quiet: dict[bool, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, worker = start(1)

    def refuse(name: str) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(job.storage, "create", refuse)
        job.row[0].link.tell(Cut())
        while not worker.orders.cut:
            worker.step()
        worker.step()
        link = job.row[0].link
        assert "No space left" in link.hear(Troubled).text
        written = link.hear(Written)
        assert written.part is None and "No space left" in written.error
        link.tell(Settled(tick=written.tick))
    checkpointed_at = worker.version
    job.row[0].link.said.remove(written)
    link.tell(Cut())
    worker.train(checkpointed_at + 3)
    assert link.hear(Written).part
    assert link.hear(Troubled, lambda troubled: not troubled.text)
    finish(job, worker, quiet)


# --- the master ----------------------------------------------------------------------------------


def test_a_new_master_is_told_all_that_stands(start: Start) -> None:
    job, worker = start(2)
    worker.train(45)  # past the first evaluation
    step = checkpointed(job, worker)
    leader, other = (process.link for process in job.row)
    for link in (leader, other):
        link.said.clear()
        link.tell(Beat(incarnation=2))
        assert link.hear(Ready).generation == 1
        assert link.hear(Written).part
    progress = leader.hear(Progress)
    assert [tick for tick, _ in progress.evaluations] == [40]
    assert SCHEDULE.steps_before(progress.version) >= step
    leader.tell(Settled(tick=progress.version))
    leader.said.clear()
    leader.tell(Beat(incarnation=3))
    leader.hear(Progress)
    job.offers([0, 1])
    assert not [message for message in leader.said if isinstance(message, Written)]
    for link in (leader, other):
        link.said.clear()
        link.tell(Beat(incarnation=4))
        assert link.hear(Offer).generation == 2
        assert not [message for message in link.said if isinstance(message, Ready)]


def test_who_is_not_assigned_joins_again_and_can_be_halted(tmp_path: Path) -> None:
    job = Job(DirectoryStorage(tmp_path), 1)
    (process,) = job.row
    process.link.said.clear()
    process.link.tell(Beat(incarnation=2))
    assert process.link.hear(Join).endpoint == process.endpoint
    assert job.offers([0])[0] == set()
    assert process.server.heartbeat().generation == 0
    job.assign()
    assert process.server.heartbeat().generation == 1
    job.close()


def test_what_is_past_is_ignored(start: Start, quiet: dict[bool, Any]) -> None:
    """Halts and assignments of generations that have begun, and all that workers still say in them."""
    job, worker = start(2)
    worker.train(3)
    late = FakeWorker("late")
    first = job.assignment
    late.connect(first, at=3)
    worker.connect(job.regroup())
    for process in job.row:
        process.link.said.clear()
        process.link.tell(Halt(generation=2))
        process.link.tell(first)
    late.push(finish=True)
    worker.train(10)
    assert not [m for process in job.row for m in process.link.said if isinstance(m, (Offer, Ready))]
    late.close()
    worker.train(END)
    assert worker.model() == quiet[False][0]


# --- nonsense ------------------------------------------------------------------------------------


def test_nonsense_is_dropped_and_counted_and_changes_nothing(start: Start, quiet: dict[bool, Any]) -> None:
    """From one who has the key, and says anything at all, with arrays that never fit."""
    job, worker = start(2, clips=True)
    rng = random.Random(7)

    def whole() -> int:
        return rng.choice([-1, 0, 0, 1, 1, 2, 3, 7, worker.version, worker.version + 1, END, 2**52])

    def real() -> float:
        return rng.choice([-1.0, 0.0, 1e-3, 1e300])

    def message() -> Any:
        kind = rng.choice([Push, Pull, Initial, Norms, Fetch, Keep, Safe])
        if kind is Push:
            return Push(
                tick=whole(), parcel=whole(), level=whole(), index=whole(), empty=rng.random() < 0.5,
                lr=real(), cut=True, snapshot=True, finish=True, slice_s=real(), pull=True,
            )  # fmt: skip
        if kind is Norms:
            pairs = tuple((whole(), real()) for _ in range(rng.randint(0, 9)))
            return Norms(tick=whole(), norms=pairs)
        return kind(**{name: whole() for name in kind.__struct_fields__})

    mallory = FakeWorker("mallory")
    mallory.connect(job.assignment)
    for _ in range(10):
        for link, _ in mallory.links:
            for _ in range(100):
                link.send(message(), [np.zeros(rng.randint(1, 9), np.uint8)])
        worker.train(worker.version + 5)
    worker.train(END)
    assert worker.model() == quiet[True][0]
    for process in job.row:
        assert process.server.heartbeat().dropped > 500
    mallory.close()


def test_a_member_that_lies_about_snapshots_harms_no_model(start: Start, quiet: dict[bool, Any]) -> None:
    """It is the leading server, sends to keep what is not so, and asks as if it were a worker."""
    job, worker = start(3)
    worker.train_until_kept()
    liar = FakeWorker("server-0")
    liar.greet(job.assignment)
    (link, _) = liar.links[1]
    for version in (-1, worker.version, END, END + 1):
        for parcel in range(-1, 3):
            link.send(Keep(place=0, version=version, parcel=parcel))
            link.send(Keep(place=1, version=version, parcel=parcel))
            link.send(Safe(place=parcel, version=version))
    link.send(Pull(version=-1))
    worker.train(END)
    assert job.row[1].server.heartbeat().dropped > 20
    assert worker.model() == quiet[False][0]
    liar.close()
