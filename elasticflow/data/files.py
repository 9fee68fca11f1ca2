"""Finding the files that a source names."""

from __future__ import annotations

import glob
import os

from elasticflow.errors import DataError


def existing_file(kind: str, path: str | os.PathLike[str]) -> str:
    """The path of one file. Raises DataError if there is none."""
    path = os.fspath(path)
    if os.path.isfile(path):
        return path
    if os.path.isdir(path):
        raise DataError(f"{kind}: {path} is a directory, not a file.")
    raise DataError(f"{kind}: there is no file {path} (looked from {os.getcwd()}).")


def matching_files(kind: str, pattern: str | os.PathLike[str]) -> list[str]:
    """The files that a glob pattern (``**`` included) or a path names, sorted by name.

    Raises DataError if there are none.
    """
    pattern = os.fspath(pattern)
    if not glob.has_magic(pattern) or os.path.exists(pattern):
        return [existing_file(kind, pattern)]
    found = sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
    if not found:
        raise DataError(f"{kind}: no file matches {pattern} (looked from {os.getcwd()}).")
    return found
