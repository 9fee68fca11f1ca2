"""Which checkpoint of a run is served, and when another one is better."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from elasticflow.checkpoint import Manifest, commits, load_best, load_manifest, newest_intact
from elasticflow.checkpoint.unpacked import unpack
from elasticflow.errors import CheckpointError, ElasticFlowError
from elasticflow.run.folder import RunDir
from elasticflow.serving.model_process import ModelWeights


class ServedCheckpoint:
    """step: of the checkpoint; None: the newest one, or the best if ``best``."""

    def __init__(self, run: RunDir, step: int | None, best: bool) -> None:
        self._run, self._step, self._best = run, step, best
        self._storage = run.checkpoints()
        self._refused: set[int] = set()

    @property
    def moves(self) -> bool:
        """Whether there may be another one some day."""
        return self._step is None

    def now(self) -> Manifest:
        """Raises CheckpointError if there is none."""
        if self._step is not None:
            return load_manifest(self._storage, self._step)
        if self._best:
            return load_best(self._storage)
        found, damages = newest_intact(self._storage)
        for damage in damages:
            print(f"warning: {damage}", file=sys.stderr, flush=True)
        if found is None:
            raise CheckpointError(f"{self._run.path}: holds no committed checkpoint that is intact.")
        return found

    def news(self, step: int) -> Manifest | None:
        """Another one than that of this step, if there is. Raises CheckpointError."""
        if not self._best:
            steps = [each for each in commits(self._storage) if each not in self._refused]
            if not steps or steps[-1] == step:
                return None
        found = self.now()
        return found if found.step not in {step, *self._refused} else None

    def refuse(self, step: int) -> None:
        """This one cannot be served."""
        self._refused.add(step)

    def unpacked(self, manifest: Manifest, folder: Path) -> ModelWeights:
        """It has its name only when it is whole."""
        whole, partial = folder / f"step-{manifest.step}", folder / "partial"
        for left in (whole, partial):
            shutil.rmtree(left, ignore_errors=True)
        unpack(self._storage, manifest, partial)
        partial.rename(whole)
        return ModelWeights(whole, manifest.step)


async def follow(
    choice: ServedCheckpoint,
    first: ModelWeights,
    every_s: float,
    replace: Callable[[ModelWeights], Awaitable[None]],
    told: Callable[[bool], None],
) -> None:
    """Has another model take its place whenever there is one. told: called with whether that went well.

    What cannot be loaded is not tried again, what cannot be fetched is; what is served goes on.
    """
    now, trouble = first, ""
    while True:
        await asyncio.sleep(every_s)
        weights = None
        try:
            if (wanted := await asyncio.to_thread(choice.news, now.step)) is None:
                continue
            weights = await asyncio.to_thread(choice.unpacked, wanted, first.folder.parent)
            await replace(weights)
        except (ElasticFlowError, OSError) as error:
            if weights:
                choice.refuse(weights.step)
                shutil.rmtree(weights.folder, ignore_errors=True)
                told(False)
            if str(error) != trouble:
                trouble = str(error)
                goes_on = f"step {now.step} is served on"
                print(f"warning: no other model can be had, {goes_on}: {error}", file=sys.stderr, flush=True)
            continue
        print(f"serving step {weights.step} in the place of {now.step}", flush=True)
        shutil.rmtree(now.folder, ignore_errors=True)
        now, trouble = weights, ""
        told(True)
