"""Where a run's curves are drawn, and what is needed for that; see ``elasticflow.trackers``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from elasticflow.errors import ConfigError, RunError
from elasticflow.process.decoding import from_json
from elasticflow.process.locked_files import hold, is_locked, wait_until_free
from elasticflow.process.packages import require

PACKAGES = {"tensorboard": "tensorboardX", "mlflow": "mlflow", "wandb": "wandb", "csv": ""}
"""Trackers, and what each imports."""
TRACKERS = tuple(PACKAGES)


def check_names(names: Sequence[str]) -> None:
    """Raises ConfigError for a tracker that is none."""
    for name in names:
        if name not in PACKAGES:
            raise ConfigError(f"track: {name!r} is no tracker; allowed are {', '.join(TRACKERS)}.")
    if len(set(names)) < len(names):
        raise ConfigError(f"track: {', '.join(names)}: names one twice; leave out the second.")


def check_packages(names: Sequence[str]) -> None:
    """Raises ConfigError for one whose package is not installed; imports none."""
    for name in names:
        if PACKAGES[name]:
            require(PACKAGES[name], f"track: {name}", name)


class TrackDir:
    """Where curves are drawn: in the run's folder, or elsewhere. One process at a time does that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.points = path / "points.json"
        self.pending = path / "pending.json"
        self.problems = path / "problems.json"
        self._lock = path / "lock"

    def hold(self) -> int:
        """Takes it, as long as the descriptor is open. Raises RunError if somebody else has it, OSError."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return hold(self._lock)
        except BlockingIOError:
            raise RunError(
                f"{self.path}: another process draws the run's curves there; end it first, or draw them "
                "elsewhere with --to FOLDER."
            ) from None

    def is_held(self) -> bool:
        """Whether somebody draws there, as far as one can see."""
        with contextlib.suppress(OSError):
            return is_locked(self._lock)
        return False

    def wait_until_free(self, timeout_s: float | None) -> None:
        """For so long at most, None: however long; as long as one can see it."""
        with contextlib.suppress(OSError):
            wait_until_free(self._lock, timeout_s)

    def read_problems(self) -> dict[str, str]:
        """By tracker, what is wrong; none where nothing is, or nobody knows."""
        with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
            return from_json(self.problems.read_bytes(), dict[str, str])
        return {}
