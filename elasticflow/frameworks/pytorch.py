"""PyTorch behind the Replica interface."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.autograd.function import FunctionCtx
from torch.nn.functional import embedding_bag
from torch.nn.parameter import is_lazy

from elasticflow.embedding import Embedding
from elasticflow.errors import ProgramError
from elasticflow.frameworks.base import (
    CONSTANTS,
    Batch,
    CostError,
    Replica,
    add_table,
    first_metrics,
    layout_of,
    metric_values,
    report_entry,
    seed_python,
    take_optimizer,
)  # fmt: skip
from elasticflow.frameworks.devices import Cuda, Device, open_device
from elasticflow.frameworks.graphs import Computed, Graphs
from elasticflow.frameworks.lookups import Lookup, Lookups, put
from elasticflow.frameworks.torch_sums import (
    Buffers,
    Into,
    LeavingInto,
    Twin,
    add,
    buckets_of,
    copy,
    nothing,
    view,
)
from elasticflow.program.loading import Program, blaming
from elasticflow.step.layout import Array, Entry, Rule, Vector
from elasticflow.step.rows import Keys, Values

TRAINABLE = (torch.float32, torch.float64)


def set_up(seed: int, threads: int) -> None:
    """One setting for all processes: numbers of threads change bits."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)


def _dtype(tensor: torch.Tensor, name: str) -> str:
    if tensor.is_complex():
        raise ProgramError(
            f"{name}: is {tensor.dtype}; parameters and buffers must be real: keep real and imaginary part "
            "as two tensors, and put them together with torch.complex inside forward."
        )
    if tensor.is_floating_point() and tensor.dtype not in TRAINABLE:
        raise ProgramError(
            f"{name}: is {tensor.dtype}; parameters and buffers must be float32 or float64 "
            "(compute in half precision with torch.autocast inside forward)."
        )
    try:
        return str(torch.empty(0, dtype=tensor.dtype).numpy().dtype)
    except TypeError as error:
        raise ProgramError(f"{name}: tensors of {tensor.dtype} cannot be kept.") from error


class _TorchFound:
    """The tensors of a model, each once, with the rule it follows; and its tables, by name."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.tables: dict[str, Embedding] = {}
        self.tensors: list[torch.Tensor] = []
        self.setters: list[Callable[[torch.Tensor], None]] = []
        self._seen: set[int] = set()

    def add(
        self, name: str, tensor: torch.Tensor, trained: bool, setter: Callable[[torch.Tensor], None]
    ) -> None:
        if id(tensor) in self._seen:
            return
        self._seen.add(id(tensor))
        if is_lazy(tensor):
            raise ProgramError(
                f"{name}: has no shape before its layer is first called; name the sizes (Linear instead of "
                "LazyLinear), or call the layer in model() once."
            )
        if tensor.device.type != "cpu":
            raise ProgramError(f"{name}: lies on {tensor.device}; model() must make tensors on the CPU.")
        if tensor.layout is not torch.strided:
            raise ProgramError(f"{name}: is {tensor.layout}; model() must make dense tensors (to_dense()).")
        dtype = _dtype(tensor, name)
        rule = Rule.UPDATE if trained else Rule.MEAN if tensor.is_floating_point() else Rule.FIRST
        self.entries.append(Entry(name, tuple(tensor.shape), dtype, rule))
        self.tensors.append(tensor)
        self.setters.append(setter)

    def add_tables(self, name: str, value: object) -> None:
        """A table, or those in a list or dict."""
        if isinstance(value, Embedding):
            if id(value) not in self._seen:
                self._seen.add(id(value))
                add_table(self.tables, name, value)
        elif isinstance(value, (list, tuple, dict)):
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                self.add_tables(f"{name}.{key}", part)


def _set_data(tensor: torch.Tensor) -> Callable[[torch.Tensor], None]:
    def setter(view: torch.Tensor) -> None:
        tensor.data = view

    return setter


def _find(values: Mapping[str, Any]) -> tuple[_TorchFound, list[torch.nn.Module]]:
    found, modules = _TorchFound(), []
    for key, value in values.items():
        if isinstance(value, torch.Tensor):
            if not value.is_leaf:
                raise ProgramError(f"model()[{key!r}] is the result of a computation; detach() it.")
            found.add(key, value, value.is_floating_point(), _set_data(value))
        elif isinstance(value, torch.nn.Module):
            modules.append(value)
            for name, parameter in value.named_parameters():
                found.add(f"{key}.{name}", parameter, parameter.requires_grad, _set_data(parameter))
            for name, buffer in value.named_buffers():
                found.add(f"{key}.{name}", buffer, False, _set_data(buffer))
            for path, module in value.named_modules():
                for name, attribute in vars(module).items():
                    found.add_tables(".".join(filter(None, (key, path, name))), attribute)
        elif isinstance(value, Embedding):
            found.add_tables(key, value)
        elif key != "optimizer" and not isinstance(value, CONSTANTS):
            raise ProgramError(
                f"model()[{key!r}] is a {type(value).__name__}; allowed are tensors, torch.nn modules, "
                "ef.Embedding tables, plain constants, and one 'optimizer'."
            )
    if not found.tables and not any(entry.rule is Rule.UPDATE for entry in found.entries):
        raise ProgramError(
            "model() has no parameters to train: no floating tensor, no module with parameters, no table."
        )
    return found, modules


class _Summed(torch.autograd.Function):
    """The sums of bags of rows: (k, dim) to (num_bags, dim).

    A row's gradient is a sum too, of the gradients of the bags it is in, in the order of occurrence.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, values: torch.Tensor, lookup: Lookup) -> torch.Tensor:
        ctx.lookup = lookup  # type: ignore[attr-defined]
        places = torch.from_numpy(lookup.ids.places).to(values.device)
        if lookup.bags is None:
            return values.index_select(0, places)
        starts = torch.from_numpy(np.cumsum(lookup.bags.sizes) - lookup.bags.sizes)
        return embedding_bag(places, values, starts.to(values.device), mode="sum")

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        lookup: Lookup = ctx.lookup  # type: ignore[attr-defined]
        order = lookup.ids.order
        bags = order if lookup.bags is None else lookup.bags.numbers[order]
        starts = torch.from_numpy(lookup.ids.starts).to(gradient.device)
        places = torch.from_numpy(bags).to(gradient.device)
        return embedding_bag(places, gradient.contiguous(), starts, mode="sum"), None


