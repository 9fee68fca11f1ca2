"""What a run that begins with the weights of another has taken of them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

SHOWN = 5
"""So many names are told of each kind."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the weights, by name. sha256: of what was taken; error: why nothing was.

    stateful: parameters of which the optimizer's state was taken, after so many updates; stateless: others.
    missing: the model has them and the file has not. unused: the other way round. unlike: of another shape.
    vocabularies: such as are others than those of the run that it begins with.
    """

    taken: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    sha256: str = ""
    stateful: tuple[str, ...] = ()
    stateless: tuple[str, ...] = ()
    updates: int = 0
    vocabularies: str = ""
    error: str = ""

    def lines(self, source: str) -> Iterator[tuple[str, str]]:
        """(severity, text) each, for people."""
        yield "info", f"{len(self.taken)} tensors and tables begin as in {source}"
        if self.stateful:
            after = f", after {self.updates:,} updates" if self.updates > 1 else ""
            yield "info", f"the optimizer goes on with its state of {len(self.stateful)} of them{after}"
        if self.vocabularies:
            yield (
                "warning",
                f"the {self.vocabularies} are others than those of {source}: what has another id now begins "
                "with what another value, or none, has learned",
            )
        for names, what in (
            (self.missing, "are not in it, and begin as model() makes them"),
            (self.unlike, "have another shape there, and begin as model() makes them"),
            (self.unused, "are in it, and the model has none such"),
            (
                self.stateless,
                "have no state of the optimizer there: for a while their steps are of other sizes",
            ),
        ):
            if names:
                more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
                yield "warning", f"{', '.join(names[:SHOWN])}{more} {what}"
