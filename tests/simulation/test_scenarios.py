"""Single faults at many moments, and what they cost; see ``laws`` for what holds in all of these."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from elasticflow.checkpoint import commits, load_manifest
from elasticflow.master.members import RunState
from elasticflow.storage import DirectoryStorage
from elasticflow.training.standing import Plateau, Watch, WatchRules
from elasticflow_ps.snapshots import TakeAction

from .histories import FOR_GOOD
from .laws import ROUNDED_S
from .world import AMBUSHES, Fault, Shape, World

BACKUPS_AT_MOST = 1.25
"""Slices computed in a run without faults, in multiples of those there are: the first tick has no plan."""
LONG = 2000
"""Events of an undisturbed run, about."""


def shape(**changes: object) -> Shape:
    """Two epochs of four steps and an evaluation; two servers, three workers."""
    values: dict[str, object] = {
        **{"num_records": 29, "num_test": 9, "slices": 8, "per_slice": 1, "workers": 3, "servers": 2},
        **{"slice_s": 0.05, "write_s": 0.01, "heartbeat_s": 0.2, "suspect_s": 0.5, "lost_s": 4.0},
        "parcel_bytes": 256,
    }
    return Shape(**{**values, **changes})  # type: ignore[arg-type]


def asynchronous(**changes: object) -> Shape:
    return shape(asynchronous=True, optimizer="sgd", **changes)


def finish(*faults: Fault, seed: int = 0, **changes: object) -> World:
    """A run that ends as it should."""
    world = World(shape(**changes), faults, seed)
    end = world.run()
    assert end and end.state is RunState.FINISHED, end
    return world


def slices_of(world: World) -> int:
    """That hold records."""
    schedule = world.shape.schedule
    ticks = [schedule.at(tick) for tick in range(schedule.total_ticks)]
    return sum(schedule.used_slices(work.num_records) for work in ticks)


# --- without faults ------------------------------------------------------------------------------


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("servers", [1, 2, 3, 6])
def test_undisturbed(servers: int, clips: bool) -> None:
    worlds = [finish(seed=seed, servers=servers, clips=clips, parcel_bytes=64) for seed in range(4)]
    assert all(world.num_computed <= BACKUPS_AT_MOST * slices_of(world) for world in worlds)
    assert all(list(world.laws.commits) == [2, 4, 6, 8] for world in worlds), "each second step"


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("after", range(300, 1500, 200))
@pytest.mark.parametrize("kind", ["kill leader", "kill last"])
def test_servers_are_lost_between_what_is_known_of_tensors_and_their_update(
    kind: str, after: int, clips: bool
) -> None:
    finish(Fault(after, kind, 0), servers=3, optimizer="lamb", clips=clips, parcel_bytes=64, seed=after)


@pytest.mark.parametrize("faults", [(), (Fault(300, "slow worker", 1, 1.0),)])
def test_undisturbed_and_asynchronous(faults: tuple[Fault, ...]) -> None:
    """Somebody slow has given away what it has not begun, and next to nothing is computed twice."""
    world = World(asynchronous(), faults)
    assert world.run()
    assert world.num_computed <= BACKUPS_AT_MOST * slices_of(world)


@pytest.mark.parametrize(("after", "pick", "seed"), [(300, 3, 1), (150, 0, 0)])
def test_rows_are_asked_for_before_their_table_is_at_that_version(after: int, pick: int, seed: int) -> None:
    """Asynchronously, after an evaluation, by who has all other parcels: nobody stands still for that."""
    world = World(
        asynchronous(tables=True, shared_memory=after == 150), (Fault(after, "kill servers", pick),), seed
    )
    assert world.run()


@pytest.mark.parametrize("faults", [(), (Fault(500, "kill worker", 1), Fault(7000, "kill master", 0))])
def test_workers_for_whom_there_are_no_slices_are_given_back(
    monkeypatch: pytest.MonkeyPatch, faults: tuple[Fault, ...]
) -> None:
    """8 slices are 2 for each of 6 workers, as for each of 4; of those, 2 are half as fast."""
    for name, value in {"COST": 1.0, "SETTLED_S": 1.0, "MEASURE_S": 0.5}.items():  # in a run of few steps
        monkeypatch.setattr(f"elasticflow.master.gain.{name}", value)
    world = finish(*faults, workers=6, elastic=True, num_records=480, epochs=1, slice_s=0.15)
    assert world.state and world.state.target == 4
    assert world.state.reason.startswith("4 workers are as fast as 6")


@pytest.mark.parametrize(
    "way",
    [
        {"shared_memory": True},
        {"compression": "bf16"},
        {"tables": True},
        {"overlap": False},
        {"optimizer": "adam", "shared_memory": True, "tables": True},
        {"parcel_bytes": 1 << 20},
    ],
    ids=str,
)
def test_ways_of_arrays(way: dict[str, object]) -> None:
    for seed in range(3):
        finish(Fault(400 + 100 * seed, "kill server", seed), seed=seed, **way)


@pytest.mark.parametrize(("dark", "kill", "seed"), [(1087, 1139, 286), (1245, 1249, 861), (671, 776, 906)])
def test_a_commit_that_only_the_disk_knows_of_which_is_dark_as_the_next_master_begins(
    dark: int, kill: int, seed: int
) -> None:
    finish(Fault(dark, "disk dark", 0, 1.0), Fault(kill, "kill master", 0), seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_standby_that_comes_late_costs_no_step(seed: int) -> None:
    """The run begins without it, and pauses to take it in."""
    world = finish(seed=seed, servers=1, homeless_s=8.0, epochs=12, slice_s=0.15)
    assert world.state and world.state.row.generation == 2
    assert "server-1" in world.state.row.names
    assert world.num_computed <= BACKUPS_AT_MOST * slices_of(world)


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("after", [400, 1700, 2600, 3500])
def test_a_server_whose_standby_is_late_is_killed(after: int, tables: bool) -> None:
    """Before it was left out, without it, and with it."""
    how = {"servers": 1, "homeless_s": 8.0, "epochs": 12, "slice_s": 0.15, "tables": tables}
    finish(Fault(after, "kill server", 0), seed=after, **how)


# --- what evaluations decide ---------------------------------------------------------------------

RULES = WatchRules(
    best=Watch(metric="error", mode="min"),
    stopping=Watch(metric="cost", mode="min", patience=2, least_gain=10.0),
    plateau=Plateau(metric="error", mode="min", patience=3, factor=0.25, least=0.0),
)


@pytest.mark.parametrize("kind", ["none", "kill worker", "kill server", "kill servers", "kill master"])
def test_a_run_stops_where_its_evaluations_say(kind: str) -> None:
    """Whoever dies, and when; the best checkpoint is kept beside the last. The laws compare the models."""

    def look(world: World) -> None:
        storage = DirectoryStorage(world.path)
        standing = load_manifest(storage, max(commits(storage))).standing
        assert standing and (standing.scale, standing.best.step) == (0.25, 1), standing
        assert commits(storage) == [1, 5]

    for after in range(100, 3000, 577) if kind != "none" else [0]:
        faults = [Fault(after, kind, after)] if kind != "none" else []
        world = World(shape(rules=RULES, evaluate_every=1, epochs=3, keep=1), faults, after)
        end = world.run(partial(look, world))
        assert end and "stopped early, after 5 of 12 steps: cost was best" in end.text


@pytest.mark.parametrize("kind", ["none", "kill worker", "kill server", "kill servers", "kill master"])
@pytest.mark.parametrize(
    "made",
    [shape, partial(shape, carried=True), asynchronous],
    ids=["parameter server", "all reduce", "asynchronous"],
)
def test_a_run_stops_where_its_program_says(kind: str, made: Callable[..., Shape]) -> None:
    """``on_epoch`` is asked by a server of any worker, whoever dies: what it says is what the model is."""

    def look(world: World) -> None:
        storage = DirectoryStorage(world.path)
        standing = load_manifest(storage, 3).standing
        assert standing and standing.advised == "call 3" and not standing.asks
        assert standing.factor == (1.0 if made is asynchronous else 0.25**2)
        # What a master that is killed was committing is given up if a server is lost as well; never the last.
        given_up = {1, 2} if kind == "kill master" and world.shape.carried else set()
        assert {1, 2, 3} - given_up <= {*commits(storage)} <= {1, 2, 3}

    rules = WatchRules(consults="its hash")
    for after in range(100, 2600, 377) if kind != "none" else [0]:
        faults = [Fault(after, kind, after)] if kind != "none" else []
        world = World(made(rules=rules, evaluate_every=1, epochs=3, keep=9), faults, after)
        end = world.run(partial(look, world))
        assert end and "stopped early, after 3 of 12 steps: on_epoch(): call 3" in end.text


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize(
    "rules", [WatchRules(plateau=RULES.plateau), WatchRules(consults="its hash")], ids=str
)
def test_what_evaluations_have_decided_is_not_lost_with_who_decides_it(
    rules: WatchRules, carried: bool
) -> None:
    """The master had not written it down, and the leading server dies before it tells the next one: copies
    that are safe are gone on from all the same. Nor is it if the servers go back while its checkpoint is
    committed."""
    for number, after in enumerate(range(985, 2100, 97)):
        whom = "kill worker" if carried else "kill leader"
        faults = Fault(after, "kill master"), Fault(after + (120, 40)[number % 2], whom)
        how = {"rules": rules, "epochs": 3, "checkpoint_every": "60s", "write_s": 0.5, "carried": carried}
        World(shape(**how, evaluate_every=1), faults, after).run()


def test_a_checkpoint_of_an_evaluation_is_waited_for() -> None:
    """Storage is slower than evaluations are made: none is left out."""
    world = finish(rules=WatchRules(best=RULES.best), evaluate_every=1, epochs=1, write_s=2.0, keep=100)
    assert list(world.laws.commits) == [1, 2, 3, 4]


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("kind", ["kill server", "kill leader", "kill worker"])
def test_no_checkpoint_that_may_be_the_best_is_left_out_for_a_lost_server(kind: str, carried: bool) -> None:
    """Nobody can write the part of one that is lost while it writes: the evaluation is made again."""
    how = {"rules": WatchRules(best=RULES.best), "epochs": 2, "keep": 99, "write_s": 0.3, "carried": carried}
    for after in range(1048, 2400, 106):
        world = World(shape(**how, evaluate_every=1), [Fault(after, kind, after)], after)
        found: list[int] = []
        world.run(lambda place=world.path, found=found: found.extend(commits(DirectoryStorage(place))))
        assert found == list(range(1, 9)), after


# --- members -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["kill worker", "kill server", "kill servers", "kill master", "freeze worker"]
)
def test_anybody_is_lost_at_any_time_in_an_asynchronous_run(kind: str) -> None:
    for after in range(100, LONG, 200):
        world = World(
            asynchronous(shared_memory=after % 2 == 0), [Fault(after, kind, after, FOR_GOOD)], after
        )
        end = world.run()
        assert end and end.state is RunState.FINISHED


@pytest.mark.parametrize("after", range(100, LONG, 150))
def test_the_only_worker_is_killed(after: int) -> None:
    """Between its pushes to one server and to the next, too; the last tick included."""
    finish(Fault(after, "kill worker", after), seed=after, workers=1, servers=3)


@pytest.mark.parametrize("carried", [False, True])
def test_who_is_slow_is_not_kept_by_slices_that_nobody_needs_any_more(carried: bool) -> None:
    """Before there is a plan all of them are its own; the run is over, or the servers are lost, meanwhile."""
    slow = {"num_records": 8, "num_test": 0, "workers": 2, "servers": 1, "slice_s": 0.25, "carried": carried}
    for seed in range(12):
        finish(seed=seed, **slow, slowness=(1.0, 8.0), heartbeat_s=1.0, suspect_s=2.5)


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("kind", ["kill leader", "kill last", "freeze leader", "kill servers", "kill pair"])
def test_servers_are_lost_at_any_time(kind: str, servers: int) -> None:
    for after in range(50, LONG, 260):
        finish(Fault(after, kind, after, FOR_GOOD), seed=after, servers=servers, workers=2)


@pytest.mark.parametrize("kind", ["kill master", "kill master and server", "freeze master"])
def test_the_master_is_lost_at_any_time(kind: str) -> None:
    for after in range(1, LONG, 130):
        finish(Fault(after, kind, after, 3.0), seed=after)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_master_is_lost_while_another_worker_takes_places(workers: int) -> None:
    """Whom it had told to carry them may not be written down: they live, and know what nobody else does."""
    for gap in range(2, 160, 3):
        faults = Fault(500, "kill worker", 0), Fault(500 + gap, "kill master", 0)
        finish(*faults, seed=500, workers=workers, carried=True)


def test_the_leading_server_is_lost_just_before_its_last_worker_says_that_it_leaves() -> None:
    """It has the last version, which the servers may have gone back behind by then, and it carries them, but
    neither computes nor takes another: another worker comes for that."""
    how = {"num_records": 3, "num_test": 0, "slices": 1, "epochs": 1, "workers": 1, "servers": 1}
    how |= {"snapshot_s": 0.5, "delay_s": 0.02, "heartbeat_s": 1.0, "suspect_s": 2.5}
    for more in (
        {"write_s": 0.01, "parcel_bytes": 256},
        {"write_s": 0.05, "parcel_bytes": 128, "lost_s": 10.0},
    ):
        how |= {"checkpoint_every": "60s", "carried": True, **more}
        for seed in range(2):
            end = finish(seed=seed, **how).hub.num_events
            for before in range(50, 90):
                finish(Fault(end - before, "kill leader", 0), seed=seed, **how)


def test_places_move_and_no_step_is_lost() -> None:
    """To workers that come, and from those that leave: one version goes on, and it is the newest."""
    pauses = 0
    for after in range(100, LONG, 60):
        faults = Fault(after, "scale", after), Fault(after + 400, "scale", after // 60)
        world = finish(*faults, seed=after, workers=1 + after % 2, carried=True)
        assert all(again.start >= again.reached for again in world.laws.regroupings), world.hub.story
        pauses += world.laws.num_pauses
    assert pauses > 5


@pytest.mark.parametrize(
    "kind", ["kill worker", "kill master", "kill leader", "freeze worker", "freeze leader"]
)
def test_somebody_is_lost_while_places_move(kind: str) -> None:
    for gap in range(0, 700, 35):
        faults = Fault(300, "scale", 1 + gap % 3), Fault(300 + gap, kind, gap, FOR_GOOD)
        finish(*faults, seed=gap, workers=1 + gap % 2, carried=True)


@pytest.mark.parametrize("whom", AMBUSHES)
def test_somebody_dies_of_what_it_does(whom: str) -> None:
    """One thing after the other, and soon once more."""
    for pick, _ in enumerate(AMBUSHES[whom]):
        for again in (30, 300):
            finish(Fault(100, f"ambush {whom}", pick), Fault(100 + again, f"ambush {whom}", pick), seed=pick)


def test_the_master_is_lost_when_all_is_done() -> None:
    for seed in range(20):
        finish(Fault(1, "kill master at the end"), seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_everybody_is_killed_at_once(seed: int) -> None:
    finish(*(Fault(400, "kill worker", pick) for pick in range(3)), Fault(400, "kill servers"), seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_everybody_is_frozen_for_a_while(seed: int) -> None:
    finish(*(Fault(400, "freeze member", pick, 1.0) for pick in range(5)), seed=seed)


@pytest.mark.parametrize("after", range(400, 1100, 60))
def test_one_is_frozen_for_good(after: int) -> None:
    """From the first tick on, when nobody knows yet how long slices take, the others carry on."""
    quick = {"workers": 2, "slice_s": 0.01, "heartbeat_s": 0.1, "suspect_s": 0.3, "parcel_bytes": 128}
    world = finish(Fault(after, "freeze worker", after, FOR_GOOD), seed=after, **quick)
    assert world.hub.now_s < 5.0, "nobody waits until it is given up"


@pytest.mark.parametrize("seed", range(3))
def test_who_is_told_that_a_version_is_gone_goes_on_from_one_that_there_is(seed: int) -> None:
    """Frozen for longer than servers keep a version, in a run that is longer than anybody may be behind."""
    finish(Fault(700, "freeze worker", seed, 1.0), seed=seed, num_records=480, num_test=0, epochs=1)


@pytest.mark.parametrize("kind", ["black out", "power cut"])
def test_all_is_lost_but_the_storage(kind: str) -> None:
    """With the power also all that was not made durable."""
    for seed in range(10):
        finish(Fault(400 + 50 * seed, kind), Fault(1200, kind), seed=seed, checkpoint_every="1 step")


def test_a_new_master_is_told_of_the_program_by_a_worker_that_waits_for_rows() -> None:
    """It has halted the servers, since nothing was written down, and they answer nobody until it knows."""
    for after in range(250, 500, 12):
        finish(Fault(after, "kill master"), seed=after, tables=True, workers=1, servers=1, write_s=1.0)


# --- what a lost server costs --------------------------------------------------------------------


def test_a_new_master_says_once_more_what_the_only_worker_goes_by() -> None:
    """It drops no slice for that: nobody else could compute it, and nobody asks it twice."""
    for after in range(112, 160, 8):
        finish(Fault(after, "kill master"), seed=after, workers=1, servers=1, lag_s=0.8, lost_s=8.0)


def test_a_dead_server_costs_no_more_than_since_the_last_snapshot() -> None:
    """Nor does it cost anybody else's process; see ``laws``."""
    world = finish(Fault(800, "kill server", 3), checkpoint_every="60s")
    assert world.laws.regroupings[0].source == "memory" and world.laws.regroupings[0].start > 0
    assert [name for name in world.cluster.members if "worker" in name] == [
        "worker-1",
        "worker-2",
        "worker-3",
    ]


