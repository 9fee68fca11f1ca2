"""What a program makes of its own, such as ``torch.arange(8)``, is made where it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from elasticflow.frameworks.devices import Device

T = TypeVar("T")


class _MakingMode(TorchFunctionMode):
    """As ``with where:``. made: whether anything was made within it that named no device; at first: maybe."""

    def __init__(self, where: torch.device) -> None:
        super().__init__()
        self._where, self.made = where, True

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _device_constructors() and kwargs.get("device") is None:
            self.made, kwargs["device"] = True, self._where
        return func(*args, **kwargs)


class Making:
    """Calls a program's functions such that what they make lies on a device.

    PyTorch has a mode for that, which is asked about each operation: within it the slices of a GPT took 1.3
    times as long on an H100, whose kernels were waiting for it. So a program that makes nothing in the slice
    that all workers rehearse goes on without; and a call that raises then, as what it has made does not fit
    the rest, is made again within it. Either follows from program and slice alone, so all have the same bits.
    """

    def __init__(self, device: Device) -> None:
        self._mode = _MakingMode(device.where) if device.apart else None
        self._needed = True

    def call(self, function: Callable[[], T], begin_again: Callable[[], None]) -> T:
        """begin_again: puts random states and buffers back to where the call began."""
        if self._mode is None:
            return function()
        if not self._needed:
            try:
                return function()
            except RuntimeError as error:
                if type(error) is not RuntimeError:  # short of memory, say
                    raise
            begin_again()
        self._mode.made = False
        with self._mode:
            return function()

    def rehearsed(self) -> None:
        """The last call was of the slice that decides."""
        self._needed = self._mode is not None and self._mode.made
