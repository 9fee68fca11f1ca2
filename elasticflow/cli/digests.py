"""Digests of checkpoints, each computed once: that reads all of a model, and a folder may hold many runs."""

from __future__ import annotations

import contextlib
import hashlib

import msgspec

from elasticflow import checkpoint
from elasticflow.checkpoint import Manifest
from elasticflow.process.decoding import from_json
from elasticflow.run.folder import RunDir, publish, read_bounded

KEPT = 64
"""So many are remembered of a run, the last that were asked for."""


def digest_of(run: RunDir, manifest: Manifest) -> str:
    """What ``checkpoint digest`` prints. Kept in the run's folder, by the hash of the manifest.

    The manifest has the hash of each array, so the same manifest is the same model; whether the files still
    have those bytes is what ``checkpoint verify`` looks at. Raises CheckpointError, OSError.
    """
    key = hashlib.sha256(msgspec.json.encode(manifest)).hexdigest()
    known = _known(run)
    if key in known:
        return known[key]
    known[key] = checkpoint.digest(run.checkpoints(), manifest)
    with contextlib.suppress(OSError):  # then it is computed again
        publish(run.digests, dict([*known.items()][-KEPT:]), durable=False)
    return known[key]


def _known(run: RunDir) -> dict[str, str]:
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return from_json(read_bounded(run.digests), dict[str, str])
    return {}
