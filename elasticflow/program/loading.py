"""The user's program: loading it, and binding the columns of its data to its functions."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from itertools import dropwhile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from elasticflow.adapters.scripts import PlainScript, check_one_call, plain_script
from elasticflow.errors import DataError, ElasticFlowError, ProgramError
from elasticflow.training.standing import Watch, WatchRules, keep_best

if TYPE_CHECKING:
    from elasticflow.program.copy import Copy

REQUIRED = ("model", "forward")
OPTIONAL = ("data", "metrics", "learning_rate", "predict", "encode", "trainable", "on_epoch", "loop")
"""The last one can stand for ``forward``."""
NOT_WITH_LOOP = {
    "encode": "a loop goes through a step's records as often as it likes",
    "trainable": "a loop decides itself what it pushes",
}
"""Functions for which there is no use beside ``loop``, and why."""
RULES = {"early_stopping": "stopping", "keep_best": "best"}
"""What a program may say of its evaluations, by the name of the rule that it is."""


@dataclass(frozen=True)
class Program:
    """The functions that a program defines; the optional ones are None where it has none.

    whole: where ``forward`` was made to take the columns of ``encode``, what it was before. loop: of the
    program's own, see ``elasticflow.frameworks.session``; ``forward``, if it has none, then only raises.
    """

    path: str
    model: Callable[[], dict[str, Any]]
    forward: Callable[..., Any]
    data: Callable[[], Any] | None
    metrics: Callable[..., Any] | None
    learning_rate: Callable[..., float] | None
    predict: Callable[..., Any] | None = None
    rules: WatchRules = WatchRules()
    encode: Callable[..., Any] | None = None
    whole: Callable[..., Any] | None = None
    trainable: Callable[[int], object] | None = None
    on_epoch: Callable[[Any], object] | None = None
    loop: Callable[[Any], object] | None = None
    has_forward: bool = True

    @property
    def reads(self) -> str:
        """The name of the function that takes the columns of the data."""
        return "forward" if self.encode is None else "encode"


def parse(path: str) -> ast.Module:
    """The program's syntax tree. Raises ProgramError if there is no such file, or it is not Python."""
    file = Path(path)
    if not file.is_file():
        found = "is a folder" if file.is_dir() else "does not exist"
        raise ProgramError(f"{path}: {found}. Name a Python file that defines model() and forward().")
    try:
        source = file.read_bytes()
    except OSError as error:
        raise ProgramError(f"{path}: cannot be read: {error.strerror}.") from error
    return parse_source(source, path)


def parse_source(source: bytes, path: str) -> ast.Module:
    """The syntax tree of what is, or was, in this file. Raises ProgramError if it is not Python."""
    try:
        return ast.parse(source, filename=path)
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise ProgramError(f"{path}, line {error.lineno}: {error.msg}: {line}") from error
    except ValueError as error:
        raise ProgramError(f"{path}: is not Python source: {error}") from error


def imports(path: str, copy: Copy | None = None) -> list[str]:
    """Names of the modules that the program imports when it is loaded, in order. copy: the run's, if any."""
    return [base for base, _ in _imported(_tree(path, copy))]


def _imported(tree: ast.Module, package: Sequence[str] = ()) -> Iterator[tuple[str, list[str]]]:
    """What is imported when this is loaded: a module, and what of it, which may be modules too.

    package: the one that it is in; relative imports are left out where it is in none.
    """
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and 0 <= node.level <= len(package):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base, [alias.name for alias in node.names]


def _tree(path: str, copy: Copy | None) -> ast.Module:
    return parse_source(copy.files[copy.program], path) if copy else parse(path)


def foreign_imports(path: str, copy: Copy | None = None) -> list[str]:
    """Modules that do not lie beside the program, which it imports when it is loaded, in order.

    copy: the run's; what the modules in it import that the program imports is named, too. Of those beside the
    program another folder may have namesakes.
    """
    return list(dict.fromkeys(base for base, _ in _foreign(path, copy)))


def foreign_names(path: str, copy: Copy | None = None) -> list[str]:
    """Those, and what is imported of each, behind its name and a point: it may be a module, made then."""
    found: dict[str, None] = {}
    for base, names in _foreign(path, copy):
        found |= dict.fromkeys([base, *(f"{base}.{name}" for name in names if name != "*")])
    return list(found)


