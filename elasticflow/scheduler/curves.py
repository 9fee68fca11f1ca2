"""A throughput curve: iterations a second by number of GPUs, the global batch held fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from elasticflow.errors import ConfigError


@dataclass(frozen=True)
class Curve:
    """Measured or fitted points. More GPUs may be slower: nothing here assumes otherwise.

    sizes: numbers of GPUs the job can run on, ascending. rates: iterations a second at each, all above 0.
    """

    sizes: tuple[int, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.sizes or len(self.sizes) != len(self.rates):
            raise ConfigError(
                f"a curve has {len(self.sizes)} sizes and {len(self.rates)} rates; give one each"
            )
        if list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 1:
            raise ConfigError(f"a curve's sizes are {self.sizes}; they must be ascending, from 1 GPU up")
        if not all(0 < rate < float("inf") for rate in self.rates):
            raise ConfigError(f"a curve's rates are {self.rates}; leave out the sizes that cannot run")

    def rate(self, num_gpus: int) -> float:
        """Iterations a second on exactly so many GPUs; 0 on none. Raises KeyError for a size it lacks."""
        return self._by_size[num_gpus] if num_gpus else 0.0

    def best_size(self, max_gpus: int) -> int:
        """The fastest size of at most ``max_gpus``, the smallest of equals; 0 if there is none."""
        allowed = [size for size in self.sizes if size <= max_gpus]
        return max(allowed, key=self.rate) if allowed else 0

    def gpu_seconds(self, num_gpus: int) -> float:
        """GPU-seconds of one iteration at this size: what it costs."""
        return num_gpus / self.rate(num_gpus)

    @cached_property
    def knee(self) -> int:
        """The size after which twice the GPUs give less than half as much again."""
        for size, larger in zip(self.useful, self.useful[1:], strict=False):
            if self.rate(larger) / self.rate(size) < 1 + 0.5 * (larger / size - 1):
                return size
        return self.useful[-1]

    @cached_property
    def useful(self) -> tuple[int, ...]:
        """Sizes that are faster than every smaller one."""
        kept: list[int] = []
        for size in self.sizes:
            if not kept or self.rate(size) > self.rate(kept[-1]):
                kept.append(size)
        return tuple(kept)

    def scaled(self, factor: float) -> Curve:
        """The same curve, every rate times ``factor``."""
        return Curve(self.sizes, tuple(rate * factor for rate in self.rates))

    def limited(self, min_gpus: int, max_gpus: int) -> Curve:
        """Only the sizes within bounds. Raises ConfigError if none is left."""
        kept = {size: self.rate(size) for size in self.sizes if min_gpus <= size <= max_gpus}
        if not kept:
            known = ", ".join(map(str, self.sizes))
            raise ConfigError(
                f"a job wants {min_gpus} to {max_gpus} GPUs, its curve knows {known}; "
                "widen the bounds, or measure a size within them"
            )
        return curve(kept)

    @cached_property
    def _by_size(self) -> dict[int, float]:
        return dict(zip(self.sizes, self.rates, strict=True))


def curve(rates: Mapping[int, float]) -> Curve:
    """A curve from iterations a second by number of GPUs."""
    sizes = tuple(sorted(rates))
    return Curve(sizes, tuple(rates[size] for size in sizes))
