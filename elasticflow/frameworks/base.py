"""What ElasticFlow needs of a framework: a replica of the user's model that computes slices.

A replica's values live in ``state``, a flat Vector laid out by ``layout``: whoever has a new version
copies it there and calls ``refresh``. Of embedding tables it has no state: ``read_rows`` gets the rows that a
slice looks up. All it computes is a function of (state, rows, batch, seed) alone.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from elasticflow.api import OPTIMIZERS, SGD, _Optimizer
from elasticflow.data.opening import PartOfTests
from elasticflow.embedding import Embedding, TableSpec
from elasticflow.errors import ProgramError
from elasticflow.frameworks.given import optimizer_of
from elasticflow.frameworks.lookups import Lookups
from elasticflow.frameworks.staged import staged
from elasticflow.process.gpu_state import GpuState
from elasticflow.program.loading import Program, blaming
from elasticflow.step.layout import Array, Entry, Layout, Rule, Vector
from elasticflow.step.schedule import Work
from elasticflow.training.freezing import is_trained
from elasticflow.training.grouping import Groups
from elasticflow.training.metrics import Summed, SummedMetric, add, measures_of, size_of
from elasticflow.training.objects import is_object, library_of, set_back, states_of, taken
from elasticflow.training.trainable import toggles_by_name

Batch: TypeAlias = dict[str, Any]
"""Arguments of ``forward`` by name, in the framework's own tensors."""

REPORT, MEASURES = "report", "measures"
FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
COLUMNS = ("epoch", "step", "cost")
"""What the report says of an evaluation besides its metrics."""
CONSTANTS = (int, float, str, bool, bytes, type(None))


CHANGED = (
    "forward() has changed {name}, a parameter that is not trained, and stays as it is: what forward() is to "
    "change has to be a buffer (register_buffer, or a tf.Variable with trainable=False)."
)

WRITTEN = (
    "{who} has changed {name}, a parameter, in place (as nn.Embedding(max_norm=...) does, or clamp_): "
    "that is lost with the next step, and until then other slices see it if the same worker computes them. "
    "Compute with a changed copy (F.normalize, torch.clamp), or keep it in a buffer."
)


class CostError(ProgramError):
    """``forward`` returned something that is no cost, such as none that is a scalar."""


class Interrupted(BaseException):
    """To be raised by what waits for rows: they are not to be had any more; the slice is to be given up.

    No error of the program's, which neither its own handlers nor those of errors are to catch.
    """


PREDICTION = "prediction"
"""What one array that ``predict`` returns is called, where it has no name."""


def named_predictions(found: object) -> dict[str, Any]:
    """What ``predict`` returned, by name. Raises ProgramError."""
    named = found if isinstance(found, dict) else {PREDICTION: found}
    if not named or not all(isinstance(name, str) and name for name in named):
        raise ProgramError(
            "predict() returned a dict that is empty, or has keys that are no names; it must return an array "
            'of one value, or row, a record, or a dict of such, as {"score": scores}.'
        )
    for name, value in named.items():
        if np.ma.is_masked(value):
            raise ProgramError(
                f"predict() returned for {name!r} a masked array, whose mask would be lost: return "
                "array.filled(value), or the mask as a prediction of its own."
            )
    return named


def check_prediction(name: str, array: Array, num_records: int) -> Array:
    """Raises ProgramError unless there is something of each record."""
    if array.ndim < 1 or len(array) != num_records or array.dtype.kind not in "biufSU":
        of = (
            f"a value of {array.dtype}"
            if array.ndim < 1
            else f"an array {list(array.shape)} of {array.dtype}"
        )
        raise ProgramError(
            f"predict() returned for {name!r} {of}, of {num_records} records; it must be an array of "
            "numbers, or texts, whose first axis is that of the records."
        )
    return array