def import_all(names: Iterable[str]) -> None:
    """Modules, and what they have, as by ``from module import name``: some make it only then.

    What cannot be imported is left for those who need it to complain of.
    """
    for name in names:
        base, _, last = name.rpartition(".")
        with suppress(Exception, SystemExit):
            if not hasattr(sys.modules.get(base), last):
                importlib.import_module(name)


def _foreign(path: str, copy: Copy | None) -> Iterator[tuple[str, list[str]]]:
    files = copy.files if copy else {}
    beside = copy.modules if copy else set()
    with suppress(OSError):  # where there is a copy, the folder may be gone
        beside |= {file.stem for file in Path(path).parent.iterdir()}
    seen: set[str] = set()

    def follow(tree: ast.Module, package: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        for base, names in _imported(tree, package):
            if base.partition(".")[0] not in beside:
                yield base, names
                continue
            for wanted in (base, *(f"{base}.{name}" for name in names)):
                parts = wanted.split(".")
                for depth in range(1, len(parts) + 1):
                    place = "/".join(parts[:depth])
                    yield from enter(f"{place}/__init__.py", parts[:depth])
                    yield from enter(f"{place}.py", parts[: depth - 1])

    def enter(file: str, package: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        if file in files and file not in seen:
            seen.add(file)
            with suppress(ProgramError):  # whoever imports it is told
                yield from follow(parse_source(files[file], file), package)

    yield from follow(_tree(path, copy), ())


def load(path: str, copy: Copy | None = None) -> Program:
    """Runs the program and finds its functions. Raises ProgramError, with the user's traceback.

    copy: the run's, which gives the source of the file and of the modules beside it, whatever is there now.
    """
    script = plain_script(_tree(path, copy))
    module: Any = _execute(path, copy, script)
    defined = {name: getattr(module, name, None) for name in (*REQUIRED, *OPTIONAL)}
    has_forward = defined["forward"] is not None
    if defined["loop"] is not None:
        _check_loop(path, defined)
        defined["forward"] = defined["forward"] or _no_forward
    for name in REQUIRED:
        if not callable(defined[name]):
            found = [n for n, v in vars(module).items() if inspect.isfunction(v) and not n.startswith("_")]
            raise ProgramError(
                f"{path}: defines no {name}(). A program defines {'() and '.join(REQUIRED)}() or loop(), "
                f"and may define {'(), '.join(OPTIONAL[:-1])}(); found: {', '.join(sorted(found)) or 'none'}."
            )
    _check_callable(path, defined)
    functions: dict[str, Any] = defined
    return Program(path=path, **functions, rules=_rules(path, module, copy), has_forward=has_forward)


def _check_loop(path: str, defined: dict[str, Any]) -> None:
    """Raises ProgramError if it is none, or is beside what has no use then."""
    if not callable(defined["loop"]):
        raise ProgramError(
            f"{path}: loop is a {type(defined['loop']).__name__}; it must be a function of session."
        )
    for name, why in NOT_WITH_LOOP.items():
        if defined[name] is not None:
            raise ProgramError(f"{path}: defines loop() and {name}(): {why}. Leave out one of them.")


def _check_callable(path: str, defined: Mapping[str, object]) -> None:
    """Raises ProgramError if what is to be a function is none, or takes epoch and step in another order."""
    for name in OPTIONAL:
        if defined[name] is not None and not callable(defined[name]):
            raise ProgramError(
                f"{path}: {name} is a {type(defined[name]).__name__}; in a program {name} is a function that "
                "ElasticFlow calls. Make it one, or give yours another name."
            )
    rate: Any = defined["learning_rate"]
    if (
        inspect.isfunction(rate)
        and next(iter(inspect.signature(rate, follow_wrapped=False).parameters), "") == "epoch"
    ):
        raise ProgramError(
            f"{path}: learning_rate() has epoch as its first argument; it is called with the step, and then "
            "the epoch: learning_rate(step, epoch)."
        )


def _no_forward(*, params: Any, **columns: Any) -> Any:
    """Stands for the ``forward`` that a program with a loop of its own need not have."""
    raise ProgramError("defines loop(), and no forward(), which evaluations need.")


def _rules(path: str, module: object, copy: Copy | None) -> WatchRules:
    """What evaluations decide. Who may stop early keeps the best checkpoint. Raises ProgramError."""
    found = {rule: getattr(module, name, None) for name, rule in RULES.items()}
    for name, rule in RULES.items():
        if not (found[rule] is None or isinstance(found[rule], Watch)):
            raise ProgramError(
                f"{path}: {name} is a {type(found[rule]).__name__}; it must be what ef.{name}(...) returns."
            )
    stopping, best = found["stopping"], found["best"]
    if stopping and not best:
        best = keep_best(stopping.metric, stopping.mode)
    plateau = getattr(getattr(module, "learning_rate", None), "plateau", None)
    on_epoch = getattr(module, "on_epoch", None)
    if on_epoch is not None and not callable(on_epoch):
        raise ProgramError(f"{path}: on_epoch is a {type(on_epoch).__name__}; it must be a function of info.")
    consults = (copy.sha256 if copy else path) if on_epoch else ""
    return WatchRules(stopping=stopping, best=best, plateau=plateau, consults=consults)


def import_library(path: str, copy: Copy | None = None) -> None:
    """What a plain script trains with is imported before anything is seeded. Raises ProgramError."""
    script = plain_script(_tree(path, copy))
    try:
        for module in (script.library.framework, script.module) if script else ():
            importlib.import_module(module)
    except Exception as error:
        raise ProgramError(f"{path}: cannot be imported: {describe(error, path)}") from error


def _execute(path: str, copy: Copy | None, script: PlainScript | None) -> object:
    """What has the program's functions: its module, or what a plain script's call comes to."""
    if script:
        check_one_call(path, script)
    file = Path(path).resolve()
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    name = file.stem if file.stem.isidentifier() and file.stem not in sys.modules else "_elasticflow_program"
    if copy:
        from elasticflow.program import modules as copied_modules

        copied_modules.install(file.parent, copy)
        spec: ModuleSpec | None = copied_modules.spec_of(name, file, copy.files[copy.program])
    else:
        spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ProgramError(f"{path}: is not a Python file; its name must end with .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        if script:
            return _captured(path, script, module, spec.loader)
        spec.loader.exec_module(module)
    except ElasticFlowError:
        raise
    except (Exception, SystemExit) as error:
        raise ProgramError(
            f"{path}: cannot be imported: {describe(error, path)}{_of_import(error, file.parent)}"
        ) from error
    return module


def _of_import(error: BaseException, folder: Path) -> str:
    """What is behind an error that people meet while a program is imported, and what to do; "" if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SystemExit) and any(Path(each.filename).name == "argparse.py" for each in frames):
        return (
            ". The command line is ElasticFlow's: ask for arguments by ef.args(lr=0.1, width=32), and give "
            "them by --set lr=0.01"
        )
    if isinstance(error, ImportError) and "relative import" in str(error):
        return ". What lies beside the program is imported by its name alone: from helper import f"
    name = getattr(error, "name", None) if isinstance(error, ImportError) else None
    beside = folder / f"{name}.py"
    if name and beside.is_file() and getattr(sys.modules.get(name), "__file__", None) != str(beside):
        return (
            f". {beside.name} beside the program has the name of a module that is loaded already: rename it"
        )
    return ""


def _captured(path: str, script: PlainScript, module: ModuleType, loader: Any) -> object:
    """Runs a plain script up to its call."""
    from elasticflow.adapters.capture import run_to_call

    with naming(path):
        return SimpleNamespace(**run_to_call(path, script, module, loader.get_code(module.__name__)))


def describe(error: BaseException, path: str) -> str:
    """One line: the error, and the line of the user's file it came from, if it did."""
    return f"{type(error).__name__}: {words_of(error)}{_line_of(error, path)}"


def words_of(error: BaseException) -> str:
    """Its text, which an error of a user's own class need not have."""
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001  (whatever __str__ raises)
        return f"(its __str__ raises {type(failed).__name__})"


def _line_of(error: BaseException, path: str) -> str:
    frames = _users_frames(error, path)
    lines = [frame for frame in frames if _is_same(frame.filename, path)]
    return f" ({Path(path).name}, line {lines[-1].lineno}: {lines[-1].line})" if lines else ""


def _is_same(filename: str, path: str) -> bool:
    return str(Path(filename).resolve()) == str(Path(path).resolve())


def _users_frames(error: BaseException, path: str) -> list[traceback.FrameSummary]:
    """The error's frames from the user's file on; none if it never was there."""
    frames = traceback.extract_tb(error.__traceback__)
    return list(dropwhile(lambda frame: not _is_same(frame.filename, path), frames))


def users_traceback(error: BaseException, path: str) -> str:
    """The error's traceback, as Python writes it, without our own frames above the user's."""
    frames = _users_frames(error, path)
    head = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    return "".join([*head, *traceback.format_exception_only(error)])


@contextmanager
def blaming(program: Program, name: str) -> Iterator[None]:
    """Turns what the program's function ``name`` raises into a ProgramError that says where.

    Errors of ElasticFlow keep their kind, and are told where they came from.
    """
    try:
        yield
    except ElasticFlowError as error:
        if program.path in str(error):
            raise
        where = program.path if str(error).startswith(f"{name}()") else f"{program.path}: {name}()"
        raise type(error)(f"{where}: {error}{_line_of(error, program.path)}") from error
    except Exception as error:
        raise ProgramError(f"{program.path}: {name}() raised {describe(error, program.path)}") from error


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Has a ProgramError say which program it is about."""
    try:
        yield
    except ProgramError as error:
        if path in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error


def arguments_of_predict(program: Program, there: Sequence[str], *, needed: bool = False) -> list[str]:
    """Those of ``predict`` that are arguments of ``forward``, which are ``there``; it may have no others.

    needed: none that has a default. Raises ProgramError.
    """
    assert program.predict is not None
    plain = [
        p
        for p in inspect.signature(program.predict).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "params"
    ]
    unknown = [p.name for p in plain if p.name not in there and p.default is p.empty]
    if unknown:
        raise ProgramError(
            f"{program.path}: predict() takes {unknown[0]}, which is no argument of forward(); there are "
            f"{', '.join(there)}."
        )
    return [p.name for p in plain if p.name in there and not (needed and p.default is not p.empty)]


def bind(
    program: Program, name: str, columns: Sequence[str], positional: bool, optional: Sequence[str] = ()
) -> dict[str, str]:
    """Which column goes to which argument of ``forward``, ``encode`` or ``metrics``: {argument: column}.

    By name; by position where the data came as a tuple. What ``Program.reads`` must take every column, but
    those that are optional, each function only arguments that are columns, or have a default, and ``params``.
    """
    parameters = inspect.signature(getattr(program, name)).parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if "params" not in {p.name for p in plain} and not takes_any:
        text = f"{program.path}: {name}() must take an argument named params."
        if name in OPTIONAL:
            text += f" If it is not meant for ElasticFlow, which calls {name}(), give it another name."
        raise ProgramError(text)
    if not program.has_forward and name == "forward":
        return {column: column for column in (*columns, *optional)}
    arguments = [p for p in plain if p.name != "params"]
    names = ", ".join(p.name for p in arguments) or "none"
    if positional:
        needed = [p for p in arguments if p.default is p.empty]
        if not len(needed) <= len(columns) <= len(arguments):
            raise DataError(
                f"{program.path}: data() has {len(columns)} columns in its tuple, but {name}() takes "
                f"{len(arguments)} besides params ({names})."
            )
        return {p.name: column for p, column in zip(arguments, columns, strict=False)}
    unknown = [column for column in columns if column not in {p.name for p in arguments}]
    columns = [*columns, *(each for each in optional if takes_any or each in {p.name for p in arguments})]
    missing = [p.name for p in arguments if p.name not in columns and p.default is p.empty]
    if missing:
        raise DataError(
            f"{program.path}: {name}() takes {', '.join(missing)}, but the data has no such column; "
            f"its columns are {', '.join(columns)}."
        )
    if unknown and name == program.reads and not takes_any:
        raise DataError(
            f"{program.path}: the data has a column {', '.join(map(repr, unknown))} that {name}() does not "
            f"know; its arguments are {names}, params. Rename or leave out the column, or add the argument."
        )
    return {c: c for c in columns if takes_any or c not in unknown}