def test_who_dies_as_it_takes_a_copy_leaves_the_one_before() -> None:
    """Which others hold until the next is safe."""
    takes = AMBUSHES["server"].index(TakeAction)
    for after in range(1300, 1720, 60):
        faults = [Fault(after, "ambush server", takes)]
        World(shape(checkpoint_every="60s", servers=3, delay_s=0.02), faults, after).run()


def test_without_snapshots_it_goes_back_to_storage() -> None:
    world = finish(Fault(1000, "kill server", 3), snapshot_s=0.0)
    assert [each.source for each in world.laws.regroupings] == ["storage"]


def test_before_anything_is_kept_it_begins_anew() -> None:
    world = finish(Fault(400, "kill server", 3), snapshot_s=0.0, checkpoint_every="60s")
    assert [each.source for each in world.laws.regroupings] == ["beginning"]


# --- places --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.1, 3.0])
@pytest.mark.parametrize("kind", ["near limit", "lose leader", "lose sight"])
def test_master_and_servers_move_at_any_time(kind: str, seconds: float) -> None:
    for after in range(50, LONG, 260):
        finish(Fault(after, kind, after, seconds), seed=after, moves=True)


def test_who_takes_over_near_the_end_of_its_place_moves_at_once() -> None:
    for seed in range(5):
        faults = Fault(600, "kill master"), Fault(601 + seed, "near limit", 0, 3.0)
        finish(*faults, seed=seed, moves=True)