class _TorchLookups(Lookups):
    """Rows are leaves of the graph of their own, on the device that computes."""

    where = torch.device("cpu")

    def answer(
        self, number: int, ids: Any, *, combine: str | None, offsets: Any, padding: int | None
    ) -> torch.Tensor:
        starts = None if offsets is None else _array(offsets)
        lookup = self.look_up(number, _array(ids), combine, starts, padding)
        rows = torch.from_numpy(lookup.values).to(self.where).requires_grad_()
        self.looked_up.append((number, lookup.ids.keys, rows))
        sums: torch.Tensor = _Summed.apply(rows, lookup)
        if combine == "mean":
            assert lookup.bags is not None
            sums = sums / torch.from_numpy(lookup.bags.sizes.clip(1)).to(self.where).unsqueeze(1)
        return sums.reshape(lookup.shape)


def _array(value: Any) -> Array:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


class _TorchBatch(dict[str, Any]):
    """Arguments of ``forward`` by name, on the device. host: the same in the host's memory."""

    def __init__(self, device: Device, columns: Mapping[str, Array]) -> None:
        taken = {name: device.take(column) for name, column in columns.items()}
        super().__init__((name, there) for name, (there, _) in taken.items())
        self.host: dict[str, Array] = {name: here.numpy() for name, (_, here) in taken.items()}


def _columns(batch: Batch) -> dict[str, Array]:
    assert isinstance(batch, _TorchBatch), "prepare makes them"
    return batch.host


