"""A virtual environment as an archive that nodes unpack and use where it lies: ``elasticflow pack``.

Python finds its environment by the place of its executable, so what has to change is little: scripts name
their Python by ``env``, and packages that are installed where they are developed come along.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from elasticflow.errors import ConfigError
from elasticflow.process.decoding import from_json

MANIFEST = "elasticflow-environment.json"
"""The first member of the archive."""
SUFFIXES = (".tar.gz", ".tgz")
LEFT_OUT = ("include", "share")
"""Folders of an environment that nobody needs who only runs programs."""
COMPRESS_LEVEL = 4
_SHEBANG = re.compile(rb"#! ?/[^\n]*/python[\d.]*[^\n]*\n")


class Environment(msgspec.Struct, frozen=True):
    """python: its version. base: the Python that it needs on each node. modules: what can be imported."""

    python: str
    base: str
    modules: tuple[str, ...]


def pack(file: str, environment: str = "") -> Environment:
    """Writes an environment into an archive; "": the running one. Raises ConfigError, and leaves nothing."""
    target = Path(file)
    prefix = Path(environment or sys.prefix).absolute()
    if not file.endswith(SUFFIXES):
        raise ConfigError(f"{file}: YARN unpacks what is called .tar.gz; such as environment.tar.gz.")
    if target.exists():
        raise ConfigError(f"{file}: is there already; remove it, or choose another name.")
    if (prefix / "conda-meta").is_dir():
        return _pack_conda(target, prefix)
    if not (prefix / "pyvenv.cfg").is_file():
        raise ConfigError(
            f"{prefix}: is no virtual environment; run 'elasticflow pack' from one, or name one by --python."
        )
    packages = _site_packages(prefix)
    described = describe(prefix)
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as out:
            try:
                with tarfile.open(fileobj=out, mode="w:gz", compresslevel=COMPRESS_LEVEL) as tar:
                    _add_bytes(tar, MANIFEST, msgspec.json.format(msgspec.json.encode(described)))
                    for path, name in _members(prefix, packages):
                        _add(tar, path, name)
                os.chmod(out.name, 0o644)
                os.replace(out.name, target)
            except BaseException:
                os.unlink(out.name)
                raise
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}.") from error
    return described


def describe(prefix: Path) -> Environment:
    """Asks the environment's own Python."""
    ask = "import json, platform, sys, pkgutil; print(json.dumps([platform.python_version(), " \
        "sorted({m.name for m in pkgutil.iter_modules()} | set(sys.stdlib_module_names))]))"  # fmt: skip
    python = prefix / "bin" / "python"
    try:
        answer = subprocess.run([python, "-c", ask], cwd="/", capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"{python}: does not run: {error}.") from error
    version, modules = from_json(answer.stdout, tuple[str, list[str]])
    editable = [name for name, _ in _editable(_site_packages(prefix))]
    return Environment(version, os.path.realpath(python), tuple(sorted({*modules, *editable})))


def _members(prefix: Path, packages: Path) -> Iterator[tuple[Path, str]]:
    """Files and folders, and their names in the archive."""
    skipped = set(packages.glob("__editable__*")) | set(packages.glob("__editable___*"))
    for path in _walk(prefix):
        relative = path.relative_to(prefix)
        if relative.parts[0] in LEFT_OUT or path in skipped:
            continue
        if relative.parts[0] == "bin" or not _leads_out(path, prefix):
            yield path, str(relative)
            continue
        yield (outside := path.resolve()), str(relative)
        for below in _walk(outside):
            yield below, str(relative / below.relative_to(outside))
    for name, source in _editable(packages):
        inside = (packages / name).relative_to(prefix)
        if source.is_file():
            yield source, str(inside.with_suffix(source.suffix))
            continue
        yield source, str(inside)
        for path in _walk(source):
            if "__pycache__" not in path.parts:
                yield path, str(inside / path.relative_to(source))


def _leads_out(path: Path, prefix: Path) -> bool:
    """Of links, such as of packages that lie in a cache: no node has what they lead to."""
    return path.is_symlink() and path.exists() and not path.resolve().is_relative_to(prefix.resolve())


def _walk(folder: Path) -> Iterator[Path]:
    """All below a folder, folders before what is in them. Links are not followed."""
    for where, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted([*folders, *files]):
            yield Path(where, name)


def _editable(packages: Path) -> list[tuple[str, Path]]:
    """Modules that are installed where they are developed, as setuptools notes them: name, and place."""
    found: dict[str, Path] = {}
    for finder in sorted(packages.glob("__editable___*_finder.py")):
        for node in ast.parse(finder.read_text(encoding="utf-8")).body:
            names = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            if any(isinstance(each, ast.Name) and each.id == "MAPPING" for each in names):
                found.update({k: Path(v) for k, v in ast.literal_eval(node.value).items()})  # type: ignore[attr-defined]
    for notes in sorted(packages.glob("*.pth")):
        for line in notes.read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.startswith(("import ", "import\t", "#")):
                folder = (packages / line.strip()).resolve()
                if folder.is_dir() and not folder.is_relative_to(packages.resolve()):
                    raise ConfigError(
                        f"{notes}: has Python look into {folder}, which does not come along; install what is "
                        f"there properly first: pip install {folder}"
                    )
    return sorted(found.items())


def _site_packages(prefix: Path) -> Path:
    found = sorted(prefix.glob("lib/python3*/site-packages"))
    if not found:
        raise ConfigError(f"{prefix}: holds no lib/python3.*/site-packages; is it a virtual environment?")
    return found[-1]


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """Raises ConfigError if it cannot be read, OSError if the archive cannot be written."""
    try:
        info = tar.gettarinfo(path, name)
        source = path.open("rb") if info and info.isreg() else None
    except OSError as error:
        raise ConfigError(
            f"{path}: is to be packed as {name}, and cannot be read: {error.strerror}. Install that package "
            "again, or wait until nobody changes the environment, and try again."
        ) from error
    if info is None:
        return  # a socket, which no archive holds
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    if source is None:
        tar.addfile(info)
        return
    info.mode |= 0o444
    with source as file:
        head = file.readline(512) if name.startswith("bin/") else b""
        if _SHEBANG.fullmatch(head):
            rest = b"#!/usr/bin/env python\n" + file.read()
            info.size = len(rest)
            tar.addfile(info, io.BytesIO(rest))
        else:
            file.seek(0)
            tar.addfile(info, file)


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


def _pack_conda(target: Path, prefix: Path) -> Environment:
    """Conda's environments hold their places in many files; conda-pack knows which."""
    try:
        import conda_pack
    except ImportError as error:
        raise ConfigError(
            f"{prefix}: is an environment of conda; 'pip install conda-pack' in it, and try again."
        ) from error
    with contextlib.redirect_stdout(sys.stderr):
        conda_pack.pack(prefix=str(prefix), output=str(target), ignore_editable_packages=False)
    return Environment(platform.python_version(), "", ())
