"""TensorFlow, and Keras 3 on top of it, behind the Replica interface.

A slice runs as a graph, traced once for each shape of batch. A graph will not do where it would not be
a function of (state, batch, seed) alone: where it holds a random operation with a state of its own
(``tf.nn.dropout``, ``tf.random.uniform``), a variable from outside ``model()``, or a number that Python
drew; nor where ``forward`` cannot be traced at all, or calls a table in a loop or branch of the graph. Such
slices run eagerly, which is slower, after all random states have been set. Which of both it is follows from
the program and the shapes of the batch, not from what happened before, since graphs and eager runs may differ
in their last bits.

Tensors are named by where they lie in the model, such as ``net.0.kernel``: Keras's own names count
the layers that a process has made before.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from elasticflow.data.opening import PartOfTests
from elasticflow.embedding import Embedding
from elasticflow.errors import ProgramError
from elasticflow.frameworks.base import (
    CONSTANTS,
    Batch,
    CostError,
    Metrics,
    Replica,
    add_table,
    by_epoch,
    check_prediction,
    first_metrics,
    grouped,
    inputs_of,
    layout_of,
    measured_of,
    metric_values,
    named_predictions,
    seed_python,
    take_optimizer,
    trained_in,
    without_metrics,
)
from elasticflow.frameworks.lookups import Lookups, put
from elasticflow.frameworks.looping import Looping
from elasticflow.frameworks.replica_loop import ReplicaLoop
from elasticflow.frameworks.session import SlicePart
from elasticflow.frameworks.staged import entries_of, names_of
from elasticflow.frameworks.tensorflow_loop import TensorFlowTensors, traced
from elasticflow.frameworks.tensorflow_variables import ModelVariables, states_of
from elasticflow.hashing import mix
from elasticflow.program.loading import Program, blaming
from elasticflow.step.layout import Array, Entry, Rule, Vector
from elasticflow.step.schedule import Work
from elasticflow.training.objects import set_back

TRAINABLE = (tf.float32, tf.float64)
VARIABLES = (tf.Variable, keras.Variable)
LAYERS = keras.layers.Layer
PARTS = (*VARIABLES, LAYERS, tf.Module, keras.random.SeedGenerator, Embedding, list, tuple, dict)

Step: TypeAlias = Callable[[Batch, Any, Any], Any]
"""A computation of (batch, states of the random generators, weight)."""

_log = logging.getLogger(__name__)


def set_up(seed: int, threads: int) -> None:
    """One setting for all processes: numbers of threads change bits. First called before any operation."""
    try:
        if tf.config.threading.get_intra_op_parallelism_threads() != threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
            tf.config.set_visible_devices([], "GPU")
    except RuntimeError as error:
        raise ProgramError(
            "the program ran a TensorFlow operation before the number of threads was set. Make tensors, "
            "variables, layers and metrics in model(), not while the file is imported, and NumPy arrays in "
            "data(); and import TensorFlow at the top of the file."
        ) from error
    tf.config.experimental.enable_op_determinism()
    keras.config.disable_traceback_filtering()  # Keras would put words of its own into the program's errors
    _seed(seed)


def _seed(seed: int) -> None:
    """Sets all random states outside the model: Python's, NumPy's, TensorFlow's and Keras's."""
    keras.utils.set_random_seed(seed & 0xFFFFFFFF)
    tf.random.set_global_generator(tf.random.Generator.from_seed(seed))


class _Part(NamedTuple):
    """A variable, layer, generator or table. frozen, inside: whether one of the layers around it is not to be
    trained; whether there is one."""

    name: str
    value: Any
    frozen: bool = False
    inside: bool = False


def _parts(values: Mapping[str, Any]) -> Iterator[_Part]:
    """All parts of a model, each once.

    Breadth first: of several ways to a part, the shortest makes its name. Weights that a layer hides
    from this search come last, by number.
    """
    seen: dict[int, Any] = {}  # holds what it has seen, so that no other object gets its id
    for key, root in values.items():
        waiting, outermost = deque([_Part(key, root)]), []
        while waiting:
            part = waiting.popleft()
            name, value, frozen, inside = part
            if not isinstance(value, PARTS) or seen.setdefault(_identity(value), part) is not part:
                continue
            if isinstance(value, (*VARIABLES, keras.random.SeedGenerator, Embedding)):
                yield part
                continue
            if isinstance(value, LAYERS):
                yield part
                outermost += [] if inside else [value]
                frozen, inside = frozen or not value.trainable, True
            waiting.extend(_Part(f"{name}.{n}", child, frozen, inside) for n, child in _children(value))
        for layer in outermost:
            for number, weight in enumerate(layer.weights):
                part = _Part(f"{key}.weights.{number}", weight, not layer.trainable, True)
                if seen.setdefault(_identity(weight), part) is part:
                    yield part


def _identity(value: Any) -> int:
    return id(value.value if isinstance(value, keras.Variable) else value)


def _children(value: Any) -> Iterable[tuple[object, Any]]:
    if isinstance(value, keras.Sequential):
        return enumerate(value.layers)
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    if isinstance(value, dict):
        return value.items()
    attributes = vars(value)

    def is_registry(name: str) -> bool:
        """Such as Keras's ``_layers``. What lies there may have a better name, and is looked at last."""
        return name.startswith("_") and isinstance(attributes[name], (list, tuple, dict))

    names = sorted(attributes, key=is_registry)
    return [(n if (bare := n.lstrip("_")) in attributes else bare, attributes[n]) for n in names]


