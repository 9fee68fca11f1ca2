"""Which points of a run's curves are drawn: each once, none of steps that were undone, whatever happens."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from elasticflow.master.curve import LossCurve
from elasticflow.run.telling import Status, ToldMaster
from elasticflow.trackers.following import TEST, TRAIN, CurveFollowing
from elasticflow.trackers.points import PointsBegun, TrackPoint
from tests.telling import Told


class World:
    """A run that makes steps, loses servers, masters or all, and who draws it.

    made: of each step, the number of the try by which it was made last. of: by point, the tries it is the
    mean of.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.template = Told().status()
        self.now_s = self.begun_s = 0.0
        self.tries = self.step = self.committed = self.start_step = 0
        self.generation = self.master = 1
        self.made: dict[int, int] = {}
        self.of: dict[tuple[int, float], list[tuple[int, int]]] = {}
        self.curve, self.journal = LossCurve(), LossCurve()
        self.following, self.drawn = CurveFollowing(), list[TrackPoint]()
        self.begun: PointsBegun | None = None

    def steps(self) -> None:
        for _ in range(self.random.randint(1, 5)):
            self.now_s += self.random.choice([0.1, 0.7, 3.0])
            self.step += 1
            self.tries += 1
            self.made[self.step] = self.tries
            before, count = self.curve.step, len(self.curve.points)
            self.curve.add(self.step, 1.0, 0.1, 2, round(self.now_s - self.begun_s, 3), last=False)
            if len(self.curve.points) > count:
                key = self.step, round(self.now_s, 3)
                self.of[key] = [(step, self.made[step]) for step in range(before + 1, self.step + 1)]

    def commit(self) -> None:
        self.committed = self.random.randint(self.committed, self.step)
        self.write()

    def write(self) -> None:
        self.journal = msgspec.json.decode(msgspec.json.encode(self.curve), type=LossCurve)

    def lose_server(self) -> None:
        self.step = self.random.randint(self.committed, self.step)
        self.curve.begin(self.step)
        self.generation += 1
        self.write()

    def lose_master(self) -> None:
        self.curve, self.master = self.journal, self.master + 1
        self.write()

    def lose_all(self) -> None:
        self.now_s += 10.0
        self.begun_s = self.now_s
        self.step = self.start_step = self.committed
        self.generation = self.master = 1
        self.curve = LossCurve(first=self.step, step=self.step)
        self.write()
        self.lose_tracking()

    def damage(self) -> None:
        """The newest checkpoint is, and the one before is gone on from; who draws begins with the attempt."""
        self.committed = self.random.randint(0, self.committed)
        self.lose_all()
        self.look()

    def lose_tracking(self) -> None:
        self.following = CurveFollowing(self.drawn, self.begun)

    def told(self) -> Status:
        master = msgspec.structs.replace(self.template.master, incarnation=self.master)
        values: dict[str, Any] = dict(
            started_at=self.begun_s,
            start_step=self.start_step,
            step=self.step,
            checkpoint_step=self.committed,
            generation=self.generation,
            master=master,
            losses=self.curve.points[-50:],
            evaluations=[{"epoch": 1, "step": step, "cost": 1.0} for step in range(10, self.step + 1, 10)][
                -50:
            ],
        )
        return msgspec.structs.replace(self.template, **values)

    def look(self) -> None:
        told = self.told()
        undone = self.following.undone_after(told)
        if undone is not None:
            self.drawn = [point for point in self.drawn if point.step <= undone]
        self.drawn += self.following.heard(told)
        self.begun = self.following.begun()

    def check(self) -> None:
        for kind in (TRAIN, TEST):
            steps = [point.step for point in self.drawn if point.kind == kind]
            assert steps == sorted(set(steps)) and max(steps, default=0) <= self.committed
        for point in self.drawn:
            if point.kind == TRAIN:
                of = self.of[point.step, round(point.at, 3)]
                assert all(self.made[step] == number for step, number in of), point


EVENTS = ("steps", "steps", "steps", "commit", "look", "look", "lose_server", "lose_master", "lose_tracking")


@pytest.mark.parametrize("seed", range(40))
def test_histories(seed: int) -> None:
    for part in range(10):
        world = World(100 * seed + part)
        for _ in range(60):
            event = world.random.choice([*EVENTS, *(("lose_all", "damage") if part % 2 else ())])
            getattr(world, event)()
            if event == "look":
                world.check()
        world.steps()
        world.look()
        world.committed = world.step
        world.look()
        world.check()
        assert world.drawn


def test_nothing_is_missing_where_nothing_is_lost() -> None:
    world = World(1)
    for _ in range(100):
        world.steps()
        world.look()
        world.commit()
    world.committed = world.step
    world.look()
    drawn = [point.step for point in world.drawn if point.kind == TRAIN]
    assert drawn == [point.step for point in world.curve.points]
    tests = [point.step for point in world.drawn if point.kind == TEST]
    assert tests == list(range(10, world.step + 1, 10))


def test_a_point_waits_for_its_checkpoint() -> None:
    world = World(2)
    world.steps()
    world.look()
    assert not world.drawn and world.following.begun() is not None
    world.lose_tracking()
    world.committed = world.step
    world.look()
    assert world.drawn and world.drawn[0].values == {"train/loss": 1.0, "learning_rate": 0.1, "workers": 2}


def test_what_is_no_number_is_left_out() -> None:
    told = Told()
    told.progress(11, loss=float("nan"), evaluations=((10, (float("nan"), 0.5)),))
    status = msgspec.json.decode(msgspec.json.encode(told.status()), type=Status)
    points = CurveFollowing().heard(msgspec.structs.replace(status, checkpoint_step=10))
    assert [point.values.get("train/loss") for point in points if point.kind == TRAIN] == [None]
    assert [point.values for point in points if point.kind == TEST] == [{"epoch": 1, "test/accuracy": 0.5}]
    assert isinstance(status.master, ToldMaster)
