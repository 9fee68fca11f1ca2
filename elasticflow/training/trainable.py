"""Which parameters are trained in which epoch: ``trainable(epoch)`` of a program.

    def trainable(epoch):
        return ["head.*"] if epoch < 5 else ["*"]

It is asked once, for all epochs up to ``HORIZON``, before the run begins: so what is trained when is part of
what is fixed, and the same for a run that is resumed with more epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from elasticflow.errors import ProgramError
from elasticflow.training.freezing import Toggles, toggles_of

HORIZON = 1000
"""So many epochs are asked for; later ones are as the last of these."""


def toggles_by_name(
    trainable: Callable[[int], object], names: Sequence[str], others: Sequence[str]
) -> dict[str, Toggles]:
    """Of each parameter and table. others: of what is no parameter, or never trained.

    Raises ProgramError for what is no list of patterns, or fits nothing; and whatever ``trainable`` raises.
    """
    known: dict[tuple[str, ...], frozenset[str]] = {}
    trained: list[frozenset[str]] = []
    for epoch in range(HORIZON):
        patterns = _patterns(epoch, trainable(epoch))
        if patterns not in known:
            known[patterns] = _fitting(epoch, patterns, names, others)
        trained.append(known[patterns])
    return {name: toggles_of([name in now for now in trained]) for name in names}


def _patterns(epoch: int, found: object) -> tuple[str, ...]:
    if not isinstance(found, (list, tuple, set, frozenset)) or not all(isinstance(p, str) for p in found):
        raise ProgramError(
            f"trainable({epoch}) returned {found!r:.80}; it must return a list of patterns of names, of "
            'what is trained in that epoch, counted from 0, such as ["head.*"], or ["*"] for all.'
        )
    return tuple(found)


def _fitting(
    epoch: int, patterns: Sequence[str], names: Sequence[str], others: Sequence[str]
) -> frozenset[str]:
    for pattern in patterns:
        if any(fnmatchcase(name, pattern) for name in names):
            continue
        if never := next((name for name in others if fnmatchcase(name, pattern)), None):
            raise ProgramError(
                f"trainable({epoch}): {pattern!r} fits {never!r}, which model() has as a buffer, or as never "
                "trained; what trainable() is to say when must be a parameter that requires_grad."
            )
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise ProgramError(f"trainable({epoch}): {pattern!r} fits no parameter; there are {shown}.")
    fitting = frozenset(name for name in names if any(fnmatchcase(name, each) for each in patterns))
    if not fitting:
        raise ProgramError(
            f"trainable({epoch}) returned no pattern, so nothing would be trained in that epoch; end the run "
            "before it, with fewer epochs."
        )
    return fitting