class _TensorFlowFound:
    """The variables of a model, each once, with the rule it follows; and its tables, by name.

    layers: those that lie in no other. unbuilt: names of layers without variables as yet.
    seeds: states of Keras's generators of random numbers, which are set, not kept.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.entries: list[Entry] = []
        self.tables: dict[str, Embedding] = {}
        self.variables: list[tf.Variable] = []
        self.layers: list[keras.layers.Layer] = []
        self.unbuilt: list[str] = []
        self.seeds: list[tf.Variable] = []
        self.frozen: dict[str, tf.Variable] = {}
        self._parameters: set[int] = set()
        """Of layers: a layer that is not trained makes its buffers and its parameters look alike."""
        for part in _parts(values):
            value = part.value
            if isinstance(value, VARIABLES):
                self._add(part.name, value, value.trainable and not part.frozen)
            elif isinstance(value, LAYERS):
                for layer in value._flatten_layers():
                    self._parameters.update(map(_identity, layer._trainable_variables))
                self.layers += [] if part.inside else [value]
                self.unbuilt += [] if value.built else [part.name]
            elif isinstance(value, Embedding):
                add_table(self.tables, part.name, value)
            else:
                self.seeds.append(value.state.value)

    def _add(self, name: str, variable: tf.Variable | keras.Variable, trained: bool) -> None:
        variable = variable.value if isinstance(variable, keras.Variable) else variable
        dtype = _dtype(name, variable)
        if not trained and id(variable) in self._parameters:
            self.frozen[name] = variable
            return
        rule = Rule.FIRST if not variable.dtype.is_floating else Rule.UPDATE if trained else Rule.MEAN
        self.entries.append(Entry(name, tuple(variable.shape), dtype, rule))
        self.variables.append(variable)


def named_variables(values: Mapping[str, Any]) -> dict[str, tf.Variable]:
    """All variables of a model, by the names that they have in a layout."""
    found = _TensorFlowFound(values)
    return {entry.name: each for entry, each in zip(found.entries, found.variables, strict=True)}


def named_weights(values: Mapping[str, Any]) -> dict[str, Array]:
    """The values of all variables of a model, by the names that they have in a layout."""
    return {name: variable.numpy() for name, variable in named_variables(values).items()}


def _dtype(name: str, variable: tf.Variable) -> str:
    dtype = variable.dtype
    if not variable.shape.is_fully_defined():
        raise ProgramError(f"{name}: has the shape {variable.shape}; give it one that is known, and stays.")
    if dtype.is_floating and dtype not in TRAINABLE:
        raise ProgramError(
            f"{name}: is {dtype.name}; parameters and buffers must be float32 or float64 (compute in half "
            "precision with Keras's mixed_float16 policy, or tf.cast inside forward)."
        )
    if dtype.is_complex:
        raise ProgramError(
            f"{name}: is {dtype.name}; parameters and buffers must be real: keep real and imaginary part as "
            "two tensors, and put them together with tf.complex inside forward."
        )
    numpy = np.dtype(dtype.as_numpy_dtype)
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool) or numpy.isbuiltin != 1:
        raise ProgramError(f"{name}: tensors of {dtype.name} cannot be kept.")
    return str(numpy)


def _with_variables(values: Mapping[str, Any]) -> dict[str, Any]:
    """What ``forward`` gets as params: ``values``, with a variable in the place of each tensor.

    Raises ProgramError if there is anything that cannot be trained or kept.
    """
    params: dict[str, Any] = {}
    made: dict[int, tf.Variable] = {}
    for key, value in values.items():
        if isinstance(value, tf.Tensor):
            if id(value) not in made:
                made[id(value)] = tf.Variable(value, trainable=value.dtype.is_floating)
            value = made[id(value)]
        elif key != "optimizer" and not isinstance(
            value, (*VARIABLES, LAYERS, tf.Module, Embedding, *CONSTANTS)
        ):
            raise ProgramError(
                f"model()[{key!r}] is a {type(value).__name__}; allowed are TensorFlow tensors, variables "
                "and modules, Keras layers and models, ef.Embedding tables, plain constants, and one "
                "'optimizer'."
            )
        params[key] = value
    return params


class _Mode(keras.layers.Layer):  # type: ignore[misc]
    """Tells all Keras layers that ``run`` calls whether this is training: a layer asks the one around it.

    The program's own tf.functions run as plain Python meanwhile: what they traced in one mode, they
    would use in the other.
    """

    def __init__(self, layers: Sequence[keras.layers.Layer]) -> None:
        super().__init__(name="forward", autocast=False)
        self.inner = list(layers)  # a call to the outermost layer clears the losses of the call before
        self.built = True

    def call(self, run: Callable[[], Any], training: bool | None = None) -> Any:
        plain = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        try:
            return run()
        finally:
            tf.config.run_functions_eagerly(plain)


class _Runner:
    """Runs steps, as graphs or eagerly; see the module's text. own: the model's variables."""

    def __init__(self, own: Iterable[tf.Variable], seeds: Sequence[tf.Variable]) -> None:
        self._own = {id(variable) for variable in (*own, *seeds)}
        self._num_seeds = len(seeds)
        self._graphs: dict[object, tuple[Step | None, str]] = {}
        self._warned = False

    def __call__(self, step: Step, batch: Batch, seed: int, weight: float, variant: Hashable = None) -> Any:
        """variant: what else decides what the step does."""
        arguments = (
            batch,
            tf.constant(states_of(seed, self._num_seeds), tf.int64),
            tf.constant(weight, tf.float64),
        )
        shapes = step, variant, *((name, value.dtype, tuple(value.shape)) for name, value in batch.items())
        graph, problem = self._graphs.get(shapes) or self._trace(step, arguments)
        if graph is None:
            _seed(seed)
            result = step(*arguments)
        else:
            seed_python(seed)
            result = graph(*arguments)
        self._graphs[shapes] = graph, problem  # only now: if the program raises, it is traced again
        if problem and not self._warned:
            self._warned = True
            _log.warning("forward() runs eagerly, which is slower: %s", problem)
        return result

    def _trace(self, step: Step, arguments: tuple[Batch, Any, Any]) -> tuple[Step | None, str]:
        """A graph; or None, and why."""
        _seed(0)
        before = _python_random()
        try:
            graph: Any = tf.function(step, autograph=False).get_concrete_function(*arguments)
        except Exception as error:  # noqa: BLE001  (the eager run will tell whether the program is wrong)
            lines = str(error).strip().splitlines() or [""]
            return None, f"it cannot be traced to a graph: {type(error).__name__}: {lines[-1].strip()}"
        if operations := _random_operations(graph):
            return None, (
                f"it uses {', '.join(operations)}, whose random state cannot be set in a graph; "
                "use Keras's layers instead"
            )
        if any(id(variable) not in self._own for variable in graph.graph.variables):
            return None, "it uses a variable that is not in model(), such as that of keras.random"
        if _python_random() != before:
            return None, "it uses Python's or NumPy's random numbers, which a graph would draw only once"
        return graph, ""


def _python_random() -> tuple[object, ...]:
    _, keys, *rest = np.random.get_state()
    return random.getstate(), np.asarray(keys).tobytes(), *rest


def _random_operations(function: Any) -> list[str]:
    """Types of operations with a random state of their own: those with their seeds as attributes."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
    return sorted({node.op for node in nodes if "seed2" in node.attr})