class Replica(ABC):
    """A user's model in one process.

    framework: ``torch`` or ``tensorflow``. state: the values of the version it computes with.
    lookups: of its embedding tables. unused: names of parameters and tables that got no gradient in the last
    ``compute`` (a hint, not an error). measured: what metrics are made of that are sums, from the last
    ``evaluate``.
    """

    framework: str
    lookups: Lookups
    optimizers: Groups
    metrics: Metrics
    measured: tuple[tuple[Array, ...], ...] = ()
    state: Vector
    unused: tuple[str, ...] = ()

    @property
    def layout(self) -> Layout:
        return self.state.layout

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """In the order of their entries."""
        return self.lookups.specs

    @property
    def params(self) -> Mapping[str, Any]:
        """What ``forward`` gets under this name."""
        return {}

    @property
    def also(self) -> tuple[tuple[str, str], ...]:
        """Further names that tensors have in PyTorch's state dicts, each with the one that it has here."""
        return ()

    @property
    def passing(self) -> tuple[str, ...]:
        """Names of buffers that such a state dict leaves out (``persistent=False``)."""
        return ()

    def frozen(self) -> dict[str, Array]:
        """Parameters that are not trained, by name: no part of ``layout``. Not to be written to."""
        return {}

    def put_frozen(self, values: Mapping[str, Array]) -> None:  # noqa: B027  (most have none)
        """Gives parameters that are not trained other values, before anything is computed."""

    @abstractmethod
    def prepare(self, columns: Mapping[str, Array]) -> Batch:
        """Records as the framework's tensors, in memory of its own."""

    @abstractmethod
    def refresh(self, *, was_put: bool = False) -> None:
        """``state`` holds another version from now on. was_put: ``put`` was told of all that is new."""

    def put(self, group: int, start: int, stop: int) -> None:  # noqa: B027  (not all gain by it)
        """These elements of a group of ``state`` were written, of a version that may not be whole yet.

        Nothing is computed before it is, or all that was written is what it was before.
        """

    def begin_epoch(self, epoch: int) -> None:  # noqa: B027  (of most programs all is trained always)
        """From now on ``compute`` makes gradients of what is trained in this epoch alone: in ``out``, what
        lies where others would be is arbitrary. At first it is epoch 0."""

    def begin_slice(self, work: Work, number: int) -> None:
        """``compute`` is to be of this slice of this tick."""
        self.begin_epoch(work.epoch)

    def keep(self, work: Work, out: Vector) -> None:
        """Puts what the program's loop keeps, as it is at the end of a step, into ``out``."""
        raise NotImplementedError

    @abstractmethod
    def ask_early(self, batch: Batch) -> None:
        """This will most likely be a slice of the next version: asks for the rows that it looks up."""

    @abstractmethod
    def compute(
        self,
        batch: Batch,
        seed: int,
        weight: float,
        out: Vector,
        *,
        onto: bool = False,
        ready: Callable[[int], None] | None = None,
        lefts: Sequence[Vector] = (),
        deliver: bool = True,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Forward and backward on a slice.

        out: gets weight * gradient for parameters, weight * change for MEAN buffers, the value after
        for FIRST ones, weight * cost in the first place of the report (the rest 0), and in ``rows``, of each
        table, weight * gradient of the rows that were looked up.
        onto: ``out`` holds the left sibling's, and gets the sum of both (FIRST ones stay as they are).
        ready: called with a parameter's number, in the layout's order, once its gradient in ``out`` is final;
        not for each, and last layers first where the framework tells. It may run in another thread.
        lefts: if ``apart``, sums to the left of ``out``'s, nearest last: the memory of the first gets the sum
        of all along the tree, and of that gradients are ``ready``.
        deliver: whether ``out``'s memory is filled when this returns; otherwise it is to be ``deliver``ed.
        meanwhile: called, if ``apart``, once all is under way, before it is waited for.
        A cost, or a gradient, that is not finite is handed on as it is: what becomes of it others decide.
        Raises CostError, and whatever ``forward`` and ``read_rows`` raise; ``state`` is as before either way,
        and after an error so is ``out``, but for what was ``ready``.
        """

    def add(self, left: Vector, right: Vector) -> None:
        """If ``apart``: left := the sum of two siblings' slices, neither of them delivered."""
        raise NotImplementedError

    def deliver(self, out: Vector) -> None:  # noqa: B027  (nothing to be done where it computed in there)
        """What was computed into ``out`` is in its memory once this returns."""

    @property
    def apart(self) -> bool:
        """Whether it computes on a device with memory of its own: sums stay there until ``deliver``ed."""
        return False

    @property
    def facts(self) -> Mapping[str, str]:
        """What of the device decides the bits, by name; of the processor others tell."""
        return {}

    def rehearsed(self) -> None:  # noqa: B027  (not all learn from it)
        """What ``compute`` was given last is the slice that each worker computes before it joins."""

    def gpu_state(self) -> GpuState | None:
        """How its GPU does, if it has one that tells. For one thread, which need not be that of the rest."""
        return None

    @property
    def encoded(self) -> list[Entry]:
        """Of a program in two stages: see ``elasticflow.frameworks.staged``."""
        return self.layout.of_rule(Rule.BATCH)

    def join(self, batch: Batch, more: Batch) -> Batch:
        """A slice, and what else its ``forward`` is to be given."""
        return {**batch, **more}

    @abstractmethod
    def encode(self, batch: Batch, seed: int) -> list[Array]:
        """What ``encode`` makes of a slice, in the order of ``encoded`` but for its first.

        Raises as ``compute`` does.
        """

    @abstractmethod
    def evaluate(self, batch: Batch, seed: int) -> list[float]:
        """Cost and metrics, forward only, with layers in their inference mode. Raises as ``compute`` does."""

    def predict(self, batch: Batch, seed: int) -> dict[str, Array]:
        """What the program's ``predict`` gives of these records, by name, forward only, with layers in their
        inference mode.

        batch: its arguments. Raises whatever it and ``read_rows`` raise, ProgramError for what is no array.
        """
        raise NotImplementedError


def layout_of(
    tensors: Sequence[Entry], tables: Sequence[Entry], metrics: Metrics, encoded: Sequence[Entry] = ()
) -> Layout:
    """Of a model and its report. Raises ProgramError where a table's arrays would have a tensor's name."""
    names = {entry.name for entry in tensors}
    if taken := sorted(names.intersection(entry.name for entry in encoded)):
        raise ProgramError(f"model(): {taken[0]!r} is what encode() gives is called; choose another name.")
    for table in tables:
        for column in ("ids", "rows"):
            if (name := f"{table.name}.{column}") in names:
                raise ProgramError(
                    f"model(): {name!r} is a tensor, and what the {column} of table {table.name!r} are "
                    "called where it is exported; give one of them another name."
                )
    size = size_of(metrics.summed)
    sums = [Entry(MEASURES, (size,), "float64", Rule.MEASURE)] if size else []
    report = Entry(REPORT, (1 + len(metrics.told),), "float64", Rule.REPORT)  # cost and metrics
    return Layout([*tensors, *tables, *encoded, *sums, report])


def framework_of(values: Mapping[str, Any], forward: Callable[..., Any]) -> str:
    """``torch`` or ``tensorflow``: whose objects ``model()`` returned. Imports nothing.

    Tables are of neither: of a model of tables alone it is the one that is loaded, or that ``forward`` uses.
    """
    found = {_framework_of_one(value) for value in values.values()} - {None}
    if not found and any(isinstance(value, Embedding) for value in values.values()):
        found = {name for name in FRAMEWORKS if name in sys.modules}
        if len(found) > 1:
            found &= {_home(value) for value in getattr(forward, "__globals__", {}).values()}
        if len(found) != 1:
            raise ProgramError(
                "model() returned embedding tables alone, which tell no framework; import PyTorch or "
                "TensorFlow in the program, not both."
            )
    if len(found) == 1:
        return str(found.pop())
    if not found:
        raise ProgramError(
            "model() returned nothing that can be trained: a dict of PyTorch tensors or modules, or of "
            "TensorFlow variables, layers or models, or of ef.Embedding tables, and one 'optimizer'."
        )
    raise ProgramError("model() mixes PyTorch and TensorFlow objects; use one framework a program.")


def _home(value: object) -> str:
    """The package that a module, class or function comes from."""
    name = getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None)
    return str(name).partition(".")[0]


