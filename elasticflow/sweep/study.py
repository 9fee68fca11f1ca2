"""A sweep's memory, which is an Optuna study: what was tried, what came of it, and what is tried next.

Optuna chooses and prunes; see T. Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization
Framework" (KDD 2019). Each change is in its database before anything is done about it, so whoever goes on
with a sweep finds each trial as it was.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from elasticflow.errors import ConfigError, RunError
from elasticflow.sweep.space import OneOf, Range, Space, Value

try:
    import optuna
    from optuna.trial import TrialState
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError
except ImportError as error:
    raise ConfigError("a sweep needs Optuna: pip install 'elasticflow-trainer[sweep]'.") from error

ABOUT, RUN, PRUNED, TEXT = "about", "run", "pruned", "text"
"""User attributes of a study, and of trials."""
FINISHED, FAILED, WAS_PRUNED, UNDER_WAY = "finished", "failed", "pruned", "under way"
MOST_VALUES, AT_ONCE = 100_000, 10
"""Of one name of a grid; and so many of its points are written down at a time."""
STATES = {
    TrialState.COMPLETE: FINISHED,
    TrialState.FAIL: FAILED,
    TrialState.PRUNED: WAS_PRUNED,
    TrialState.RUNNING: UNDER_WAY,
}
STORAGE_ERRORS = (optuna.exceptions.StorageInternalError, SQLAlchemyError, ArgumentError, ImportError)
"""What a database raises that cannot be read or written, or is none."""


class Goal(NamedTuple):
    """What is to be large, or small: a metric of the program's evaluations, or ``cost``."""

    metric: str
    mode: str

    def better(self, one: float, other: float) -> bool:
        """Whether ``one`` is."""
        return one > other if self.mode == "max" else one < other


class ToldTrial(msgspec.Struct, kw_only=True):
    """state: ``finished``, ``pruned``, ``failed`` or ``under way``. value: None: there is none."""

    trial: int
    state: str
    value: float | None
    values: dict[str, Value]
    run: str
    text: str


