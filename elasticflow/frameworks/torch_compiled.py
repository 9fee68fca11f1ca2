"""``torch.compile``, of which a slice's bits must follow from the slice alone.

By default PyTorch compiles anew where a second size comes, for sizes of all kinds: how it computes one
follows from those that this process has seen before, and workers have seen others. So each has a kernel of
its own, unless a program wants one for all (``dynamic=True``); and which is best nobody measures on the way.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch

from elasticflow.errors import ProgramError

MOST_KERNELS, BOUNDLESS = 64, 1 << 20
"""Of one function. What comes then PyTorch would compute without a kernel, whichever size that is; where it
fails instead ``whose_fault`` says what to do."""
LIMITS = "recompile_limit", "cache_size_limit"
ALL_LIMITS = "accumulated_recompile_limit", "accumulated_cache_size_limit"
FAILS = "fail_on_recompile_limit_hit", "fail_on_cache_limit_hit"
"""What PyTorch calls them, and called them before; at first it had no way to fail."""


def keep_to_sizes() -> None:
    """Has whatever this thread, and who has its context, compiles from now on be so; may be called again."""
    if not hasattr(torch.compile, "keeps_to_sizes"):
        torch.compile = _kept(torch.compile)
    if "torch._dynamo" in sys.modules:  # it was compiled by a function's name, as the program was loaded
        _configure()


def _kept(compile: Any) -> Any:
    @functools.wraps(compile)
    def kept(*args: Any, **options: Any) -> Any:
        measures = str(options.get("mode") or "").startswith("max-autotune")
        if not _configure() and measures:
            raise ProgramError(
                f"torch.compile(mode={options['mode']!r}): takes the kernels that are fastest just then, "
                "others on each worker, with other bits. PyTorch can be told not to from 2.9 on: use that, "
                "or leave the mode out."
            )
        return compile(*args, **options)

    kept.keeps_to_sizes = True  # type: ignore[attr-defined]
    return kept


def _configure() -> bool:
    """Whether what depends on what was measured can be left out."""
    from torch import _dynamo
    from torch._inductor import config as inductor

    dynamo: Any = _dynamo.config
    dynamo.automatic_dynamic_shapes = False
    _set(dynamo, LIMITS, MOST_KERNELS if _set(dynamo, FAILS, True) else BOUNDLESS)
    _set(dynamo, ALL_LIMITS, BOUNDLESS)
    return _set(inductor, ("deterministic",), True)


def _set(config: Any, names: Sequence[str], value: object) -> bool:
    """The first that this PyTorch knows; whether there is one."""
    for name in names:
        if hasattr(config, name):
            setattr(config, name, value)
            return True
    return False
