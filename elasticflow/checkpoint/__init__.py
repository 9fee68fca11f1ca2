"""Checkpoints: a whole model and its place in training, cut at one step.

``checkpoints/step-0000001200/`` holds one HDF5 file a server, and ``manifest.json``, which is
written last and makes the checkpoint visible. Servers call ``write_part``, the master ``commit``;
whoever restores, shows or exports it uses ``Reader`` and the functions beside it. No pickle lies in
a checkpoint, and every failure is a CheckpointError that names the file. HDF5 is imported on use.
"""

from elasticflow.checkpoint.catalog import commit, commits, copy, discard_unfinished, load_manifest, prune
from elasticflow.checkpoint.export import export
from elasticflow.checkpoint.manifest import (
    Manifest,
    Part,
    Saved,
    check_model,
    folder_of,
    kept_chunks,
    part_name,
)
from elasticflow.checkpoint.parts import write_part
from elasticflow.checkpoint.reader import Reader, digest, newest_intact, tensors, verify

__all__ = [
    "Manifest",
    "Part",
    "Reader",
    "Saved",
    "check_model",
    "commit",
    "commits",
    "copy",
    "digest",
    "discard_unfinished",
    "export",
    "folder_of",
    "kept_chunks",
    "load_manifest",
    "newest_intact",
    "part_name",
    "prune",
    "tensors",
    "verify",
    "write_part",
]
