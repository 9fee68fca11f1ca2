"""What all that is handed to clusters has in common: scripts, and YAML. Pure."""

from __future__ import annotations

import shlex
from typing import Any

import yaml

_AGAIN = """\
# What kills the master's supervisor starts it again: it goes on with all that still lives.
tries=0
until {command}; do
    code=$?
    [ $code -gt 128 ] && [ $((tries += 1)) -le 100 ] || exit $code
    sleep 1
done"""


def script_of(*parts: str) -> str:
    """Its parts one below the other; those that are empty are left out."""
    return "\n".join(part for part in parts if part) + "\n"


def lead_again(python: str, run_dir: str, resume: bool, *options: str) -> str:
    """Has ``elasticflow lead`` run until it ends by itself."""
    command = [python, "-m", "elasticflow.cli", "lead", *options, "--run-dir", run_dir]
    return _AGAIN.format(command=shlex.join([*command, *(["--resume"] if resume else [])]))


def as_yaml(value: Any) -> str:
    """For people, and for clusters' own commands."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return text


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are; nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
