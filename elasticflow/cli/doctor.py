"""``elasticflow doctor``: what of this machine and its cluster will hurt a run, each with its cure."""

from __future__ import annotations

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of ``elasticflow doctor``."""
    parser.add_argument(
        "config", metavar="CONFIG", nargs="?", help="a file of settings, such as conf/yarn.yaml"
    )
    parser.add_argument("--json", action="store_true")


def doctor(arguments: argparse.Namespace) -> int:
    """Prints a line a finding, those that hurt with their cures; 1 if anything is broken."""
    import msgspec

    from elasticflow.doctor.examining import examine
    from elasticflow.doctor.finding import Health, broken
    from elasticflow.errors import ConfigError
    from elasticflow.run import config

    found = []
    try:
        chosen = config.make(arguments.config, {})
    except (ConfigError, OSError) as error:
        found.append(broken("settings", str(error), "Correct the file, or name another."))
        chosen = config.make(None, {})
    found += examine(chosen)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        for each in found:
            print(f"{each.health.value:9}  {each.subject}: {each.found}")
            if each.cure:
                print(f"{'':9}  -> {each.cure}")
    return int(any(each.health is Health.BROKEN for each in found))
