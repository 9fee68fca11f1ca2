"""What decides the model's bits, of all settings: a run cannot go on with others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from elasticflow.api import Optimizer
from elasticflow.checkpoint import Manifest
from elasticflow.checkpoint.names import VALUE
from elasticflow.errors import CheckpointError
from elasticflow.run.config import Config
from elasticflow.step.layout import Rule
from elasticflow.step.schedule import SLICING, Schedule
from elasticflow.storage.file_ids import FileId, alike, aside, lacking_alone, list_of, told_name
from elasticflow.wire.messages import Spec

LENGTH = "learning_rate_steps"
"""What a manifest calls the number of steps of a run, where the learning rate follows from it."""


def work_of(config: Config) -> dict[str, Any]:
    """The settings that decide the model's bits; of an asynchronous run, all but the order of updates."""
    stale = {"staleness": config.staleness, "staleness_rule": config.staleness_rule}
    return {
        "mode": config.mode,
        **(stale if config.asynchronous else {}),
        "seed": config.seed,
        "batch_size": config.batch_size,
        "slices": config.num_slices,
        "drop_last": config.drop_last,
        "evaluate_every": config.evaluate_every,
        "threads": config.threads,
        "compression": config.compression,
        "on_nan": config.on_nan,
        **({"args": config.args} if config.args else {}),
        **({"top_k": config.top_k} if config.compression == "top-k" else {}),
    }


def check_same_work(manifest: Manifest, config: Config) -> None:
    """Raises CheckpointError if a run with these settings cannot go on from this checkpoint."""
    for name, value in work_of(config).items():
        if name == "slices" and not manifest.step:
            continue  # nothing was computed: the first worker may still choose
        usual = {"mode": "sync", "compression": "none", "drop_last": False, "on_nan": "stop"}
        usual["evaluate_every"] = 0
        before = {**usual, **manifest.work}.get(name)
        if name == "args" and before != value:
            given = " ".join(f"--set {each}={said}" for each, said in (before or {}).items()) or "no --set"
            raise CheckpointError(
                f"the checkpoint at step {manifest.step} was made with other arguments of the program: the "
                f"model would be another. Resume with {given}, or begin a new run with --init-from and this "
                f"one's folder."
            )
        if before != value:
            option = f"{name}: {'true' if before else 'false'}" if isinstance(value, bool) else ""
            option = option or f"--{name.replace('_', '-')} {before}"
            raise CheckpointError(
                f"the checkpoint at step {manifest.step} was made with {name} {before}, now it is {value}: "
                f"the model would be another. Resume with {option}, or start anew in another --run-dir."
            )
    _check_same_slicing(manifest, config)


