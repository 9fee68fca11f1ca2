"""What survives everything: parts of checkpoints, and commits. See ``elasticflow.checkpoint.catalog``."""

from __future__ import annotations

from dataclasses import dataclass

from elasticflow.master.actions import CommitAction
from elasticflow.wire.messages import Excluded

from .truth import Parcel, Truth


@dataclass(frozen=True)
class Commit:
    """copies: by place."""

    tick: int
    files: tuple[str, ...]
    copies: dict[int, list[Parcel]]
    excluded: tuple[Excluded, ...]


class Storage:
    """files: (version, place, copy) by (step, name). commits: by step, all there ever were.

    oldest_step: those before it are there no more.
    """

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self.files: dict[tuple[int, str], tuple[int, int, list[Parcel]]] = {}
        self.commits: dict[int, Commit] = {}
        self.oldest_step = 0

    @property
    def newest(self) -> tuple[int, Commit] | None:
        return max(self.commits.items()) if self.commits else None

    def begin_with(self, step: int, tick: int) -> None:
        """A checkpoint of another run."""
        copies = {place: self._truth.copy(place, tick) for place in self._places}
        self.commits[step] = Commit(tick, (), copies, ())

    @property
    def _places(self) -> list[int]:
        return [place for place, count in enumerate(self._truth.parcels) if count]

    def commit(self, step: int, action: CommitAction, excluded: tuple[Excluded, ...]) -> str:
        """Makes a checkpoint visible, if it is what it should be. Returns an error, as a disk would."""
        names = tuple(sorted(part.file for part in action.parts))
        if step in self.commits:
            return "" if self.commits[step].files == names else "there is another checkpoint of this step"
        copies: dict[int, list[Parcel]] = {}
        for name in names:
            version, place, copy = self.files[step, name]
            assert version == action.tick, f"{name} is of version {version}, not {action.tick}"
            assert place not in copies, f"place {place} is in two parts: {names}"
            assert copy == self._truth.copy(place, version), f"{name} holds something else"
            copies[place] = copy
        assert sorted(copies) == self._places, f"committed {names}"
        assert len({name.split("-")[1] for name in names}) == 1, f"parts of several generations: {names}"
        self.commits[step] = Commit(action.tick, names, copies, excluded)
        return ""

    def prune(self, upto_step: int) -> None:
        """Keeps one checkpoint of those up to a step, and all that are newer."""
        self.oldest_step = max(step for step in self.commits if step <= upto_step)

    def discard_unfinished(self) -> None:
        """A run begins, while nobody writes."""
        self.files = {key: file for key, file in self.files.items() if key[0] in self.commits}