class TorchReplica(Replica):
    """See Replica. Every tensor of the model is a view of memory of the device, where ``state`` is put."""

    framework = "torch"

    def __init__(
        self,
        program: Program,
        values: Mapping[str, Any],
        lookups: _TorchLookups,
        metrics: Sequence[str],
        metric_arguments: Sequence[str],
        device: Device,
        graphs: bool,
    ) -> None:
        found, modules = _find(values)
        self._device, self.apart = device, device.apart
        self.lookups: _TorchLookups = lookups
        lookups.where = device.where
        self._metric_arguments = tuple(metric_arguments)
        self._params = dict(values)
        self._program = program
        self.optimizer = take_optimizer(values)
        self.metrics = tuple(metrics)
        self.layout = layout_of(found.entries, lookups.entries, len(metrics))
        self.state = device.new_state(self.layout)
        for mine, tensor in zip(self.state.tensors(found.entries), found.tensors, strict=True):
            torch.from_numpy(mine).copy_(tensor.detach())
        self._groups = device.groups_of(self.state)
        for entry, setter in zip(found.entries, found.setters, strict=True):
            setter(view(self.layout, self._groups, entry))
        self._trained = self.layout.of_rule(Rule.UPDATE)
        self._leaves = [
            tensor.requires_grad_(True)
            for tensor, entry in zip(found.tensors, found.entries, strict=True)
            if entry.rule is Rule.UPDATE
        ]
        self._buffers, self._counters = self._of(Rule.MEAN), self._of(Rule.FIRST)
        self._clean = [torch.empty_like(group) for group in (*self._buffers, *self._counters)]
        self._buckets = list(buckets_of(self.layout)) if device.apart else []
        self._bound = [
            (owner, name, buffer)
            for module in modules
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]
        self._modes = [(each, each.training) for module in modules for each in module.modules()]
        self._training = True
        self._heard: list[list[tuple[torch.Tensor, int]]] = [[] for _ in self._leaves]
        """By parameter: the gradients that its hook was told of in this backward pass, and how often each had
        been written to by then."""
        self._tell: Callable[[int, torch.Tensor], None] | None = None
        self._tells: bool | None = None
        """Whether hooks are told of final gradients, each once. Not where the program's own hooks change
        them, or a backward pass of its own goes on in this one; found out in the first slice."""
        for number, leaf in enumerate(self._leaves):
            leaf.register_hook(partial(self._hear, number))  # type: ignore[no-untyped-call]
        self._twins: WeakKeyDictionary[Vector, Twin] = WeakKeyDictionary()
        self._leaving: Twin | None = None
        """On a device of its own: what ``ready`` is told of, until it is in a vector."""
        self._graphs: Graphs | None = None
        if graphs and isinstance(device, Cuda) and not self.tables:
            self._graphs = Graphs(self._captured, [*self._buffers, *self._counters], self._reset)
        self.refresh()

    @property
    def facts(self) -> Mapping[str, str]:
        return self._device.facts

    def _of(self, rule: Rule) -> list[torch.Tensor]:
        return [t for t, group in zip(self._groups, self.layout.groups, strict=True) if group.rule is rule]

    def prepare(self, columns: Mapping[str, Array]) -> Batch:
        return _TorchBatch(self._device, columns)

    def refresh(self) -> None:
        if self._device.apart:
            self._device.upload(list(zip(self.state.groups, self._groups, strict=True)))
        self._device.launch(lambda: copy(self._clean, [*self._buffers, *self._counters]))

    def ask_early(self, batch: Batch) -> None:
        self.lookups.ahead.ask_early(_columns(batch))

    def _rebind_buffers(self) -> None:
        """Where a module has put another tensor in a buffer's place: keeps its value, and the view."""
        for owner, name, buffer in self._bound:
            current = owner._buffers[name]
            if current is not buffer:
                if current is not None:
                    buffer.copy_(current.detach())
                owner._buffers[name] = buffer

    def _restore_buffers(self) -> None:
        if not self._clean:
            return
        self._rebind_buffers()
        self._device.launch(lambda: copy([*self._buffers, *self._counters], self._clean))

    @contextmanager
    def _restored(self, batch: Batch, *, training: bool) -> Iterator[None]:
        """Tables can be called within it; after it the buffers are as before."""
        try:
            with self.lookups.allowed(_columns(batch), training=training):
                yield
        finally:
            self._tell = None
            for heard in self._heard:
                heard.clear()
            self._restore_buffers()

    def _set_training(self, training: bool) -> None:
        """Training mode is that of model(): what it has put into eval() stays there."""
        if self._training != training:
            self._training = training
            for module, as_made in self._modes:
                module.training = as_made and training

    def _twin(self, vector: Vector) -> Twin:
        known = self._twins.get(vector)
        if known is None:
            known = self._twins[vector] = self._new_twin(vector)
        return known

    def _new_twin(self, vector: Vector) -> Twin:
        groups = self._device.groups_of(vector)
        by_rule = {
            rule: [t for t, group in zip(groups, self.layout.groups, strict=True) if group.rule is rule]
            for rule in Rule
        }
        return Twin(
            groups,
            [view(self.layout, groups, entry) for entry in self._trained],
            by_rule[Rule.MEAN],
            by_rule[Rule.FIRST],
            view(self.layout, groups, report_entry(len(self.metrics))),
        )

    def add(self, left: Vector, right: Vector) -> None:
        mine, other = self._twin(left), self._twin(right)
        self._device.launch(lambda: add(mine, other))
        left.rows = [ours.plus(theirs) for ours, theirs in zip(left.rows, right.rows, strict=True)]

    def deliver(self, out: Vector) -> None:
        if self._device.apart:
            self._device.pin(out)
            pairs = zip(out.groups, self._twin(out).groups, strict=True)
            self._device.download(list(pairs), nothing)
            self._device.wait()

    def _cost(self, batch: Batch) -> torch.Tensor:
        with self._device.around():
            cost = self._program.forward(**batch, params=self._params)
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
        self._seed(seed)
        self._device.begin()
        self._set_training(True)
        into = self._into(out, lefts, onto, ready)
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
        if replayed:
            computed = replayed
            self._tell_all(computed, into, ready)
        else:
            computed, of_tables = self._differentiate(batch, weight, into, ready)
        value = computed.cost.double() * weight
        self._device.launch(partial(into.put_rest, computed.gradients, value, self._buffers_change(weight)))
        if meanwhile and self.apart:
            meanwhile()
        into.finish()
        if self._graphs and not replayed:
            self._graphs.learn(batch, seed, weight, computed)
        return computed, of_tables

    def _differentiate(
        self, batch: Batch, weight: float, into: Into, ready: Callable[[int], None] | None
    ) -> tuple[Computed, list[tuple[int, Keys, Values]]]:
        """Runs the program. Also returns the gradients of the rows that it looked up."""
        cost = self._cost(batch)
        self.lookups.check_read()  # before any gradient can be sent
        looked_up = list(self.lookups.looked_up)  # there may be more while the backward pass computes again
        if ready and self._tells and not (self.apart and self.tables):
            self._tell = into.tell  # elsewhere, in another thread; tables would use the same sockets in this
        leaves = [*self._leaves, *(rows for _, _, rows in looked_up)]
        both = self._gradients(cost, weight, leaves)
        found, of_rows = both[: len(self._leaves)], both[len(self._leaves) :]
        self._check_heard(found, into.taken)
        self._tell = None  # a graph that is made of it now has nothing to tell
        self._rebind_buffers()
        of_tables = [
            (number, keys, gradient.cpu().numpy())
            for (number, keys, _), gradient in zip(looked_up, of_rows, strict=True)
            if gradient is not None
        ]
        return Computed(cost.detach(), found), of_tables

    def _gradients(
        self, cost: torch.Tensor, weight: torch.Tensor | float, leaves: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | None, ...]:
        if not cost.requires_grad:
            raise CostError("forward() returned a cost that depends on no parameter; use params in it.")
        # Scaled here and not by grad_outputs, which imports SymPy: a third of a second at the start.
        return torch.autograd.grad(cost * weight, leaves, allow_unused=True)

    def _captured(self, batch: Mapping[str, torch.Tensor], weight: torch.Tensor | float) -> Computed:
        """What a graph is made of."""
        cost = self._cost(dict(batch))
        found = self._gradients(cost, weight, self._leaves)
        self._rebind_buffers()
        return Computed(cost.detach(), found)

    def _tell_all(self, computed: Computed, into: Into, ready: Callable[[int], None] | None) -> None:
        """A graph tells nothing while it runs; last layers are told of first, as otherwise."""
        for number, gradient in reversed(list(enumerate(computed.gradients)) if ready else []):
            if gradient is not None:
                into.tell(number, gradient)

    def _reset(self, seed: int) -> None:
        """To where a slice begins."""
        self._seed(seed)
        self._restore_buffers()

    def _seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        seed_python(seed)
        self._device.seed(seed)

    def _into(
        self, out: Vector, lefts: Sequence[Vector], onto: bool, ready: Callable[[int], None] | None
    ) -> Into:
        twin = self._twin(out)
        terms = [*(self._twin(left) for left in lefts), *([twin] if onto else [])]
        if not self.apart or not (ready or lefts):
            return Into(terms, twin, ready)
        to = lefts[0] if lefts else out
        if self._leaving is None:
            self._leaving = self._new_twin(to)
        return LeavingInto(terms, self._leaving, ready, self._device, self._buckets, to)

    def _hear(self, number: int, gradient: torch.Tensor | None) -> None:
        """Called by PyTorch in the backward pass."""
        if gradient is not None and (self._tell or self._tells is None):
            self._heard[number].append((gradient, gradient._version))
            if self._tell and len(self._heard[number]) == 1:
                self._tell(number, gradient)

    def _check_heard(self, found: Sequence[torch.Tensor | None], taken: set[int]) -> None:
        """Finds out whether hooks can be relied on; later raises RuntimeError if one could not be."""
        if self._tells is None:
            pairs = zip(self._heard, found, strict=True)
            self._tells = all(_is_only(heard, final) for heard, final in pairs if heard or final is not None)
        wrong = [n for n in sorted(taken) if not _is_only(self._heard[n], found[n])]
        if wrong:
            raise RuntimeError(
                f"the gradient of {self._trained[wrong[0]].name} was changed after it was final: by a hook, "
                "or a backward pass inside the backward pass, which the first slice had not"
            )

    def _name_unused(self, found: Sequence[torch.Tensor | None], tables: Container[int]) -> None:
        """tables: numbers of those that got a gradient."""
        named = zip(found, self._trained, strict=True)
        self.unused = (
            *(entry.name for gradient, entry in named if gradient is None),
            *(entry.name for number, entry in enumerate(self.lookups.entries) if number not in tables),
        )

    def _buffers_change(self, weight: float) -> Callable[[], Buffers]:
        """What the slice made of them: a constant one, infinite ones too, changes by exactly 0."""

        def found() -> Buffers:
            pairs = zip(self._buffers, self._clean, strict=False)
            changes = [(after - before).masked_fill_(after == before, 0) for after, before in pairs]
            return [change.mul_(weight) for change in changes], self._counters

        return found

    def evaluate(self, batch: Batch, seed: int) -> list[float]:
        self._seed(seed)
        self._device.begin()
        self._set_training(False)
        with self._restored(batch, training=False), torch.no_grad():
            cost = self._cost(batch).item()
            return [cost, *self._measure(batch)]

    def _measure(self, batch: Batch) -> list[float]:
        if not self.metrics:
            return []
        assert self._program.metrics is not None
        arguments = {name: batch[name] for name in self._metric_arguments}
        with self._device.around():
            return metric_values(self._program.metrics(**arguments, params=self._params), self.metrics)