class Study:
    """Raises ConfigError if there is one of this name at ``url``, and ``about`` something else."""

    def __init__(
        self,
        url: str,
        name: str,
        space: Space,
        goal: Goal,
        about: Mapping[str, Any],
        *,
        sampler: str = "tpe",
        pruner: str = "median",
        seed: int = 0,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self._space, self.goal = {name: _distribution(rule) for name, rule in space.items()}, goal
        self._study = optuna.create_study(
            storage=url,
            study_name=name,
            direction="maximize" if goal.mode == "max" else "minimize",
            pruner=_pruner(pruner),
            load_if_exists=True,
        )
        self._check(about)
        seed += self.num_trials  # otherwise whoever goes on would draw the same numbers again
        samplers = optuna.samplers
        self._study.sampler = (
            samplers.TPESampler(seed=seed) if sampler == "tpe" else samplers.RandomSampler(seed=seed)
        )
        self._points = _points(space) if sampler == "grid" else iter(())
        self._trials = {
            each.number: optuna.Trial(self._study, each._trial_id)
            for each in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        }

    def _check(self, about: Mapping[str, Any]) -> None:
        before = self._study.user_attrs.get(ABOUT)
        if before is None:
            self._study.set_user_attr(ABOUT, dict(about))
            return
        for name in {**before, **about}:
            if (was := before.get(name)) != (now := about.get(name)):
                raise ConfigError(
                    f"this sweep was begun with {name} {was}, not {now}: its trials could not be compared. "
                    "Go on as it was begun, or choose another --folder."
                )

    @property
    def num_trials(self) -> int:
        """So many were begun."""
        return sum(each.state is not TrialState.WAITING for each in self._study.get_trials(deepcopy=False))

    def under_way(self) -> dict[int, dict[str, Value]]:
        """What each has been given. Whoever was killed as it asked may have asked for a part of it."""
        for trial in self._trials.values():
            for name in self._space.keys() - trial.params.keys():
                trial._suggest(name, self._space[name])
        return {number: dict(trial.params) for number, trial in self._trials.items()}

    def ask(self) -> tuple[int, dict[str, Value]]:
        """The next trial."""
        self._enqueue_points()
        trial = self._study.ask(self._space)
        self._trials[trial.number] = trial
        return trial.number, dict(trial.params)

    def _enqueue_points(self) -> None:
        """Of a grid, the next that nobody has asked for: a large one is not written down as a whole."""
        trials = self._study.get_trials(deepcopy=False)
        if any(each.state is TrialState.WAITING for each in trials):
            return
        tried = [each.params for each in trials]
        fresh = (point for point in self._points if point not in tried)
        for point in itertools.islice(fresh, AT_ONCE):
            self._study.enqueue_trial(point)

    def put(self, number: int, run: str) -> None:
        """Where its run is."""
        self._trials[number].set_user_attr(RUN, run)

    def report(self, number: int, at: int, value: float) -> bool:
        """That it had this value at its evaluation ``at``, from 0; whether it is not worth to go on."""
        trial = self._trials[number]
        if at not in self.reported(number):
            trial.report(value, at)
        return self.is_pruned(number) or trial.should_prune()

    def reported(self, number: int) -> dict[int, float]:
        """Its values so far, by evaluation."""
        return self._study.get_trials(deepcopy=False)[number].intermediate_values

    def prune(self, number: int) -> None:
        """It is about to be stopped for that."""
        self._trials[number].set_user_attr(PRUNED, True)

    def is_pruned(self, number: int) -> bool:
        """Whether it was, or is about to be."""
        return bool(self._trials[number].user_attrs.get(PRUNED))

    def end(self, number: int, state: str, value: float | None, text: str) -> None:
        """What came of it. value: of one that has finished."""
        trial = self._trials.pop(number)
        trial.set_user_attr(TEXT, text)
        if state == FINISHED and value is not None and math.isfinite(value):
            self._study.tell(trial, value)
        else:
            self._study.tell(trial, state=TrialState.PRUNED if state == WAS_PRUNED else TrialState.FAIL)

    def told(self) -> list[ToldTrial]:
        """All, in the order in which they were begun."""
        return [
            ToldTrial(
                trial=each.number,
                state=STATES[each.state],
                value=each.values[0] if each.values else None,
                values=dict(each.params),
                run=each.user_attrs.get(RUN, ""),
                text=each.user_attrs.get(TEXT, ""),
            )
            for each in self._study.get_trials(deepcopy=False)
            if each.state in STATES
        ]

    def best(self) -> ToldTrial | None:
        """Of those that have finished; of equals the first."""
        best: ToldTrial | None = None
        for each in self.told():
            if each.state == FINISHED and each.value is not None:
                if best is None or best.value is None or self.goal.better(each.value, best.value):
                    best = each
        return best

    def draw(self, folder: str) -> list[str]:
        """Optuna's own pictures; returns the files. Raises RunError where it cannot."""
        import os

        try:
            import matplotlib

            matplotlib.use("Agg")
            from matplotlib import pyplot
            from optuna.visualization import matplotlib as pictures
        except ImportError as error:
            raise RunError("--plots needs matplotlib: pip install matplotlib.") from error
        os.makedirs(folder, exist_ok=True)
        files = []
        for name in ("optimization_history", "intermediate_values", "slice", "parallel_coordinate"):
            drawn = getattr(pictures, f"plot_{name}")(self._study)
            axes = drawn if hasattr(drawn, "figure") else drawn.flat[0]
            files.append(f"{folder}/{name}.png")
            axes.figure.savefig(files[-1], dpi=120, bbox_inches="tight")
            pyplot.close(axes.figure)
        return files


def _distribution(rule: Range | OneOf) -> optuna.distributions.BaseDistribution:
    if isinstance(rule, OneOf):
        return optuna.distributions.CategoricalDistribution(rule.values)
    # Optuna warns of an end that no step reaches.
    last = rule.high if rule.step is None else _value(rule, _num_values(rule) - 1)
    if isinstance(rule.low, int) and isinstance(last, int):
        return optuna.distributions.IntDistribution(rule.low, last, log=rule.log, step=int(rule.step or 1))
    return optuna.distributions.FloatDistribution(rule.low, last, log=rule.log, step=rule.step)


def size_of_grid(space: Space) -> int:
    """How many points it has. Raises ConfigError where that has no end."""
    return math.prod(map(len, _axes(space)))


def _points(space: Space) -> Iterator[dict[str, Value]]:
    """All that can be chosen."""
    return (dict(zip(space, point, strict=True)) for point in itertools.product(*_axes(space)))


def _axes(space: Space) -> list[Sequence[Value]]:
    axes: list[Sequence[Value]] = []
    for name, rule in space.items():
        if isinstance(rule, OneOf):
            axes.append(rule.values)
        elif rule.log or rule.step is None and isinstance(rule.low, float):
            raise ConfigError(
                f"--sampler grid: {name}={rule} has no end of values; give a step, such as "
                f"{name}={rule.low}..{rule.high}:STEP, or choices."
            )
        elif (count := _num_values(rule)) > MOST_VALUES:
            raise ConfigError(
                f"--sampler grid: {name}={rule} has {count:,} values; give a larger step, or choices."
            )
        else:
            axes.append([_value(rule, number) for number in range(count)])
    return axes


def _num_values(rule: Range) -> int:
    low, high, step = _digits(rule)
    return int((high - low) // step) + 1


def _value(rule: Range, number: int) -> int | float:
    low, _, step = _digits(rule)
    return type(rule.low)(low + number * step)


def _digits(rule: Range) -> tuple[Decimal, Decimal, Decimal]:
    """As they were written: three steps of 0.1 are 0.3."""
    return Decimal(str(rule.low)), Decimal(str(rule.high)), Decimal(str(rule.step or 1))


def _pruner(name: str) -> optuna.pruners.BasePruner:
    if name == "none":
        return optuna.pruners.NopPruner()
    return optuna.pruners.MedianPruner() if name == "median" else optuna.pruners.HyperbandPruner()
