"""Where a run's folder is by now: one that was moved, removed or replaced is no outage."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from elasticflow.run.folder import RunDir, read_bounded


class Whereabouts:
    """Holds a run's folder: by that it is known whatever its name is by now, if this machine renamed it.

    And by the keys that are in it, which whoever begins a run makes anew: a file system that was away may
    have other numbers for the same folders when it comes back.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._fd = os.open(run.path, os.O_PATH | os.O_DIRECTORY) if isinstance(run.path, Path) else None
        self._keys = self._read_keys()

    def moved_to(self) -> RunDir | None:
        """Where it is now; None: where it was, or that is not known, or it was removed."""
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{self._fd}")
            if self._is_at(path) and not (os.path.exists(self._run.path) and self._is_at(self._run.path)):
                return RunDir(path)
        return None

    def is_anothers(self) -> bool:
        """Whether another run has begun there, or somebody has resumed this one."""
        found = self._read_keys()
        return bool(found and self._keys and found != self._keys)

    def has_left(self) -> bool:
        """Whether the folder itself tells that it has another name, or none: one above it was moved, say.

        Or that it was emptied: who removes it finds another file in the end where one was just written, and
        leaves the folder.
        """
        if self.is_anothers():
            return True
        with contextlib.suppress(OSError):
            if self._fd is not None and not os.path.exists(self._run.path):
                return os.fstat(self._fd).st_nlink == 0 or self.moved_to() is not None
            return self._is_emptied()
        return False

    def story(self) -> str:
        """What has become of it, for people."""
        folder = f"its folder {self._run.path}"
        if moved := self.moved_to():
            return f"{folder} was moved to {moved.path} while it ran; go on there by --resume"
        if self.is_anothers():
            return f"{folder} is another run's by now: nothing more can be saved there"
        return f"{folder} was removed while it ran, or moved: nothing more can be saved there"

    def close(self) -> None:
        """Holds it no more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _is_emptied(self) -> bool:
        """Whether the settings are gone, which each run has. Raises OSError."""
        if self._fd is None:
            return False
        try:
            os.stat(self._run.settings)
        except FileNotFoundError:
            return self._is_at(self._run.path)  # else an outage: it is not mounted
        return False

    def _is_at(self, path: str | os.PathLike[str]) -> bool:
        return self._fd is not None and os.path.samestat(os.stat(path), os.fstat(self._fd))

    def _read_keys(self) -> bytes:
        """b"": they cannot be read just now."""
        with contextlib.suppress(OSError):
            return read_bounded(self._run.client_keys)
        return b""