def _convertible(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with ``if`` and ``while`` over tensors made part of a graph; itself if it cannot be."""
    plain: Callable[..., Any] = getattr(function, "python_function", function)  # of a tf.function
    try:
        converted: Callable[..., Any] = tf.autograph.to_graph(plain)
        return converted
    except Exception as error:  # no source, say
        if isinstance(error, OSError) and error.errno:  # a full disk: what is converted is written to a file
            raise
        return plain


def _columns(batch: Batch) -> dict[str, npt.NDArray[Any]]:
    """Those that may hold ids."""
    return {name: _array(tensor) for name, tensor in batch.items() if tensor.dtype.is_integer}


def _array(tensor: Any) -> npt.NDArray[Any]:
    """The values of an eager tensor, not copied."""
    return np.asarray(memoryview(tensor))


class _TensorFlowLookups(Lookups):
    """Rows are watched by a tape. Where a graph runs, they are read from within it.

    error: what was raised there: TensorFlow makes an error of its own of it.
    """

    def __init__(self, tables: Mapping[str, Embedding], seed: int) -> None:
        super().__init__(tables, seed)
        self.error: BaseException | None = None
        self._tape: tf.GradientTape | None = None
        self._graph: Any = None

    def begin(self, tape: tf.GradientTape | None) -> None:
        """Of a step. Only in the graph where it begins can a tape follow lookups."""
        self.looked_up.clear()
        self._tape, self._graph = tape, _graph()

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def answer(self, number: int, ids: Any, *, combine: str | None, offsets: Any, padding: int | None) -> Any:
        if isinstance(ids, tf.RaggedTensor):
            inner = partial(self.answer, number, combine=combine, offsets=offsets, padding=padding)
            if combine is None or ids.flat_values.shape.rank > 1:
                return ids.with_flat_values(inner(ids.flat_values))
            if ids.ragged_rank > 1:
                return ids.with_values(inner(ids.values))
            if offsets is not None:
                raise ProgramError(
                    f"table {self.entries[number].name!r}: ragged ids have offsets of their own."
                )
            ids, offsets = ids.values, ids.row_splits[:-1]
        if _graph() is not self._graph:
            raise ProgramError(
                f"table {self.entries[number].name!r}: was called in a loop or a branch of a graph, or in a "
                "function that TensorFlow traces; look up before it."
            )

        def read(ids: Array, *starts: Array) -> tuple[Array, ...]:
            try:
                found = self.look_up(number, ids, combine, starts[0] if starts else None, padding)
            except BaseException as error:
                self.error = error
                raise
            told = found.ids.keys, found.values, found.ids.places, np.array(found.shape)
            return told if found.bags is None else (*told, *found.bags)

        ids = tf.convert_to_tensor(ids)
        arguments = [ids] if offsets is None else [ids, offsets]
        has_bags = combine is not None or padding is not None
        types = [tf.uint64, tf.float32, tf.int64, tf.int64, *[tf.int64] * 2 * has_bags]
        keys, rows, places, shape, *bags = tf.numpy_function(read, arguments, types)
        rows.set_shape((None, self.specs[number].dim))
        if self._tape:
            self._tape.watch(rows)
        self.looked_up.append((number, keys, rows))
        if has_bags:
            numbers, sizes = bags
            sums = tf.sparse.segment_sum(rows, places, numbers, num_segments=tf.size(sizes))
        else:
            sums = tf.gather(rows, places)
        if combine == "mean":
            sums /= tf.cast(tf.maximum(sizes, 1), tf.float32)[:, tf.newaxis]
        answer = tf.reshape(sums, shape)
        vectors = tf.TensorShape([None]) if offsets is not None else ids.shape[:-1] if combine else ids.shape
        answer.set_shape(vectors.concatenate(self.specs[number].dim))
        return answer


def _graph() -> Any:
    """The one that is being traced; None if operations run at once."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


class _Views(NamedTuple):
    """What ``compute`` fills, by rule."""

    gradients: list[Array]
    means: list[Array]
    firsts: list[Array]
    report: Array


class _Calls:
    """The program's functions, called with what ``model()`` returned, in a mode."""

    def __init__(
        self,
        program: Program,
        params: Mapping[str, Any],
        mode: _Mode,
        metric_arguments: Sequence[str],
        objects: Sequence[Any],
    ) -> None:
        self._program, self.params, self._mode = program, dict(params), mode
        self._metric_arguments, self._objects = tuple(metric_arguments), objects
        functions = (program.forward, program.encode, program.metrics, program.predict)
        self._in_graph = {f: _convertible(f) for f in functions if f}

    def cost(self, batch: Batch, training: bool) -> Any:
        """Raises CostError, and whatever ``forward`` raises."""
        cost = self._call(self._program.forward, batch, training)
        if not tf.is_tensor(cost):
            kind = type(cost).__name__
            raise CostError(f"forward() returned a {kind}; it must return the cost, a scalar tensor.")
        if cost.shape.rank != 0 or not cost.dtype.is_floating:
            raise CostError(
                f"forward() returned a tensor of shape {cost.shape} and {cost.dtype.name}; it must return "
                "the cost, one floating number: take the mean over the records, say."
            )
        return cost

    def encoded(self, batch: Batch, names: Sequence[str]) -> list[Any]:
        """What ``encode`` makes of a slice."""
        found = self._call(self._program.encode, batch, True)
        return [tf.convert_to_tensor(found[name]) for name in names]

    def predictions(self, batch: Batch) -> dict[str, Any]:
        """What predict() gives."""
        return named_predictions(self._call(self._program.predict, batch, False))

    def metrics(self, batch: Batch) -> Any:
        """What metrics() returns, see ``inputs_of``."""
        set_back(self._objects)
        return self._call(self._program.metrics, {n: batch[n] for n in self._metric_arguments}, False)

    def _call(self, function: Any, arguments: Batch, training: bool) -> Any:
        if not tf.executing_eagerly():
            function = self._in_graph[function]
        return self._mode(run=lambda: inputs_of(function(**arguments, params=self.params)), training=training)


class TensorFlowReplica(Replica):
    """See Replica. The model's variables hold copies of what is in ``state``."""

    framework = "tensorflow"

    def __init__(
        self,
        program: Program,
        params: Mapping[str, Any],
        mode: _Mode,
        lookups: _TensorFlowLookups,
        metrics: Metrics,
        metric_arguments: Sequence[str],
        encoded: Sequence[Entry] = (),
        looping: Looping | None = None,
    ) -> None:
        found = _find(params, needed=looping is None)
        self.lookups: _TensorFlowLookups = lookups
        self._calls = _Calls(program, params, mode, metric_arguments, metrics.objects)
        more: list[Entry] = []
        if looping:
            assert looping.plan
            found.entries = looping.plan.of_model(found.entries, program.path)
            more = looping.plan.more
        needed = looping is None or any(entry.rule is Rule.UPDATE for entry in found.entries)
        self.optimizers, self.metrics = take_optimizer(params, needed=needed), metrics
        found.entries = grouped(self.optimizers, found.entries, lookups.entries, found.frozen)
        found.entries, tables = by_epoch(program, found.entries, lookups.entries, found.frozen)
        self.state = Vector(layout_of([*found.entries, *more], tables, metrics, encoded))
        self._variables = ModelVariables(
            self.layout, found.entries, found.variables, found.seeds, found.frozen
        )
        for view, variable in zip(self.state.tensors(found.entries), found.variables, strict=True):
            np.copyto(view, variable.numpy())
        self._trained = trained_in(self.layout, 0)
        """Numbers of parameters and tables that get gradients."""
        counted = [variable.value for each in metrics.objects for variable in each.variables]
        self._run = _Runner([*found.variables, *found.frozen.values(), *counted], found.seeds)
        groups = [tf.TensorSpec(group.shape, group.dtype) for group in self.state.groups]
        self._assign = tf.function(self._variables.assign, autograph=False).get_concrete_function(groups)
        self._outs: WeakKeyDictionary[Vector, _Views] = WeakKeyDictionary()
        self._loop = ReplicaLoop(looping, self.state, self._variables.kept) if looping else None

    def begin_slice(self, work: Work, number: int) -> None:
        self.begin_epoch(work.epoch)
        if self._loop:
            self._loop.enter(work, number)

    def keep(self, work: Work, out: Vector) -> None:
        assert self._loop
        self._loop.keep(work, out)

    def begin_epoch(self, epoch: int) -> None:
        self._trained = trained_in(self.layout, epoch)

    def frozen(self) -> dict[str, Array]:
        return self._variables.frozen()

    @property
    def params(self) -> Mapping[str, Any]:
        return self._calls.params

    def prepare(self, columns: Mapping[str, Array]) -> Batch:
        return {name: tf.constant(column) for name, column in columns.items()}

    def refresh(self, *, was_put: bool = False) -> None:
        self._assign([tf.constant(group) for group in self.state.groups])
        if self._loop and not was_put:
            self._loop.leave()

    def ask_early(self, batch: Batch) -> None:
        self.lookups.ahead.ask_early(_columns(batch))

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
        assert not lefts, "its vectors are in the host's memory"
        views = self._views(out)
        totals: dict[str, Any] = {}
        if self._loop:
            cost, gradients, changes, counters, totals = self._go_round(self._loop, batch, seed, weight)
            of_rows = []
        else:
            cost, gradients, of_rows, changes, counters = self._guarded(self._train, batch, seed, weight)
        value = float(cost)
        of_tables = [(int(n), _array(keys), _array(g)) for n, keys, g in of_rows if g is not None]
        used = {number for number, _, _ in of_tables}
        parameters, tables = (sorted(each) for each in self._trained)
        self.unused = (
            *(self._variables.names[n] for n, g in zip(parameters, gradients, strict=True) if g is None),
            *(self.lookups.entries[n].name for n in tables if n not in used),
        )
        put(out, of_tables, onto=onto)
        targets = [*(views.gradients[number] for number in parameters), *views.means]
        for number, tensor, target in zip_longest(parameters, (*gradients, *changes), targets):
            array = 0 if tensor is None else _array(tensor)
            np.add(target, array, out=target) if onto else np.copyto(target, array)
            if ready and number is not None:
                ready(number)
        if not onto:
            for counter, target in zip(counters, views.firsts, strict=True):
                np.copyto(target, _array(counter))
            views.report.fill(0)
        views.report[0] += value * weight
        if self._loop:
            self._loop.put(
                out, {name: _array(tensor) for name, tensor in totals.items()}, _add if onto else np.copyto
            )

    def _go_round(
        self, loop: ReplicaLoop, batch: Batch, seed: int, weight: float
    ) -> tuple[Any, list[Any], list[Any], list[Any], dict[str, Any]]:
        """Has the program's loop compute a slice: as ``_train``, and its summands."""
        before: list[Any] = []

        def begin() -> None:
            before.extend(self._variables.read())
            _seed(seed)
            self._variables.seed(seed)

        try:
            found = loop.compute(SlicePart(batch, weight), begin, None)
        except BaseException:
            self.refresh()
            raise
        changes = self._variables.changes(before, tf.constant(weight, tf.float64))
        counters = self._variables.counters()
        self._variables.put_back(before)
        cost = loop.no_cost if found.cost is None else found.cost
        names = self._variables.names
        gradients = [found.gradients.get(names[number]) for number in sorted(self._trained[0])]
        return cost, gradients, changes, counters, loop.totals(found)

    def encode(self, batch: Batch, seed: int) -> list[Array]:
        return [_array(found) for found in self._guarded(self._encode, batch, seed, 1.0)]

    def evaluate(self, batch: Batch, seed: int) -> list[float]:
        if self._loop:
            self._loop.load(lambda variable, value: variable.assign(value))
        cost, values = self._guarded(self._test, batch, seed, 1.0)
        value = float(cost)
        if not self.metrics.names:
            return [value]
        means = metric_values(values, self.metrics.names, self.metrics.measures)
        self.measured = measured_of(values, self.metrics.measures)
        return [value, *means]

    def predict(self, batch: Batch, seed: int) -> dict[str, Array]:
        if self._loop:
            self._loop.load(lambda variable, value: variable.assign(value))
        found = self._guarded(self._predict, batch, seed, 1.0)
        count = int(next(iter(batch.values())).shape[0])
        return {
            name: check_prediction(name, np.array(value), count)  # a copy: memory of a tensor is TensorFlow's
            for name, value in found.items()
        }

    def _guarded(self, step: Step, batch: Batch, seed: int, weight: float) -> Any:
        """Steps put back what they change, unless something raises on the way."""
        self.lookups.error = None
        try:
            with self.lookups.allowed(_columns(batch), training=step == self._train):
                return self._run(step, batch, seed, weight, self._trained)
        except BaseException as error:
            self.refresh()
            if self.lookups.error and isinstance(error, tf.errors.OpError):
                raise self.lookups.error from None
            raise

    def _views(self, out: Vector) -> _Views:
        if out not in self._outs:
            rules = (Rule.UPDATE, Rule.MEAN, Rule.FIRST, Rule.REPORT)
            updates, means, firsts, (report,) = (out.tensors(self.layout.of_rule(rule)) for rule in rules)
            self._outs[out] = _Views(updates, means, firsts, report)
        return self._outs[out]

    def _train(self, batch: Batch, seeds: Any, weight: Any) -> tuple[Any, ...]:
        """Cost, weighted gradients of what is trained (None where there is none) and changes, and counters.

        A Step.

        Gradients of rows come with the number of the table and the keys, lookup by lookup.
        """
        before = self._variables.read()
        self._variables.set_seeds(seeds)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            leaves = self._variables.leaves(self._trained[0])
            tape.watch(leaves)
            self.lookups.begin(tape)
            cost = self._calls.cost(batch, training=True)
        looked_up = [each for each in self.lookups.looked_up if each[0] in self._trained[1]]
        num_leaves = len(leaves)
        leaves += [rows for _, _, rows in looked_up]
        both = tape.gradient(cost, leaves, tf.cast(weight, cost.dtype))
        if all(gradient is None for gradient in both):
            raise CostError("forward() returned a cost that depends on no parameter; use params in it.")
        changes = self._variables.changes(before, weight)
        counters = self._variables.counters()
        self._variables.put_back(before)
        both = list(map(_dense, both, leaves))
        gradients, of_rows = both[:num_leaves], both[num_leaves:]
        tables = [(n, keys, gradient) for (n, keys, _), gradient in zip(looked_up, of_rows, strict=True)]
        return cost, gradients, tables, changes, counters

    def _encode(self, batch: Batch, seeds: Any, weight: Any) -> list[Any]:
        """What encode() makes of a slice. A Step."""
        before = self._variables.read()
        self._variables.set_seeds(seeds)
        self.lookups.begin(None)
        found = self._calls.encoded(batch, names_of(self.encoded))
        self._variables.put_back(before)
        return found

    def _predict(self, batch: Batch, seeds: Any, weight: Any) -> dict[str, Any]:
        """What predict() gives. A Step."""
        before = self._variables.read()
        self._variables.set_seeds(seeds)
        self.lookups.begin(None)
        found = self._calls.predictions(batch)
        self._variables.put_back(before)
        return {name: _of_files(tf.convert_to_tensor(value)) for name, value in found.items()}

    def _test(self, batch: Batch, seeds: Any, weight: Any) -> tuple[Any, Any]:
        """Cost and metrics. A Step."""
        before = self._variables.read()
        self._variables.set_seeds(seeds)
        self.lookups.begin(None)
        cost = self._calls.cost(batch, training=False)
        values = self._calls.metrics(batch) if self.metrics.names else {}
        self._variables.put_back(before)
        return cost, values


def _of_files(value: Any) -> Any:
    """A prediction, of a type that files have."""
    return tf.cast(value, tf.float32) if value.dtype in (tf.bfloat16, tf.float16) else value


def _add(target: Array, value: Array) -> None:
    np.add(target, value, out=target)


def _dense(gradient: Any, leaf: tf.Variable | tf.Tensor) -> Any:
    """A sparse gradient's rows, those with one number added up, in their places."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, tf.shape(leaf)[0])


def _find(params: Mapping[str, Any], *, needed: bool = True) -> _TensorFlowFound:
    """needed: something has to be trained."""
    found = _TensorFlowFound(params)
    trained = found.tables or any(entry.rule is Rule.UPDATE for entry in found.entries)
    if needed and not found.unbuilt and not trained:
        raise ProgramError(
            "model() has no parameters to train: no floating tensor, no layer with weights, no table."
        )
    return found


def _build(program: Program, params: Mapping[str, Any], mode: _Mode, sample: Batch) -> None:
    """Calls forward() if there are layers that learn from their first input which weights they have."""
    for training in (False, True):  # some layers are there for training alone
        found = _find(params)
        if not found.unbuilt:
            return
        before = [variable.numpy() for variable in found.variables]
        with blaming(program, "forward"):
            mode(run=lambda: program.forward(**sample, params=params), training=training)
        for variable, value in zip(found.variables, before, strict=True):
            variable.assign(value)
    if unbuilt := _find(params).unbuilt:
        raise ProgramError(
            f"{', '.join(unbuilt)}: forward() calls no such layer, so that it never gets its weights. "
            "Use it, leave it out, or give it the shape of its input."
        )


def open_replica(
    program: Program,
    values: Mapping[str, Any],
    seed: int,
    sample: Mapping[str, Array],
    metric_arguments: Sequence[str] | None,
    tests: Sequence[PartOfTests],
    device: str,
    number: int,
    graphs: bool,
    batch_size: int,
) -> TensorFlowReplica:
    """See ``frameworks.open_replica``."""
    if device not in ("auto", "cpu"):
        raise ProgramError(
            f"device: {device} is for PyTorch programs: those of TensorFlow compute on the processor; use "
            "device: auto or cpu."
        )
    if keras.backend.backend() != "tensorflow":
        raise ProgramError(f"Keras runs on {keras.backend.backend()} here; set KERAS_BACKEND=tensorflow.")
    params = _with_variables(values)
    loops = program.loop is not None
    found = _find(params, needed=not loops)
    mode, lookups = _Mode(found.layers), _TensorFlowLookups(found.tables, seed)
    take_optimizer(values, needed=not loops)
    looping = _looping(program, params, found, sample, seed) if loops else None
    batch = {name: tf.constant(column) for name, column in sample.items()}
    found_metrics = without_metrics(tests)
    with lookups.allowed():
        _build(program, params, mode, batch)
        if metric_arguments is not None:
            arguments = {name: batch[name] for name in metric_arguments}
            with blaming(program, "metrics"):
                assert program.metrics is not None
                metrics = program.metrics
                caught: list[object] = []  # Keras looks into what a layer returns
                mode(run=lambda: caught.append(metrics(**arguments, params=params)), training=False)
                found_metrics = first_metrics(caught[0], len(next(iter(sample.values()))), tests)
        encoded: list[Entry] = []
        if program.encode is not None:
            encode, made = program.encode, list[object]()
            with blaming(program, "encode"):
                mode(run=lambda: made.append(encode(**batch, params=params)), training=False)
                encoded = _encoded(program, sample, batch_size, made[0])
    return TensorFlowReplica(
        program, params, mode, lookups, found_metrics, metric_arguments or (), encoded, looping
    )


def _looping(
    program: Program,
    params: Mapping[str, Any],
    found: _TensorFlowFound,
    sample: Mapping[str, Array],
    seed: int,
) -> Looping:
    """The program's loop, and what it does in a step, which is tried with a few records."""
    assert program.loop
    if found.unbuilt:
        raise ProgramError(
            f"{', '.join(found.unbuilt)}: has no weights before it is first called; with loop(), say the "
            "shape of its input in model(), such as by build() or keras.layers.Input."
        )
    if found.tables:
        raise ProgramError("model(): with loop(), ef.Embedding is for PyTorch's programs.")
    pairs = zip(found.entries, found.variables, strict=True)
    tensors = TensorFlowTensors(program.path, {e.name: v for e, v in pairs if e.rule is Rule.UPDATE})

    def between(step: int, stage: int) -> None:
        """Random numbers outside of slices, too, follow from where they are drawn."""
        _seed(mix(seed, (step << 7) + stage + 1) >> 1)

    looping = Looping(program.path, program.loop, params, tensors, between)
    batch = {name: tf.constant(column) for name, column in sample.items()}
    _seed(seed)
    traced(looping, tensors, batch, [*found.variables, *found.seeds])
    _seed(seed)
    return looping


def _encoded(program: Program, sample: Mapping[str, Array], batch_size: int, found: object) -> list[Entry]:
    """Regions for what encode() gives."""
    if isinstance(found, dict):
        found = {name: value.numpy() if tf.is_tensor(value) else value for name, value in found.items()}
    assert program.whole is not None
    return entries_of(found, program.whole, len(next(iter(sample.values()))), batch_size)