def test_who_comes_after_a_master_that_has_ended_the_run_leaves_it_at_that() -> None:
    """The cluster has lost sight of that one, and begins another, whose journal does not know of the end."""
    for seed in range(8):
        faults = Fault(140, "lose sight", 0, 0.01), Fault(143, "stop")
        world = World(shape(moves=True), faults, seed)
        end = world.run()
        assert end and end.state is RunState.STOPPED and world.place == 2, end


def test_a_move_in_time_costs_no_worker() -> None:
    """Those of before go on with the next master, from a commit that was made for it."""
    for seed in range(5):
        world = finish(Fault(600, "near limit", 0, 3.0), seed=seed, checkpoint_every="60s", moves=True)
        assert world.laws.num_handed_over == 1 and world.place == 2
        assert [each.source for each in world.laws.regroupings] == ["storage"]
        assert [name for name in world.cluster.members if "worker" in name] == [
            f"worker-{n}" for n in (1, 2, 3)
        ]


@pytest.mark.parametrize("kind", ["take worker", "warn worker", "expire worker"])
def test_places_are_taken_away_at_any_time(kind: str) -> None:
    for after in range(100, LONG, 170):
        finish(Fault(after, kind, after, 0.5), seed=after, workers=1 + after % 3)


def test_all_workers_are_warned_at_once() -> None:
    for seed in range(5):
        finish(*(Fault(400, "warn worker", pick, 0.5) for pick in range(3)), seed=seed)


