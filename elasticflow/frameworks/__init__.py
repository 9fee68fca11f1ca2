"""Deep-learning frameworks behind one small interface (``base``); each is imported only when used."""

from elasticflow.frameworks.base import (
    CHANGED,
    FRAMEWORKS,
    Batch,
    CostError,
    Interrupted,
    Replica,
    check_cost,
    framework_of,
    open_replica,
    set_up,
    warm_up,
)

__all__ = [
    "CHANGED",
    "FRAMEWORKS",
    "Batch",
    "CostError",
    "check_cost",
    "Interrupted",
    "Replica",
    "framework_of",
    "open_replica",
    "set_up",
    "warm_up",
]
