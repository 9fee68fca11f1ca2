"""Tables in a PyTorch model: rows that are looked up, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd.function import FunctionCtx
from torch.nn.functional import embedding_bag

from elasticflow.frameworks.lookups import Lookup, Lookups
from elasticflow.step.layout import Array


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


class TorchLookups(Lookups):
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
