"""A program file of functions that were defined in a notebook, or in a session: of their source, and what it
names.

A worker runs a file. So what the functions use has to be said in it: modules by their names, other functions
and classes by their source, plain values as they are. Data is not: ``data()`` reads it, or names where it
lies.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from elasticflow.errors import ProgramError

PLAIN = (int, float, str, bytes, bool, complex, type(None))
HEAD = '"""Written by ElasticFlow from functions of a session."""\n'


def source_of(functions: Mapping[str, Callable[..., Any]]) -> str:
    """The file's text. functions: by the names that a program has for them. Raises ProgramError."""
    written = _Written()
    for name, function in functions.items():
        if not isinstance(function, FunctionType):
            raise ProgramError(
                f"{name}: is a {type(function).__name__}; give a function that is defined by def, or the "
                "name of a program's file."
            )
        written.define(name, function, by=name)
    return "\n".join([HEAD, *sorted(written.imports), "", *written.values, "\n", *written.definitions])


class _Written:
    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.values: list[str] = []
        self.definitions: list[str] = []
        self._seen: dict[str, object] = {}

    def _add(self, name: str, value: Any, by: str) -> None:
        """What a name stands for. by: the function that uses it, for errors."""
        if name in self._seen:
            if self._seen[name] is not value:
                raise ProgramError(f"{by}: two things are called {name!r}; give one of them another name.")
            return
        if isinstance(value, (FunctionType, type)) and value.__module__ == "__main__":
            return self.define(name, value, by)
        self._seen[name] = value
        home, own = getattr(value, "__module__", None), getattr(value, "__name__", name)
        if isinstance(value, ModuleType):
            self.imports.add(f"import {own}" if own == name else f"import {own} as {name}")
        elif callable(value) and home and getattr(sys.modules.get(home), own, None) is value:
            self.imports.add(
                f"from {home} import {own}" if own == name else f"from {home} import {own} as {name}"
            )
        elif _is_plain(value):
            self.values.append(f"{name} = {value!r}")
        else:
            raise ProgramError(
                f"{by}() uses {name!r}, a {type(value).__name__} of this session, which cannot be written "
                "into a program file. Make it inside the function, or save it to a file that data() reads."
            )

    def define(self, name: str, value: FunctionType | type, by: str) -> None:
        """A function or class by its source, after all that it names."""
        self._seen[name] = value
        try:
            source = textwrap.dedent(_source_of(value))
        except (OSError, TypeError) as error:
            raise ProgramError(
                f"{by}: the source of {name!r} is not to be had ({error}); write the program to a file."
            ) from error
        if value.__name__ == "<lambda>":
            raise ProgramError(f"{by}: {name!r} is a lambda; define it by def.")
        if isinstance(value, FunctionType) and value.__closure__:
            raise ProgramError(
                f"{by}: {name!r} uses variables of the function around it; define it at the top level."
            )
        scope = value.__globals__ if isinstance(value, FunctionType) else vars(sys.modules[value.__module__])
        for used in _names_in(source):
            if used != value.__name__ and used in scope and not hasattr(builtins, used):
                self._add(used, scope[used], by=value.__name__)
        alias = "" if value.__name__ == name else f"\n\n{name} = {value.__name__}\n"
        self.definitions.append(f"{source}{alias}\n")


def _source_of(value: FunctionType | type) -> str:
    """Raises OSError, TypeError."""
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        if isinstance(value, type) and (found := _of_cell(value)):
            return found
        raise


def _of_cell(value: type) -> str:
    """A class by one of its methods, or the only one of its name; "": it cannot be told.

    ``inspect`` looks for classes in their module's file alone, and a notebook has none.
    """
    for each in vars(value).values():
        code = getattr(each, "__code__", None)
        if isinstance(code, CodeType):
            for source, lines in _classes_in(code.co_filename, value.__name__):
                if code.co_firstlineno in lines:
                    return source
    cells = [file for file in list(linecache.cache) if file.startswith("<") or not os.path.exists(file)]
    sources = {source for file in cells for source, _ in _classes_in(file, value.__name__)}
    return sources.pop() if len(sources) == 1 else ""


def _classes_in(file: str, name: str) -> Iterator[tuple[str, range]]:
    """The source of each of this name, and its lines."""
    lines = linecache.getlines(file)
    try:
        nodes = list(ast.walk(ast.parse("".join(lines))))
    except (SyntaxError, ValueError):
        return
    for node in nodes:
        if isinstance(node, ast.ClassDef) and node.name == name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            last = node.end_lineno or first
            yield "".join(lines[first - 1 : last]), range(first, last + 1)


def _names_in(source: str) -> list[str]:
    """All that it reads, in order; some may be its own."""
    nodes = ast.walk(ast.parse(source))
    return list(dict.fromkeys(node.id for node in nodes if isinstance(node, ast.Name)))


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(each) for pair in value.items() for each in pair)
    return type(value) in PLAIN and not (isinstance(value, float) and not math.isfinite(value))
