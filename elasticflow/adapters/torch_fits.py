"""What scripts of PyTorch's libraries have in common: loaders of records, optimizers and their schedules."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from elasticflow.adapters.nests import flat, rebuilt
from elasticflow.data import Arrays, Collate
from elasticflow.data.held import kept_by
from elasticflow.data.source import Array
from elasticflow.errors import ProgramError

PREFIX = "of"


class _Numbers(Arrays):
    """Of the records of a dataset, from which they are made later."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(number=np.arange(len(dataset)))
        self._dataset = dataset

    def held(self) -> Iterator[tuple[str, Array]]:
        return kept_by(self._dataset)


class LoaderRecords:
    """Records of a ``torch.utils.data.DataLoader``, put together by its ``collate_fn``, slice by slice."""

    def __init__(self, what: str, loader: Any) -> None:
        data = sys.modules["torch"].utils.data
        if not isinstance(loader, data.DataLoader):
            raise ProgramError(
                f"{what} is a {type(loader).__name__}; a torch.utils.data.DataLoader is known here."
            )
        dataset = loader.dataset
        if isinstance(dataset, data.IterableDataset) or not hasattr(dataset, "__len__"):
            raise ProgramError(
                f"{what}: a {type(dataset).__name__}'s records only come one after the other; records must "
                "be had "
                "by number: give a dataset with __len__ and __getitem__."
            )
        sampler = getattr(loader, "sampler", None)
        usual = isinstance(sampler, (data.RandomSampler, data.SequentialSampler))
        usual = usual or type(sampler).__name__ == "SeedableRandomSampler"  # of accelerate's
        if not usual or getattr(sampler, "replacement", False):
            raise ProgramError(
                f"{what} has a {type(sampler).__name__} of its own; an epoch has each record once here, in "
                "an "
                "order of the run's: leave it out, or see Weighted and Mix in docs/data.md."
            )
        self._what, self._dataset, self._collate = what, dataset, loader.collate_fn
        self.nest: Any = None
        self.source = Collate(_Numbers(dataset), self._made)

    def _made(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        batch = self._collate([self._dataset[int(number)] for number in columns["number"]])
        found, nest = flat(PREFIX, batch)
        self.nest = nest if self.nest is None else self.nest
        torch, count = sys.modules["torch"], len(columns["number"])
        for name, value in found.items():
            if not isinstance(value, torch.Tensor) or value.dim() < 1 or len(value) != count:
                kind = (
                    f"of shape {tuple(value.shape)}"
                    if isinstance(value, torch.Tensor)
                    else type(value).__name__
                )
                raise ProgramError(
                    f"{self._what}: {count} records make a batch whose "
                    f"{name.removeprefix(PREFIX) or 'value'} is "
                    f"{kind}; it must be tensors with the records along their first axes."
                )
        return {name: value.detach().cpu().numpy() for name, value in found.items()}

    def batch(self, columns: Mapping[str, Any]) -> Any:
        """As the loader would give it."""
        return rebuilt(self.nest, columns)


class Rates:
    """Learning rates that a scheduler of ``torch.optim`` gives, one after the other, each found out once."""

    def __init__(self, optimizer: Any, scheduler: Any) -> None:
        self._optimizer, self._scheduler = optimizer, scheduler
        optimizer._opt_called = True  # it never is, and schedulers would warn of that
        self._rates = [self._now()]

    def at(self, number: int) -> float:
        """After so many steps of the scheduler.

        Raises ProgramError where groups of parameters keep no relation to each other.
        """
        while len(self._rates) <= number:
            before = self._others()
            self._scheduler.step()
            if self._others() != before:
                raise ProgramError(
                    f"its {type(self._scheduler).__name__} changes more than the learning rate, which is all "
                    "that follows a scheduler here: say cycle_momentum=False."
                )
            self._rates.append(self._now())
        return self._rates[number]

    def _others(self) -> list[dict[str, Any]]:
        """Settings of all groups, but their rates."""
        own = ("params", "lr", "initial_lr")
        return [
            {name: value for name, value in group.items() if name not in own}
            for group in self._optimizer.param_groups
        ]

    def _now(self) -> float:
        first, *others = self._optimizer.param_groups
        for group in others:
            told = group["lr"] * first["initial_lr"], first["lr"] * group["initial_lr"]
            if not np.isclose(*told, rtol=1e-6):
                raise ProgramError(
                    f"its {type(self._scheduler).__name__} gives groups of parameters rates that keep no "
                    "relation to each other; here they have to: give all one factor."
                )
        return float(first["lr"])


def untouched(optimizer: Any) -> Any:
    """A copy, for the same tensors, with the learning rates from before any scheduler was made."""
    plain = copy.copy(optimizer)
    plain.param_groups = [
        {**group, "lr": group.get("initial_lr", group["lr"])} for group in optimizer.param_groups
    ]
    return plain


def clipped(optimizer: Any, norm: float | None, value: float | None) -> None:
    """Says how gradients are clipped where ElasticFlow finds it: in settings of groups, as its own have."""
    if norm:
        optimizer.param_groups[0]["clip_norm"] = float(norm)
    if value:
        for group in optimizer.param_groups:
            group["clip_value"] = float(value)
