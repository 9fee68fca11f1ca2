"""One process that has the model, as the command sees it."""

from __future__ import annotations

import asyncio
import socket as sockets
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from elasticflow.applying.orders import WorkRefused
from elasticflow.applying.part_processes import PartProcess
from elasticflow.process.decoding import from_msgpack
from elasticflow.process.ending import how_it_ended
from elasticflow.run.folder import last_line
from elasticflow.serving.orders import (
    AskOrder,
    LoadModel,
    ModelAnswers,
    ModelColumn,
    ModelReady,
    ModelRequest,
    ServingOrder,
    ServingWord,
)

END_S = 10.0
_LONG = 0x7FFFFFFF
"""Longer packets say so: the framing of ``multiprocessing.connection``, which the process speaks."""


class EndedError(Exception):
    """The process has ended, or was: how, for people."""


class ModelWeights(NamedTuple):
    """An unpacked checkpoint."""

    folder: Path
    step: int


class ModelProcess:
    """name: of its log, too. socket: our end of its pipe, which does not block."""

    def __init__(
        self, name: str, weights: ModelWeights, process: PartProcess, socket: sockets.socket, log: Path
    ) -> None:
        self.name, self.weights, self._process, self._log = name, weights, process, log
        self._socket = socket
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self.leaves = False
        """It is to take nothing any more."""

    async def load(self, order: LoadModel) -> tuple[ModelColumn, ...]:
        """What requests are to have. Raises what it refuses with, and EndedError."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket)
        word = await self._told(order, None)
        if isinstance(word, WorkRefused):
            raise word.error
        assert isinstance(word, ModelReady)
        return word.columns

    async def answer(self, requests: Sequence[ModelRequest], limit_s: float) -> ModelAnswers:
        """Raises EndedError if it ends; after ``limit_s`` it is ended."""
        word = await self._told(AskOrder(tuple(requests)), limit_s)
        if not isinstance(word, ModelAnswers):
            raise EndedError(f"ended: {word.text}" if isinstance(word, WorkRefused) else "made no sense")
        return word

    async def end(self) -> str:
        """Ends it, if it has not ended, and tells how it did, with its last words."""
        if self._writer:
            self._writer.close()
        self._socket.close()
        try:
            status = await asyncio.to_thread(self._process.wait, END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            status = await asyncio.to_thread(self._process.wait)
        has_said = self._log.exists() and self._log.stat().st_size
        words = f"; its last words were: {last_line(self._log)}" if has_said else ""
        return how_it_ended(status) + words

    def kill(self) -> None:
        """At once."""
        self._process.kill()

    async def _told(self, order: ServingOrder, limit_s: float | None) -> ServingWord:
        try:
            return await asyncio.wait_for(self._said(order), limit_s)
        except asyncio.TimeoutError:  # not the built-in one in Python 3.10
            self.kill()
            raise EndedError(f"was ended: it had not answered within {limit_s:g} s") from None
        except (EOFError, OSError) as error:
            raise EndedError("") from error

    async def _said(self, order: ServingOrder) -> ServingWord:
        assert self._writer
        body = msgspec.msgpack.encode(order)
        short = len(body) <= _LONG
        self._writer.write(struct.pack("!i", len(body)) if short else struct.pack("!iQ", -1, len(body)))
        self._writer.write(body)
        await self._writer.drain()
        (size,) = struct.unpack("!i", await self._reader.readexactly(4))
        if size < 0:
            (size,) = struct.unpack("!Q", await self._reader.readexactly(8))
        word: ServingWord = from_msgpack(await self._reader.readexactly(size), ServingWord)
        return word
