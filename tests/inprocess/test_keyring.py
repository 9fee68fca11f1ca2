"""A member whose keys cannot be written waits for them, and people are told."""

from __future__ import annotations

import errno
import os
import select
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.master.announcing import Announcing
from elasticflow.master.keyring import Keyring
from elasticflow.wire.keys import make_keys
from tests.telling import Told

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Folder:
    """A run's, that refuses keys as often as is said."""

    def __init__(self, refuses: int) -> None:
        self.left = refuses

    def hand_out(self, keys: object) -> None:
        self.left -= 1
        if self.left >= 0:
            raise FULL


@pytest.mark.parametrize("patience_s, error", [(60.0, ""), (0.0, "OSError")])
def test_who_waits_for_keys_is_told(patience_s: float, error: str) -> None:
    told, ends = Told(), []
    nothing: Any = SimpleNamespace(news=0, close=None)
    announcing = Announcing(told.story, nothing, nothing, nothing)
    seen = []

    def trouble(name: str, text: str) -> None:
        announcing.waits_for_keys(told.state, name, text)
        seen.append(told.status().storage_trouble)

    folder: Any = Folder(1 if patience_s else 2)
    keyring = Keyring(folder, make_keys(), patience_s, trouble)
    keyring.give("worker-2", ends.append, waits=False)
    while not ends:
        select.select([keyring.fd], [], [])
        keyring.turn()
    keyring.close()
    assert ends[0].startswith(error) and bool(ends[0]) == bool(error)
    assert seen == (["worker-2: OSError: [Errno 28] No space left on device", ""] if patience_s else [""])
    if patience_s:
        assert "the keys of worker-2 cannot be written" in told.status().events[-1].text
