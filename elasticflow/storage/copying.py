"""Files that are copied from one storage to another, by somebody who waits for it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from elasticflow.errors import CheckpointError
from elasticflow.process.retry import Backoff, is_away
from elasticflow.storage import Storage
from elasticflow.storage.urls import PATIENCE_S

COPY_BYTES = 4 << 20
T = TypeVar("T")


def copy_file(source: Storage, target: Storage, name: str, patience_s: float = PATIENCE_S) -> None:
    """Has the file be in the other storage as well, which nobody else writes to.

    Where it is already, an earlier try may have put it there, whose answer was lost. Raises OSError.
    """
    while_away(partial(_copied, source, target, name), patience_s)


def while_away(act: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """What it returns, in the end: where a storage does not answer, it is done again, for so long."""
    backoff, begun_s, failures = Backoff(patience_s=patience_s), time.monotonic(), 0
    while True:
        try:
            return act()
        except (OSError, CheckpointError) as error:
            failures += 1
            delay_s = backoff.delay_s(time.monotonic() - begun_s, failures)
            if delay_s is None or not (is_away(error) or is_away(error.__cause__)):
                raise
            time.sleep(delay_s)  # whoever brings a storage back tells nobody


def _copied(source: Storage, target: Storage, name: str) -> None:
    with suppress(FileExistsError), source.open(name) as old, target.create(name) as new:
        shutil.copyfileobj(old, new, COPY_BYTES)
