"""The folder that a program is in, as a cluster is sent it: with data beside it, if they are small.

Not the run's copy of the program, see ``elasticflow.program.copy``, which has nothing but modules.
"""

from __future__ import annotations

import fnmatch
import io
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from elasticflow.errors import ConfigError

LEFT_OUT = ("__pycache__", ".git", ".venv", "venv", "runs", "*.pyc")
"""Not sent, and not copied; nor are virtual environments of other names."""
LARGE_BYTES = 200 << 20
"""A program's folder that is larger than this holds more than a program."""


def files_in(folder: Path) -> Iterator[Path]:
    """Those that belong to the program, of linked folders too, in order."""
    entered = set()
    for where, folders, files in os.walk(folder, followlinks=True):
        found = os.stat(where)
        if (found.st_dev, found.st_ino) in entered:  # a link to a folder above would never end
            folders.clear()
            continue
        entered.add((found.st_dev, found.st_ino))
        kept = [name for name in folders if not is_left_out(name)]
        folders[:] = sorted(name for name in kept if not Path(where, name, "pyvenv.cfg").exists())
        for name in sorted(files):
            path = Path(where, name)
            if not is_left_out(name) and path.is_file():
                yield path


def is_left_out(name: str) -> bool:
    """Of a file, or a folder."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in LEFT_OUT)


def copy_folder(folder: Path, into: Path) -> None:
    """Copies what belongs to the program; what is there of an earlier copy is replaced. Raises OSError."""
    for path in files_in(folder):
        target = into / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def pack_folder(folder: Path) -> bytes:
    """What belongs to the program, as an archive. Raises ConfigError."""
    num_bytes, buffer = 0, io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6, dereference=True) as tar:
        for path in files_in(folder):
            try:
                num_bytes += path.stat().st_size
                tar.add(path, str(path.relative_to(folder)), recursive=False)
            except OSError as error:
                raise ConfigError(
                    f"{path}: cannot be read, and is in the program's folder: {error.strerror}."
                ) from error
            if num_bytes > 2 * LARGE_BYTES:
                raise ConfigError(_large(folder, "more than {} MB", 2 * LARGE_BYTES))
    if num_bytes > LARGE_BYTES:
        print(f"warning: {_large(folder, '{} MB', num_bytes)}", file=sys.stderr)
    return buffer.getvalue()


def _large(folder: Path, amount: str, num_bytes: int) -> str:
    return (
        f"{folder}: the program's folder, which each container is sent, has "
        f"{amount.format(num_bytes >> 20)}; keep data elsewhere, on HDFS, and the program in a folder of its "
        "own."
    )