# --- records -------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", ["bad", "deadly"])
@pytest.mark.parametrize("seed", range(5))
def test_a_record_on_which_the_program_raises_or_dies(seed: int, odd: str) -> None:
    """Left out for all, though workers come, go, and freeze meanwhile."""
    faults = (
        Fault(300 + 50 * seed, "kill worker"),
        Fault(450, "freeze worker", 1, 0.5),
        Fault(500, "scale", 4),
    )
    world = finish(*faults, Fault(700, "kill server"), seed=seed, **{odd: (3, 14)})
    assert world.state and {each.row for each in world.state.excluded} == {3, 14}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("servers", [1, 2])
def test_a_record_on_which_workers_die(workers: int, servers: int) -> None:
    """Two do: from then on it is handed out to be tried with care, and then left out. Each server goes by
    what it has seen itself, so with several it may be two for each; and whoever has the slice by the plan is
    handed nothing, so it may be one more, if that one comes late to the step."""
    for some in (shape(), asynchronous()):
        world = World(shape(workers=workers, servers=servers, deadly=(3, 14), asynchronous=some.asynchronous,
                            optimizer=some.optimizer))  # fmt: skip
        end = world.run()
        assert end and end.state is RunState.FINISHED
        assert max(world.laws.deaths.values()) <= 2 * servers + (workers > 1)


