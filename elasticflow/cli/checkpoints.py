"""``elasticflow checkpoint list | show | verify | digest | copy`` and ``elasticflow export``."""

from __future__ import annotations

import argparse
from contextlib import suppress

import msgspec

from elasticflow import checkpoint
from elasticflow.checkpoint import Manifest
from elasticflow.checkpoint.failures import noting
from elasticflow.cli.folders import find_run, trust_or_check
from elasticflow.data import pins
from elasticflow.errors import CheckpointError, RunError
from elasticflow.process.texts import as_json
from elasticflow.program.copy import fetch, keep
from elasticflow.run.folder import RunDir, remove_tree
from elasticflow.step.layout import PASSING, Rule
from elasticflow.storage import Storage, storage_of
from elasticflow.storage.urls import is_hdfs, is_url
from elasticflow.training.standing import evaluations


def _storage(folder: str, trust: bool) -> Storage:
    """Where the checkpoints of a run are, by its folder, or themselves, by their URL.

    Raises CheckpointError if there is nothing of the kind, RunError.
    """
    if is_url(folder) and not is_hdfs(folder):
        return storage_of(folder)
    if is_url(folder):  # a run's own folder, or one of checkpoints alone
        run = RunDir(folder)
        trust_or_check(run, trust)
    else:
        run = find_run(folder, trust)
    if not run.path.is_dir():
        raise CheckpointError(f"{folder}: is not a folder. Name a run's folder, such as runs/digits-1.")
    return RunDir(run.path.parent).checkpoints() if run.path.name == "checkpoints" else run.checkpoints()


def _manifest(storage: Storage, folder: str, step: int | None) -> Manifest:
    """The manifest of a step, or the newest one."""
    steps = checkpoint.commits(storage)
    if not steps:
        raise CheckpointError(f"{folder}: holds no committed checkpoint.")
    if step is not None and step not in steps:
        raise CheckpointError(
            f"{folder}: holds no checkpoint of step {step}; there are {', '.join(map(str, steps))}."
        )
    return checkpoint.load_manifest(storage, steps[-1] if step is None else step)


def look(arguments: argparse.Namespace) -> int:
    """Looks at checkpoints in the way that was asked for."""
    actions = {"list": list_, "show": show, "verify": verify, "digest": digest, "copy": copy}
    return actions[arguments.action](arguments)


def list_(arguments: argparse.Namespace) -> int:
    """Prints one line a checkpoint, the newest last. Raises CheckpointError, at the end, for damaged ones."""
    storage = _storage(arguments.dir, arguments.trust)
    there, problems = _all_listed(storage)
    if arguments.json:
        print(msgspec.json.format(as_json(there)).decode())
    for each in there if not arguments.json else ():
        files = f"{each.files} file" + "s" * (each.files > 1)
        mark = "  best" if each.best else ""
        print(f"step {each.step}  epoch {each.epoch}  {files}  {each.bytes:,} bytes  {each.folder}{mark}")
    if problems:
        raise CheckpointError(f"{arguments.dir}: not listed, as damaged: {'; '.join(problems)}.")
    return 0


def _all_listed(storage: Storage) -> tuple[list[ListedCheckpoint], list[str]]:
    """Those that are there, and what is damaged: nothing that a run which goes on has removed meanwhile."""
    best = _best_step(storage)
    while True:
        there: list[ListedCheckpoint] = []
        problems: list[str] = []
        for step in (steps := checkpoint.commits(storage)):
            found: list[str] = []
            with noting(found):
                there.append(_listed(checkpoint.load_manifest(storage, step), best))
            if found and step in checkpoint.commits(storage):
                problems += found
        if there or problems or not steps:
            return there, problems


class ListedCheckpoint(msgspec.Struct):
    """A line of ``checkpoint list``."""

    step: int
    epoch: int
    files: int
    bytes: int
    folder: str
    best: bool


def _listed(manifest: Manifest, best: int | None) -> ListedCheckpoint:
    return ListedCheckpoint(
        step=manifest.step,
        epoch=manifest.epoch,
        files=len(manifest.files),
        bytes=sum(manifest.files.values()),
        folder=manifest.folder,
        best=manifest.step == best,
    )


def _best_step(storage: Storage) -> int | None:
    with suppress(CheckpointError):
        return checkpoint.load_best(storage).step
    return None


