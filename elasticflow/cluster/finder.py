"""How a member finds its master again, and when it stops looking."""

from __future__ import annotations

import msgspec

from elasticflow.run.folder import Address, RunDir


class Orphaned(Exception):
    """No master will come any more."""


class Finder:
    """The master as the run's folder tells of it. patience_s: so long a silence is the end of a member."""

    def __init__(self, run_dir: str, patience_s: float) -> None:
        self._run = RunDir(run_dir)
        self.patience_s = patience_s

    def find(self) -> str | None:
        """The endpoint at which a master listens now, None if it is not known. Raises Orphaned."""
        try:
            return msgspec.json.decode(self._run.address.read_bytes(), type=Address).endpoint
        except (OSError, msgspec.MsgspecError):
            return None
