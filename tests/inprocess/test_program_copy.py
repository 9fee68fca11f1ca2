"""A program's copy: what is taken, and that what is loaded is it, whatever lies where it was taken from."""

from __future__ import annotations

import importlib
import linecache
import py_compile
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from elasticflow.errors import ConfigError, ProgramError, RunError
from elasticflow.program import copy as program_copy
from elasticflow.program.copy import Copy, fetch, gather, keep, take
from elasticflow.program.loading import foreign_imports, foreign_names, load
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir

BODY = """
def model():
    return {}


def forward(x, params):
    return 0
"""
FILES = {
    "ours.py": "import json\nimport ours_a, ours_pack.sub\nfrom ours_space import part\n" + BODY,
    "ours_a.py": "def late():\n    from ours_b import WORD\n    return WORD\n",
    "ours_b.py": "import importlib\nWORD = importlib.import_module('ours_c').WORD\n",
    "ours_c.py": "from pathlib import Path\nWORD = Path(__file__).with_name('data.txt').read_text()\n",
    "ours_pack/__init__.py": "from . import other\n",
    "ours_pack/sub.py": "from .deep.er import DEPTH\nfrom .. import nothing_here\n",
    "ours_pack/other.py": "this is no Python\n",
    "ours_pack/unnamed.py": "",
    "ours_pack/deep/__init__.py": "",
    "ours_pack/deep/er.py": "DEPTH = 2\n",
    "ours_space/part.py": "PART = 1\n",
    "not_ours.py": "",
    "ours_space/not_ours.py": "",
    "elasticflow/__init__.py": "",
}
TAKEN = FILES.keys() - {"not_ours.py", "ours_space/not_ours.py", "elasticflow/__init__.py"}


def write(folder: Path, files: dict[str, str]) -> str:
    """Path of the program, which is the first."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder / next(iter(files)))


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """No module of a test's outlives it."""
    modules, path, finders = dict(sys.modules), list(sys.path), list(sys.meta_path)
    yield
    for name in sys.modules.keys() - modules.keys():
        if name.startswith("ours"):
            del sys.modules[name]
    sys.path[:], sys.meta_path[:] = path, finders
    importlib.invalidate_caches()


def loaded(path: str, copy: Copy | None = None) -> ModuleType:
    load(path, copy)
    return sys.modules[Path(path).stem]


def test_what_is_taken(tmp_path: Path) -> None:
    """Imports in functions, of packages with all that is in them, relative ones, and those by name."""
    copy = gather(write(tmp_path, FILES))
    assert copy.files.keys() == TAKEN
    assert all(copy.files[name] == FILES[name].encode() for name in TAKEN)
    assert copy.modules == {"ours", "ours_a", "ours_b", "ours_c", "ours_pack", "ours_space"}


def test_the_hash_is_of_names_and_contents() -> None:
    files = {"a.py": b"1", "b.py": b"2"}
    hashes = [Copy("a.py", files), Copy("b.py", files), Copy("a.py", {"a.py": b"12", "b.py": b""}),
              Copy("a.py", {"a.py": b"1", "c.py": b"2"})]  # fmt: skip
    assert len({copy.sha256 for copy in hashes}) == 4
    assert Copy("a.py", dict(reversed(files.items()))).sha256 == hashes[0].sha256
    assert hashes[0].difference(hashes[3]) == "b.py, c.py"


@pytest.mark.parametrize(("limit", "value"), [("MOST_FILES", 3), ("MOST_BYTES", 100)])
def test_too_much_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    path = write(tmp_path, FILES)
    monkeypatch.setattr(program_copy, limit, value)
    with pytest.raises(
        ProgramError, match=rf"{tmp_path}: .*packages, or move the program to a folder of its"
    ):
        gather(path)


GOOD = {
    "ours.py": "import ours_a\nfrom ours_space import part\nSOURCE = 'copy'\n"
    + BODY
    + "\n\ndef fail():\n    raise ValueError(ours_a.late())  # the copy's line\n",
    "ours_a.py": FILES["ours_a.py"],
    "ours_b.py": FILES["ours_b.py"],
    "ours_c.py": FILES["ours_c.py"],
    "ours_space/part.py": "PART = 'copy'\n",
    "data.txt": "a word",
}
SPOILT = {name: "SOURCE = PART = 'file'\nraise SystemExit\n" for name in GOOD if name.endswith(".py")}


