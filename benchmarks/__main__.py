"""``python -m benchmarks`` lists the benchmarks, ``python -m benchmarks NAME... [--json]`` runs some.

``python -m benchmarks NAME OPTION...`` runs one with options of its own, where it has some (``--help``).
"""

from __future__ import annotations

import argparse
import importlib
import sys

import msgspec

from benchmarks.figures import line

NAMES = (
    "overhead",
    "scaling",
    "start",
    "kill",
    "join",
    "seal",
    "update",
    "commit",
    "dense",
    "shared",
    "all_reduce",
    "moves",
    "sparse",
    "overlap",
    "async",
    "gpu",
    "growth",
    "carrying",
    "peers",
    "fuzz",
    "forged",
    "mutations",
    "soak",
    "loaded",
    "slurm",
    "yarn",
    "kubernetes",
    "hdfs",
    "hdfs_read",
    "objects",
    "parquet",
    "reading",
    "examples",
    "fitting",
    "fluid",
    "scheduler",
    "deadlines",
    "two_jobs",
    "colocation",
    "serving",
    "model_server",
)


OWN_OPTIONS = ("peers", "deadlines", "soak", "loaded", "gpu", "mutations", "examples", "serving")


def main() -> int:
    """See the module's docstring."""
    if sys.argv[1:2] and sys.argv[1] in OWN_OPTIONS and sys.argv[2:] not in ([], ["--json"]):
        code: int = importlib.import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:])
        return code
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if not arguments.names:
        for name in NAMES:
            module = importlib.import_module(f"benchmarks.{name}")
            print(f"{name:<10} {(module.__doc__ or '').splitlines()[0]}")
        return 0
    for name in arguments.names:
        for one in importlib.import_module(f"benchmarks.{name}").run():
            print(msgspec.json.encode(one).decode() if arguments.json else line(one), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
