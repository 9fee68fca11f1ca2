"""PyTorch behind the Replica interface."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch

from elasticflow.data.opening import PartOfTests
from elasticflow.errors import LoopError, ProgramError
from elasticflow.frameworks import torch_compiled
from elasticflow.frameworks.base import (
    WRITTEN,
    Batch,
    CostError,
    Metrics,
    Replica,
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
    without_metrics,
)
from elasticflow.frameworks.devices import Cuda, Device, open_device
from elasticflow.frameworks.graphs import Computed, Graphs
from elasticflow.frameworks.lookups import Lookups, put
from elasticflow.frameworks.looping import Looping
from elasticflow.frameworks.replica_loop import ReplicaLoop
from elasticflow.frameworks.session import SlicePart
from elasticflow.frameworks.staged import entries_of, names_of
from elasticflow.frameworks.torch_hooks import GradientHooks, check_recomputed, dense
from elasticflow.frameworks.torch_lookups import TorchLookups
from elasticflow.frameworks.torch_loop import TorchTensors, traced
from elasticflow.frameworks.torch_making import Making
from elasticflow.frameworks.torch_model import (
    FrozenTensors,
    ModelBuffers,
    ModelRest,
    TorchFound,
    TrainingModes,
    aligned,
    find,
)
from elasticflow.frameworks.torch_sums import Into, LeavingInto, Twins, add, nothing, of_rule, view
from elasticflow.frameworks.trained import Trained
from elasticflow.hashing import mix
from elasticflow.process.gpu_state import GpuState
from elasticflow.program.loading import Program, blaming
from elasticflow.step.layout import Array, Entry, Rule, Vector
from elasticflow.step.rows import Keys, Values
from elasticflow.step.schedule import Work
from elasticflow.training.objects import set_back

T = TypeVar("T")


def set_up(seed: int, threads: int) -> None:
    """One setting for all processes: numbers of threads change bits."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    torch_compiled.keep_to_sizes()


class _TorchBatch(dict[str, Any]):
    """Arguments of ``forward`` by name, on the device. host: the same in the host's memory."""

    def __init__(self, device: Device, columns: Mapping[str, Array]) -> None:
        taken = {name: device.take(column) for name, column in columns.items()}
        super().__init__((name, there) for name, (there, _) in taken.items())
        self.host: dict[str, Array] = {name: here.numpy() for name, (_, here) in taken.items()}


def _columns(batch: Batch) -> dict[str, Array]:
    assert isinstance(batch, _TorchBatch), "prepare makes them"
    return batch.host


class _Called:
    """The program's functions, called with what ``model()`` returned.

    begin_again: what a call needs that is made again, see ``Making.call``.
    """

    def __init__(
        self,
        program: Program,
        params: Mapping[str, Any],
        metrics: Metrics,
        metric_arguments: Sequence[str],
        device: Device,
    ) -> None:
        self._program, self.params, self._device = program, dict(params), device
        self._metrics, self._metric_arguments = metrics, tuple(metric_arguments)
        self.making = Making(device)
        self.begin_again: Callable[[], None] = nothing

    def _call(self, function: Callable[..., Any], batch: Mapping[str, Any]) -> Any:
        return self.making.call(partial(function, **batch, params=self.params), self.begin_again)

    def cost(self, batch: Batch) -> torch.Tensor:
        """Raises CostError, and whatever ``forward`` raises."""
        cost = self._call(self._program.forward, batch)
        if not isinstance(cost, torch.Tensor):
            raise CostError(
                f"forward() returned a {type(cost).__name__}; it must return the cost, a scalar tensor."
            )
        if cost.dim() or not cost.is_floating_point():
            raise CostError(
                f"forward() returned a tensor of shape {tuple(cost.shape)} and {cost.dtype}; it must return "
                "the cost, one floating number: take the mean over the records, say."
            )
        return cost

    def encoded(self, batch: Batch, names: Sequence[str]) -> list[Array]:
        """What ``encode`` makes of a slice."""
        assert self._program.encode is not None
        found = self._call(self._program.encode, batch)
        return [found[name].cpu().numpy() for name in names]

    def predictions(self, batch: Batch) -> dict[str, Array]:
        """What predict() gives."""
        assert self._program.predict is not None
        found = named_predictions(self._call(self._program.predict, batch))
        return {
            name: value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
            for name, value in ((name, _plain(value)) for name, value in found.items())
        }

    def metrics(self, batch: Batch) -> tuple[list[float], tuple[tuple[Array, ...], ...]]:
        """Values of all metrics, and what those are made of that are sums."""
        assert self._program.metrics is not None
        arguments = {name: batch[name] for name in self._metric_arguments}
        for each in self._metrics.objects:
            each.to(self._device.where)

        def measure(**given: Any) -> tuple[list[float], tuple[tuple[Array, ...], ...]]:
            set_back(self._metrics.objects)
            assert self._program.metrics is not None
            found = inputs_of(self._program.metrics(**given))
            values = metric_values(found, self._metrics.names, self._metrics.measures)
            return values, measured_of(found, self._metrics.measures)

        measured: tuple[list[float], tuple[tuple[Array, ...], ...]] = self._call(measure, arguments)
        return measured


