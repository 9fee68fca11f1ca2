"""States of optimizers and the like, as ``state_dict`` gives them, as arrays by name and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from elasticflow.step.layout import Array

PARAMS = "params"
"""What of a torch optimizer's groups only says which parameters are theirs."""


def arrays_in(value: Any, name: str, array_of: Callable[[Any], Array | None]) -> Iterator[tuple[str, Array]]:
    """Copies of all numbers in it, each with a name. array_of: of a tensor; None for what is none."""
    if (array := array_of(value)) is not None:
        yield name, array
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, np.array(value, np.int64 if isinstance(value, int) else np.float64)
    else:
        for key, part in _parts(value):
            if key != PARAMS:
                yield from arrays_in(part, f"{name}.{key}", array_of)


def with_arrays(
    value: Any,
    name: str,
    array_of: Callable[[Any], Array | None],
    read: Callable[[str], Array],
    tensor_of: Callable[[Array], Any],
) -> Any:
    """The same with other numbers in it."""
    if array_of(value) is not None:
        return tensor_of(read(name))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return type(value)(read(name).item())
    made = {
        key: part if key == PARAMS else with_arrays(part, f"{name}.{key}", array_of, read, tensor_of)
        for key, part in _parts(value)
    }
    if isinstance(value, dict):
        return made
    return type(value)(made.values()) if isinstance(value, (list, tuple)) else value


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)
