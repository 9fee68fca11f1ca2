"""Checkpoints: a whole model and its place in training, cut at one step.

``checkpoints/step-0000001200/`` holds one HDF5 file a server, and ``manifest.json``, which is
written last and makes the checkpoint visible. Rows of embedding tables are in ``rows/``, in chains of files
that checkpoints share. Servers call ``write_part`` and ``write_rows``, the master ``commit``;
whoever restores, shows or exports it uses ``Reader`` and the functions beside it. No pickle lies in
a checkpoint, and every failure is a CheckpointError that names the file. HDF5 is imported on use.
"""

from elasticflow.checkpoint.catalog import (
    commit,
    commits,
    copy,
    discard_unfinished,
    load_best,
    load_manifest,
    of_one,
    prune,
)
from elasticflow.checkpoint.chains import RowFile, SavedRows, TableSize, extended, should_be_whole
from elasticflow.checkpoint.export import export
from elasticflow.checkpoint.frozen import frozen_of, read_frozen, write_frozen
from elasticflow.checkpoint.manifest import (
    FORMAT,
    OF_FROZEN,
    Manifest,
    Part,
    Saved,
    chain_of,
    check_model,
    kept_chunks,
    table_sizes,
)
from elasticflow.checkpoint.names import folder_of, part_name, row_file_name
from elasticflow.checkpoint.parts import write_part
from elasticflow.checkpoint.reader import Reader, digest, is_committed, newest_intact, tensors, verify
from elasticflow.checkpoint.row_files import write_rows

__all__ = [
    "FORMAT",
    "OF_FROZEN",
    "Manifest",
    "Part",
    "Reader",
    "RowFile",
    "Saved",
    "SavedRows",
    "TableSize",
    "chain_of",
    "check_model",
    "commit",
    "commits",
    "copy",
    "digest",
    "discard_unfinished",
    "export",
    "extended",
    "folder_of",
    "frozen_of",
    "is_committed",
    "kept_chunks",
    "load_best",
    "load_manifest",
    "newest_intact",
    "of_one",
    "part_name",
    "prune",
    "read_frozen",
    "row_file_name",
    "should_be_whole",
    "table_sizes",
    "tensors",
    "verify",
    "write_frozen",
    "write_part",
    "write_rows",
]