def show(arguments: argparse.Namespace) -> int:
    """Prints what one checkpoint holds."""
    storage = _storage(arguments.dir, arguments.trust)
    manifest = checkpoint.of_one(
        storage, lambda: _manifest(storage, arguments.dir, arguments.step), lambda found: found
    )
    if arguments.json:  # but for the lengthy account of which bytes lie where
        told = msgspec.structs.asdict(manifest)
        del told["parts"]
        print(msgspec.json.format(as_json(told)).decode())
        return 0
    print(f"{manifest.program}, step {manifest.step}, epoch {manifest.epoch}")
    for use in manifest.programs:
        print(f"program from step {use.from_step} on: {use.name}, {use.sha256}")
    for name, values in (("optimizer", manifest.optimizer), ("work", manifest.work)):
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in values.items()))
    print("fingerprint: " + ", ".join(f"{key} {value}" for key, value in manifest.fingerprint.items()))
    if standing := manifest.standing:
        for kind, watch, tally in standing.told():
            value = "none" if tally.best is None else f"{tally.best:.6g} at step {tally.step}"
            print(f"{kind}: {watch.mode} {watch.metric}, {value}, {evaluations(tally.waited)} since")
        if standing.lr is not None:
            print(f"learning rate: {standing.lr * standing.factor * standing.scale:g}")
        elif (times := standing.scale * standing.factor) != 1.0:
            print(f"learning rate: times {times:g}")
        if standing.rules.consults:
            said = standing.advised or standing.error or ("is to be asked" if standing.asks else "goes on")
            print(f"on_epoch(): {said}")
    if manifest.quarantined:
        print(f"quarantined rows: {', '.join(str(row) for row, _ in manifest.quarantined)}")
    tables = checkpoint.table_sizes(manifest)
    for entry in manifest.entries:
        if entry.rule is Rule.ROWS:
            size = tables[entry.name]
            count = f"{'' if size.is_exact else 'at most '}{size.most_rows:,} rows"
            print(
                f"  {entry.name}  table  {count} of {entry.shape[1]}  {entry.dtype}  {size.num_bytes:,} bytes"
            )
        elif entry.rule not in PASSING:
            kind = "parameter" if entry.rule is Rule.UPDATE else "buffer"
            print(f"  {entry.name}  {kind}  {list(entry.shape)}  {entry.dtype}  {entry.num_bytes:,} bytes")
    for each in manifest.frozen:
        print(f"  {each.name}  not trained  {list(each.shape)}  {each.dtype}")
    for part in manifest.parts:
        print(f"  {part.file}  {len(part.chunks)} chunks  {part.num_bytes:,} bytes")
    for file in checkpoint.chain_of(manifest, range(len(manifest.layout().chunks))):
        kind = "whole" if file.whole else "delta"
        print(f"  {file.path}  {kind}  {len(file.chunks)} buckets  {file.num_bytes:,} bytes")
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Reads every byte, and names what is damaged."""
    storage = _storage(arguments.dir, arguments.trust)
    if arguments.step is not None:
        problems = {arguments.step: checkpoint.verify(storage, arguments.step)}
    else:
        problems = _all_verified(storage)
    if not problems:
        raise CheckpointError(f"{arguments.dir}: holds no committed checkpoint.")
    if arguments.json:
        told = [{"step": step, "problems": found} for step, found in problems.items()]
        print(msgspec.json.format(as_json(told)).decode())
    else:
        for step, found in problems.items():
            print(f"step {step}: " + ("; ".join(found) if found else "whole"))
    damaged = [step for step, found in problems.items() if found]
    if damaged:
        raise CheckpointError(f"{arguments.dir}: damaged: step {', '.join(map(str, damaged))}.")
    return 0


def _all_verified(storage: Storage) -> dict[int, list[str]]:
    """Of each step what is damaged; of none that a run which goes on has removed meanwhile."""
    while True:
        steps, problems = checkpoint.commits(storage), {}
        for step in steps:
            found = checkpoint.verify(storage, step)
            if not found or step in checkpoint.commits(storage):
                problems[step] = found
        if problems or not steps:
            return problems


def digest(arguments: argparse.Namespace) -> int:
    """Prints one SHA-256 over all parameters, buffers and slots."""
    storage = _storage(arguments.dir, arguments.trust)
    print(
        checkpoint.of_one(
            storage,
            lambda: _manifest(storage, arguments.dir, arguments.step),
            lambda manifest: checkpoint.digest(storage, manifest),
        )
    )
    return 0


def copy(arguments: argparse.Namespace) -> int:
    """Makes a run of its own, elsewhere, that goes on from a checkpoint."""
    before = find_run(arguments.dir, arguments.trust)
    source = before.checkpoints()
    step = checkpoint.of_one(
        source,
        lambda: _manifest(source, arguments.dir, arguments.step),
        lambda manifest: _copy(before, source, manifest, RunDir(arguments.to)),
    )
    print(f"step {step}: {RunDir(arguments.to).path}")
    return 0


def _copy(before: RunDir, source: Storage, manifest: Manifest, run: RunDir) -> int:
    """The step. Leaves nothing if it fails."""
    settings = before.config()
    try:
        if run.path.exists():
            if run.settings.exists() and not checkpoint.commits(run.checkpoints()):
                raise RunError(
                    f"{run.path}: is there already, and holds a run without a checkpoint, such as a copy "
                    "that was killed leaves. Remove it if it is one, or name a folder, or a URL, that is not."
                )
            raise RunError(f"{run.path}: is there already; name a folder, or a URL, that is not.")
        run.path.mkdir(parents=True)  # fails if somebody else has just made it
        try:
            if settings.program_sha256:
                keep(run, fetch(before, settings.program_sha256))
            run.create(msgspec.structs.replace(settings, run_dir=str(run.path), checkpoint_place=""))
            pins.copy(before.storage(), run.storage())
            checkpoint.copy(source, manifest, run.checkpoints())
            if problems := checkpoint.verify(run.checkpoints(), manifest.step):
                raise CheckpointError(f"{run.path}: what was copied is damaged: {'; '.join(problems)}.")
        except BaseException:
            run.forsake()
            remove_tree(run.path)
            raise
    except OSError as error:
        raise RunError(f"{run.path}: cannot be written: {error}.") from error
    return manifest.step


def export(arguments: argparse.Namespace) -> int:
    """Writes the model of a checkpoint into one file."""
    from elasticflow.cli.exporting import export_run

    storage = _storage(arguments.run, arguments.trust)
    run = find_run(arguments.run, arguments.trust)

    def choose() -> Manifest:
        if arguments.best:
            return checkpoint.load_best(storage)
        return _manifest(storage, arguments.run, arguments.step)

    checkpoint.of_one(
        storage, choose, lambda manifest: export_run(run, manifest, arguments.file, arguments.ema)
    )
    print(arguments.file)
    return 0
