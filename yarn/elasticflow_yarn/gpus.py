"""GPUs of a container: where YARN counts them but does not isolate them, several containers share a host.

This module starts with each container, so it imports next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from elasticflow.process.gpus import FOLDER, ORDER, PATIENCE_S, VISIBLE, Lease, found, lease, nodes

COUNT, DEVICES = "ELASTICFLOW_GPUS", "ELASTICFLOW_GPU_DEVICES"
"""In a container's environment: how many GPUs it was given, and which of the host's it may take; "": all."""
NO_GPU = 69
"""Exit code of a container that found no free GPU on its host: EX_UNAVAILABLE of sysexits.h."""


def environment_of(
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    patience_s: float = PATIENCE_S,
    folder: str = FOLDER,
) -> tuple[dict[str, str], Lease | None]:
    """What a program needs in its environment to find its GPUs alone, and the lease that makes them its own.

    Raises NoGpu if too few come free in time, ValueError for a setting that is wrong.
    """
    count = _count(environ.get(COUNT, ""))
    chosen = [each.strip() for each in environ.get(DEVICES, "").split(",") if each.strip()]
    if count is None or (not chosen and _is_isolated(environ)):
        return {}, None
    if not count:
        return {VISIBLE: ""}, None
    devices = chosen or found()
    if not devices:
        return {}, None
    leased = lease(count, devices, tell, patience_s, folder)
    leased.share()
    return {**ORDER, VISIBLE: ",".join(leased.devices)}, leased


def _count(text: str) -> int | None:
    if text and not text.isdecimal():
        raise ValueError(f"{COUNT}: {text!r} is no number of GPUs.")
    return int(text) if text else None


def _is_isolated(environ: Mapping[str, str]) -> bool:
    """Whether the cluster says, or sees to it, which GPUs this container has."""
    if VISIBLE in environ or environ.get("NVIDIA_VISIBLE_DEVICES", "all") not in ("", "all"):
        return True
    return any(not os.access(node, os.R_OK | os.W_OK) for node in nodes())  # a cgroup denies the others
