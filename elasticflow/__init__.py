"""ElasticFlow: elastic training that gives the same model bit for bit, whatever happens on the way.

A program defines ``model()`` and ``forward()``, and names from here what it needs besides its
framework: an optimizer, and sources of data (``ef.data``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticflow import data as data
    from elasticflow.api import SGD as SGD
    from elasticflow.api import Adagrad as Adagrad
    from elasticflow.api import Adam as Adam
    from elasticflow.api import AdamW as AdamW
    from elasticflow.api import Ftrl as Ftrl
    from elasticflow.embedding import Constant as Constant
    from elasticflow.embedding import Embedding as Embedding
    from elasticflow.embedding import Normal as Normal
    from elasticflow.embedding import Uniform as Uniform
    from elasticflow.step.rows import hash_ids as hash_ids

__version__ = "0.1.0"
_HOMES = {
    "elasticflow.api": ("SGD", "Adagrad", "Adam", "AdamW", "Ftrl"),
    "elasticflow.embedding": ("Constant", "Embedding", "Normal", "Uniform"),
    "elasticflow.step.rows": ("hash_ids",),
}
__all__ = [
    "SGD", "Adagrad", "Adam", "AdamW", "Constant", "Embedding", "Ftrl", "Normal", "Uniform", "data",
    "hash_ids",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "data":
        return importlib.import_module("elasticflow.data")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"elasticflow has no {name!r}; it has {', '.join(__all__)}")
