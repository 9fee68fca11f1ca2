"""What a loop of the program's own needs of PyTorch: see ``elasticflow.frameworks.looping``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from elasticflow.errors import LoopError
from elasticflow.frameworks.devices import Device
from elasticflow.frameworks.loop_plan import KEPT, ArrayShape
from elasticflow.frameworks.loop_states import arrays_in, with_arrays
from elasticflow.frameworks.loop_tensors import KeptThing
from elasticflow.frameworks.looping import Looping
from elasticflow.frameworks.session import SlicePart
from elasticflow.frameworks.torch_hooks import dense
from elasticflow.step.layout import Array


def _array_of(value: Any) -> Array | None:
    if isinstance(value, torch.Tensor):
        return np.array(value.detach().cpu().numpy())
    return np.array(value) if isinstance(value, np.ndarray) else None


def _tensor_of(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


class _KeptTensors:
    """Tensors by the names of their entries. names: of those that are the model's."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], names: frozenset[str]) -> None:
        self._tensors, self.names = tensors, names

    def arrays(self) -> dict[str, Array]:
        return {name: np.array(tensor.detach().cpu().numpy()) for name, tensor in self._tensors.items()}

    def load(self, read: Callable[[str], Array], *, own: bool) -> None:
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                if own or name in self.names:
                    tensor.copy_(_tensor_of(read(name)))


class _KeptState:
    """What has a ``state_dict``. like: by the names of entries, what it was after the first step."""

    names: frozenset[str] = frozenset()

    def __init__(self, name: str, thing: Any, like: dict[str, Any]) -> None:
        self._name, self._thing, self._like = name, thing, like

    def arrays(self) -> dict[str, Array]:
        state = self._thing.state_dict()
        self._like.setdefault(self._name, state)
        return dict(arrays_in(state, self._name, _array_of))

    def load(self, read: Callable[[str], Array], *, own: bool) -> None:
        if own:
            like = self._like[self._name]
            self._thing.load_state_dict(with_arrays(like, self._name, _array_of, read, _tensor_of))


