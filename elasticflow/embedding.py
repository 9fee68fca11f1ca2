"""``ef.Embedding``: a table of vectors by id, of which a worker only ever has the rows of a slice.

It lives on the parameter servers. In ``forward`` it is called like a layer; the rows that are looked up get
gradients, and the servers update these rows and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from elasticflow.api import HUGE, PER_TENSOR, Optimizer, _Optimizer, _require, _take
from elasticflow.errors import ProgramError


class _Initializer(msgspec.Struct, frozen=True, tag=True):
    pass


MOST_ROWS = (1 << 53) - 1
"""Whole numbers in messages are no larger."""


class Constant(_Initializer, frozen=True, tag=True):
    """All elements of a new row are ``value``."""

    value: float = 0.0

    def __post_init__(self) -> None:
        _take("Constant", self, ("value",), "a finite number", -HUGE)


class Uniform(_Initializer, frozen=True, tag=True):
    """Elements of a new row are drawn from ``low..high``, by (seed, table, id) alone."""

    low: float = -0.05
    high: float = 0.05

    def __post_init__(self) -> None:
        _take("Uniform", self, ("low", "high"), "a finite number", -HUGE)
        _require("Uniform", self.low <= self.high, "high", self.high, f"a number >= low, {self.low}")


class Normal(_Initializer, frozen=True, tag=True):
    """Elements of a new row look normal, within 6 standard deviations; by (seed, table, id) alone."""

    mean: float = 0.0
    std: float = 0.05

    def __post_init__(self) -> None:
        _take("Normal", self, ("mean", "std"), "a finite number", -HUGE)
        _require("Normal", self.std >= 0, "std", self.std, "a number >= 0")


Initializer: TypeAlias = Constant | Uniform | Normal

COMBINATIONS = ("sum", "mean")


class TableSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a server must know of a table besides its name. See ``Embedding``."""

    rows: int | None
    dim: int
    initializer: Initializer
    optimizer: Optimizer | None
    min_count: int
    evict_after_steps: int

    def updated_by(self, models: Optimizer) -> Optimizer:
        """Its own optimizer, or the model's, of whose parameters alone there are averages."""
        return self.optimizer or msgspec.structs.replace(models, ema=None)


class Embedding:
    """A table of ``dim`` float32 numbers for each id, on the parameter servers, for ``model()``'s dict.

    It may also be an attribute of a module or layer there.

    rows: ids are 0..rows-1; None: any 64-bit integers are (for strings see ``ef.hash_ids``), and there are as
    many rows as ids that were trained. initializer: what a row is before its first update; it follows from
    the seed, the table's name and the id, so it does not matter when, and by whom, an id is first seen.
    optimizer: None for the model's. It is *lazy*: an update changes the rows that were looked up and no
    others, by weight decay and momentum too. min_count: a row is trained from the min_count-th step on in
    which its id occurs. evict_after_steps: rows that did not occur in so many steps are forgotten, and begin
    anew when they come again; 0: none.

    Raises ProgramError for what is not allowed.
    """

    def __init__(
        self,
        rows: int | None,
        dim: int,
        *,
        initializer: Initializer | None = None,
        optimizer: Optimizer | None = None,
        min_count: int = 1,
        evict_after_steps: int = 0,
    ) -> None:
        def require(ok: bool, name: str, value: object, allowed: str) -> None:
            _require("Embedding", ok, name, value, allowed)

        initializer = Uniform() if initializer is None else initializer
        require(
            rows is None or _is_count(rows, 1, MOST_ROWS),
            "rows",
            rows,
            "a whole number from 1 to 2**53 - 1, or None for any 64-bit ids",
        )
        require(_is_count(dim, 1, 1 << 16), "dim", dim, "a whole number from 1 to 65536")
        require(
            isinstance(initializer, _Initializer),
            "initializer",
            initializer,
            "ef.Uniform, ef.Normal or ef.Constant",
        )
        require(
            optimizer is None or isinstance(optimizer, _Optimizer),
            "optimizer",
            optimizer,
            "such as ef.Adagrad(), or None",
        )
        require(_is_count(min_count, 1, 1 << 16), "min_count", min_count, "a whole number from 1 to 65536")
        require(
            _is_count(evict_after_steps, 0, 1 << 31),
            "evict_after_steps",
            evict_after_steps,
            "a whole number from 0 to 2**31",
        )
        if optimizer is not None and optimizer.clip_norm is not None:
            raise ProgramError(
                "Embedding(optimizer=...): clip_norm is for all gradients together; name it in the model's."
            )
        if isinstance(optimizer, PER_TENSOR):
            kind = type(optimizer).__name__
            raise ProgramError(
                f"Embedding(optimizer=ef.{kind}(...)): it follows from norms over a whole tensor, and of a "
                "table only the rows that are looked up change. Name another, such as ef.Adam()."
            )
        if optimizer is not None and optimizer.ema is not None:
            raise ProgramError("Embedding(optimizer=...): rows have no moving averages (ema).")
        self.spec = TableSpec(
            rows=rows,
            dim=dim,
            initializer=initializer,
            optimizer=optimizer,
            min_count=min_count,
            evict_after_steps=evict_after_steps,
        )
        self._look_up: Callable[..., Any] | None = None

    def bind(self, look_up: Callable[..., Any] | None) -> None:
        """To be called by the framework: what a call of this table does from now on; None: it cannot be."""
        self._look_up = look_up

    def __call__(
        self, ids: Any, *, combine: str | None = None, offsets: Any = None, padding: int | None = None
    ) -> Any:
        """The rows of ``ids``, a tensor of whole numbers of any shape: (*ids.shape, dim).

        combine: "sum" or "mean" of the last axis, a *bag*: (*ids.shape[:-1], dim). With offsets, (num_bags,),
        ids are flat, and bag i is ids[offsets[i]:offsets[i + 1]]: (num_bags, dim). A ragged tensor needs no
        offsets. padding: an id that stands for nothing: its row is zeros, and no mean counts it. An
        empty bag is zeros. Raises ProgramError for ids that cannot be.
        """
        if self._look_up is None:
            raise ProgramError(
                "an ef.Embedding can be looked up within forward() and metrics() alone, as params[...](ids)."
            )
        _require("Embedding", combine in (None, *COMBINATIONS), "combine", combine, "'sum', 'mean' or None")
        _require(
            "Embedding",
            offsets is None or combine is not None,
            "offsets",
            "given",
            "left out without combine",
        )
        whole = padding is None or _is_count(padding, -(1 << 63), (1 << 64) - 1)
        _require("Embedding", whole, "padding", padding, "a 64-bit integer, or None")
        return self._look_up(ids, combine=combine, offsets=offsets, padding=padding)


def _is_count(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
