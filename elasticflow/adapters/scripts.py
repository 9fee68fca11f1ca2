"""Whether a program is a plain script of another library, and what its text says of the run.

Nothing is run or imported for that: settings are needed where the library may not be installed, such as on
the machine from which a run is submitted. Numbers are read where they are written as such, or are a name that
is assigned once in the file; others have to be given.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from elasticflow.errors import ProgramError

MODEL_WORDS = {
    "batch_size", "callbacks", "class_weight", "epochs", "initial_epoch", "sample_weight", "shuffle",
    "steps_per_epoch", "validation_data", "validation_split", "verbose", "x", "y",
}  # fmt: skip
"""By these a call of fit() is told from that of scikit-learn's scalers and the like."""
ELSEWHERE = 99
"""The place of an argument that is only given by name."""


class Library(NamedTuple):
    """modules: those by whose import a script is known, the first that is there being what is captured.

    framework: what they compute with. call: the name of its method that trains. maker: the class with that
    method; "": any of models.
    """

    name: str
    framework: str
    modules: tuple[str, ...]
    call: str
    maker: str = ""


KERAS = Library("keras", "tensorflow", ("keras", "tensorflow"), "fit")
LIGHTNING = Library("lightning", "torch", ("lightning", "pytorch_lightning"), "fit", "Trainer")
TRANSFORMERS = Library("transformers", "torch", ("transformers",), "train", "Trainer")
LIBRARIES = (LIGHTNING, TRANSFORMERS, KERAS)


class PlainScript(NamedTuple):
    """module: the library's, as the script imports it. calls: those that train."""

    library: Library
    module: str
    calls: tuple[ast.Call, ...]


def plain_script(tree: ast.Module) -> PlainScript | None:
    """What the script is of; None: it is a program, with a ``forward()`` or ``loop()``, or neither."""
    if {"forward", "loop", "*"} & set(_defined(tree.body)):
        return None
    imported = set(_imported(tree))
    for library in LIBRARIES:
        modules = [module for module in library.modules if module in imported]
        makes = not library.maker or any(name.endswith(library.maker) for name in _names(tree))
        calls = [call for call in _calls(tree) if _method(call) == library.call]
        if modules and makes and calls:
            telling = [call for call in calls if {word.arg for word in call.keywords} & MODEL_WORDS]
            return PlainScript(library, modules[0], tuple(telling if library is KERAS and telling else calls))
    return None


def script_settings(path: str, given: Collection[str]) -> dict[str, int]:
    """Settings that a plain script's text has; none of any other program.

    given: names of those that are set otherwise. Raises ProgramError if one is written in a way that its text
    does not tell, and is not given.
    """
    try:
        tree = ast.parse(Path(path).read_bytes(), filename=path)
    except (OSError, SyntaxError, ValueError):  # whoever loads it says what is wrong
        return {}
    script = plain_script(tree)
    if script is None:
        return {}
    found = {KERAS: _of_keras, LIGHTNING: _of_lightning, TRANSFORMERS: _of_transformers}[script.library]
    settings: dict[str, int] = {}
    for name, value in found(tree, script).items():
        if isinstance(value, int):
            settings[name] = value
        elif name not in given and value:
            raise ProgramError(f"{path}: {value}; name it by --{name.replace('_', '-')}.")
    return settings


def check_one_call(path: str, script: PlainScript) -> None:
    """Raises ProgramError for a script that trains more than once: the second call would never be reached."""
    if len(script.calls) > 1:
        lines = ", ".join(str(call.lineno) for call in script.calls)
        raise ProgramError(
            f"{path}: calls {script.library.call}() {len(script.calls)} times, in lines {lines}; a run "
            "trains by "
            "one such call. Make a script of each, the next one beginning with the weights of the one before "
            "by --init-from, or define model(), forward() and trainable(epoch)."
        )


def _of_keras(tree: ast.Module, script: PlainScript) -> dict[str, int | str]:
    (call, *_) = script.calls
    size = _argument(call, "batch_size", 2)
    batches = [size] if size else [each for each in _calls(tree) if _method(each) == "batch"]
    sizes = {_number(tree, _argument(each, "batch_size", 0) if isinstance(each, ast.Call) else each, 32)
             for each in batches}  # fmt: skip
    return {
        "epochs": _told(_number(tree, _argument(call, "epochs", 3), 1), call, "epochs of fit()"),
        "batch_size": _told(
            sizes.pop() if len(sizes) == 1 else None if sizes else 32, call, "batch_size of fit()"
        ),
    }


