"""``elasticflow pack``: a virtual environment as an archive, for nodes that lack it."""

from __future__ import annotations

import argparse
import sys

from elasticflow.cluster import pack as packing


def pack(arguments: argparse.Namespace) -> int:
    """Prints the archive's name, and nothing else, on stdout."""
    packed = packing.pack(arguments.file, arguments.python)
    print(arguments.file)
    if packed.base:
        print(f"Python {packed.python}; each node needs {packed.base}", file=sys.stderr)
    return 0