@pytest.mark.parametrize("seed", range(5))
def test_workers_that_are_killed_at_a_slice_are_no_records_fault(seed: int) -> None:
    """However many: care is taken, and nothing is found."""
    faults = [Fault(250 + 60 * number, "kill worker", number) for number in range(8)]
    world = finish(*faults, seed=seed, slice_s=0.1)
    assert world.state and not world.state.excluded


# --- ends that somebody asked for ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_stopped_as_asked(seed: int) -> None:
    end = World(shape(), [Fault(500, "stop"), Fault(520, "kill server")], seed).run()
    assert end and end.state is RunState.STOPPED and "steps are missing, go on with --resume" in end.text


@pytest.mark.parametrize("limit_s", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_stopped_by_its_time_limit(seed: int, limit_s: float) -> None:
    """Whichever master it is over for, and whether there is one then."""
    faults = Fault(200, "kill master"), Fault(400, "kill server"), Fault(500, "kill master")
    world = World(shape(limit_s=limit_s), faults, seed)
    end = world.run()
    assert end and end.state is RunState.STOPPED and world.hub.now_s >= limit_s - ROUNDED_S
    assert end.text.startswith(f"its time limit of {limit_s:.3f}s is over")


# --- main threads that hang while their hearts beat ----------------------------------------------


@pytest.mark.parametrize("kind", ["hang worker", "hang workers", "hang server", "hang leader"])
def test_whoever_hangs_is_replaced(kind: str) -> None:
    """At any time; nobody else is to blame, and no record either."""
    for after in range(50, LONG, 260):
        world = finish(Fault(after, kind, after, FOR_GOOD), seed=after, stall_s=4.0)
        assert world.state and world.state.memory().failures == 0


@pytest.mark.parametrize("after", range(30, 130, 10))
def test_who_hangs_before_it_carries_the_servers_is_replaced(after: int) -> None:
    """They wait for it, have no process, and are nobody who could be asked."""
    faults = (Fault(600, "kill workers", 0), Fault(600 + after, "hang workers", 0, FOR_GOOD))
    finish(*faults, seed=after, workers=1, carried=True, stall_s=4.0)


@pytest.mark.parametrize("row", [3, 14])
def test_a_slice_that_hangs_for_everybody_ends_the_run_with_all_that_was_done(row: int) -> None:
    """Workers hang again and again at one slice: those who come anew are given it, too."""
    world = World(shape(hanging=(row,), stall_s=4.0))
    world.laws.has_truth = False
    end = world.run()
    assert end and end.state is RunState.STALLED, end
    steps = max(world.laws.commits, default=0)
    assert f"{8 - steps} of 8" in end.text


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("what", ["bad", "deadly"])
@pytest.mark.parametrize(("row", "kept"), [(3, [3]), (14, [3]), (26, [])])
def test_a_record_that_ends_the_run_takes_no_step_along(
    row: int, kept: list[int], what: str, carried: bool
) -> None:
    """The last one is the first step's."""
    rows = {what: (row,)}
    world = World(shape(**rows, strict=True, carried=carried, checkpoint_every="60s"))
    end = world.run()
    assert end and end.state is RunState.FAILED and f"row {row} of the training data" in end.text
    assert list(world.laws.commits) == kept


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize(("workers", "allowed"), [(1, 0), (2, 0), (2, 1), (3, 2)])
def test_a_place_that_has_run_out_of_something_takes_no_step_along(
    workers: int, allowed: int, carried: bool
) -> None:
    """Nor do several, one right after the other: who fails stays as long as it carries servers."""
    faults = [Fault(700, "fail worker", pick) for pick in range(allowed + 1)]
    how = {"workers": workers, "max_failures": allowed, "carried": carried, "checkpoint_every": "60s"}
    world = World(shape(**how, snapshot_s=0.0, num_test=0), faults)
    end = world.run()
    assert end and end.state is RunState.FAILED and f"max_failures is {allowed}" in end.text, end
    assert list(world.laws.commits) == [world.shape.schedule.steps_before(world.laws._known)]


def test_a_stop_ends_though_no_step_does() -> None:
    for after in (400, 500, 600):
        faults = [Fault(after, "hang workers", 0, FOR_GOOD), Fault(after + 1, "stop")]
        world = World(shape(stall_s=100.0), faults)
        end = world.run()
        assert end and end.state is RunState.STOPPED
        assert world.hub.now_s < 100.0, "who waits for the end of a run is not kept for its whole patience"


def test_a_worker_that_is_only_slow_is_waited_for() -> None:
    """Twenty times the usual step, whatever the setting says."""
    world = finish(*(Fault(800, "slow worker", pick, 0.5) for pick in range(3)), stall_s=0.2)
    assert not [line for line in world.hub.story if "hangs" in line]