def _of_lightning(tree: ast.Module, script: PlainScript) -> dict[str, int | str]:
    (trainer,) = [call for call in _calls(tree) if _name(call).endswith("Trainer")][:1]
    loaders = [call for call in _calls(tree) if _name(call) == "DataLoader"]
    shuffled = [call for call in loaders if _argument(call, "shuffle", 2)] or loaders
    sizes = {_number(tree, _argument(call, "batch_size", 1), 1) for call in shuffled}
    epochs, steps = (_argument(trainer, name, ELSEWHERE) for name in ("max_epochs", "max_steps"))
    settings = {
        "batch_size": _told(sizes.pop() if len(sizes) == 1 else None, trainer, "batch_size of DataLoader()")
    }
    if steps and _number(tree, steps, None) != -1:
        settings |= _so_many(_told(_number(tree, steps, None), trainer, "max_steps of Trainer()"))
    if epochs or not steps:
        settings["epochs"] = _told(_number(tree, epochs, None), trainer, "max_epochs of Trainer()")
    return settings


def _of_transformers(tree: ast.Module, script: PlainScript) -> dict[str, int | str]:
    found = [call for call in _calls(tree) if _name(call).endswith("TrainingArguments")]
    if not found:
        return {"epochs": 3, "batch_size": 8}
    (call, *_) = found
    sizes, epochs, steps = (
        _argument(call, name, ELSEWHERE)
        for name in ("per_device_train_batch_size", "num_train_epochs", "max_steps")
    )
    settings = {
        "epochs": _told(_number(tree, epochs, 3), call, "num_train_epochs of TrainingArguments()"),
        "batch_size": _told(
            _number(tree, sizes, 8), call, "per_device_train_batch_size of TrainingArguments()"
        ),
    }
    if steps and _number(tree, steps, None) != -1:
        settings |= _so_many(_told(_number(tree, steps, None), call, "max_steps of TrainingArguments()"))
    return settings


def _so_many(steps: int | str) -> dict[str, int | str]:
    """However many epochs that takes: no more than there are steps."""
    return {"max_steps": steps, "epochs": steps} if isinstance(steps, int) else {"max_steps": steps}


def _told(number: int | None, call: ast.Call, what: str) -> int | str:
    """The number; or what is to be said of it, where it is no positive one."""
    if number is not None and number > 0:
        return number
    return f"line {call.lineno}: {what} is no number > 0 that its text tells"


def _number(tree: ast.Module, node: ast.expr | None, default: int | None) -> int | None:
    """What an expression is: a whole number, or a name that is such a one in all of the file."""
    if node is None:
        return default
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found = _number(tree, node.operand, None)
        return None if found is None else -found
    if isinstance(node, ast.Constant):
        if node.value is None:
            return default
        if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
            return None
        return int(node.value) if int(node.value) == node.value else None
    if isinstance(node, ast.Name):
        assigned = list(_assigned(tree, node.id))
        if len(assigned) == 1 and isinstance(assigned[0], ast.Constant):
            return _number(tree, assigned[0], None)
    return None


def _assigned(tree: ast.Module, name: str) -> Iterator[ast.expr | None]:
    """What a name is given, anywhere in the file; None: what its text does not tell."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            owner = next((each for each in ast.walk(tree) if node in _targets(each)), None)
            yield getattr(owner, "value", None)
        elif isinstance(node, ast.arg) and node.arg == name:
            yield None


def _targets(node: ast.AST) -> list[ast.expr]:
    return (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """Names that a module has, whatever way its conditions go."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield from (each.id for each in _targets(node) if isinstance(each, ast.Name))
        for name in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _defined(getattr(node, name, []))


def _imported(tree: ast.Module) -> Iterator[str]:
    """The packages that are imported anywhere in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _calls(tree: ast.Module) -> list[ast.Call]:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return sorted(found, key=lambda call: call.lineno)


def _names(tree: ast.Module) -> Iterator[str]:
    """All that it reads, without what they are of: classes too that a class of its own is made of."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield node.attr if isinstance(node, ast.Attribute) else node.id


def _name(call: ast.Call) -> str:
    """What is called, without what it is of."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """By name, or by position; or what may hold it: ``*args`` or ``**words``."""
    for word in call.keywords:
        if word.arg == name:
            return word.value
    for number, each in enumerate(call.args):
        if number == place or isinstance(each, ast.Starred) and number < place < ELSEWHERE:
            return each
    return next((word.value for word in call.keywords if word.arg is None), None)