def _framework_of_one(value: object) -> str | None:
    torch, tensorflow = sys.modules.get("torch"), sys.modules.get("tensorflow")
    if torch and isinstance(value, (torch.Tensor, torch.nn.Module)):
        return "torch"
    if tensorflow:
        keras = tensorflow.keras
        kinds = (
            tensorflow.Variable,
            tensorflow.Tensor,
            tensorflow.Module,
            keras.layers.Layer,
            keras.Variable,
        )
        if isinstance(value, kinds):
            return "tensorflow"
    return None


def add_table(tables: dict[str, Embedding], name: str, table: Embedding) -> None:
    """Adds a table that was found in the model. Raises ProgramError if another one has its name."""
    if name in tables:
        raise ProgramError(
            f"model() returned two embedding tables that are named {name!r}: rename one of them."
        )
    tables[name] = table


def take_optimizer(
    values: Mapping[str, Any], names: Mapping[int, str] | None = None, *, needed: bool = True
) -> Groups:
    """The one optimizer that model() must name, with its groups. names: of tensors, by their identity.

    needed: there are parameters for one.
    """
    value = values.get("optimizer")
    if value is None and not needed:
        return Groups(SGD(lr=0.0), {})
    if isinstance(value, Groups):
        return value
    if isinstance(value, _Optimizer):
        return Groups(value, {})  # type: ignore[arg-type]
    if value is None:
        raise ProgramError('model() names no optimizer; add one, such as "optimizer": ef.SGD(lr=0.1).')
    if (understood := optimizer_of(value, names or {})) is not None:
        return understood
    raise ProgramError(
        f"model()['optimizer'] is a {type(value).__module__}.{type(value).__name__}; updates run on the "
        f"parameter servers, so name one of {', '.join(f'ef.{name}' for name in OPTIMIZERS)}, or one of "
        "torch.optim's or keras.optimizers' that is called so."
    )


