"""Deep-learning frameworks behind one small interface (``base``); each is imported only when used."""

from elasticflow.frameworks.base import (
    Batch,
    CostError,
    Interrupted,
    Replica,
    check_cost,
    framework_of,
    open_replica,
    set_up,
)

__all__ = [
    "Batch",
    "CostError",
    "check_cost",
    "Interrupted",
    "Replica",
    "framework_of",
    "open_replica",
    "set_up",
]
