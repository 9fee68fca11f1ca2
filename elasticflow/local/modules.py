"""What has to be imported for a run's program before the program itself runs."""

from __future__ import annotations

import contextlib

from elasticflow.errors import ElasticFlowError
from elasticflow.program.copy import fetch
from elasticflow.program.loading import foreign_names
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir


def modules_of(config: Config, run: RunDir) -> list[str]:
    """Those that the program and what lies beside it import, and names in them, but not those beside it."""
    with contextlib.suppress(ElasticFlowError):  # the worker says it better
        copy = fetch(run, config.program_sha256) if config.program_sha256 else None
        return foreign_names(config.program, copy)
    return []