def grouped(
    groups: Groups, entries: Sequence[Entry], tables: Sequence[Entry], frozen: Iterable[str]
) -> list[Entry]:
    """Entries with the numbers of their optimizers. Raises ProgramError, see ``Groups.check``."""
    trained = [entry.name for entry in entries if entry.rule is Rule.UPDATE]
    buffers = [entry.name for entry in entries if entry.rule is not Rule.UPDATE]
    groups.check(trained, [*buffers, *frozen], [entry.name for entry in tables])
    return [
        msgspec.structs.replace(entry, part=groups.number_of(entry.name))
        if entry.rule is Rule.UPDATE
        else entry
        for entry in entries
    ]


def by_epoch(
    program: Program, entries: Sequence[Entry], tables: Sequence[Entry], frozen: Iterable[str]
) -> tuple[list[Entry], list[Entry]]:
    """Entries, and those of tables, with the epochs in which they are trained. Raises ProgramError."""
    if program.trainable is None:
        return list(entries), list(tables)
    names = [entry.name for entry in (*entries, *tables) if entry.rule in (Rule.UPDATE, Rule.ROWS)]
    others = [entry.name for entry in entries if entry.rule is not Rule.UPDATE]
    with blaming(program, "trainable"):
        toggles = toggles_by_name(program.trainable, names, [*others, *frozen])
    mine, of_tables = (
        [msgspec.structs.replace(entry, toggles=toggles.get(entry.name, ())) for entry in each]
        for each in (entries, tables)
    )
    return mine, of_tables


def trained_in(layout: Layout, epoch: int) -> tuple[frozenset[int], frozenset[int]]:
    """Numbers of the parameters, and of the tables, that are trained in this epoch."""
    parameters, tables = (
        frozenset(n for n, entry in enumerate(layout.of_rule(rule)) if is_trained(entry.toggles, epoch))
        for rule in (Rule.UPDATE, Rule.ROWS)
    )
    return parameters, tables


def check_values(values: object) -> dict[str, Any]:
    """What model() returned, as a dict with text keys."""
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ProgramError(
            f"model() returned a {type(values).__name__}; it must return a dict by name, such as "
            '{"net": net, "optimizer": ef.SGD(lr=0.1)}.'
        )
    return values


