"""What must hold at all times, whatever happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticflow.checkpoint import commits, load_manifest, verify
from elasticflow.master import actions as ac
from elasticflow.master.members import RunState
from elasticflow.storage import DirectoryStorage

from .threads import Violation

if TYPE_CHECKING:
    from elasticflow.checkpoint import Manifest

    from .world import World


class Laws:
    """has_truth: there is something to compare with."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.has_truth = True

    def committed(self, manifest: Manifest) -> None:
        """A checkpoint has become visible."""
        world = self._world
        found = {
            number: {name: saved.sha256 for name, saved in arrays.items()}
            for part in manifest.parts
            for number, arrays in part.chunks.items()
        }
        world.committed[manifest.step] = found

    def end(self, end: ac.EndAction | None) -> None:
        from .world import truth_of

        world = self._world
        storage = DirectoryStorage(world._path)
        for step in commits(storage):
            self.committed(load_manifest(storage, step))
        assert end is not None
        if end.state is not RunState.FINISHED:
            raise Violation(f"{end.state}: {end.text}")
        newest = max(world.committed, default=0)
        total = world.shape.schedule.total_steps
        if newest != total:
            raise Violation(f"finished with the commit of step {newest} of {total}")
        if damages := verify(storage, newest):
            raise Violation(f"damaged: {damages}")
        if self.has_truth:
            truth = truth_of(world.shape.work)
            for step, found in world.committed.items():
                if truth.get(step, found) != found and (step == total or not world.shape.asynchronous):
                    raise Violation(f"another model at step {step}")
