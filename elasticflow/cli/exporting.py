"""``elasticflow export``: a checkpoint's model in a file that other tools load."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from elasticflow import checkpoint
from elasticflow.checkpoint import Manifest
from elasticflow.errors import CheckpointError, ConfigError
from elasticflow.process.new_files import replacing, writing
from elasticflow.run.folder import RunDir
from elasticflow.run.settings import MemberSettings

if TYPE_CHECKING:
    from elasticflow.frameworks.exported import Exported

ARRAYS = (".npz", ".safetensors", ".h5")
"""Arrays by name: the program is not needed."""
BOTH = ("torch", "tensorflow")
PROGRAMS = {".pt2": BOTH[:1], ".onnx": BOTH, ".keras": BOTH[1:], ".savedmodel": BOTH[1:]}
"""What computes, with the frameworks whose programs it is for."""
ENDINGS = (*ARRAYS, ".pt", *PROGRAMS)


def export_run(run: RunDir, manifest: Manifest, file: str, averages: bool = False) -> None:
    """An existing file is replaced, at the end and whole. averages: see ``checkpoint.tensors``.

    Raises ConfigError for another ending, CheckpointError, ProgramError.
    """
    target = Path(file)
    if target.suffix in ARRAYS:
        return checkpoint.export(run.checkpoints(), manifest, file, averages)
    if target.suffix not in ENDINGS:
        raise ConfigError(f"cannot export to {file!r}: the ending must be one of {', '.join(ENDINGS)}.")
    if target.suffix == ".pt":
        return _replaced(target, lambda path: _write_state_dict(run, manifest, path, averages))
    exported = _exported(run, manifest, averages)
    if exported.framework not in PROGRAMS[target.suffix]:
        fitting = [end for end, frameworks in PROGRAMS.items() if exported.framework in frameworks]
        raise ConfigError(
            f"cannot export to {file!r}: the program is of {exported.framework}; use "
            f"{' or '.join(fitting)}, or {', '.join(ARRAYS)}."
        )
    _replaced(target, lambda path: exported.write(path, target.suffix))


def _replaced(target: Path, write: Callable[[Path], None]) -> None:
    try:
        with replacing(target) as path:
            write(path)
    except OSError as error:
        raise CheckpointError(f"{target}: cannot be written: {error.strerror or error}") from error


def _write_state_dict(run: RunDir, manifest: Manifest, path: Path, averages: bool) -> None:
    """By what ``model()`` calls them: of one module alone its state dict, of several a dict of those."""
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(f"{path.name}: needs PyTorch; export to .safetensors or .npz") from error
    found: dict[str, dict[str, torch.Tensor] | torch.Tensor] = {}
    tensors = {
        name: torch.from_numpy(np.array(array))
        for name, array in checkpoint.tensors(run.checkpoints(), manifest, averages=averages)
    }
    for name, tensor in tensors.items():
        key, _, rest = name.partition(".")
        if not rest:
            found[key] = tensor
        elif name not in manifest.passing:
            inner = found.setdefault(key, {})
            assert isinstance(inner, dict)
            inner[rest] = tensor
    for further, name in manifest.also:  # of layers that are tied
        key, _, rest = further.partition(".")
        module = found.get(key)  # None: all of it is in another
        if isinstance(module, dict) and rest and further not in manifest.passing:
            module[rest] = tensors[name]
    only = next(iter(found.values())) if len(found) == 1 else None
    with writing(path) as file:
        torch.save(only if isinstance(only, dict) else found, file)


def _exported(run: RunDir, manifest: Manifest, averages: bool) -> Exported:
    """The program, loaded here, with the weights of the checkpoint."""
    from elasticflow.frameworks.exported import Exported
    from elasticflow.worker.loaded import Loaded

    settings = MemberSettings.of(
        run.config(), name="export", role="worker", host="", master="", run_dir=str(run.path)
    )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    loaded = Loaded(msgspec.structs.replace(settings, device="cpu"))
    arrays = dict(checkpoint.tensors(run.checkpoints(), manifest, averages=averages))
    return Exported(loaded.program, loaded.replica, loaded.sample, loaded.sources.train, arrays)
