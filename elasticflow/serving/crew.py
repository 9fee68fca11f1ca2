"""Processes that have the model: begun, given what waits, replaced when they die or their model is old."""

from __future__ import annotations

import asyncio
import socket as sockets
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec

from elasticflow.applying.part_processes import PartProcesses
from elasticflow.errors import ElasticFlowError, RunError
from elasticflow.run.settings import MemberSettings
from elasticflow.serving.model_process import EndedError, ModelProcess, ModelWeights
from elasticflow.serving.orders import LoadModel, ModelAnswer, ModelColumn, ModelRequest
from elasticflow.serving.waiting import WaitingRequests

MODULE = "elasticflow.serving.answering"
MOST_UNREADY = 3
"""So many processes may die before any has loaded the model."""
AGAIN_S, LATEST_S = 1.0, 60.0
"""After one that has died before it was ready another is begun so much later, twice as long each time."""


class ModelCrew:
    """settings: of a process. folder: of logs. num: processes. most, most_bytes: requests that may wait.

    limit_s: so long a process may take to answer. told: called with what was answered together (requests,
    records, seconds of computing).
    """

    def __init__(
        self,
        settings: MemberSettings,
        folder: Path,
        environment: Mapping[str, str],
        *,
        num: int,
        most: int,
        most_bytes: int,
        limit_s: float,
        told: Callable[[int, int, float], None] = lambda requests, records, seconds: None,
    ) -> None:
        self._settings, self._folder, self._num = settings, folder, num
        self._origin = PartProcesses(settings.program, folder / "forker.log", environment, MODULE)
        self._beginning = asyncio.Lock()
        self._waiting = WaitingRequests(most, most_bytes)
        self._limit_s, self._told = limit_s, told
        self._weights: ModelWeights | None = None
        self._working: dict[ModelProcess, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self.deaths = 0
        self.columns: tuple[ModelColumn, ...] = ()

    @property
    def ready(self) -> int:
        """Processes that answer."""
        return sum(not process.leaves for process in self._working)

    @property
    def waiting(self) -> int:
        """Requests that no process has yet."""
        return len(self._waiting)

    @property
    def step(self) -> int:
        """Of the newest model that is served."""
        return max((process.weights.step for process in self._working), default=-1)

    async def ask(self, request: ModelRequest) -> tuple[ModelAnswer, int]:
        """The answer, and the step of the model that gave it. Raises FullError and DeadlyRequestError."""
        return await self._waiting.add(request).answered

    async def begin(self, weights: ModelWeights) -> None:
        """Returns once one process answers. Raises what it refuses with, and RunError if several die."""
        for left in reversed(range(MOST_UNREADY)):
            try:
                await self._add(weights)
                break
            except EndedError as error:
                if not left:
                    raise RunError(
                        f"{self._settings.program}: {MOST_UNREADY} processes in a row have ended before they "
                        f"had loaded the model; the last {error}."
                    ) from error
        self._weights = weights
        for _ in range(self._num - 1):
            self._start(self._make_up())

    async def replace(self, weights: ModelWeights) -> None:
        """Another model takes the place of this one, process by process; each is there before one goes.

        Raises ElasticFlowError if it cannot be loaded; then those that there are go on.
        """
        try:
            await self._add(weights)
        except EndedError as error:
            raise RunError(f"a process that was to load it {error}") from error
        self._weights = weights  # whoever dies from now on is replaced by one that has it
        for process in list(self._working):
            if process.weights is not weights:
                await self._retire(process)
                if self.ready < self._num:
                    await self._make_up()

    async def close(self) -> None:
        """Ends all."""
        for task in [*self._tasks, *self._working.values()]:
            task.cancel()
        for process in list(self._working):
            process.kill()
        await asyncio.gather(*self._tasks, *self._working.values(), return_exceptions=True)
        self._origin.close()

    # --- processes -------------------------------------------------------------------------------

    async def _add(self, weights: ModelWeights) -> ModelProcess:
        """One more, that answers. Raises what it refuses with, and EndedError."""
        self._count += 1
        name = f"model-{self._count - 1}"
        ours, theirs = sockets.socketpair()
        ours.setblocking(False)
        log = self._folder / f"{name}.log"
        with theirs:
            async with self._beginning:
                begun = await asyncio.to_thread(self._origin.begin, name, theirs.fileno(), log)
        process = ModelProcess(name, weights, begun, ours, log)
        settings = msgspec.structs.replace(self._settings, name=name)
        try:
            self.columns = await process.load(LoadModel(settings, str(weights.folder), weights.step))
        except EndedError as error:
            raise EndedError(await self._end(process)) from error
        except BaseException:
            process.kill()
            await self._end(process)
            raise
        self._working[process] = asyncio.create_task(self._work(process))
        return process

    async def _work(self, process: ModelProcess) -> None:
        """Its life, once it is ready."""
        how = ""
        try:
            while asks := await self._waiting.take(lambda: process.leaves):
                try:
                    found = await process.answer([ask.request for ask in asks], self._limit_s)
                except EndedError as error:
                    self.deaths += 1
                    process.leaves = True
                    how = await self._end(process)
                    how = str(error) or how
                    self._waiting.give_back(asks, how)
                    break
                self._told(len(asks), sum(answer.records for answer in found.answers), found.seconds)
                for ask, answer in zip(asks, found.answers, strict=True):
                    if not ask.is_over:
                        ask.answered.set_result((answer, process.weights.step))
        finally:
            del self._working[process]
            if not how:
                await self._end(process)
        if how:
            print(f"{process.name} {how}", file=sys.stderr, flush=True)
            self._start(self._make_up())

    async def _make_up(self) -> None:
        """One that is missing."""
        again_s = AGAIN_S
        while (weights := self._weights) and self.ready < self._num:
            try:
                process = await self._add(weights)
            except (ElasticFlowError, EndedError, OSError) as error:
                print(f"a process could not be replaced: {error}", file=sys.stderr, flush=True)
                await asyncio.sleep(again_s)
                again_s = min(LATEST_S, 2 * again_s)
                continue
            if weights is not self._weights:  # they were replaced meanwhile
                await self._retire(process)

    async def _retire(self, process: ModelProcess) -> None:
        """It answers what it has, and takes nothing any more."""
        process.leaves = True
        self._waiting.tell()
        if task := self._working.get(process):
            await asyncio.wait([task])

    async def _end(self, process: ModelProcess) -> str:
        async with self._beginning:  # one at a time speaks with the process that forks
            return await process.end()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