def _is_only(heard: Sequence[tuple[torch.Tensor, int]], final: torch.Tensor | None) -> bool:
    """Whether the one gradient that was told of is the one that came out, as it was then."""
    if len(heard) != 1 or final is None:
        return False
    gradient, version = heard[0]
    return gradient.data_ptr() == final.data_ptr() and gradient._version == version


def _metric_names(
    program: Program,
    values: Mapping[str, Any],
    lookups: Lookups,
    sample: Mapping[str, Array],
    arguments: Sequence[str],
) -> tuple[str, ...]:
    """What metrics() calls its means, from a call on a few records."""
    modules = [value for value in values.values() if isinstance(value, torch.nn.Module)]
    modes = [(each, each.training) for module in modules for each in module.modules()]
    for module in modules:
        module.eval()
    batch = {name: torch.from_numpy(sample[name]).clone() for name in arguments}
    with torch.no_grad(), lookups.allowed(), blaming(program, "metrics"):
        assert program.metrics is not None
        names = first_metrics(program.metrics(**batch, params=values))
    for module, training in modes:
        module.training = training
    return names


def open_replica(
    program: Program,
    values: Mapping[str, Any],
    seed: int,
    sample: Mapping[str, Array],
    metric_arguments: Sequence[str] | None,
    device: str,
    number: int,
    graphs: bool,
) -> TorchReplica:
    """See ``frameworks.open_replica``."""
    found, _ = _find(values)  # complains of what model() returned before metrics() meets it
    take_optimizer(values)
    lookups = _TorchLookups(found.tables, seed)
    names: tuple[str, ...] = ()
    if metric_arguments is not None:
        names = _metric_names(program, values, lookups, sample, metric_arguments)
    where = open_device(device, number)
    return TorchReplica(program, values, lookups, names, metric_arguments or (), where, graphs)
