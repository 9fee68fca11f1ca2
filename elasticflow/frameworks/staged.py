"""Programs in two stages: ``encode`` makes something of each record, ``forward`` a cost of a whole batch's.

In the first tick of a step each slice encodes its own records. The second begins with what came of all of
them, and each slice computes the cost of the whole batch from it. The cost's gradient with regard to what is
encoded goes back through the encoding of the slice's own records, which is computed again; that with regard
to parameters which ``forward`` uses itself counts by the slice's share. Added up over the slices both are the
gradient of the batch's cost, as if it had been computed at once. (GradCache: Gao et al., "Scaling Deep
Contrastive Learning Batch Size under Memory Limited Setup", 2021.)

A program is made one with one stage: its ``forward`` takes the columns of ``encode``, and, beside them, what
is known of the whole batch. Without that the records it is given are the batch: so a slice is tried out, or
evaluated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from elasticflow.errors import ProgramError
from elasticflow.program.loading import Program
from elasticflow.step.layout import KINDS, Array, Entry, Rule

WHOLE = "whole batch: "
"""What the names of such arguments begin with; no argument of a function can be called so."""
ENCODED = "encoded"
"""The entry that says which records of the batch there are, and what the names of others begin with."""
THERE, PLACES, SHARE = "there", "places", "share"
"""Which records of the batch there are; places in it of the slice's own; and its share of the cost."""


def staged(program: Program, framework: str) -> Program:
    """The same in one stage; itself, if it has no ``encode``."""
    if program.encode is None:
        return program
    if framework == "torch":
        from elasticflow.frameworks.staged_torch import cost_of_batch
    else:
        from elasticflow.frameworks.staged_tensorflow import cost_of_batch
    forward = _joined(program.encode, program.forward, cost_of_batch)
    return replace(program, forward=forward, whole=program.forward)


def _joined(
    encode: Callable[..., Any], forward: Callable[..., Any], cost_of_batch: Callable[..., Any]
) -> Callable[..., Any]:
    """Both as one function of the columns of ``encode``.

    cost_of_batch: of (forward, params, what encode() gives for the slice's own records, what is known of the
    whole batch), a cost whose gradient is the slice's part.
    """

    @wraps(encode)
    def cost_of(params: Any, **arguments: Any) -> Any:
        whole = {name[len(WHOLE) :]: value for name, value in arguments.items() if name.startswith(WHOLE)}
        columns = {name: value for name, value in arguments.items() if not name.startswith(WHOLE)}
        own = encode(**columns, params=params)
        return cost_of_batch(forward, params, own, whole) if whole else forward(**own, params=params)

    cost_of.__signature__ = inspect.signature(encode)  # type: ignore[attr-defined]
    return cost_of


def entries_of(
    encoded: object, forward: Callable[..., Any], num_records: int, batch_size: int
) -> list[Entry]:
    """Regions for what ``encode`` has made of so many records, for a whole batch. Raises ProgramError.

    encoded: NumPy's arrays, by name.
    """
    if not isinstance(encoded, dict) or not encoded or not all(isinstance(name, str) for name in encoded):
        raise ProgramError(
            f"encode() returned a {type(encoded).__name__}; it must return a dict by name, such as "
            '{"query": ..., "item": ...}, of what forward() is to see of all records of a batch.'
        )
    for name, array in encoded.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in KINDS:
            raise ProgramError(f"encode() returned for {name!r} a {type(array).__name__}; return a tensor.")
        if not array.ndim or len(array) != num_records:
            raise ProgramError(
                f"encode() returned for {name!r} a tensor of shape {tuple(array.shape)} for {num_records} "
                "records; its first dimension must be that of the records."
            )
    _check_arguments(encoded, forward)
    there = Entry(ENCODED, (batch_size,), "float32", Rule.BATCH)
    return [
        there,
        *(
            Entry(f"{ENCODED}.{name}", (batch_size, *array.shape[1:]), array.dtype.name, Rule.BATCH)
            for name, array in encoded.items()
        ),
    ]


def _check_arguments(encoded: Mapping[str, object], forward: Callable[..., Any]) -> None:
    """Raises ProgramError unless ``forward`` takes just what ``encode`` gives."""
    parameters = inspect.signature(forward).parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    missing = [
        p.name for p in parameters
        if p.name in names and p.name not in (*encoded, "params") and p.default is p.empty
    ]  # fmt: skip
    unknown = [] if takes_any else [name for name in encoded if name not in names]
    if missing or unknown:
        takes = ", ".join(name for name in names if name != "params") or "nothing"
        raise ProgramError(
            f"forward() takes {takes}, and encode() returns {', '.join(encoded)}: with encode(), forward() "
            "takes what that returns, and params."
        )


def names_of(entries: Sequence[Entry]) -> list[str]:
    """Those that ``encode`` gives them."""
    return [entry.name[len(ENCODED) + 1 :] for entry in entries[1:]]


def whole_columns(entries: Sequence[Entry], arrays: Sequence[Array], num_records: int) -> dict[str, Array]:
    """What is known of a whole batch of so many records, as arguments. arrays: of ``entries``."""
    names = [THERE, *names_of(entries)]
    return {WHOLE + name: array[:num_records] for name, array in zip(names, arrays, strict=True)}


def own_columns(places: Array, share: float) -> dict[str, Array]:
    """What is known of a slice in its batch, as arguments."""
    return {WHOLE + PLACES: places.astype(np.int64), WHOLE + SHARE: np.array(share, np.float64)}
