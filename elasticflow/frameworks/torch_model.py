"""What a PyTorch model consists of: its tensors and tables, its modes, and what of it is not trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from elasticflow.embedding import Embedding
from elasticflow.errors import ProgramError
from elasticflow.frameworks.base import CHANGED, CONSTANTS, add_table
from elasticflow.frameworks.devices import Device
from elasticflow.frameworks.given import trained_by
from elasticflow.frameworks.torch_sums import Buffers, copy
from elasticflow.step.layout import Array, Entry, Rule, aligned_empty

TRAINABLE = (torch.float32, torch.float64)
SHARED = (
    "{one} and {other}: are two tensors in the same memory, which would be trained apart here. To tie them, "
    "let both layers have the same parameter (second.weight = first.weight), or compute the other in "
    "forward, by torch.nn.functional.linear(x, first.weight.t()), say; to begin with the same values, "
    "clone() one."
)


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


class _Elements:
    """Where a tensor's elements lie, for NumPy, on any device and of any type: nothing of them is read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "strides": tuple(size * each for each in tensor.stride()),
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), True),
        }


class TorchFound:
    """The tensors of a model, each once, with the rule it follows; and its tables, by name.

    also, passing: see ``Replica``.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.tables: dict[str, Embedding] = {}
        self.tensors: list[torch.Tensor] = []
        self.setters: list[Callable[[torch.Tensor], None]] = []
        self.frozen: dict[str, torch.Tensor] = {}
        self.also: dict[str, str] = {}
        self.passing: set[str] = set()
        self._seen: dict[int, str] = {}

    def add(
        self,
        name: str,
        tensor: torch.Tensor,
        trained: bool,
        setter: Callable[[torch.Tensor], None],
        *,
        buffer: bool = True,
    ) -> None:
        """buffer: if it is not trained, it may change nevertheless."""
        if id(tensor) in self._seen:
            self.also[name] = self._seen[id(tensor)]
            return
        self._seen[id(tensor)] = name
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
        if not trained and not buffer:
            self.frozen[name] = tensor
            return
        rule = Rule.UPDATE if trained else Rule.MEAN if tensor.is_floating_point() else Rule.FIRST
        self.entries.append(Entry(name, tuple(tensor.shape), dtype, rule))
        self.tensors.append(tensor)
        self.setters.append(setter)

    def add_names(self, path: str, module: torch.nn.Module, within: tuple[torch.nn.Module, ...] = ()) -> None:
        """All that a state dict has of a module, whose tensors are found, and of those in it.

        within: the modules that it is in; one that is in itself has no state dict.
        """
        for name, tensor in (module._parameters | module._buffers).items():
            first = self._seen.get(id(tensor), "")
            if first and first != f"{path}.{name}":
                self.also[f"{path}.{name}"] = first
        self.passing |= {f"{path}.{name}" for name in module._non_persistent_buffers_set}
        for name, part in module._modules.items():
            if part is not None and part is not module and part not in within:
                self.add_names(f"{path}.{name}", part, (*within, module))

    def check_apart(self) -> None:
        """Raises ProgramError if a parameter that is trained has elements in common with another tensor.

        Each gets memory of its own here, so what is tied by its memory alone would be so no longer.
        """
        rules = {entry.name: entry.rule for entry in self.entries}
        by_memory: dict[int, dict[str, Array]] = {}
        for name, tensor in (dict(zip(rules, self.tensors, strict=True)) | self.frozen).items():
            if tensor.numel():
                places = by_memory.setdefault(tensor.untyped_storage().data_ptr(), {})
                places[name] = np.asarray(_Elements(tensor))
        for places in by_memory.values():
            for one, other in combinations(places, 2):
                is_trained = Rule.UPDATE in (rules.get(one), rules.get(other))
                if is_trained and np.shares_memory(places[one], places[other]):
                    raise ProgramError(SHARED.format(one=one, other=other))

    def add_tables(self, name: str, value: object) -> None:
        """A table, or those in a list or dict."""
        if isinstance(value, Embedding):
            if id(value) not in self._seen:
                self._seen[id(value)] = name
                add_table(self.tables, name, value)
        elif isinstance(value, (list, tuple, dict)):
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                self.add_tables(f"{name}.{key}", part)


def _set_data(tensor: torch.Tensor) -> Callable[[torch.Tensor], None]:
    def setter(view: torch.Tensor) -> None:
        tensor.data = view

    return setter


def find(values: Mapping[str, Any], *, needed: bool = True) -> tuple[TorchFound, list[torch.nn.Module]]:
    """An optimizer of PyTorch's own trains what it was given alone. needed: something has to be trained."""
    found, modules = TorchFound(), list[torch.nn.Module]()
    given = trained_by(values.get("optimizer"))
    for key, value in values.items():
        if isinstance(value, torch.Tensor):
            if not value.is_leaf:
                raise ProgramError(f"model()[{key!r}] is the result of a computation; detach() it.")
            meant = given is None or id(value) in given
            found.add(key, value, value.is_floating_point() and meant, _set_data(value), buffer=meant)
        elif isinstance(value, torch.nn.Module):
            modules.append(value)
            for name, parameter in value.named_parameters():
                trained = parameter.requires_grad and (given is None or id(parameter) in given)
                found.add(f"{key}.{name}", parameter, trained, _set_data(parameter), buffer=False)
            for name, buffer in value.named_buffers():
                found.add(f"{key}.{name}", buffer, False, _set_data(buffer))
            found.add_names(key, value)
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
    if needed and not found.tables and not any(entry.rule is Rule.UPDATE for entry in found.entries):
        there = {id(parameter) for module in modules for parameter in module.parameters()}
        if given is not None and there and not there & given:
            kind = type(values["optimizer"]).__name__
            raise ProgramError(
                f"model()['optimizer'] is a torch.optim.{kind} of none of the parameters that model() has: "
                f"make it of those, torch.optim.{kind}(net.parameters(), ...) of the same net."
            )
        raise ProgramError(
            "model() has no parameters to train: no floating tensor, no module with parameters, no table."
        )
    found.check_apart()
    return found, modules


