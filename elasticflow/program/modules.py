"""Imports from a run's copy of its program, as if the files lay where the originals did.

The source comes from the copy, compiled anew and never from a cache. All else is the original's:
``__file__``, so that data beside the program is found, the names in tracebacks, and what lies beside the
program and is no Python source. ``linecache``, and with it tracebacks, ``inspect`` and what translates source
(TensorFlow's AutoGraph), are given the copy's lines too. The originals may have been edited, or be gone.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType

from elasticflow.program.copy import Copy

_INIT = "__init__.py"


class CopiedLoader(importlib.machinery.SourceFileLoader):
    """Loads one module. path: of the original, beside which its package's data are found as ever."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        super().__init__(name, str(path))
        self._path, self._source = str(path), source

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._source)

    def get_code(self, fullname: str) -> CodeType:
        text = self.get_source(fullname)
        # Without a time of change, it is never compared with the file.
        linecache.cache[self._path] = (len(text), None, text.splitlines(keepends=True), self._path)
        code: CodeType = compile(self._source, self._path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        exec(self.get_code(module.__name__), module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the copy's modules where the original's folder would have been searched for them."""

    def __init__(self, folder: Path, files: Mapping[str, bytes]) -> None:
        self._folder, self._files = folder, files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        parts = fullname.split(".")
        if path is not None and str(self._folder.joinpath(*parts[:-1])) not in path:
            return None  # a namesake in another package
        name = "/".join(parts)
        for file in (f"{name}/{_INIT}", f"{name}.py"):
            if file in self._files:
                return spec_of(fullname, self._folder / file, self._files[file])
        return None


class _Namespaces(importlib.abc.MetaPathFinder):
    """Folders of the copy's modules that are no packages: asked last, as they are when they lie on a disk."""

    def __init__(self, folder: Path, files: Mapping[str, bytes]) -> None:
        self._folder, self._files = folder, files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        name = fullname.replace(".", "/")
        if not any(file.startswith(f"{name}/") for file in self._files):
            return None
        spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(self._folder / name)]
        return spec


def spec_of(name: str, path: Path, source: bytes) -> importlib.machinery.ModuleSpec:
    """Of a module whose original is, or was, at this path."""
    locations = [str(path.parent)] if path.name == _INIT else None
    spec = importlib.util.spec_from_file_location(
        name, path, loader=CopiedLoader(name, path, source), submodule_search_locations=locations
    )
    assert spec is not None
    spec.cached = None
    return spec


def install(folder: Path, copy: Copy) -> None:
    """From now on, modules beside the program are the copy's: they come where the program's folder comes in
    ``sys.path``, first, and after what is built into Python."""
    place = next(
        (number for number, each in enumerate(sys.meta_path) if each is importlib.machinery.PathFinder),
        len(sys.meta_path),
    )
    sys.meta_path.insert(place, _Finder(folder, copy.files))
    sys.meta_path.append(_Namespaces(folder, copy.files))
