"""A disk on which there is no more room, as far as this process can tell."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator
from unittest import mock


@contextlib.contextmanager
def room_of(num_bytes: int) -> Iterator[None]:
    """No file may become larger than this: what is written beyond fails with EFBIG, or is cut off.

    Python must not cache what is imported meanwhile: 3.11 leaves a cache that is cut off
    (python/cpython#126606), and whoever imports the module after that fails.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with mock.patch.object(sys, "dont_write_bytecode", True):
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