def check_cost(value: float) -> float:
    """Raises CostError unless the cost is finite."""
    if not np.isfinite(value):
        raise CostError(f"forward() returned a cost of {value}; it must be finite.")
    return value


def metric_names(value: object) -> tuple[str, ...]:
    """Names of what metrics() returned. Raises ProgramError if it is no dict by name."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ProgramError(
            f"metrics() returned a {type(value).__name__}; it must return a dict of means by name."
        )
    return tuple(value)


class Metrics(NamedTuple):
    """What metrics() gives: all names, those that are made of sums, and objects that it has updated.

    of_parts: where there are several sources to test with, what is made of sums of each, by its prefix.
    """

    names: tuple[str, ...] = ()
    measures: tuple[SummedMetric, ...] = ()
    objects: tuple[Any, ...] = ()
    of_parts: Mapping[str, tuple[SummedMetric, ...]] = {}

    @property
    def told(self) -> tuple[str, ...]:
        """All names that people see: of several sources, cost and metrics of each."""
        parts = (f"{prefix}{name}" for prefix in self.of_parts for name in ("cost", *self.names))
        return tuple(parts) or self.names

    @property
    def summed(self) -> tuple[SummedMetric, ...]:
        """All that are made of sums."""
        return tuple(each for part in self.of_parts.values() for each in part) or self.measures


def first_metrics(value: object, num_records: int, tests: Sequence[PartOfTests]) -> Metrics:
    """Of what metrics() returned the first time, for so many records.

    tests: the sources to test with. Raises ProgramError for what cannot be shown.
    """
    metric_names(value)
    assert isinstance(value, dict)
    objects = tuple({id(each): each for each in value.values() if library_of(each)}.values())
    inputs = inputs_of(value)
    made = {name: _described(name, each, inputs[name], num_records) for name, each in value.items()}
    measures = measures_of(made, max((part.last - part.first for part in tests), default=0))
    by_name = {measure.name: measure for measure in measures}
    names = tuple(each for name in value for each in (by_name[name].names if name in by_name else [name]))
    if len(set(names)) < len(names):
        raise ProgramError(f"metrics() returned two values that are named alike, of {', '.join(names)}.")
    if columns := [name for name in names if name in COLUMNS]:
        raise ProgramError(
            f"metrics() returned {columns[0]!r}, which is what a column of the report is called; there are "
            f"{', '.join(COLUMNS)} already: give it another name."
        )
    metric_values(inputs, names, measures)
    sums = np.zeros(size_of(measures))
    for measure, arrays in zip(measures, measured_of(inputs, measures), strict=True):
        if not measure.of:  # of an object that was tried
            add(measure, arrays, 0, num_records, sums)
    return Metrics(names, measures, objects, _of_parts(tests, made))


def _of_parts(tests: Sequence[PartOfTests], made: dict[str, Any]) -> dict[str, tuple[SummedMetric, ...]]:
    """See ``Metrics``. made: what metrics() returned, see ``measures_of``. Raises ProgramError."""
    found: dict[str, tuple[SummedMetric, ...]] = {}
    for part in tests if any(part.name for part in tests) else ():
        start = size_of([each for of in found.values() for each in of])
        found[part.prefix] = measures_of(made, part.last - part.first, part.prefix, start)
    return found


def without_metrics(tests: Sequence[PartOfTests]) -> Metrics:
    """Of a program without metrics()."""
    return Metrics(of_parts=_of_parts(tests, {}))


def _described(name: str, value: Any, inputs: Any, num_records: int) -> Any:
    """An object's description in its place. It is set back. Raises ProgramError if it cannot be taken."""
    if not is_object(value):
        return value
    try:
        return taken(name, value, [_host(each) for each in inputs] if library_of(value) else (), num_records)
    finally:
        set_back([value] if library_of(value) else [])


def inputs_of(found: Any) -> Any:
    """What metrics() returned, with tuples of what is summed in the place of metrics that are sums."""
    if not isinstance(found, dict):
        return found
    return {name: _inputs_of(each) for name, each in found.items()}


def _inputs_of(value: Any) -> Any:
    if isinstance(value, Summed):
        return tuple(value.inputs)
    return states_of(value) if library_of(value) else value


