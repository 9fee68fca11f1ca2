"""The library in C, ``_native``: there if a C compiler was when this was installed, and of these sources."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from hashlib import blake2b
from importlib.machinery import PathFinder
from pathlib import Path


@cache
def library(folder: Path) -> ctypes.CDLL | None:
    """That of the folder; None: it is not there, or of another system, or of other sources than lie beside.

    A checkout's sources may change after it was installed: what C takes for a number may then be an address.
    """
    spec = PathFinder.find_spec("_native", [str(folder)])
    if spec is None or spec.origin is None:
        return None
    try:
        found = ctypes.CDLL(spec.origin)
        found.sources.restype = ctypes.c_char_p
        made_of = found.sources().decode()
    except (OSError, AttributeError):
        return None
    if (here := sources_digest(folder)) is not None and here != made_of:
        print(
            f"Warning: {spec.origin} is of other sources than those beside it, and not used: without it the "
            "bits are the same, several times slower. Install anew: pip install -e .",
            file=sys.stderr,
            flush=True,
        )
        return None
    return found


def sources_digest(folder: Path) -> str | None:
    """Of the C files of a checkout; None: there are none, since a wheel has them only compiled."""
    files = sorted([*folder.glob("*.c"), *folder.glob("*.h")])
    return _digest(files) if files else None


def _digest(files: list[Path]) -> str:
    digest = blake2b(digest_size=8)
    for file in files:
        digest.update(f"{file.name}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
