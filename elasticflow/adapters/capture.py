"""A plain script, run up to the call that would train: what comes after it is never run."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any

from elasticflow.adapters.scripts import PlainScript
from elasticflow.errors import ProgramError

OWNERS = {"keras": "Model", "lightning": "Trainer", "transformers": "Trainer"}
"""The class whose method is captured, by the name of the library."""


class Captured(BaseException):
    """The call that would train. owner: whose method it is. No handler of errors is to see it."""

    def __init__(self, owner: Any, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.owner, self.arguments = owner, dict(arguments)


def run_to_call(path: str, script: PlainScript, module: ModuleType, code: CodeType) -> dict[str, Any]:
    """Runs the script in ``module``, as Python runs a script. What a program would have defined, by name.

    Raises ProgramError if it ends without the call, or if that call cannot be trained here; and whatever the
    script raises.
    """
    home = importlib.import_module(script.module)
    home = getattr(home, "keras", home) if script.library.name == "keras" else home
    adapter = importlib.import_module(f"elasticflow.adapters.of_{script.library.name}")
    adapter.check_library(home)
    owner = getattr(home, OWNERS[script.library.name])
    before, sys.argv = sys.argv, [path]
    module.__name__ = "__main__"
    try:
        with _caught(owner, script.library.call), adapter.watched(home):
            exec(code, module.__dict__)
    except Captured as call:
        found: dict[str, Any] = adapter.program_of(call.owner, call.arguments)
        return found
    finally:
        sys.argv = before
    raise ProgramError(
        f"{path}: ended without a call of {OWNERS[script.library.name]}.{script.library.call}(), which is "
        "what is trained; call it, or define model() and forward()."
    )


@contextmanager
def _caught(owner: type, name: str) -> Iterator[None]:
    """Meanwhile a call of this method raises ``Captured``."""
    signature = inspect.signature(getattr(owner, name))

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        raise Captured(self, _by_name(signature, self, args, kwargs))

    with _replaced(owner, name, call):
        yield


@contextmanager
def wrapped(owner: type, name: str, note: Any) -> Iterator[None]:
    """Meanwhile ``note(self, arguments by name)`` is called after each call of this method."""
    inner = getattr(owner, name)
    signature = inspect.signature(inner)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = _by_name(signature, self, args, kwargs)
        result = inner(self, *args, **kwargs)
        note(self, given)
        return result

    with _replaced(owner, name, call):
        yield


def _by_name(signature: inspect.Signature, self: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments of a method, but for ``self``. Raises TypeError, as the call would."""
    return dict(list(signature.bind(self, *args, **kwargs).arguments.items())[1:])


@contextmanager
def _replaced(owner: type, name: str, call: Callable[..., Any]) -> Iterator[None]:
    own = vars(owner).get(name)
    setattr(owner, name, call)
    try:
        yield
    finally:
        if own is None:  # it is a base's
            delattr(owner, name)
        else:
            setattr(owner, name, own)