def aligned(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    """The same values on the device, in memory that begins as the state's does."""
    values = tensor.detach()
    memory = aligned_empty(values.nbytes).view(values.numpy().dtype).reshape(values.shape)
    return torch.from_numpy(memory).copy_(values).to(device.where)


class FrozenTensors:
    """Parameters that are not trained, by name: they lie on the device, and nobody may write to them."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], device: Device) -> None:
        self._tensors = dict(tensors)
        for tensor in self._tensors.values():
            tensor.requires_grad_(False)
            tensor.data = aligned(tensor, device)
        self._versions = self._now()

    def _now(self) -> dict[str, int]:
        """How often each has been written to."""
        return {name: tensor._version for name, tensor in self._tensors.items()}

    def values(self) -> dict[str, Array]:
        return {name: tensor.detach().cpu().numpy() for name, tensor in self._tensors.items()}

    def put(self, values: Mapping[str, Array]) -> None:
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                if name in values:
                    tensor.copy_(torch.from_numpy(np.array(values[name])))
        self._versions = self._now()

    def check(self) -> None:
        """Raises ProgramError if the program has written to one."""
        for name, version in self._now().items():
            if version != self._versions[name]:
                raise ProgramError(CHANGED.format(name=name))


class TrainingModes:
    """Training mode is that of model(): what it has put into eval() stays there."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._modes = [(each, each.training) for module in modules for each in module.modules()]
        self._training = True

    def set(self, training: bool) -> None:
        if self._training != training:
            self._training = training
            for module, as_made in self._modes:
                module.training = as_made and training


class ModelBuffers:
    """Buffers by group, MEAN ones and counters: what a slice makes of them is told, and taken back."""

    def __init__(
        self,
        means: list[torch.Tensor],
        counters: list[torch.Tensor],
        modules: Iterable[torch.nn.Module],
        device: Device,
    ) -> None:
        self._means, self._counters, self._device = means, counters, device
        self.groups = [*means, *counters]
        self._clean = [torch.empty_like(group) for group in self.groups]
        self._bound = [
            (owner, name, buffer)
            for module in modules
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]

    def keep(self) -> None:
        """They hold another version from now on."""
        self._device.launch(lambda: copy(self._clean, self.groups))

    def rebind(self) -> None:
        """Where a module has put another tensor in a buffer's place: keeps its value, and the view."""
        for owner, name, buffer in self._bound:
            current = owner._buffers[name]
            if current is not buffer:
                if current is not None:
                    buffer.copy_(current.detach())
                owner._buffers[name] = buffer

    def restore(self) -> None:
        """As they were before the slice."""
        if self._clean:
            self.rebind()
            self._device.launch(lambda: copy(self.groups, self._clean))

    def change(self, weight: float) -> Callable[[], Buffers]:
        """What the slice made of them: a constant one, infinite ones too, changes by exactly 0."""

        def found() -> Buffers:
            pairs = zip(self._means, self._clean, strict=False)
            changes = [(after - before).masked_fill_(after == before, 0) for after, before in pairs]
            return [change.mul_(weight) for change in changes], self._counters

        return found


class ModelRest(NamedTuple):
    """What of a model no gradient changes. also, passing: see ``Replica``."""

    buffers: ModelBuffers
    modes: TrainingModes
    frozen: FrozenTensors
    also: tuple[tuple[str, str], ...]
    passing: tuple[str, ...]
