"""What an optimizer of ``torch.optim`` keeps of each parameter, by the parameter's name.

Its state dict has numbers in the place of names. Newer ones have the names too (``param_names``); with one
group of parameters they follow from the order of the net's own state dict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

OF_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
NESTED_STATE = ("optimizer", "optimizer_state_dict", "optim", "opt")
"""Under which training scripts put the optimizer's state dict."""


def optimizer_in(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """The optimizer's state dict. Raises ValueError if there is none."""
    for each in (saved.get(name) for name in NESTED_STATE):
        if isinstance(each, Mapping) and {"state", "param_groups"} <= each.keys():
            return each
    raise ValueError(
        "holds no optimizer's state: save {'model': net.state_dict(), 'optimizer': optimizer.state_dict()}"
    )


def named_state(
    optimizer: Mapping[str, Any], weights: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Any], int]:
    """``name#slot`` for each tensor that it keeps, and how many updates there were; 1 where nobody counts.

    weights: names in the net's state dict, in its order. shapes: of those. Raises ValueError where numbers
    cannot be told names, or parameters were not updated equally often.
    """
    names = _names(optimizer["param_groups"], weights)
    found: dict[str, Any] = {}
    counts: dict[int, str] = {}
    for number, kept in optimizer["state"].items():
        name = names[number]
        for slot, value in kept.items():
            shape = tuple(getattr(value, "shape", ()))
            if slot == "step":
                counts.setdefault(round(float(value)), name)
            elif shape == shapes.get(name):
                found[f"{name}#{slot}"] = value
            elif shape:
                raise ValueError(
                    f"the optimizer's {slot} of {name} is of shape {shape}, and that of {shapes.get(name)}: "
                    "the optimizer was given its parameters in another order than net.parameters() has"
                )
    if len(counts) > 1:
        told = ", ".join(f"{name} {count} times" for count, name in sorted(counts.items())[:3])
        raise ValueError(
            f"its parameters were not updated equally often ({told}), which only one count is for"
        )
    return found, next(iter(counts), 1 if found else 0)


def _names(groups: Iterable[Mapping[str, Any]], weights: Sequence[str]) -> dict[int, str]:
    each = list(groups)
    numbers = [number for group in each for number in group["params"]]
    if all("param_names" in group for group in each):
        return dict(zip(numbers, (name for group in each for name in group["param_names"]), strict=True))
    parameters = [name for name in weights if name.rpartition(".")[2] not in OF_BUFFERS]
    if len(each) > 1 or len(parameters) != len(numbers):
        raise ValueError(
            f"its optimizer has {len(numbers)} parameters in {len(each)} group{'s' * (len(each) > 1)} and no "
            f"names of them, and the net has {len(parameters)}: which is which cannot be told. Give it "
            "net.named_parameters(), which keeps the names"
        )
    return dict(zip(numbers, parameters, strict=True))