class TorchTensors:
    """See ``LoopTensors``. tensors: of the model, by the names of their entries."""

    def __init__(self, path: str, tensors: Mapping[str, torch.Tensor], device: Device) -> None:
        self._path, self._tensors, self._device = path, dict(tensors), device
        self._like: dict[str, Any] = {}
        """States, by the names of their entries, as they were after the first step."""
        self._names = {id(tensor): name for name, tensor in tensors.items()}
        self._watched = dict(tensors)
        self._versions: dict[str, int] = {}

    def watch(self, names: Sequence[str]) -> None:
        """Those that slices must not change: all but buffers."""
        self._watched = {name: self._tensors[name] for name in names}

    def begin(self) -> None:
        for tensor in self._watched.values():
            tensor.grad = None
        self._versions = {name: tensor._version for name, tensor in self._watched.items()}

    def changed(self) -> str:
        now = ((name, tensor._version) for name, tensor in self._watched.items())
        return next((name for name, version in now if version != self._versions[name]), "")

    def gradients(self, target: Any, gradient: Any) -> Iterator[tuple[str, torch.Tensor | None]]:
        if isinstance(target, torch.nn.Module):
            if gradient is not None:
                raise LoopError(
                    f"{self._path}: step.push(module) takes its parameters' .grad, and no gradient."
                )
            own = [each for each in target.parameters() if each.requires_grad]
            if not own:
                raise LoopError(f"{self._path}: step.push() of a module without parameters that are trained.")
            for each in reversed(own):
                yield from self.gradients(each, None)
            return
        if isinstance(target, (list, tuple)):
            if not isinstance(gradient, (list, tuple)) or len(gradient) != len(target):
                given = len(gradient) if isinstance(gradient, (list, tuple)) else type(gradient).__name__
                raise LoopError(
                    f"{self._path}: step.push() of {len(target)} parameters, with gradients: {given}; give a "
                    "list, of one for each."
                )
            for its, each in zip(reversed(gradient), reversed(target), strict=True):
                each.grad = None
                yield from self.gradients(each, its)
            return
        name = target if isinstance(target, str) else self._names.get(id(target), "")
        parameter: torch.Tensor | None = self._watched.get(name)
        if parameter is None:
            what = f"{target!r}" if isinstance(target, str) else f"a {type(target).__name__}"
            shown = ", ".join(list(self._watched)[:8]) + (", ..." if len(self._watched) > 8 else "")
            raise LoopError(
                f"{self._path}: step.push() of {what}, which is no parameter that model() returned; there "
                f"are {shown}."
            )
        found = parameter.grad if gradient is None else gradient
        parameter.grad = None
        if found is None:
            yield name, None
            return
        if not isinstance(found, torch.Tensor) or found.shape != parameter.shape:
            shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise LoopError(
                f"{self._path}: step.push({name!r}, ...): the gradient is {shape}, the parameter of shape "
                f"{tuple(parameter.shape)}."
            )
        yield name, dense(found.detach()).to(parameter.dtype)

    def summand(self, name: str, value: Any) -> tuple[torch.Tensor, ArrayShape]:
        try:
            tensor = (
                value.detach().clone()
                if isinstance(value, torch.Tensor)
                else torch.tensor(value, device=self._device.where)
            )
            dtype = str(torch.empty(0, dtype=tensor.dtype).numpy().dtype)
        except (TypeError, ValueError, RuntimeError) as error:
            raise LoopError(
                f"{self._path}: {name!r} is a {type(value).__name__}; it must be a tensor or a number."
            ) from error
        if tensor.dtype is torch.bool or tensor.is_complex():
            raise LoopError(f"{self._path}: {name!r} is {tensor.dtype}; it must be of real numbers.")
        return tensor, ArrayShape(tuple(tensor.shape), dtype)

    def times(self, value: torch.Tensor, factor: float) -> torch.Tensor:
        return value * factor

    def nothing(self, value: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(value)

    def of_array(self, array: Array) -> torch.Tensor:
        return _tensor_of(array).to(self._device.where)

    def kept(self, name: str, thing: Any) -> KeptThing:
        if isinstance(thing, torch.nn.Module):
            parameters = [each for each in thing.parameters() if each.requires_grad]
            unknown = not parameters or any(id(each) not in self._names for each in parameters)
            if unknown:
                raise LoopError(
                    f"{self._path}: session.keep({name}=...): a module's parameters must be those of one "
                    "that model() returned."
                )
            named = {self._names[id(each)]: each for each in parameters}
            return _KeptTensors(named, frozenset(named))
        if isinstance(thing, torch.Tensor):
            thing.requires_grad_(False)
            if known := self._names.get(id(thing)):
                return _KeptTensors({known: thing}, frozenset([known]))
            return _KeptTensors({f"{KEPT}.{name}": thing}, frozenset())
        if isinstance(thing, np.ndarray):
            return _KeptTensors({f"{KEPT}.{name}": torch.from_numpy(thing)}, frozenset())
        if callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None)):
            return _KeptState(f"{KEPT}.{name}", thing, self._like)
        raise LoopError(
            f"{self._path}: session.keep({name}=...) of a {type(thing).__name__}; keep tensors, NumPy's "
            "arrays, modules that model() returned, and what has a state_dict(), as optimizers do."
        )


def traced(looping: Looping, sample: Mapping[str, Array], tensors: Sequence[torch.Tensor]) -> None:
    """Finds out the loop's plan. tensors: all of the model, which are as before afterwards."""
    before = [tensor.detach().clone() for tensor in tensors]
    columns = {name: torch.from_numpy(column).clone() for name, column in sample.items()}
    try:
        looping.plan = looping.trace(SlicePart(columns, 1.0))
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
                tensor.grad = None
