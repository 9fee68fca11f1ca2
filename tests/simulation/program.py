"""The program that is trained in every history: a few numbers, and a few operations instead of a framework.

What a slice computes depends on the whole state, the records and the seed, and is rounded, so another state,
another order of additions or another seed makes other bits. Asynchronously there is no such order: gradients
are small whole numbers then, and depend on the records alone, so their sum is the same in any order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from elasticflow.api import LAMB, SGD, Adam
from elasticflow.data import Sources
from elasticflow.data.arrays import Arrays
from elasticflow.embedding import Embedding
from elasticflow.frameworks.base import Metrics, Replica, layout_of
from elasticflow.frameworks.lookups import Lookups, put
from elasticflow.frameworks.staged import WHOLE, entries_of
from elasticflow.program.loading import Program
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Array, Entry, Rule, Vector
from elasticflow.step.schedule import Kind, Schedule
from elasticflow.training.advice import Advice, EpochInfo, go_on, stop
from elasticflow.training.freezing import is_trained
from elasticflow.training.grouping import Groups
from elasticflow.training.standing import WatchStanding
from elasticflow.worker.batches import slice_seed
from elasticflow.worker.loaded import Loaded, _sums

if TYPE_CHECKING:
    from .world import Shape, World

WEIGHTS, BIAS = Entry("weights", (80,), "float32", Rule.UPDATE), Entry("bias", (40,), "float32", Rule.UPDATE)
THERE, SEEN = entries_of({"seen": np.zeros((1, 3), np.float32)}, lambda seen, params: None, 1, 1)
MEAN, COUNT = Entry("mean", (4,), "float32", Rule.MEAN), Entry("count", (2,), "int64", Rule.FIRST)
WHOLE_STATE = 1 / 1024
"""The sum of all parameters is a part of each gradient, times this."""
IDS = 11
"""So many ids occur."""
EXACT_RATE = 0.5
"""Of asynchronous updates: the same sum in any order."""
LAST_CALL = 3
"""Of ``on_epoch``."""


TOGGLES = {"weights": (0, 1), "bias": (1,)}
"""Of a shape that ``thaws``."""


def _thawed(name: str, epoch: int) -> bool:
    return is_trained(TOGGLES[name], epoch)


@cache
def numbers(num_records: int, exact: bool) -> Array:
    """What the records are: (num_records, elements of both parameters)."""
    size = WEIGHTS.size + BIAS.size
    rng = np.random.default_rng(7)
    if exact:
        return rng.integers(-3, 4, (num_records, size)).astype(np.float32)
    return rng.standard_normal((num_records, size), np.float32)


class SmallLookups(Lookups):
    """Of one table."""

    def answer(self, number: int, ids: Any, *, combine: str | None, offsets: Any, padding: int | None) -> Any:
        raise NotImplementedError


class SmallReplica(Replica):
    """See Replica."""

    framework = "none"
    metrics = Metrics(("error",))

    def __init__(self, world: World) -> None:
        self._world, shape = world, world.shape
        self._exact = shape.asynchronous
        rate = EXACT_RATE if self._exact else 0.1
        kinds: dict[str, Callable[[], Any]] = {
            "sgd": partial(SGD, lr=rate),
            "momentum": partial(SGD, lr=rate, momentum=0.9, clip_norm=1.0 if shape.clips else None),
            "adam": partial(Adam, lr=rate, clip_norm=1.0 if shape.clips else None),
            "lamb": partial(LAMB, lr=rate, clip_norm=1.0 if shape.clips else None),
        }
        self.optimizers = Groups(kinds[shape.optimizer](), {})
        tables = {"table": Embedding(rows=None, dim=3)} if shape.tables else {}
        self.lookups = SmallLookups(tables, world.config.seed)
        trained = [replace(e, toggles=TOGGLES[e.name] if shape.thaws else ()) for e in (WEIGHTS, BIAS)]
        dense = [*trained, MEAN, COUNT]
        self.begin_epoch(0)
        size = shape.schedule.batch_size
        encoded = [replace(each, shape=(size, *each.shape[1:])) for each in (THERE, SEEN) if shape.staged]
        self.state = Vector(layout_of(dense, self.lookups.entries, self.metrics, encoded))
        self._weights, self._bias, self._mean, self._count = self.state.tensors(dense)
        self._report = next(entry for entry in self.layout.entries if entry.rule is Rule.REPORT)
        self._records = numbers(shape.num_records + shape.num_test, self._exact)
        self._weights[:] = np.arange(WEIGHTS.size) / 64
        self._bias[:] = -1

    def prepare(self, columns: Mapping[str, Array]) -> dict[str, Any]:
        return {name: column.copy() for name, column in columns.items()}

    def refresh(self, *, was_put: bool = False) -> None:
        pass

    def begin_epoch(self, epoch: int) -> None:
        names = ("weights", "bias")
        self._trained = [name for name in names if not self._world.shape.thaws or _thawed(name, epoch)]

    def ask_early(self, batch: dict[str, Any]) -> None:
        self.lookups.ahead.ask_early(self._columns(_ids_of(batch["x"])))

    def _columns(self, ids: Array) -> dict[str, Array]:
        return {} if self._world.shape.computes_ids else {"ids": ids}

    def compute(
        self,
        batch: dict[str, Any],
        seed: int,
        weight: float,
        out: Vector,
        *,
        onto: bool = False,
        ready: Callable[[int], None] | None = None,
        **how: object,
    ) -> None:
        rows, world = batch["x"], self._world
        world.computing(rows)
        found = self._records[rows].mean(axis=0) if not self._exact else self._records[rows].sum(axis=0)
        if not self._exact:
            # Of each element all others depend on: else nobody would see what is computed from two versions.
            whole = (self._weights.sum() + self._bias.sum()) * np.float32(WHOLE_STATE)
            found = found + (np.float32((seed % 1009) / 1009) + whole)
        if WHOLE + "seen" in batch:
            seen = batch[WHOLE + "seen"][batch[WHOLE + "there"] > 0]
            mine = batch[WHOLE + "places"].sum() * batch[WHOLE + "share"]
            found = found + np.float32(seen.sum() + mine)
        if world.is_poisoned(rows):
            found[3] = np.nan
        weights, bias, mean, count, report = out.tensors([WEIGHTS, BIAS, MEAN, COUNT, self._report])
        ids = _ids_of(rows)
        of_table = []
        if self.lookups.specs:
            with self.lookups.allowed(self._columns(ids)):
                looked_up = self.lookups.look_up(0, ids, None, None, None)
                counts = np.diff(np.append(looked_up.ids.starts, len(ids))).astype(np.float32)
                values = counts[:, None] * np.ones(3, np.float32)
                if not self._exact:
                    values = (values + looked_up.values) * np.float32(weight)
                of_table = [(0, looked_up.ids.keys, values.astype(np.float32))]
        parts = [
            (1, "bias", bias, self._bias, found[80:]),
            (0, "weights", weights, self._weights, found[:80]),
        ]
        for number, name, target, state, given in parts:
            if name not in self._trained:
                target.fill(np.nan)  # it must be nobody's
                continue
            gradient = given * np.float32(weight)
            if not self._exact:
                gradient = (state + given) * np.float32(weight)
            np.add(target, gradient, out=target) if onto else np.copyto(target, gradient)
            if ready:
                world.moment()
                ready(number)
        change = (found[:4] - self._mean) * np.float32(0 if self._exact else weight)
        np.add(mean, change, out=mean) if onto else np.copyto(mean, change)
        if not onto:
            count[:] = self._count + (0 if self._exact else seed % 1000)
            report.fill(0)
        report[0] += float(np.square(found).sum()) * weight if not world.is_poisoned(rows) else np.nan
        put(out, of_table, onto=onto)

    def encode(self, batch: dict[str, Any], seed: int) -> list[Array]:
        self._world.computing(batch["x"])
        return [self._records[batch["x"], :3] * self._weights[:3] + np.float32(seed % 11)]

    def evaluate(self, batch: dict[str, Any], seed: int) -> list[float]:
        self._world.computing(batch["x"])
        return [float(self._weights.sum()), float(self._bias.sum())]


def _ids_of(rows: Array) -> Array:
    return (rows % IDS) * 1_000_003 - 17


class SmallLoaded(Loaded):
    """The program, loaded; all but that is what it is for any program."""

    def __init__(self, settings: MemberSettings, world: World) -> None:
        shape = world.shape
        rows = np.arange(shape.num_records + shape.num_test)
        self.program = Program(
            path=settings.program,
            model=dict,
            forward=lambda x, params: 0.0,
            data=None,
            metrics=lambda x, params: {},
            encode=(lambda x, params: {}) if shape.staged else None,
            learning_rate=None if shape.asynchronous else _learning_rate,
            rules=shape.rules,
            on_epoch=_on_epoch if shape.rules.consults else None,
        )
        self.frozen, self.slices_why, self.updates_before = (), "", 0
        self.began = (("imports", 0.0), ("program and data", 0.0), ("model()", 0.0))
        test = Arrays(x=rows[shape.num_records :]) if shape.num_test else None
        self.sources = Sources(Arrays(x=rows[: shape.num_records]), test)
        self.binding = {"x": "x"}
        self._open_replica = partial(SmallReplica, world)
        self.replica = self._open_replica()
        self._first_sums = _sums(self.replica.state)
        self.schedule = Schedule(
            num_records=shape.num_records,
            num_test=shape.num_test,
            batch_size=settings.batch_size,
            num_slices=settings.num_slices,
            asynchronous=settings.asynchronous,
            drop_last=settings.drop_last,
            epochs=1,
        )
        self.settings = settings

    def _given_again(self, out: Vector) -> str:
        """What the first slice gave before: this program keeps nothing, and histories are as they were."""
        return self.probe


def _on_epoch(info: EpochInfo) -> Advice:
    """Three times, and no more. It slows down where that does not make the order of updates matter."""
    count = info.memory.get("count", 0) + 1
    if count == LAST_CALL:
        return stop(f"call {count}")
    return go_on(lr_scale=None if info.learning_rate == EXACT_RATE else 0.25, memory={"count": count})


def _learning_rate(step: int, epoch: int) -> float:
    """Another one each step."""
    return 0.1 / (1 + step % 5)


def plainly(shape: Shape, seed: int) -> Array | None:
    """What the parameters come to, worked out in a few lines, with numbers of float64.

    None where an optimizer, or a step that ends the run, makes it more than that.
    """
    stops = shape.poisoned and shape.on_nan == "stop"
    if (
        shape.clips
        or shape.staged
        or stops
        or shape.optimizer not in ("sgd", "momentum")
        or shape.compression != "none"
    ):
        return None
    schedule, exact = shape.schedule, shape.asynchronous
    shuffle = Arrays(x=np.arange(shape.num_records)).shuffle(seed)
    records = numbers(shape.num_records + shape.num_test, exact).astype(np.float64)
    values = np.concatenate([np.arange(WEIGHTS.size) / 64, np.full(BIAS.size, -1.0)])
    speed, standing = np.zeros_like(values), WatchStanding(rules=shape.rules)
    for work in map(schedule.at, range(schedule.total_ticks)):
        if work.kind is Kind.EVALUATE:
            measured = {"cost": values[: WEIGHTS.size].sum(), "error": values[WEIGHTS.size :].sum()}
            standing = standing.after(work.tick, work.step, measured)
            if standing.asks:
                memory = json.loads(standing.memory or "{}")
                info = EpochInfo(work.epoch, work.step, 0.0, {}, EXACT_RATE if exact else 0.0, memory)
                standing = standing.given(_on_epoch(info))
            if standing.stops(work.tick + 1):
                break
        gradient, odd, left = np.zeros_like(values), False, 0
        for number in range(schedule.num_slices) if work.kind is Kind.TRAIN else ():
            drawn = shuffle.rows(work.epoch, *schedule.slice_of(work, number))
            rows = [row for row in drawn.tolist() if row not in (*shape.bad, *shape.deadly)]
            poisoned = bool(set(rows).intersection(shape.poisoned))
            odd |= poisoned and not exact
            left += len(rows)
            if exact and not poisoned:
                gradient += records[rows].sum(axis=0)
            elif rows and not exact:
                same = slice_seed(seed, work.tick, number) % 1009 / 1009 + values.sum() * WHOLE_STATE
                gradient += (values + records[rows].mean(axis=0) + same) * len(rows) / work.num_records
        if left and not odd:
            thawed = [_thawed(name, work.epoch) or not shape.thaws for name in TOGGLES]
            trained = np.repeat(thawed, [WEIGHTS.size, BIAS.size])
            faster = gradient + (0.9 * speed if shape.optimizer == "momentum" else 0.0)
            speed = np.where(trained, faster, speed)
            rate = EXACT_RATE if exact else _learning_rate(work.step - 1, work.epoch)
            plateau, rate = shape.rules.plateau, rate * standing.factor
            values = values - (plateau.scaled(rate, standing.scale) if plateau else rate) * speed * trained
    return values
