"""``elasticflow pack``: a virtual environment as an archive, for nodes that lack it."""

from __future__ import annotations

import argparse
import sys

from elasticflow.cluster.contract import load_cluster


def pack(arguments: argparse.Namespace) -> int:
    """Prints the archive's name, and nothing else, on stdout."""
    packed = load_cluster("yarn", "pack").pack(arguments.file, arguments.python)
    print(arguments.file)
    if packed.base:
        print(f"Python {packed.python}; each node needs {packed.base}", file=sys.stderr)
    return 0