def leave(folder: Path) -> None:
    pass


def spoil(folder: Path) -> None:
    write(folder, SPOILT)
    for name in SPOILT:
        py_compile.compile(str(folder / name))


def delete(folder: Path) -> None:
    for name in SPOILT:
        (folder / name).unlink()
    (folder / "ours_space").rmdir()


@pytest.mark.parametrize("disturb", [leave, spoil, delete])
def test_the_copy_is_loaded_whatever_lies_there(tmp_path: Path, disturb: Callable[[Path], None]) -> None:
    path = write(tmp_path, GOOD)
    copy = gather(path)
    disturb(tmp_path)
    module = loaded(path, copy)
    assert (module.SOURCE, module.part.PART) == ("copy", "copy")
    assert module.__file__ == path and module.ours_a.__file__ == str(tmp_path / "ours_a.py")
    assert module.ours_a.late() == "a word", "data beside the program is found by __file__"


def test_data_of_a_package_beside_it_are_found(tmp_path: Path) -> None:
    program = "import ours_data\n" + BODY
    package = """
import importlib.resources, pkgutil
ONE = importlib.resources.files(__name__).joinpath("words.txt").read_text()
OTHER = pkgutil.get_data(__name__, "words.txt").decode()
"""
    path = write(tmp_path, {"ours.py": program, "ours_data/__init__.py": package, "ours_data/words.txt": "w"})
    module = loaded(path, gather(path)).ours_data
    assert (module.ONE, module.OTHER) == ("w", "w")


def test_locks_of_editors_are_no_modules(tmp_path: Path) -> None:
    path = write(tmp_path, {"ours.py": "import ours_pack\n" + BODY, "ours_pack/__init__.py": ""})
    (tmp_path / "ours_pack" / ".#x.py").symlink_to("somebody@somewhere")
    assert gather(path).files.keys() == {"ours.py", "ours_pack/__init__.py"}


def test_tracebacks_show_the_copys_lines(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    copy = gather(path)
    spoil(tmp_path)
    module = loaded(path, copy)
    linecache.checkcache()
    with pytest.raises(ValueError, match="a word") as raised:
        module.fail()
    assert "# the copy's line" in "".join(traceback.format_exception(raised.value))


def test_a_module_that_raises_is_told_by_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, {"ours.py": "import ours_a\n" + BODY, "ours_a.py": "1 / 0\n"})
    with pytest.raises(ProgramError, match=r"ours.py: cannot be imported: ZeroDivisionError.*line 1"):
        load(path, gather(path))


def test_what_is_not_beside_it_is_found_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a package elsewhere, a module with the name of one of ours; and a folder with a package's name."""
    library = tmp_path / "library"
    write(
        library, {"ours_lib/__init__.py": "from . import ours_a", "ours_lib/ours_a.py": "WHERE = 'library'"}
    )
    write(library, {"ours_space/__init__.py": "WHERE = 'library'"})
    monkeypatch.syspath_prepend(str(library))
    monkeypatch.setattr(sys, "path", [*sys.path[1:], str(library)])
    files = {"ours.py": "import ours_a, ours_lib, ours_space\n" + BODY, "ours_a.py": "WHERE = 'beside'"}
    path = write(tmp_path / "mine", {**files, "ours_space/data.txt": ""})
    module = loaded(path, gather(path))
    assert module.ours_a.WHERE == "beside"
    assert module.ours_lib.ours_a.WHERE == module.ours_space.WHERE == "library"


