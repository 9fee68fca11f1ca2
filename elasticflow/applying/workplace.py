"""The folder in which an output comes into being; a command that was killed leaves it to the next.

.NAME.predict/      beside NAME; of an output elsewhere, see ``target``
    lock            held by the command
    inputs.json     what parts follow from; of other inputs none is used
    weights-HASH/   the checkpoint, unpacked
    parts/          each part that is done; it has its name only once it is whole, and on the disk
    logs/           one file a process
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from elasticflow.applying.progress import DeadlyPartError
from elasticflow.applying.target import Target, target_of
from elasticflow.errors import CheckpointError, ConfigError, DataError, ProgramError, RunError
from elasticflow.process.locked_files import hold
from elasticflow.process.retry import is_full
from elasticflow.run.folder import replace

REFUSED = (ConfigError, ProgramError, DataError, CheckpointError)
"""What is wrong with what the command was given. Of processes that have died what they have said stays."""


class Workplace:
    """Of one output. To be used as a context manager, which holds the lock; nobody else works there then.

    Raises ConfigError if there is no place for the output, RunError if another command is at work on it.
    """

    def __init__(self, out: str, ending: str, *, is_folder: bool) -> None:
        self.out = target_of(out, is_folder=is_folder)
        self._ending, self.is_folder = ending, is_folder
        self.path = self.out.work
        self.parts, self.logs = self.path / "parts", self.path / "logs"
        self._inputs = self.path / "inputs.json"
        self._lock = -1

    def __enter__(self) -> Workplace:
        with told(self.path):
            self.path.mkdir(mode=0o700, exist_ok=True)
            if self.path.is_symlink() or self.path.stat().st_uid != os.getuid():
                raise RunError(f"{self.path}: is somebody else's; name another --out.")
            try:
                self._lock = hold(self.path / "lock")
            except BlockingIOError:
                raise RunError(f"{self.out}: another command is writing it just now.") from None
            shutil.rmtree(self.logs, ignore_errors=True)
            for folder in (self.parts, self.logs):
                folder.mkdir(exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            is_refused = isinstance(error, REFUSED) and not isinstance(error, DeadlyPartError)
            if is_refused and not any(self.parts.iterdir()):  # nothing is for the next command
                shutil.rmtree(self.path)
        os.close(self._lock)

    def weights(self, key: str) -> Path:
        """Where a checkpoint is to be unpacked; others that were are removed."""
        wanted = self.path / f"weights-{key}"
        for other in self.path.glob("weights-*"):
            if other != wanted:
                shutil.rmtree(other, ignore_errors=True)
        return wanted

    def settle(self, inputs: dict[str, Any]) -> bool:
        """Says what parts follow from. Those of other inputs are removed; whether there were any."""
        now = msgspec.json.encode(inputs, order="deterministic")
        before = self._inputs.read_bytes() if self._inputs.exists() else b""
        stale = before != now and any(self.parts.iterdir())
        with told(self.path):
            if before != now:
                shutil.rmtree(self.parts)
                self.parts.mkdir()
                replace(self._inputs, now)
            for left in self.parts.glob(".*"):
                left.unlink()
        return stale

    def part(self, number: int) -> Path:
        """The file of a part."""
        return part_in(self.parts, number, self._ending)

    def publish(self, joined: Path) -> None:
        """Gives what is complete its name, and removes all else of this place."""
        with told(self.out):
            self.out.publish(joined)
        shutil.rmtree(self.path, ignore_errors=True)

    @contextlib.contextmanager
    def new(self) -> Iterator[Path]:
        """A name for what is to be published; what is there of it is removed if it is not."""
        for left in self.path.glob("whole-*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        path = self.path / f"whole-{secrets.token_hex(4)}{'' if self.is_folder else self._ending}"
        try:
            with told(self.out):
                yield path
        except BaseException:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            raise


def part_in(folder: Path, number: int, ending: str) -> Path:
    """The file of a part."""
    return folder / f"part-{number:06}{ending}"


@contextlib.contextmanager
def told(path: Path | Target) -> Iterator[None]:
    """Turns what the disk refuses into a RunError that says what to do."""
    try:
        yield
    except OSError as error:
        advice = "Make room there" if is_full(error) else "See to it"
        raise RunError(
            f"{path}: cannot be written: {error.strerror or error}. {advice}, and give the same command "
            "again: what is finished by then is used."
        ) from error
