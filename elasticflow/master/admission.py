"""Whether a worker that joins computes what the others do: pure."""

from __future__ import annotations

from elasticflow.storage.file_ids import STAY, first_change
from elasticflow.wire.messages import Spec


def objection(first: Spec, other: Spec) -> str:
    """What speaks against a run in which two workers found these, to follow a name; empty if nothing does."""
    if change := first_change(first.files, other.files):
        return f"finds other data than the run began with: {change}. {STAY}"
    if differs := _difference(first, other):
        return (
            f"finds another program than the first worker: {differs}. Is model() or data() random beyond the "
            "seed?"
        )
    return ""


def _difference(first: Spec, other: Spec) -> str:
    """What two workers learnt differently, in words; empty if nothing."""
    for name in first.__struct_fields__:
        if name not in ("warnings", "files") and getattr(first, name) != getattr(other, name):
            return f"{name} is {_short(getattr(other, name))}, not {_short(getattr(first, name))}"
    return ""


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
