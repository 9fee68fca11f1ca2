"""ElasticFlow: elastic training that gives the same model bit for bit, whatever happens on the way.

A program defines ``model()`` and ``forward()``, and names from here what it needs besides its
framework: an optimizer, and sources of data (``ef.data``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticflow import data as data
    from elasticflow.api import ASGD as ASGD
    from elasticflow.api import LAMB as LAMB
    from elasticflow.api import LARS as LARS
    from elasticflow.api import SGD as SGD
    from elasticflow.api import Adadelta as Adadelta
    from elasticflow.api import Adagrad as Adagrad
    from elasticflow.api import Adam as Adam
    from elasticflow.api import Adamax as Adamax
    from elasticflow.api import AdamW as AdamW
    from elasticflow.api import Ftrl as Ftrl
    from elasticflow.api import Lion as Lion
    from elasticflow.api import NAdam as NAdam
    from elasticflow.api import RAdam as RAdam
    from elasticflow.api import RMSprop as RMSprop
    from elasticflow.api import Rprop as Rprop
    from elasticflow.embedding import Constant as Constant
    from elasticflow.embedding import Embedding as Embedding
    from elasticflow.embedding import Normal as Normal
    from elasticflow.embedding import Uniform as Uniform
    from elasticflow.hashing import hash_ids as hash_ids
    from elasticflow.program.arguments import args as args
    from elasticflow.running import Run as Run
    from elasticflow.running import resume as resume
    from elasticflow.running import submit as submit
    from elasticflow.running import train as train
    from elasticflow.training import lr as lr
    from elasticflow.training import metrics as metrics
    from elasticflow.training.advice import EpochInfo as EpochInfo
    from elasticflow.training.advice import go_on as go_on
    from elasticflow.training.advice import stop as stop
    from elasticflow.training.grouping import Groups as Groups
    from elasticflow.training.standing import early_stopping as early_stopping
    from elasticflow.training.standing import keep_best as keep_best

__version__ = "0.1.0"
_HOMES = {
    "elasticflow.api": (
        "ASGD", "SGD", "Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "Ftrl", "LAMB", "LARS", "Lion",
        "NAdam", "RAdam", "RMSprop", "Rprop",
    ),
    "elasticflow.training.advice": ("EpochInfo", "go_on", "stop"),
    "elasticflow.training.grouping": ("Groups",),
    "elasticflow.training.standing": ("early_stopping", "keep_best"),
    "elasticflow.embedding": ("Constant", "Embedding", "Normal", "Uniform"),
    "elasticflow.hashing": ("hash_ids",),
    "elasticflow.program.arguments": ("args",),
    "elasticflow.running": ("Run", "resume", "submit", "train"),
}  # fmt: skip
__all__ = [
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Constant", "Embedding", "EpochInfo", "Ftrl",
    "Groups", "LAMB", "LARS", "Lion", "NAdam", "Normal", "RAdam", "RMSprop", "Rprop", "Run", "SGD", "Uniform",
    "args", "data", "early_stopping", "go_on", "hash_ids", "keep_best", "lr", "metrics", "resume", "stop",
    "submit", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "data":
        return importlib.import_module("elasticflow.data")
    if name in ("lr", "metrics"):
        return importlib.import_module(f"elasticflow.training.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    reasons = {} if name.startswith("_") else importlib.import_module("elasticflow.api").OTHERS
    if name in reasons:
        raise AttributeError(f"elasticflow has no {name}: {reasons[name]}. It has {', '.join(__all__)}.")
    raise AttributeError(f"elasticflow has no {name!r}; it has {', '.join(__all__)}")
