"""What ElasticFlow needs of a framework: a replica of the user's model that computes slices.

A replica's values live in ``state``, a flat Vector laid out by ``layout``: whoever has a new version
copies it there and calls ``refresh``. Of embedding tables it has no state: ``read_rows`` gets the rows that a
slice looks up. All it computes is a function of (state, rows, batch, seed) alone.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from elasticflow.api import Optimizer, _Optimizer
from elasticflow.embedding import Embedding, TableSpec
from elasticflow.errors import ProgramError
from elasticflow.frameworks.lookups import Lookups
from elasticflow.program.loading import Program, blaming
from elasticflow.step.layout import Array, Entry, Layout, Rule, Vector

Batch: TypeAlias = dict[str, Any]
"""Arguments of ``forward`` by name, in the framework's own tensors."""

REPORT = "report"
FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
COLUMNS = ("epoch", "step", "cost")
"""What the report says of an evaluation besides its metrics."""
CONSTANTS = (int, float, str, bool, bytes, type(None))


class CostError(ProgramError):
    """``forward`` returned something that is no cost, such as none that is a scalar."""


class Interrupted(BaseException):
    """To be raised by what waits for rows: they are not to be had any more; the slice is to be given up.

    No error of the program's, which neither its own handlers nor those of errors are to catch.
    """


class Replica(ABC):
    """A user's model in one process.

    framework: ``torch`` or ``tensorflow``. state: the values of the version it computes with.
    lookups: of its embedding tables. unused: names of parameters and tables that got no gradient in the last
    ``compute`` (a hint, not an error).
    """

    framework: str
    apart = False
    """Whether it computes on a device with memory of its own: sums stay there until ``deliver``ed."""
    layout: Layout
    lookups: Lookups
    optimizer: Optimizer
    metrics: tuple[str, ...]
    state: Vector
    unused: tuple[str, ...] = ()

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """In the order of their entries."""
        return self.lookups.specs

    @abstractmethod
    def prepare(self, columns: Mapping[str, Array]) -> Batch:
        """Records as the framework's tensors, in memory of its own."""

    @abstractmethod
    def refresh(self) -> None:
        """``state`` holds another version from now on."""

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
    def facts(self) -> Mapping[str, str]:
        """What of the device decides the bits, by name; of the processor others tell."""
        return {}

    @abstractmethod
    def evaluate(self, batch: Batch, seed: int) -> list[float]:
        """Cost and metrics, forward only, with layers in their inference mode. Raises as ``compute`` does."""


def layout_of(tensors: Sequence[Entry], tables: Sequence[Entry], num_metrics: int) -> Layout:
    """Of a model and its report. Raises ProgramError where a table's arrays would have a tensor's name."""
    names = {entry.name for entry in tensors}
    for table in tables:
        for column in ("ids", "rows"):
            if (name := f"{table.name}.{column}") in names:
                raise ProgramError(
                    f"model(): {name!r} is a tensor, and what the {column} of table {table.name!r} are "
                    "called where it is exported; give one of them another name."
                )
    return Layout([*tensors, *tables, report_entry(num_metrics)])


def report_entry(num_metrics: int) -> Entry:
    """The region for cost and metrics."""
    return Entry(REPORT, (1 + num_metrics,), "float64", Rule.REPORT)


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


def take_optimizer(values: Mapping[str, Any]) -> Optimizer:
    """The one optimizer that model() must name."""
    value = values.get("optimizer")
    if isinstance(value, _Optimizer):
        return value  # type: ignore[return-value]
    if value is None:
        raise ProgramError('model() names no optimizer; add one, such as "optimizer": ef.SGD(lr=0.1).')
    raise ProgramError(
        f"model()['optimizer'] is a {type(value).__module__}.{type(value).__name__}; updates run on the "
        "parameter servers, so name one of ef.SGD, ef.Adam, ef.AdamW, ef.Adagrad, ef.Ftrl."
    )


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


def first_metrics(value: object) -> tuple[str, ...]:
    """Names of what metrics() returned the first time. Raises ProgramError for what cannot be shown."""
    names = metric_names(value)
    if taken := [name for name in names if name in COLUMNS]:
        raise ProgramError(
            f"metrics() returned {taken[0]!r}, which is what a column of the report is called; there are "
            f"{', '.join(COLUMNS)} already: give it another name."
        )
    metric_values(value, names)
    return names


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


def metric_values(value: object, names: Sequence[str]) -> list[float]:
    """Values of what metrics() returned, in the order of ``names``."""
    if metric_names(value) != tuple(names):
        raise ProgramError(f"metrics() returned {metric_names(value)}, and before that {tuple(names)}.")
    assert isinstance(value, dict)
    return [_number(name, value[name]) for name in names]


def open_replica(
    program: Program,
    *,
    seed: int,
    threads: int,
    sample: Mapping[str, Array],
    metric_arguments: Sequence[str] | None,
    device: str = "cpu",
    number: int = 0,
    graphs: bool = False,
) -> Replica:
    """Calls model() with all random states set by ``seed``.

    sample: a few records, as arguments of forward(); layers are built, and metrics() is called, with it.
    metric_arguments: those that metrics() takes; None: it is not called. device: where it is to compute, a
    setting. number: of the worker, which chooses among several GPUs. graphs: see
    ``elasticflow.frameworks.graphs``. Raises ProgramError.
    """
    set_up(seed, threads)
    with blaming(program, "model"):
        values = check_values(program.model())
    adapter = _adapter(framework_of(values, program.forward))
    replica: Replica = adapter.open_replica(
        program, values, seed, sample, metric_arguments, device=device, number=number, graphs=graphs
    )
    return replica


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


def seed_python(seed: int) -> None:
    """Sets the global random states of Python and NumPy."""
    import random

    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
