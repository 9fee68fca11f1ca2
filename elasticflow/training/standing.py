"""What evaluations decide: which checkpoint is the best, when the learning rate falls, when a run stops.

    early_stopping = ef.early_stopping("accuracy", patience=5, mode="max")
    keep_best = ef.keep_best("auc", mode="max")
    learning_rate = ef.lr.on_plateau(0.1, "cost", patience=3, mode="min")
    def on_epoch(info): ...

Evaluations have the same bits whoever computes them, and a ``WatchStanding`` follows from them alone, one
after the other. So it does not matter who works it out, or how often: after a fault, and where a run is
resumed, it is the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from elasticflow.api import _require, is_number
from elasticflow.training.advice import Advice, Question, Tuning, clamped

COST = "cost"
"""What the mean cost of an evaluation is called, beside the metrics."""
MODES = ("min", "max")
"""Which value is better."""


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of the evaluations. patience: so many in a row without a gain are enough; 0: that matters not.

    least_gain: a value has to be better by more than that.
    """

    metric: str
    mode: str
    patience: int = 0
    least_gain: float = 0.0

    def is_better(self, value: float, than: float | None) -> bool:
        """What is no number is no better than anything."""
        if not math.isfinite(value) or than is None:
            return math.isfinite(value)
        return (value - than if self.mode == "max" else than - value) > self.least_gain


class Plateau(Watch, frozen=True, kw_only=True):
    """The learning rate is multiplied by ``factor``; it is not brought below ``least``."""

    factor: float
    least: float

    def scaled(self, lr: float, scale: float) -> float:
        return max(lr * scale, min(lr, self.least))


class WatchRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is decided, by which metrics. consults: the hash of the program whose ``on_epoch`` is asked."""

    best: Watch | None = None
    stopping: Watch | None = None
    plateau: Plateau | None = None
    consults: str = ""

    @property
    def any(self) -> bool:
        return bool(self.consults) or any(self.by_name.values())

    @property
    def cuts(self) -> bool:
        """Whether a checkpoint is made after each evaluation."""
        return bool(self.consults) or self.best is not None or self.stopping is not None

    @property
    def by_name(self) -> Mapping[str, Watch | None]:
        """As programs call them."""
        return {
            "early_stopping": self.stopping,
            "keep_best": self.best,
            "ef.lr.on_plateau": self.plateau,
        }

    def problem(self, metrics: Sequence[str], *, tests: bool) -> str:
        """Why these rules are not for a program with these metrics; "": they are. tests: it evaluates."""
        if self.consults and not tests:
            return 'on_epoch() is told of evaluations, and there are none: data() returns no "test" source'
        for name, watch in self.by_name.items():
            if watch and not tests:
                return f'{name} goes by evaluations, and there are none: data() returns no "test" source'
            if watch and watch.metric not in (COST, *metrics):
                known = " or ".join((COST, *metrics))
                return f"{name} goes by {watch.metric!r}, which evaluations do not have; choose {known}"
        return ""


class Tally(msgspec.Struct, frozen=True, omit_defaults=True):
    """best: the best value so far, after ``step`` steps; None: there is none. waited: evaluations since."""

    best: float | None = None
    step: int = 0
    waited: int = 0

    def after(self, watch: Watch, value: float, step: int) -> Tally:
        if watch.is_better(value, self.best):
            return Tally(value, step)
        return msgspec.structs.replace(self, waited=self.waited + 1)


class WatchStanding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What follows from all evaluations up to that of tick ``tick``; -1: there was none yet.

    scale: what the learning rate is multiplied by.

    asks: ``on_epoch`` is still to be asked of the evaluation; values: what that has measured, as JSON. What
    it has said by then, see ``Advice``: factor, the product of all ``lr_scale``; lr; memory; and to that
    evaluation advised, why the run ends, and error.
    """

    rules: WatchRules
    tick: int = -1
    best: Tally = Tally()
    stopping: Tally = Tally()
    plateau: Tally = Tally()
    scale: float = 1.0
    asks: bool = False
    values: str = ""
    factor: float = 1.0
    lr: float | None = None
    memory: str = ""
    advised: str = ""
    error: str = ""

    def stops(self, version: int) -> bool:
        """Whether the run ends with this version, which the evaluation has made."""
        said = self.advised or self.error or self._has_waited
        return version == self.tick + 1 and bool(said)

    @property
    def _has_waited(self) -> bool:
        watch = self.rules.stopping
        return watch is not None and self.stopping.waited >= watch.patience

    @property
    def tuning(self) -> Tuning:
        """Of the learning rate, from here on."""
        return Tuning(self.scale, self.factor, self.lr)

    @property
    def question(self) -> Question:
        """What is to be asked, where it ``asks``."""
        return Question(tick=self.tick, values=self.values, memory=self.memory, tuning=self.tuning)

    def after(self, tick: int, step: int, values: Mapping[str, float]) -> WatchStanding:
        """With one more evaluation, of the model after ``step`` steps."""
        rules, best, stopping, plateau = self.rules, self.best, self.stopping, self.plateau
        scale = self.scale
        if rules.best:
            best = best.after(rules.best, values[rules.best.metric], step)
        if rules.stopping:
            stopping = stopping.after(rules.stopping, values[rules.stopping.metric], step)
        if rules.plateau:
            plateau = plateau.after(rules.plateau, values[rules.plateau.metric], step)
            if plateau.waited >= rules.plateau.patience:
                plateau, scale = msgspec.structs.replace(plateau, waited=0), scale * rules.plateau.factor
        return msgspec.structs.replace(
            self,
            tick=tick,
            best=best,
            stopping=stopping,
            plateau=plateau,
            scale=scale,
            asks=bool(rules.consults),
            values=json.dumps(dict(values)) if rules.consults else "",
            advised="",
            error="",
        )

    def given(self, advice: Advice) -> WatchStanding:
        """Once ``on_epoch`` has said what it thinks of the evaluation."""
        return msgspec.structs.replace(
            self,
            asks=False,
            factor=1.0 if advice.lr is not None else clamped(self.factor * advice.lr_scale),
            lr=self.lr if advice.lr is None else advice.lr,
            memory=advice.memory or self.memory,
            advised=advice.stop,
            error=advice.error,
        )

    def by(self, rules: WatchRules) -> WatchStanding:
        """The same for rules that may be others by now: what goes by another metric begins anew.

        An ``on_epoch`` that raised, or another one than that which has ended the run, is asked once more.
        """
        old, same = self.rules, _goes_on
        again = bool(self.error or (self.advised and old.consults != rules.consults))
        said = self if rules.consults else WatchStanding(rules=rules)
        return WatchStanding(
            rules=rules,
            tick=self.tick,
            asks=bool(rules.consults) and (self.asks or again),
            values=said.values,
            factor=said.factor,
            lr=said.lr,
            memory=said.memory,
            advised="" if again else said.advised,
            best=self.best if same(old.best, rules.best) else Tally(),
            stopping=self.stopping if same(old.stopping, rules.stopping) else Tally(),
            plateau=self.plateau if same(old.plateau, rules.plateau) else Tally(),
            scale=self.scale if rules.plateau else 1.0,
        )

    def told(self) -> Iterator[tuple[str, Watch, Tally]]:
        """For people: each rule by its name, and how it stands."""
        tallies = (self.stopping, self.best, self.plateau)
        for (name, watch), tally in zip(self.rules.by_name.items(), tallies, strict=True):
            if watch:
                yield name, watch, tally

    def why_stopped(self) -> str:
        """For people, of a run that ``stops``."""
        if self.advised and not self._has_waited:
            return f"on_epoch(): {self.advised}"
        watch, tally = self.rules.stopping, self.stopping
        assert watch
        best = "never was a number"
        if tally.best is not None:
            best = f"was best, {tally.best:.6g}, at step {tally.step}"
        return f"{watch.metric} {best}, and has gained nothing in {evaluations(tally.waited)} since"