def settings_of(optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """As a manifest has them: those of the first, and of groups of parameters as a list of others."""
    first, *others = (optimizer.settings() for optimizer in optimizers)
    return {**first, **({"groups": others} if others else {})}


def check_same_optimizer(
    manifest: Manifest, optimizers: Sequence[Optimizer], slots: Sequence[Collection[str]]
) -> None:
    """Raises CheckpointError if the checkpoint's parameters were kept for another optimizer.

    slots: by optimizer, the arrays that it keeps of each parameter. Numbers, such as lr, may be others now.
    """
    layout = manifest.layout()
    all_kept: dict[int, set[str]] = {}
    for saved in manifest.parts:
        for number, arrays in saved.chunks.items():
            group = layout.groups[layout.chunks[number].group]
            if group.rule is Rule.UPDATE:
                all_kept.setdefault(group.part, set()).update(arrays.keys() - {VALUE})
    for number, kept in all_kept.items():
        _check_slots(manifest, number, optimizers[number], kept, slots[number])


def _check_slots(
    manifest: Manifest, number: int, optimizer: Optimizer, kept: set[str], slots: Collection[str]
) -> None:
    if kept != set(slots):
        before, now = dict(manifest.optimizer), optimizer.settings()
        groups = before.pop("groups", [])
        before = groups[number - 1] if number else before
        raise CheckpointError(
            f"the checkpoint at step {manifest.step} was made with {_called(before, now)}, and the program "
            f"has {_called(now, before)} now, which keeps {_listed(slots)} of each parameter, where there is "
            f"{_listed(kept)}. Put the optimizer back to go on, or begin a new run with "
            "these weights: --init-from and the folder of this one."
        )


def _called(settings: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Such as ``SGD(momentum=0.9)``: what another has otherwise."""
    differs = [name for name in settings if name != "optimizer" and settings[name] != other.get(name)]
    return f"{settings.get('optimizer', '')}({', '.join(f'{name}={settings[name]}' for name in differs)})"


def _listed(slots: Collection[str]) -> str:
    return ", ".join(sorted(slots)) or "nothing but its value"


def _check_same_slicing(manifest: Manifest, config: Config) -> None:
    """Of a run that was begun by an ElasticFlow that cut small batches into more slices."""
    if manifest.work.get("slicing", 1) == SLICING:
        return
    num_records = int(manifest.work.get("num_records", 0))
    schedule = Schedule(
        num_records=num_records,
        num_test=0,
        batch_size=config.step_records,
        num_slices=config.num_slices,
        epochs=1,
        asynchronous=config.asynchronous,
    )
    tail = num_records % config.step_records
    if tail and schedule.used_slices(tail) != config.num_slices:
        raise CheckpointError(
            f"the checkpoint at step {manifest.step} was made by an ElasticFlow that cut the last batch of "
            f"an epoch, here of {tail} records, into {config.num_slices} slices, where this one makes "
            f"{schedule.used_slices(tail)}: the model would be another. Go on with that ElasticFlow, or "
            "start anew in another --run-dir."
        )


def files_told(files: tuple[FileId, ...]) -> tuple[tuple[str, int, str], ...]:
    """What a manifest says of the files of records: what stays so if a file is only touched or moved."""
    return tuple((told_name(file), file.num_bytes, file.sample) for file in files)


def check_same_length(manifest: Manifest, spec: Spec, num_steps: int) -> None:
    """Raises CheckpointError if the learning rate follows from the number of steps, which is another now."""
    before = manifest.work.get(LENGTH)
    if spec.paced and before is not None and manifest.step and before != num_steps:
        raise CheckpointError(
            f"the checkpoint at step {manifest.step} is of a run of {before} steps, from which its "
            f"learning rate follows, now it would have {num_steps}: the model would be another. Resume with "
            "the same --epochs and --max-steps, or begin a new run with these weights: --init-from and the "
            "folder of this one."
        )


def check_same_files(manifest: Manifest, spec: Spec) -> None:
    """Raises CheckpointError if a file of records has others since; touched, moved or copied it may be."""
    if not manifest.sources:
        return
    both = {list_of(name) for name, _, _ in manifest.sources} & {file.of_list for file in spec.files} | {""}
    lacking = lacking_alone((name for name, _, _ in manifest.sources), map(told_name, spec.files))
    before = [each for each in manifest.sources if list_of(each[0]) in both and each[0] not in lacking]
    files = tuple(file for file in spec.files if file.of_list in both and told_name(file) not in lacking)
    now = files_told(files)
    for old, new, file in zip(before, now, files, strict=False):
        if old[:2] != new[:2] or not alike(old[2], new[2]):
            what = f"{file.name}, of {file.num_bytes:,} bytes, was {old[0]} of {old[1]:,} bytes"
            what += (", but others" if old[:2] == new[:2] else "") + aside(file)
            break
    else:
        if len(before) == len(now):
            return
        what = f"there are {len(now)} files, and were {len(before)}"
    raise CheckpointError(
        f"the data has changed since the checkpoint at step {manifest.step}: {what}. "
        "Give the same data, or begin a new run with these weights: --init-from and the folder of this one."
    )
