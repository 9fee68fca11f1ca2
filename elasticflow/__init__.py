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

__version__ = "0.1.0"
__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "data"]


def __getattr__(name: str) -> Any:
    if name == "data":
        return importlib.import_module("elasticflow.data")
    if name in __all__:
        return getattr(importlib.import_module("elasticflow.api"), name)
    raise AttributeError(f"elasticflow has no {name!r}; it has {', '.join(__all__)}")
