"""``elasticflow chaos RUN``: try how a run takes it when its processes are killed and frozen."""

from __future__ import annotations

import argparse
import math
import secrets
import signal
import sys

import msgspec

from elasticflow.cli.folders import add_run_argument, find_run
from elasticflow.cli.killing import GROUPS, KINDS, Continued, Struck, harass, kinds_of, strikes
from elasticflow.cluster.presence import read_address
from elasticflow.errors import ConfigError
from elasticflow.run.folder import FAILURES

RATE = 6.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``chaos``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _explained()
    add_run_argument(parser)
    parser.add_argument("--seed", type=int, metavar="N", help="decides what is done to whom (default: any)")
    parser.add_argument(
        "--rate", type=float, default=RATE, metavar="R", help=f"strikes a minute (default: {RATE:g})"
    )
    parser.add_argument(
        "--kinds",
        default="usual",
        metavar="KIND,...",
        help=f"of those below, or groups of them: {', '.join(GROUPS)} (default: usual)",
    )
    parser.add_argument(
        "--seconds", type=float, default=math.inf, metavar="S", help="for so long (default: until it is over)"
    )


def _explained() -> str:
    lines = [f"  {name:<14} {kind.text}" for name, kind in KINDS.items()]
    lines += [f"  {name:<14} {', '.join(kinds)}" for name, kinds in GROUPS.items() if name != "all"]
    return "\n".join(["kinds, and groups of them:", *lines])


def chaos(arguments: argparse.Namespace) -> int:
    """Kills and freezes until the run is over, or the time is. Returns 1 if the run failed meanwhile."""
    if not 0 < arguments.rate < math.inf:
        raise ConfigError(f"rate: {arguments.rate} is not allowed: strikes a minute, such as {RATE:g}.")
    kinds = kinds_of(arguments.kinds)
    seed = secrets.randbelow(10**6) if arguments.seed is None else arguments.seed
    run = find_run(arguments.run, arguments.trust)
    for number in (signal.SIGTERM, signal.SIGHUP):  # whoever is frozen goes on first
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    read_address(run)
    path = run.folder / f"chaos-{seed}.jsonl"
    print(f"{run.folder}: seed {seed}, {arguments.rate:g} a minute of {', '.join(kinds)}", flush=True)
    with path.open("a", encoding="utf-8") as record:

        def tell(done: Struck | Continued) -> None:
            print(as_text(done), flush=True)
            print(msgspec.json.encode(done).decode(), file=record, flush=True)

        last = harass(run, strikes(seed, arguments.rate, kinds), arguments.seconds, tell)
    print(f"{run.folder}: {last.state}, step {last.step}; what was done: {path}")
    return 1 if last.state in FAILURES else 0


def as_text(done: Struck | Continued) -> str:
    """One line for a person."""
    if isinstance(done, Continued):
        return f"  {done.continued} (pid {done.pid}) goes on"
    strike = done.strike
    what = f"frozen for {strike.frozen_s:.1f} s" if strike.frozen_s else "killed"
    whom = ", ".join(f"{name} (pid {pid})" for name, pid in zip(done.hit, done.pids, strict=True))
    told = [f"{whom} {what}"] if whom else []
    told += [f"{each}: left alone" for each in done.skipped]
    return f"step {done.step}, {done.state}: {strike.kind}: {'; '.join(told) or 'nobody there'}"
