"""What is known of programs from their earlier runs, in the service's folder: how fast, how long."""

from __future__ import annotations

import hashlib
import statistics
from pathlib import Path

import msgspec

from elasticflow.errors import RunError
from elasticflow.process.decoding import from_json
from elasticflow.process.texts import as_json
from elasticflow.run.config import Config, differences
from elasticflow.run.folder import publish

KEPT = 5
"""So many of the last rates are kept of each size: their median counts, and they tell the spread."""
NOT_SPEED = (
    "run_dir", "workers", "least_gain", "epochs", "max_steps", "max_time", "seed", "deadline", "date",
    "time_limit", "init_from", "init_map", "init_optimizer", "keep_checkpoints", "client_gone", "share",
    "port",
)  # fmt: skip
"""Settings that do not decide how long a step takes."""


class KindMemory(msgspec.Struct, kw_only=True):
    """rates: the last ones by workers. epoch_steps: steps of one epoch."""

    rates: dict[int, list[float]] = {}
    epoch_steps: int | None = None


def kind_of(config: Config) -> str:
    """Runs of one kind are equally fast: the same program, and settings of a step."""
    deciding = {name: value for name, value in differences(config).items() if name not in NOT_SPEED}
    return hashlib.sha256(as_json(dict(sorted(deciding.items())))).hexdigest()[:16]


class Known:
    """By kind. Written at once: a crash loses nothing that took a run to find out. Raises RunError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kinds: dict[str, KindMemory] = {}
        try:
            self._kinds = from_json(path.read_bytes(), dict[str, KindMemory])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            raise RunError(
                f"{path}: cannot be read: {error}. Without this file all programs are measured anew."
            ) from error

    def rates(self, kind: str) -> dict[int, float]:
        """Steps a second by workers."""
        found = self._kinds.get(kind, KindMemory()).rates
        return {workers: statistics.median(rates) for workers, rates in found.items()}

    def steps(self, kind: str, config: Config) -> int | None:
        """Of a whole run; None: nobody has counted them."""
        epoch_steps = self._kinds.get(kind, KindMemory()).epoch_steps
        if epoch_steps is None or config.max_time:
            return None
        steps = epoch_steps * config.epochs
        return min(steps, config.max_steps) if config.max_steps else steps

    def spread(self, kind: str) -> dict[int, float]:
        """Between the fastest and the slowest time of the last ones, as part of the median."""
        found = self._kinds.get(kind, KindMemory()).rates
        return {n: (max(rates) - min(rates)) / statistics.median(rates) for n, rates in found.items()}

    def paced(self, kind: str, workers: int, rate: float) -> None:
        """A run was so fast."""
        rates = self._kinds.setdefault(kind, KindMemory()).rates
        rates[workers] = [*rates.get(workers, []), rate][-KEPT:]
        publish(self._path, self._kinds)

    def counted(self, kind: str, config: Config, steps: int) -> None:
        """A run has so many steps."""
        known = self._kinds.setdefault(kind, KindMemory())
        is_cut = steps % config.epochs or steps == config.max_steps
        if not is_cut and known.epoch_steps != steps // config.epochs:
            known.epoch_steps = steps // config.epochs
            publish(self._path, self._kinds)