def measured_of(found: object, measures: Sequence[SummedMetric]) -> tuple[tuple[Array, ...], ...]:
    """What the sums are made of, in memory of the host. found: of ``inputs_of``."""
    assert isinstance(found, dict)
    return tuple(tuple(_host(each) for each in found[measure.name]) for measure in measures)


def _host(value: Any) -> Array:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)


def _number(name: str, value: Any) -> float:
    """A metric's value. Raises ProgramError unless it is one number."""
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    kind = f"{value.dtype} {type(value).__name__}" if hasattr(value, "dtype") else type(value).__name__
    raise ProgramError(
        f"metrics() returned for {name!r} a {kind}{shape}; it must be one real number: take the mean over "
        "the records, say."
    )


def metric_values(value: object, names: Sequence[str], measures: Sequence[SummedMetric] = ()) -> list[float]:
    """Values of what metrics() returned, in the order of ``names``; 0 for those that are made of sums."""
    found = metric_names(value)
    by_name = {measure.name: measure for measure in measures}
    told = tuple(each for name in found for each in (by_name[name].names if name in by_name else [name]))
    if told != tuple(names):
        raise ProgramError(f"metrics() returned {told}, and before that {tuple(names)}.")
    assert isinstance(value, dict)
    return [
        number
        for name in found
        for number in ([0.0] * len(by_name[name].names) if name in by_name else [_number(name, value[name])])
    ]


def open_replica(
    program: Program,
    *,
    seed: int,
    threads: int,
    sample: Mapping[str, Array],
    metric_arguments: Sequence[str] | None,
    tests: Sequence[PartOfTests] = (),
    device: str = "cpu",
    number: int = 0,
    graphs: bool = False,
    batch_size: int = 1,
) -> Replica:
    """Calls model() with all random states set by ``seed``.

    sample: a few records, as arguments of forward(); layers are built, and metrics() is called, with it.
    metric_arguments: those that metrics() takes; None: it is not called. tests: sources to test with.
    device: where it is to compute, a setting. number: of the worker, which chooses among several GPUs.
    graphs: see ``elasticflow.frameworks.graphs``. batch_size: records of a step. Raises ProgramError.
    """
    values = _first_values(program, seed, threads)
    framework = framework_of(values, program.forward)
    replica: Replica = _adapter(framework).open_replica(
        staged(program, framework),
        values,
        seed,
        sample,
        metric_arguments,
        tests,
        device=device,
        number=number,
        graphs=graphs and program.encode is None,
        batch_size=batch_size,
    )
    return replica


def _first_values(program: Program, seed: int, threads: int) -> dict[str, Any]:
    """What model() returns, with all random states set. Raises ProgramError."""
    set_up(seed, threads)
    loaded = FRAMEWORKS.keys() & sys.modules.keys()
    with blaming(program, "model"):
        values = check_values(program.model())
        if loaded != FRAMEWORKS.keys() & sys.modules.keys():
            set_up(seed, threads)  # model() has imported the framework: what it drew followed from nothing
            values = check_values(program.model())
    return values


def set_up(seed: int, threads: int) -> None:
    """Sets all random states, and the number of threads, of the frameworks that are loaded by now.

    Comes before the program runs, since it may compute while it is imported, and again before
    model(), which draws the first values.
    """
    seed_python(seed)
    for name in FRAMEWORKS:
        if name in sys.modules:
            _adapter(name).set_up(seed, threads)


def _adapter(name: str) -> Any:
    if name == "torch":
        from elasticflow.frameworks import pytorch

        return pytorch
    from elasticflow.frameworks import tensorflow

    return tensorflow


def warm_up(modules: Collection[str]) -> None:
    """Imports the frameworks among these modules, and what adapts them: that takes seconds."""
    for name in FRAMEWORKS:
        if any(module.partition(".")[0] == name for module in modules):
            with suppress(Exception):  # whoever uses it will say what is wrong
                _adapter(name)


def seed_python(seed: int) -> None:
    """Sets the global random states of Python and NumPy."""
    import random

    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