class TorchReplica(Replica):
    """See Replica. Every tensor of the model is a view of memory of the device, where ``state`` is put.

    Those that a loop of the program's own keeps are not: what it makes of them is not the version's yet.
    """

    framework = "torch"

    def __init__(
        self,
        program: Program,
        values: Mapping[str, Any],
        lookups: TorchLookups,
        metrics: Metrics,
        metric_arguments: Sequence[str],
        device: Device,
        graphs: bool,
        encoded: Sequence[Entry] = (),
        looping: Looping | None = None,
    ) -> None:
        found, modules = find(values, needed=looping is None)
        self._device = device
        self.lookups: TorchLookups = lookups
        lookups.where = device.where
        self._called = _Called(program, values, metrics, metric_arguments, device)
        names = {id(t): e.name for t, e in zip(found.tensors, found.entries, strict=True)}
        more: list[Entry] = []
        if looping:
            assert looping.plan
            found.entries = looping.plan.of_model(found.entries, program.path)
            more = looping.plan.more
        trains = any(entry.rule is Rule.UPDATE for entry in found.entries)
        needed = trains or bool(lookups.entries) or looping is None
        self.optimizers, self.metrics = take_optimizer(values, names, needed=needed), metrics
        found.entries = grouped(self.optimizers, found.entries, lookups.entries, found.frozen)
        found.entries, tables = by_epoch(program, found.entries, lookups.entries, found.frozen)
        layout = layout_of([*found.entries, *more], tables, metrics, encoded)
        self.state = device.new_state(layout)
        for mine, tensor in zip(self.state.tensors(found.entries), found.tensors, strict=True):
            torch.from_numpy(mine).copy_(tensor.detach())
        self._groups = device.groups_of(self.state)
        kept: dict[str, torch.Tensor] = {}
        for entry, tensor, setter in zip(found.entries, found.tensors, found.setters, strict=True):
            if entry.rule is Rule.KEPT:
                kept[entry.name] = tensor
                setter(aligned(tensor, device))
            else:
                setter(view(layout, self._groups, entry))
        self._loop = ReplicaLoop(looping, self.state, kept) if looping else None
        frozen = FrozenTensors(found.frozen, device)
        leaves = [
            tensor.requires_grad_(True)
            for tensor, entry in zip(found.tensors, found.entries, strict=True)
            if entry.rule is Rule.UPDATE
        ]
        means, counters = (of_rule(layout, self._groups, rule) for rule in (Rule.MEAN, Rule.FIRST))
        buffers = ModelBuffers(means, counters, modules, device)
        also, passing = tuple(found.also.items()), tuple(sorted(found.passing))
        self._rest = ModelRest(buffers, TrainingModes(modules), frozen, also, passing)
        self._hooks = GradientHooks(leaves, [entry.name for entry in layout.of_rule(Rule.UPDATE)])
        self._twins = Twins(device, layout)
        may = graphs and isinstance(device, Cuda) and not self.tables
        self._graphs = Graphs(self._captured, buffers.groups, self._reset) if may else None
        if looping:
            self._hooks.reliable = False  # what is pushed is told
        self._trained = Trained(layout)
        self.begin_epoch(0)
        self.refresh()

    def begin_epoch(self, epoch: int) -> None:
        if not self._trained.begin(epoch):
            return
        parameters = frozenset(self._trained.parameters)
        for number, leaf in enumerate(self._hooks.leaves):
            leaf.requires_grad_(number in parameters)
        self._hooks.reliable = None
        if self._graphs:
            self._graphs.forget()
        self._twins.trained = parameters

    def begin_slice(self, work: Work, number: int) -> None:
        self.begin_epoch(work.epoch)
        if self._loop:
            self._loop.enter(work, number)

    def keep(self, work: Work, out: Vector) -> None:
        assert self._loop
        self._rest.modes.set(True)
        with self._restored(self.prepare({}), training=True):
            self._loop.keep(work, out)

    def _load_kept(self) -> None:
        """Gives what the loop keeps of the model the values of the version: the loop may be elsewhere."""
        if self._loop and self._loop.kept:
            with torch.no_grad():
                self._loop.load(lambda tensor, value: tensor.copy_(torch.from_numpy(value)))

    @property
    def apart(self) -> bool:
        return self._device.apart

    @property
    def facts(self) -> Mapping[str, str]:
        return self._device.facts

    def gpu_state(self) -> GpuState | None:
        return self._device.gpu_state()

    def rehearsed(self) -> None:
        self._called.making.rehearsed()

    @property
    def also(self) -> tuple[tuple[str, str], ...]:
        return self._rest.also

    @property
    def passing(self) -> tuple[str, ...]:
        return self._rest.passing

    def frozen(self) -> dict[str, Array]:
        return self._rest.frozen.values()

    def put_frozen(self, values: Mapping[str, Array]) -> None:
        self._rest.frozen.put(values)

    @property
    def params(self) -> Mapping[str, Any]:
        return self._called.params

    def prepare(self, columns: Mapping[str, Array]) -> Batch:
        return _TorchBatch(self._device, columns)

    def join(self, batch: Batch, more: Batch) -> Batch:
        joined = _TorchBatch(self._device, {})
        for each in (batch, more):
            joined.update(each)
            joined.host.update(_columns(each))
        return joined

    def put(self, group: int, start: int, stop: int) -> None:
        if self._device.apart:
            self._device.send((self.state.groups[group][start:stop], self._groups[group][start:stop]))

    def refresh(self, *, was_put: bool = False) -> None:
        self._device.begin()
        if self._device.apart and not was_put:
            self._device.upload(list(zip(self.state.groups, self._groups, strict=True)))
        if self._loop and not was_put:
            self._loop.leave()
        self._rest.buffers.keep()

    def ask_early(self, batch: Batch) -> None:
        self.lookups.ahead.ask_early(_columns(batch))

    @contextmanager
    def _restored(self, batch: Batch, *, training: bool, who: str = "forward()") -> Iterator[None]:
        """Tables can be called within it; after it the buffers are as before. who: of the program."""
        leaves = [] if self._loop else self._hooks.leaves  # a loop's are watched while it runs
        versions = [leaf._version for leaf in leaves]
        try:
            with self.lookups.allowed(_columns(batch), training=training):
                yield
            self._rest.frozen.check()
            for number, leaf in enumerate(leaves):
                if leaf._version != versions[number]:
                    raise ProgramError(WRITTEN.format(who=who, name=self._hooks.names[number]))
        finally:
            self._hooks.forget()
            self._rest.buffers.restore()

    def add(self, left: Vector, right: Vector) -> None:
        mine, other = self._twins.of(left), self._twins.of(right)
        self._device.launch(lambda: add(mine, other, sorted(self._trained.parameters)))
        left.rows = [ours.plus(theirs) for ours, theirs in zip(left.rows, right.rows, strict=True)]

    def deliver(self, out: Vector) -> None:
        if self._device.apart:
            self._device.pin(out)
            pairs = zip(out.groups, self._twins.of(out).groups, strict=True)
            self._device.download(list(pairs), nothing)
            self._device.wait()

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
        self._begin(seed, training=True)
        into = self._twins.into(out, lefts, onto, ready)
        try:
            with self._restored(batch, training=True):
                computed, of_tables = self._computed(batch, seed, weight, into, ready, meanwhile)
        except BaseException:
            self._device.wait()  # what was told of may just be leaving
            raise
        put(out, of_tables, onto=onto)
        for left, right in pairwise((out, *reversed(lefts))):
            right.rows = [mine.plus(other) for mine, other in zip(right.rows, left.rows, strict=True)]
        self._name_unused(computed.gradients, {number for number, _, _ in of_tables})
        if deliver and not isinstance(into, LeavingInto):
            self.deliver(out)

    def _computed(
        self,
        batch: Batch,
        seed: int,
        weight: float,
        into: Into,
        ready: Callable[[int], None] | None,
        meanwhile: Callable[[], None] | None,
    ) -> tuple[Computed, list[tuple[int, Keys, Values]]]:
        """A slice, by a graph or by the program, put where it is to go. Also the gradients of rows."""
        of_tables: list[tuple[int, Keys, Values]] = []
        replayed = self._graphs.replay(batch, weight) if self._graphs else None
        totals: tuple[list[int], list[torch.Tensor]] = [], []
        if replayed:
            computed = replayed
            self._tell_all(computed, into, ready)
        elif self._loop:
            computed, of_tables, totals = self._go_round(self._loop, batch, seed, weight, into, ready)
        else:
            computed, of_tables = self._differentiate(batch, weight, into, ready)
        value = computed.cost.double() * weight
        self._device.launch(
            partial(into.put_rest, computed.gradients, value, self._rest.buffers.change(weight))
        )
        if totals[0]:
            self._device.launch(partial(into.put_totals, *totals))
        if meanwhile and self.apart:
            meanwhile()
        into.finish()
        if self._graphs and not replayed:
            self._graphs.learn(batch, seed, weight, computed)
        return computed, of_tables

    def _go_round(
        self,
        loop: ReplicaLoop,
        batch: Batch,
        seed: int,
        weight: float,
        into: Into,
        ready: Callable[[int], None] | None,
    ) -> tuple[Computed, list[tuple[int, Keys, Values]], tuple[list[int], list[torch.Tensor]]]:
        """Has the program's loop compute a slice: what it has pushed, of tables too, and its summands."""

        def tell(name: str, gradient: torch.Tensor) -> None:
            self.lookups.check_read()
            into.tell(self._hooks.numbers[name], gradient)

        told = tell if ready and not (self.apart and self.tables) else None
        found = loop.compute(SlicePart(batch, weight), partial(self._seed, seed), told)
        self.lookups.check_read()
        self._rest.buffers.rebind()
        gradients: list[torch.Tensor | None] = [None] * len(self._hooks.leaves)
        for name, gradient in found.gradients.items():
            gradients[self._hooks.numbers[name]] = gradient
        of_tables = [
            (number, keys, (rows.grad * weight).cpu().numpy())
            for number, keys, rows in self.lookups.looked_up
            if rows.grad is not None
        ]
        cost = torch.tensor(loop.no_cost) if found.cost is None else found.cost
        totals = loop.totals(found)
        return Computed(cost, gradients), of_tables, (loop.numbers(totals), list(totals.values()))

    def _differentiate(
        self, batch: Batch, weight: float, into: Into, ready: Callable[[int], None] | None
    ) -> tuple[Computed, list[tuple[int, Keys, Values]]]:
        """Runs the program. Also returns the gradients of the rows that it looked up."""
        cost = self._called.cost(batch)
        self.lookups.check_read()  # before any gradient can be sent
        looked_up = list(self.lookups.looked_up)  # there may be more while the backward pass computes again
        if ready and not (self.apart and self.tables):
            self._hooks.listen(into.tell)  # elsewhere, in another thread; tables would use the same sockets
        looked_up = [each for each in looked_up if each[0] in self._trained.tables]
        found, of_rows = self._gradients(cost, weight, [rows for _, _, rows in looked_up])
        self._hooks.check(found, into.taken)
        self._rest.buffers.rebind()
        of_tables = [
            (number, keys, gradient.cpu().numpy())
            for (number, keys, _), gradient in zip(looked_up, of_rows, strict=True)
            if gradient is not None
        ]
        return Computed(cost.detach(), found), of_tables

    def _gradients(
        self, cost: torch.Tensor, weight: torch.Tensor | float, rows: Sequence[torch.Tensor] = ()
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        """Of all parameters, None of those that are not trained now; and of rows."""
        if not cost.requires_grad:
            raise CostError("forward() returned a cost that depends on no parameter; use params in it.")
        # Scaled here and not by grad_outputs, which imports SymPy: a third of a second at the start.
        numbers = sorted(self._trained.parameters)
        leaves = [self._hooks.leaves[number] for number in numbers]
        both = torch.autograd.grad(cost * weight, [*leaves, *rows], allow_unused=True)
        found: list[torch.Tensor | None] = [None] * len(self._hooks.leaves)
        for number, gradient in zip(numbers, both, strict=False):
            found[number] = gradient if gradient is None else dense(gradient)
        unused = next((self._hooks.names[number] for number in numbers if found[number] is None), "")
        if unused and self._hooks.reliable is None:
            check_recomputed(cost, unused)
        return found, list(both[len(numbers) :])

    def _captured(self, batch: Mapping[str, torch.Tensor], weight: torch.Tensor | float) -> Computed:
        """What a graph is made of."""
        cost = self._called.cost(dict(batch))
        found, _ = self._gradients(cost, weight)
        self._rest.buffers.rebind()
        return Computed(cost.detach(), found)

    def _tell_all(self, computed: Computed, into: Into, ready: Callable[[int], None] | None) -> None:
        """A graph tells nothing while it runs; last layers are told of first, as otherwise."""
        for number, gradient in reversed(list(enumerate(computed.gradients)) if ready else []):
            if gradient is not None:
                into.tell(number, gradient)

    def _begin(self, seed: int, *, training: bool) -> None:
        """A slice, from what was put into the state before."""
        self._seed(seed)
        self._device.begin()
        self._rest.modes.set(training)
        self._called.begin_again = partial(self._begin_again, seed)

    def _begin_again(self, seed: int) -> None:
        self._reset(seed)
        self._device.begin()
        self.lookups.looked_up.clear()

    def _reset(self, seed: int) -> None:
        """To where a slice begins."""
        self._seed(seed)
        self._rest.buffers.restore()

    def _seed(self, seed: int) -> None:
        # ``torch.manual_seed`` takes 75 times as long.
        torch.default_generator.manual_seed(seed)
        seed_python(seed)
        self._device.seed(seed)

    def _name_unused(self, found: Sequence[torch.Tensor | None], tables: Container[int]) -> None:
        """tables: numbers of those that got a gradient."""
        parameters, of_tables = self._trained.parameters, self._trained.tables
        self.unused = (
            *(name for n, name in enumerate(self._hooks.names) if found[n] is None and n in parameters),
            *(e.name for n, e in enumerate(self.lookups.entries) if n not in tables and n in of_tables),
        )

    def encode(self, batch: Batch, seed: int) -> list[Array]:
        self._begin(seed, training=True)
        with self._restored(batch, training=False), torch.no_grad():
            return self._called.encoded(batch, names_of(self.encoded))

    def evaluate(self, batch: Batch, seed: int) -> list[float]:
        self._load_kept()
        self._begin(seed, training=False)
        with self._restored(batch, training=False), torch.no_grad():
            cost = self._called.cost(batch).item()
            if not self.metrics.names:
                return [cost]
            values, self.measured = self._called.metrics(batch)
            return [cost, *values]

    def predict(self, batch: Batch, seed: int) -> dict[str, Array]:
        self._load_kept()
        self._begin(seed, training=False)
        with self._restored(batch, training=False, who="predict()"), torch.no_grad():
            found = self._called.predictions(batch)
        count = len(next(iter(_columns(batch).values())))
        return {name: check_prediction(name, array, count) for name, array in found.items()}


def _plain(value: Any) -> Any:
    """A prediction, of a type that files have."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value


def _tried(
    program: Program,
    name: str,
    values: Mapping[str, Any],
    lookups: Lookups,
    sample: Mapping[str, Array],
    take: Callable[[Any], T],
) -> T:
    """What ``take`` makes of what a function of the program gives for a few records."""
    modules = [value for value in values.values() if isinstance(value, torch.nn.Module)]
    modes = [(each, each.training) for module in modules for each in module.modules()]
    for module in modules:
        module.eval()
    batch = {name: torch.from_numpy(column).clone() for name, column in sample.items()}
    with torch.no_grad(), lookups.allowed(), blaming(program, name):
        found = take(getattr(program, name)(**batch, params=values))
    for module, training in modes:
        module.training = training
    return found


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
) -> TorchReplica:
    """See ``frameworks.open_replica``."""
    loops = program.loop is not None
    found, _ = find(values, needed=not loops)  # complains of what model() returned before metrics() meets it
    take_optimizer(values, needed=not loops)
    lookups = TorchLookups(found.tables, seed)
    metrics = without_metrics(tests)
    if metric_arguments is not None:
        measured = {name: sample[name] for name in metric_arguments}
        num_records = len(next(iter(sample.values())))
        take = partial(first_metrics, num_records=num_records, tests=tests)
        metrics = _tried(program, "metrics", values, lookups, measured, take)
    encoded: list[Entry] = []
    if program.encode is not None:
        entries = partial(_encoded, program, sample, batch_size)
        encoded = _tried(program, "encode", values, lookups, sample, entries)
    where = open_device(device, number)
    looping = _looping(program, values, lookups, found, sample, seed, where) if loops else None
    return TorchReplica(
        program,
        values,
        lookups,
        metrics,
        metric_arguments or (),
        where,
        graphs and not loops,
        encoded,
        looping,
    )


def _looping(
    program: Program,
    values: Mapping[str, Any],
    lookups: Lookups,
    found: TorchFound,
    sample: Mapping[str, Array],
    seed: int,
    device: Device,
) -> Looping:
    """The program's loop, and what it does in a step, which is tried with a few records."""
    names = [entry.name for entry in found.entries]
    tensors = TorchTensors(program.path, dict(zip(names, found.tensors, strict=True)), device)
    trained = [e.name for e in found.entries if e.rule is Rule.UPDATE]
    tensors.watch(trained)
    for entry, tensor in zip(found.entries, found.tensors, strict=True):
        tensor.requires_grad_(entry.rule is Rule.UPDATE)

    def between(step: int, stage: int) -> None:
        """Random numbers outside of slices, too, follow from where they are drawn."""
        drawn = mix(seed, (step << 7) + stage + 1) >> 1
        torch.default_generator.manual_seed(drawn)
        seed_python(drawn)
        device.seed(drawn)

    assert program.loop
    looping = Looping(program.path, program.loop, values, tensors, between)
    with lookups.allowed():
        traced(looping, sample, found.tensors)
    assert looping.plan
    if lookups.entries and not looping.plan.one_tick:
        raise LoopError(
            f"{program.path}: loop() has more than one round in a step, or keeps something, and model() has "
            "tables: their rows are updated once a step."
        )
    set_up(seed, torch.get_num_threads())
    seed_python(seed)
    return looping


def _encoded(program: Program, sample: Mapping[str, Array], batch_size: int, found: object) -> list[Entry]:
    """Regions for what encode() gives."""
    if isinstance(found, dict):
        found = {name: _in_numpy(name, value) for name, value in found.items()}
    assert program.whole is not None
    return entries_of(found, program.whole, len(next(iter(sample.values()))), batch_size)


def _in_numpy(name: object, value: Any) -> Any:
    """A tensor's values. Raises ProgramError where NumPy has no such type."""
    if not isinstance(value, torch.Tensor):
        return value
    try:
        return value.detach().numpy()
    except TypeError as error:
        raise ProgramError(
            f"encode() returned for {name!r} a tensor of {value.dtype}; return float32, by .float()."
        ) from error
