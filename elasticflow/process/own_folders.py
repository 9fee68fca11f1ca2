"""Folders for what a command needs while it goes on, below ``$TMPDIR``."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from elasticflow.process.locked_files import hold


@contextlib.contextmanager
def own_folder(prefix: str) -> Iterator[Path]:
    """A folder that is held as long as this process, or one forked from it, lives, and is removed at the end.

    What others left there that were killed is removed. prefix: of its name, and theirs. Raises OSError.
    """
    _clear(prefix)
    made = Path(tempfile.mkdtemp(prefix=f".{prefix}"))
    descriptor = hold(made / "lock")
    folder = made.with_name(made.name[1:])  # nobody finds it before it is held
    made.rename(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _clear(prefix: str) -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if left.is_symlink() or left.stat().st_uid != os.getuid():
                continue
            descriptor = hold(left / "lock")
            shutil.rmtree(left, ignore_errors=True)
            os.close(descriptor)
