"""What decides the model's bits, of all settings: a run cannot go on with others."""

from __future__ import annotations

from typing import Any

from elasticflow.checkpoint import Manifest
from elasticflow.config import Config
from elasticflow.errors import CheckpointError


def work_of(config: Config) -> dict[str, Any]:
    """The settings that decide the model's bits; of an asynchronous run, all but the order of updates."""
    stale = {"staleness": config.staleness, "staleness_rule": config.staleness_rule}
    return {
        "mode": config.mode,
        **(stale if config.asynchronous else {}),
        "seed": config.seed,
        "batch_size": config.batch_size,
        "slices": config.num_slices,
        "threads": config.threads,
        "compression": config.compression,
        "on_nan": config.on_nan,
        **({"top_k": config.top_k} if config.compression == "top-k" else {}),
    }


def check_same_work(manifest: Manifest, config: Config) -> None:
    """Raises CheckpointError if a run with these settings cannot go on from this checkpoint."""
    for name, value in work_of(config).items():
        before = {"mode": "sync", "compression": "none", "on_nan": "stop", **manifest.work}.get(name)
        if before != value:
            option = f"--{name.replace('_', '-')} {before}"
            raise CheckpointError(
                f"the checkpoint at step {manifest.step} was made with {name} {before}, now it is {value}: "
                f"the model would be another. Resume with {option}, or start anew in another --run-dir."
            )
