"""The run's own copy of its program: what all its workers run, whatever becomes of the file meanwhile.

It is taken when the run begins: the program's file, and the modules beside it that it imports, and those that
they import. One archive in the run's folder, ``program/HASH.zip``, named after the hash of what it holds, so
that it is never written twice; ``run.json`` and each manifest have the whole hash. The copy gives the source;
the place stays that of the original: see ``elasticflow.program.modules``.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import msgspec

from elasticflow.errors import ConfigError, ProgramError, RunError
from elasticflow.program.loading import parse, parse_source
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir, read_bounded, replace
from elasticflow.run.settings import MemberSettings

MOST_FILES, MOST_BYTES = 2000, 32 << 20
"""Beyond this, what lies beside a program is no program any more."""
MOST_ARCHIVE_BYTES = MOST_BYTES + 1024 * MOST_FILES
LEFT_OUT = ("__pycache__", "venv", "site-packages", "node_modules")
"""Folders in which a package has no modules of its own; nor has it in those whose names begin with a dot."""
OURS = ("elasticflow", "elasticflow_ps", "elasticflow_slurm", "elasticflow_yarn")
"""Never copied: a program that lies beside them imports what is running already."""
_SUFFIX, _INIT = ".py", "__init__.py"
_NAME_CHARACTERS = 16


@dataclass(frozen=True)
class Copy:
    """program: the name of its file. files: all of them, by their path from the program's folder."""

    program: str
    files: Mapping[str, bytes]

    @cached_property
    def sha256(self) -> str:
        """Of the names and contents, and of which of them is the program."""
        hashes = [(name, hashlib.sha256(data).hexdigest()) for name, data in sorted(self.files.items())]
        return hashlib.sha256(msgspec.json.encode((self.program, hashes))).hexdigest()

    @property
    def modules(self) -> set[str]:
        """Top-level names under which its files are imported."""
        return {PurePosixPath(name).parts[0].removesuffix(_SUFFIX) for name in self.files}

    def difference(self, other: Copy) -> str:
        """Which files of another are not these, for people; empty if none."""
        names = sorted(self.files.keys() | other.files.keys())
        return ", ".join(name for name in names if self.files.get(name) != other.files.get(name))


def gather(program: str) -> Copy:
    """The program as it is now. Raises ProgramError."""
    parse(program)
    path = Path(program).resolve()
    return Copy(path.name, _Gathering(path).files)


class _Gathering:
    """Follows imports, wherever in a file they stand, to the files beside the program."""

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        self.files: dict[str, bytes] = {}
        self._num_bytes = 0
        self._waiting = [path]
        while self._waiting:
            self._take(self._waiting.pop())

    def _take(self, path: Path) -> None:
        name = path.relative_to(self._folder).as_posix()
        if name in self.files:
            return
        if name != name.encode(errors="replace").decode():
            raise ProgramError(
                f"{path}: this name of a module is not UTF-8; rename the file, or move it away."
            )
        try:
            data = self.files[name] = path.read_bytes()
        except OSError as error:
            raise ProgramError(
                f"{path}: is imported by the program, and cannot be read: {error.strerror}."
            ) from error
        self._num_bytes += len(data)
        if len(self.files) > MOST_FILES or self._num_bytes > MOST_BYTES:
            raise ProgramError(
                f"{self._folder}: the program imports modules beside it that have more than {MOST_FILES} "
                f"files or {MOST_BYTES >> 20} MB, of which each run keeps a copy. Install the large ones as "
                "packages, or move the program to a folder of its own."
            )
        try:
            tree = parse_source(data, str(path))
        except ProgramError:  # whoever imports it is told; it may never be
            return
        package = PurePosixPath(name).parent.parts
        for wanted in _imported(tree, package):
            self._want(wanted)

    def _want(self, module: tuple[str, ...]) -> None:
        """What lies beside the program under this name, and the packages that it is in."""
        if not module or module[0] in OURS:
            return
        for depth in range(1, len(module) + 1):
            path = self._folder.joinpath(*module[:depth])
            if (path / _INIT).is_file():
                self._waiting += _modules_in(path)  # which of them it imports may depend on its arguments
            elif (file := path.with_name(path.name + _SUFFIX)).is_file():
                self._waiting.append(file)


