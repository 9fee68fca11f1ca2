"""Groups of parameters: which optimizer, with which settings, updates which, by their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import msgspec

from elasticflow.api import Optimizer, _Optimizer
from elasticflow.errors import ProgramError

Settings: TypeAlias = Mapping[str, Any] | Optimizer
_OF_ALL = "clip_norm"


class Groups:
    """One optimizer for most parameters, and others, or other settings, for some.

    groups: by a pattern of names, such as ``"net.*.bias"`` (``*`` is any text), an optimizer
    of its own, or a dict of what is otherwise, such as ``{"weight_decay": 0}``. The first pattern that fits a
    name counts. Where the program has a ``learning_rate()``, it is that of ``optimizer``, and all others keep
    their relation to it. Raises ProgramError for what is not allowed.

    others: the optimizers of groups, each once; by these, counted from 1, parameters lie together.
    """

    def __init__(self, optimizer: Optimizer, groups: Mapping[str, Settings]) -> None:
        if not isinstance(optimizer, _Optimizer):
            kind = type(optimizer).__name__
            raise ProgramError(f"Groups({kind}, ...): the first must be an optimizer, such as ef.AdamW().")
        if not isinstance(groups, Mapping) or not all(isinstance(pattern, str) for pattern in groups):
            raise ProgramError("Groups(optimizer, groups): groups must be a dict by patterns of names.")
        self.optimizer = optimizer
        self.groups = {pattern: _made(optimizer, pattern, each) for pattern, each in groups.items()}
        odd = next((pattern for pattern, each in self.groups.items() if each.lr and not optimizer.lr), None)
        if odd is not None:
            raise ProgramError(f"Groups({odd!r}): its lr has no relation to that of the first, which is 0.")

        self.others = tuple(dict.fromkeys(each for each in self.groups.values() if each != optimizer))

    def number_of(self, name: str) -> int:
        """Of the optimizer that updates a parameter: 0, or that of one of the ``others``."""
        fitting = (each for pattern, each in self.groups.items() if fnmatchcase(name, pattern))
        return (self.optimizer, *self.others).index(next(fitting, self.optimizer))

    def check(self, names: Sequence[str], others: Iterable[str], tables: Sequence[str]) -> None:
        """Raises ProgramError for a pattern that fits nothing, or a table.

        names: of the parameters that are trained; others: of all other tensors.
        """
        known = [*names, *others]
        for pattern in self.groups:
            if table := next((name for name in tables if fnmatchcase(name, pattern)), None):
                raise ProgramError(
                    f"Groups({pattern!r}) fits the table {table!r}: name its optimizer in ef.Embedding."
                )
            if not any(fnmatchcase(name, pattern) for name in known):
                shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
                raise ProgramError(f"Groups({pattern!r}) fits no parameter; there are {shown}.")


def _made(first: Optimizer, pattern: str, settings: Settings) -> Optimizer:
    if isinstance(settings, _Optimizer):
        if settings.clip_norm is not None:
            raise ProgramError(
                f"Groups({pattern!r}): clip_norm is for all gradients together; name it in the first."
            )
        return settings
    if not isinstance(settings, Mapping):
        kind = type(settings).__name__
        raise ProgramError(f"Groups({pattern!r}): must be a dict of settings, or an optimizer, not a {kind}.")
    known = [name for name in first.__struct_fields__ if name != _OF_ALL]
    if unknown := [name for name in settings if name not in known]:
        raise ProgramError(
            f"Groups({pattern!r}): {type(first).__name__} has no {unknown[0]!r} of a group's own; it has "
            f"{', '.join(known)}."
        )
    return msgspec.structs.replace(first, **{_OF_ALL: None, **settings})