def test_what_a_nursery_imports_follows_from_the_copy(tmp_path: Path) -> None:
    path = write(tmp_path, FILES)
    copy = gather(path)
    for file in sorted(tmp_path.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    tmp_path.rmdir()
    assert foreign_imports(path, copy) == ["json"]


def test_what_modules_beside_the_program_import_is_imported_before_it_too(tmp_path: Path) -> None:
    files = {
        "main.py": "import pack.nets\nfrom flat import forward\nimport zlib\n" + BODY,
        "flat.py": "import csv, main\nimport pack\ndef forward(x, params):\n    import wave\n",
        "pack/__init__.py": "from . import broken\nfrom .. import nothing\n",
        "pack/broken.py": "this is no Python\n",
        "pack/nets.py": "import csv\nfrom .deep import er\nfrom json import decoder\n",
        "pack/deep/__init__.py": "",
        "pack/deep/er.py": "from ..idle import WORD\nimport bz2\n",
        "pack/idle.py": "import lzma\nfrom pack import nets\n",
        "pack/unused.py": "import tarfile\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    path = str(tmp_path / "main.py")
    assert foreign_imports(path, gather(path)) == ["csv", "lzma", "bz2", "json", "zlib"]
    assert foreign_imports(path) == ["zlib"]
    assert foreign_names(path, gather(path)) == ["csv", "lzma", "bz2", "json", "json.decoder", "zlib"]


# --- in the run's folder ---------------------------------------------------------------------------


def kept(tmp_path: Path) -> tuple[RunDir, Copy, Path]:
    run, copy = RunDir(tmp_path / "run"), gather(write(tmp_path, GOOD))
    keep(run, copy)
    (path,) = (tmp_path / "run" / "program").iterdir()
    return run, copy, path


def test_it_is_kept_and_fetched(tmp_path: Path) -> None:
    run, copy, path = kept(tmp_path)
    assert fetch(run, copy.sha256) == copy
    assert path.name == f"{copy.sha256[:16]}.zip"
    before = path.stat()
    keep(run, copy)
    assert path.stat() == before


def test_it_is_refused_when_it_is_not_what_it_was(tmp_path: Path) -> None:
    run, copy, path = kept(tmp_path)
    other = Copy(copy.program, {**copy.files, "ours_a.py": b""})
    keep(run, other)
    run.program_copy(other.sha256[:16]).replace(path)
    with pytest.raises(ProgramError, match="has been changed: its hash is"):
        fetch(run, copy.sha256)
    path.write_bytes(b"PK" + bytes(100))
    with pytest.raises(ProgramError, match="is damaged"):
        fetch(run, copy.sha256)
    path.unlink()
    with pytest.raises(RunError, match="is gone.*--program FILE"):
        fetch(run, copy.sha256)


def test_when_it_is_taken(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    run = RunDir(tmp_path / "run")
    chosen, copy = take(Config(program=path, run_dir=str(run.path)))
    assert copy is not None and chosen.program_sha256 == copy.sha256
    keep(run, copy)
    run.create(chosen)
    write(tmp_path, SPOILT)
    assert take(chosen) == (chosen, None), "a run has one already"
    run.program_copy(copy.sha256[:16]).unlink()
    with pytest.raises(RunError, match="the run's copy of its program is gone"):
        take(chosen)
    write(tmp_path, GOOD)
    assert take(chosen) == (chosen, copy), "the file is what it was"
    write(tmp_path, SPOILT)
    with pytest.raises(ConfigError, match=f"program_sha256: {copy.sha256} is wanted, {path} has"):
        take(Config(program=path, program_sha256=copy.sha256))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("learning_rate = 1e-3", "learning_rate is a float; in a program learning_rate is a function"),
        (
            "encode = {'a': 1}",
            "encode is a dict; in a program encode is a function .* give yours another name",
        ),
        ("def learning_rate(epoch, step): return 0.1", r"it is called with .*learning_rate\(step, epoch\)"),
        ("import argparse; argparse.ArgumentParser().parse_args(['x'])", r"by ef.args\(.*by --set lr=0.01"),
        ("from .ours_a import f", "imported by its name alone: from helper import f"),
        ("from queue import ours", "queue.py beside the program has the name of .*: rename it"),
    ],
)
def test_what_beginners_do(tmp_path: Path, source: str, message: str) -> None:
    path = write(tmp_path, {"ours.py": f"{BODY}\n{source}\n", "queue.py": "ours = 1", "ours_a.py": "f = 1"})
    with pytest.raises(ProgramError, match=message):
        load(path)
