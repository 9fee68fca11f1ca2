"""Which checkpoint of a run is served, and when another one is better."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from elasticflow.checkpoint import Manifest, commits, load_best, load_manifest, newest_intact
from elasticflow.checkpoint.unpacked import unpack
from elasticflow.errors import CheckpointError, ElasticFlowError
from elasticflow.process.guard import guarded_thread
from elasticflow.run.folder import RunDir
from elasticflow.serving.model_process import ModelWeights

T = TypeVar("T")


class ServedCheckpoint:
    """step: of the checkpoint; None: the newest one, or the best if ``best``."""

    def __init__(self, run: RunDir, step: int | None, best: bool) -> None:
        self._run, self._step, self._best = run, step, best
        self._storage = run.checkpoints()
        self._refused: list[Manifest] = []
        self._told: frozenset[str] = frozenset()
        """What is damaged, and was said."""
        self._looked: tuple[list[int], Manifest | None] | None = None
        self._found: Manifest | None = None
        """The newest that is intact, of those that were there then: to find it, all of it is read."""
        self._names = map("model-{}".format, itertools.count())

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
        there = self._there()
        if there != self._looked:
            self._found, damages = newest_intact(self._storage)
            self._looked = there
            words = list(dict.fromkeys(map(str, damages)))
            for damage in words:
                if damage not in self._told:
                    print(f"warning: {damage}", file=sys.stderr, flush=True)
            self._told = frozenset(words)
        if self._found is None:
            raise CheckpointError(f"{self._run.path}: holds no committed checkpoint that is intact.")
        return self._found

    def _there(self) -> tuple[list[int], Manifest | None]:
        """Which checkpoints there are, and the newest one's manifest, unless that is damaged."""
        steps = commits(self._storage)
        with suppress(CheckpointError):
            return steps, load_manifest(self._storage, steps[-1]) if steps else None
        return steps, None

    def news(self, served: Manifest) -> Manifest | None:
        """Another one than this, if there is: also of this step, where another run is in the place of the
        one before. Raises CheckpointError."""
        found = self.now()
        if found in (served, *self._refused):
            return None
        if (args := found.work.get("args")) != (before := served.work.get("args")):
            raise CheckpointError(
                f"{self._run.path}: is another run now, whose program has the arguments {args}, and not "
                f"{before}; to have that one served, begin serve-model anew."
            )
        return found

    def refuse(self, manifest: Manifest) -> None:
        """This one cannot be served."""
        self._refused.append(manifest)

    def unpacked(self, manifest: Manifest, folder: Path) -> ModelWeights:
        """It has its name, which no other one ever has, only when it is whole."""
        whole, begun = folder / next(self._names), folder / "partial"
        shutil.rmtree(begun, ignore_errors=True)
        unpack(self._storage, manifest, begun)
        begun.rename(whole)
        return ModelWeights(whole, manifest.step)


async def aside(act: Callable[[], T]) -> T:
    """What that makes, or raises, in a thread of its own: nobody who ends waits for a storage that hangs, as
    asyncio does for its own threads."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if made.done():
            return
        if error is not None:
            made.set_exception(error)
        else:
            made.set_result(cast(T, result))

    def work() -> None:
        result, error = None, None
        try:
            result = act()
        except BaseException as raised:  # noqa: BLE001  (who waits for it has it)
            error = raised
        with suppress(RuntimeError):  # the loop is over
            loop.call_soon_threadsafe(tell, result, error)

    guarded_thread(work, "checkpoints").start()
    return await made


async def follow(
    choice: ServedCheckpoint,
    served: Manifest,
    first: ModelWeights,
    every_s: float,
    replace: Callable[[ModelWeights], Awaitable[None]],
    told: Callable[[bool], None],
) -> None:
    """Has another model take the place of this one whenever there is one.

    served: what ``first`` was unpacked from. told: called with whether that went well. What cannot be loaded
    is not tried again, what cannot be fetched is; what is served goes on.
    """
    now, trouble = first, ""
    while True:
        await asyncio.sleep(every_s)
        wanted = weights = None
        try:
            if (wanted := await aside(partial(choice.news, served))) is None:
                continue
            weights = await aside(partial(choice.unpacked, wanted, first.folder.parent))
            await replace(weights)
        except (ElasticFlowError, OSError) as error:
            if wanted and weights:
                choice.refuse(wanted)
                shutil.rmtree(weights.folder, ignore_errors=True)
                told(False)
            if str(error) != trouble:
                trouble = str(error)
                goes_on = f"step {now.step} is served on"
                print(f"warning: no other model can be had, {goes_on}: {error}", file=sys.stderr, flush=True)
            continue
        print(f"serving step {weights.step} in the place of {now.step}", flush=True)
        shutil.rmtree(now.folder, ignore_errors=True)
        now, served, trouble = weights, wanted, ""
        told(True)
