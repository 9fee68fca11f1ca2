"""What a worker's or server's process is told when it starts; no secret is among it."""

from __future__ import annotations

import msgspec


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    """name: such as ``worker-3``. host: the address to listen at. master: its control endpoint.

    keys: path of the file with the members' keys. run_dir: where checkpoints and logs lie.
    """

    name: str
    role: str
    host: str
    master: str
    keys: str
    run_dir: str
    program: str
    data: str = ""
    strategy: str = "parameter_server"
    seed: int
    threads: int
    batch_size: int
    num_slices: int
    heartbeat_s: float
    lost_s: float
    storage_patience_s: float = 300.0
    encrypt_data: bool
    timeline: bool
    started_s: float = 0.0
    """Wall-clock time at which the process was asked for."""
