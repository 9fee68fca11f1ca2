"""Arguments of a program: what ``--set`` and the setting ``args`` give, and what the program asks for.

args = ef.args(lr=0.1, width=32)      # --set lr=0.01
"""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from elasticflow.errors import ConfigError, ProgramError

_given: dict[str, Any] = {}
_asked: dict[str, Any] = {}


def args(**defaults: Any) -> SimpleNamespace:
    """The program's arguments by name, with what stands for those that are not given.

    Raises ProgramError for one that is given and of another type than its default.
    """
    _asked.update(defaults)
    return SimpleNamespace(**{name: _typed(name, default) for name, default in defaults.items()})


def _typed(name: str, default: Any) -> Any:
    value = _given.get(name, default)
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if default is not None and type(value) is not type(default):
        is_text = isinstance(default, str) and not isinstance(value, list)
        raise ProgramError(
            f"--set {name}={value}: is {_a(value)}; the program's default, {default!r}, is {_a(default)}."
            + (f" In quotes of its own it is a text: --set {name}='\"{value}\"'." if is_text else "")
        )
    return value


def _a(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind == 'int' else 'a'} {kind}"


def give(given: Mapping[str, Any]) -> None:
    """Before a program is loaded: what it will find."""
    _given.clear()
    _asked.clear()
    _given.update(given)


def check_asked(path: str) -> None:
    """Once it is loaded, and ``model()`` was called. Raises ProgramError for what it never asked for."""
    for name in _given.keys() - _asked.keys():
        close = difflib.get_close_matches(name, _asked, 1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        has = (
            f"; its arguments are {', '.join(_asked)}" if _asked else ", which asks for none by ef.args(...)"
        )
        raise ProgramError(f"--set {name}: is no argument of {path}{meant}{has}.")


def parsed(texts: list[str]) -> dict[str, Any]:
    """``NAME=VALUE`` each, as YAML reads values. Raises ConfigError."""
    import yaml

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            read = yaml.safe_load(value) if value else ""
        except yaml.YAMLError:
            read = value
        if isinstance(read, str) and read == value and _is_float(read):  # in quotes it is a text
            read = float(read)  # YAML wants a point in 1e-3
        if isinstance(read, datetime.date) or ":" in value and isinstance(read, (int, float)):
            read = value  # days and times of day are texts
        if equals and read is None:
            raise ConfigError(
                f"--set {text}: null is no value; leave it out, and the program's default holds, or write "
                f"--set {name}='\"{value}\"' for that text."
            )
        if not equals or not name.isidentifier() or not isinstance(read, (str, int, float, bool, list)):
            raise ConfigError(
                f"--set {text}: must be NAME=VALUE, such as lr=0.01, with a name as Python has them."
            )
        found[name] = read
    return found


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
