"""What is served, and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elasticflow.run.folder import RunDir


@dataclass(frozen=True)
class ServingSettings:
    """program: in the place of the run's copy; "": none. workers: processes; 0: one for as many cores as each
    computes with. most_bytes: of a request. most_waiting: requests. patience_s: until a request is answered.
    reload_s: between looks for another checkpoint; 0: none."""

    run: RunDir
    step: int | None
    best: bool
    program: str = ""
    device: str = "cpu"
    workers: int = 0
    address: str = "127.0.0.1"
    port: int = 8500
    token: str = ""
    certificate: str = ""
    key: str = ""
    most_bytes: int = 64 << 20
    most_waiting: int = 1024
    patience_s: float = 30.0
    reload_s: float = 5.0

    @property
    def name(self) -> str:
        """The run's."""
        return Path(str(self.run.path)).name