def _modules_in(package: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(package):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and not name.startswith("."))
        sources = (Path(where, name) for name in sorted(files) if name.endswith(_SUFFIX))
        yield from (path for path in sources if not path.name.startswith(".") and path.is_file())


def _imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Names of modules, as far as the source tells them. package: the one that the file is in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            yield base
            yield from ((*base, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if function in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield tuple(node.args[0].value.split("."))


def keep(run: RunDir, copy: Copy) -> None:
    """Puts it into the run's folder, unless it is there. Raises OSError."""
    path = run.program_copy(copy.sha256[:_NAME_CHARACTERS])
    if path.exists():
        return
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(copy.files.items()):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        archive.comment = copy.program.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, buffer.getvalue())


def fetch(run: RunDir, sha256: str) -> Copy:
    """The run's copy. Raises ProgramError if it is not what it was, RunError if it cannot be read."""
    path = run.program_copy(sha256[:_NAME_CHARACTERS])
    try:
        with zipfile.ZipFile(io.BytesIO(read_bounded(path, MOST_ARCHIVE_BYTES))) as archive:
            _check_sizes(archive.infolist())
            files = {name: archive.read(name) for name in archive.namelist()}
            copy = Copy(archive.comment.decode(), files)
    except FileNotFoundError as error:
        raise RunError(
            f"{path}: the run's copy of its program is gone; without it the run cannot go on. Put it back, "
            "or go on with --resume --program FILE, which takes the file as it is."
        ) from error
    except OSError as error:
        raise RunError(f"{path}: the run's copy of its program cannot be read: {error}") from error
    except (zipfile.BadZipFile, ValueError, EOFError, zlib.error, struct.error, RuntimeError) as error:
        raise ProgramError(f"{path}: the run's copy of its program is damaged: {error}.") from error
    if copy.sha256 != sha256:
        raise ProgramError(
            f"{path}: the run's copy of its program has been changed: its hash is {copy.sha256}, the run's "
            f"{sha256}. Put it back; or go on with --resume --program FILE, which is recorded."
        )
    return copy


def _check_sizes(files: Collection[zipfile.ZipInfo]) -> None:
    """Before anything is unpacked: an archive may claim any size. Raises ValueError."""
    num_bytes = sum(each.file_size for each in files)
    if len(files) > MOST_FILES or num_bytes > MOST_BYTES:
        raise ValueError(f"{len(files):,} files of {num_bytes:,} bytes, more than are ever copied")


def copy_of(settings: MemberSettings) -> Copy | None:
    """What a member is to run; None: the file itself, since there is no run. Raises as ``fetch``."""
    return fetch(RunDir(settings.run_dir), settings.program_sha256) if settings.program_sha256 else None


def take(chosen: Config, program: str = "") -> tuple[Config, Copy | None]:
    """Settings that name the copy of their program, and the copy, to be kept; None: the run has it already.

    program: where the file is, if the run itself has it elsewhere. Where a run's copy is gone, the same
    program will do. Raises ProgramError, ConfigError, RunError.
    """
    run = RunDir(chosen.run_dir) if chosen.run_dir else None
    if run and chosen.program_sha256 and _has(run, chosen.program_sha256):
        return chosen, None
    copy = gather(program or chosen.program)
    if chosen.program_sha256 not in ("", copy.sha256):
        if run and run.settings.exists():
            fetch(run, chosen.program_sha256)  # says that it is gone
        raise ConfigError(
            f"program_sha256: {chosen.program_sha256} is wanted, {program or chosen.program} has "
            f"{copy.sha256}; name the program that is meant, or leave the setting out."
        )
    return msgspec.structs.replace(chosen, program_sha256=copy.sha256), copy


def _has(run: RunDir, sha256: str) -> bool:
    return run.program_copy(sha256[:_NAME_CHARACTERS]).exists()
