"""What a worker's or server's process is told when it starts; no secret is among it."""

from __future__ import annotations

from typing import Any

import msgspec

from elasticflow.run.config import PARAMETER_SERVER, Config


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    """name: such as ``worker-3``. host: where to listen, see ``own_address``. master: its control endpoint.

    run_dir: where keys lie, and checkpoints, unless there is another place for them.
    """

    name: str
    role: str
    host: str
    master: str
    run_dir: str
    backend: str = "local"
    program: str
    data: str = ""
    strategy: str = PARAMETER_SERVER
    seed: int
    threads: int
    server_threads: int = 1
    device: str = "auto"
    graphs: bool = False
    audit: int = 0
    batch_size: int
    """Records of a step."""
    num_slices: int
    asynchronous: bool = False
    heartbeat_s: float
    lost_s: float
    storage_patience_s: float = 300.0
    encrypt_data: bool
    authenticate_data: bool = True
    shared_memory: bool = True
    overlap: bool = True
    compression: str = "none"
    top_k: float = 0.01
    on_nan: str = "stop"
    timeline: bool
    log_format: str = ""
    started_s: float = 0.0
    """Wall-clock time at which the process was asked for; 0: its start counts, since it may have waited for
    a place, and another machine's clock may differ."""
    program_sha256: str = ""
    """Of the run's copy of the program; "": there is none, the file itself is meant."""
    drop_last: bool = False
    args: dict[str, Any] = {}
    checkpoint_place: str = ""
    """Where checkpoints lie; "": in the run's folder."""
    init_from: str = ""
    """Not "": the run's first checkpoint has parameters that are not trained, see ``worker.warm``."""
    read_processes: int = 0
    free_slices: bool = False
    """Whether the worker may choose another number of slices than ``num_slices``, and tell the master."""
    measure_slices: bool = False
    """Whether it does so by what they cost, too."""
    most_workers: int = 1
    """So many share them at most."""
    strict: bool = True
    """Whether what would give other bits is refused; else it is admitted, with a warning."""

    @classmethod
    def of(
        cls,
        config: Config,
        *,
        name: str,
        role: str,
        host: str,
        master: str,
        run_dir: str,
        started_s: float = 0.0,
    ) -> MemberSettings:
        """Those of a member of a run."""
        return cls(
            name=name,
            role=role,
            host=host,
            master=master,
            run_dir=run_dir,
            batch_size=config.step_records,
            num_slices=config.num_slices,
            asynchronous=config.asynchronous,
            most_workers=config.worker_range[1],
            strict=config.fingerprint == "strict",
            started_s=started_s,
            **{each: getattr(config, each) for each in _SAME},
        )


_SAME = (
    "backend",
    "program",
    "data",
    "strategy",
    "seed",
    "threads",
    "server_threads",
    "device",
    "graphs",
    "audit",
    "heartbeat_s",
    "lost_s",
    "storage_patience_s",
    "encrypt_data",
    "authenticate_data",
    "shared_memory",
    "overlap",
    "compression",
    "top_k",
    "on_nan",
    "timeline",
    "log_format",
    "program_sha256",
    "drop_last",
    "args",
    "checkpoint_place",
    "init_from",
    "read_processes",
    "free_slices",
    "measure_slices",
)
"""Settings that a run and its members have in common."""