def evaluations(count: int) -> str:
    return f"{count} evaluation{'s' * (count != 1)}"


def early_stopping(metric: str, patience: int, mode: str, *, least_gain: float = 0.0) -> Watch:
    """The run ends, done, with the evaluation that is the ``patience``-th in a row without a gain.

    metric: ``"cost"``, or one that ``metrics()`` returns. mode: ``"min"`` or ``"max"`` is better.
    least_gain: a value has to be better by more than that. Raises ProgramError for what cannot be.
    """
    check_watch("early_stopping", metric, mode, patience, least_gain)
    return Watch(metric=metric, mode=mode, patience=patience, least_gain=float(least_gain))


def keep_best(metric: str, mode: str) -> Watch:
    """The checkpoint of the best evaluation is kept, beside the newest ones. Raises ProgramError."""
    check_watch("keep_best", metric, mode)
    return Watch(metric=metric, mode=mode)


def check_watch(kind: str, metric: str, mode: str, patience: int = 1, least_gain: float = 0.0) -> None:
    """Raises ProgramError."""
    whole = isinstance(patience, int) and not isinstance(patience, bool) and patience > 0
    _require(kind, isinstance(metric, str), "metric", metric, "the name of a metric")
    _require(kind, mode in MODES, "mode", mode, "'min' or 'max'")
    _require(kind, whole, "patience", patience, "a whole number > 0")
    _require(kind, is_number(least_gain, 0), "least_gain", least_gain, "a number >= 0")


def _goes_on(old: Watch | None, new: Watch | None) -> bool:
    return bool(old and new) and (old.metric, old.mode) == (new.metric, new.mode)  # type: ignore[union-attr]
