"""PyTorch programs in two stages: see ``elasticflow.frameworks.staged``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from elasticflow.frameworks.staged import PLACES, SHARE, THERE


def cost_of_batch(
    forward: Callable[..., Any], params: Any, own: Mapping[str, Any], whole: dict[str, Any]
) -> Any:
    """See ``staged``."""
    there, places, share = (whole.pop(name) for name in (THERE, PLACES, SHARE))
    there = there > 0
    seen = {name: tensor[there] for name, tensor in whole.items()}
    through = {name: tensor.requires_grad_() for name, tensor in seen.items() if tensor.is_floating_point()}
    cost = forward(**seen, params=params)
    # What is the program's fault is said by who asks for the cost.
    if not isinstance(cost, torch.Tensor) or cost.dim() or not cost.requires_grad:
        return cost
    mine = (there.cumsum(0) - 1)[places]
    gradients = torch.autograd.grad(cost, list(through.values()), retain_graph=True, allow_unused=True)
    pulls = [
        (gradient[mine] * own[name]).sum().to(cost.dtype)
        for name, gradient in zip(through, gradients, strict=True)
        if gradient is not None
    ]
    if not pulls:
        return cost
    pull = torch.stack(pulls).sum()
    return cost + (pull - pull.detach()) / share.to(cost.dtype)
