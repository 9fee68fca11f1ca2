"""Runs that are named by the URL where their checkpoints lie: ``--run-dir s3://bucket/runs/night-1``.

Such a run has a folder here all the same, ``runs/night-1``, for its keys, logs and report. Where that is
gone, as with the disk of a machine that was taken away, the same command with ``--resume`` has the run go on
in a new one. The program and all settings are the command's: nothing that lies in a store is executed. On
YARN a URL of HDFS is the run's own folder.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable
from contextlib import suppress

import msgspec

from elasticflow.checkpoint import Manifest, commits, load_manifest
from elasticflow.checkpoint.place import PlaceOwner, normal, owner_of, take_over
from elasticflow.errors import (
    CheckpointError,
    ConfigError,
    ElsewhereError,
    NoRunError,
    RunError,
    UnknownError,
)
from elasticflow.program.copy import gather
from elasticflow.run import config
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir, publish
from elasticflow.run.work import check_same_work
from elasticflow.storage import Storage, storage_of
from elasticflow.storage.urls import is_hdfs, is_url, split


def placed(chosen: Config, runs: str | os.PathLike[str], *, several: bool = False) -> Config:
    """Settings of a run that is to begin: where ``run_dir`` is a URL, its checkpoints are to lie there, and
    its folder below ``runs``, called likewise.

    several: of several runs, whose folders lie in that one. Raises ConfigError.
    """
    if not is_url(chosen.run_dir):
        return chosen
    base, name = posixpath.split(normal(chosen.run_dir))
    if name in ("", ".") or not is_url(base) or split(chosen.run_dir)[2] == "/":
        raise ConfigError(
            f"run_dir: {chosen.run_dir}: name a folder in it, such as s3://bucket/runs/night-1."
        )
    if chosen.checkpoint_dir and normal(chosen.checkpoint_dir) != base:
        raise ConfigError(
            f"checkpoint_dir: {chosen.checkpoint_dir}: with run_dir {chosen.run_dir} checkpoints lie there; "
            "leave one of the two out."
        )
    place = normal(chosen.run_dir) if several else base
    return msgspec.structs.replace(chosen, run_dir=os.path.join(runs, name), checkpoint_dir=place)


def run_of(url: str) -> RunDir:
    """The run whose folder that is, or whose checkpoints lie there. Raises NoRunError, of which
    ElsewhereError if it is not here, ConfigError, UnknownError."""
    run, owner = _look_up(url)
    if run:
        return run
    if owner is None:
        raise NoRunError(f"{url}: there is no run, and no checkpoints of one.")
    raise ElsewhereError(
        f"{url}: holds the checkpoints of {owner}, and that folder is not here. Ask where it is; or, if it "
        f"is gone, have the run go on here: 'elasticflow train PROGRAM --resume --run-dir {url}', with the "
        "settings that it had."
    )


def resumed(
    url: str,
    begun: Callable[[], Config],
    runs: str | os.PathLike[str],
    anew: bool,
    only_look: bool,
    preflight: Callable[[Config], object] = lambda settings: None,
) -> RunDir:
    """The run that is to go on, by its URL. If its folder is not here, it gets one, and whoever had the
    checkpoints until now ends.

    begun: settings as if it began here; of a run that is here they may make no sense, as it has its own.
    anew: whether its program may be another one. only_look: nothing is to change. preflight: raises an error
    if it could not go on with such settings, before anybody loses anything.
    Raises ConfigError, RunError, CheckpointError, ProgramError; nothing has changed then.
    """
    run, owner = _look_up(url)
    if run:
        return run
    if owner is None:
        raise NoRunError(f"--resume: {url}: there is no run, and no checkpoints of one.")
    chosen = begun()
    if not chosen.program:
        raise ConfigError(
            f"--resume: {url}: holds the checkpoints of {owner}, and that folder is not here. To have the "
            "run go on here, name its program, and its settings, as when it began."
        )
    settings = _as_it_was(_place_of(url), placed(chosen, runs), anew)
    if only_look:
        raise ConfigError(f"--dry-run: {url}: {owner} is not here; to go on without it makes a folder.")
    preflight(settings)
    return _taken_over(url, settings)


def _place_of(url: str) -> str:
    """Where checkpoints of a run that is named so lie, as the run itself calls it. Raises ConfigError."""
    base, name = posixpath.split(normal(url))  # of s3://bucket/runs//night-1, too
    return f"{base}/{name}" if is_url(base) else normal(url)


def _look_up(url: str) -> tuple[RunDir | None, PlaceOwner | None]:
    """The run that a URL names, if it is here; and else whose checkpoints lie there. Raises ConfigError,
    RunError, of which UnknownError may pass."""
    of_yarn, place = RunDir(url) if is_hdfs(url) else None, _place_of(url)
    try:
        if of_yarn and of_yarn.settings.exists():
            return of_yarn, None
    except OSError:
        return of_yarn, None  # whoever reads it tells
    try:
        owner = owner_of(place)
    except OSError as error:
        kind = RunError if isinstance(error, PermissionError) else UnknownError
        raise kind(f"{url}: cannot be read: {error.strerror or error}.") from error
    if owner is None:
        return of_yarn, None
    return _here(owner, place), owner


def _here(owner: PlaceOwner, place: str) -> RunDir | None:
    """The run in the owner's folder, if that is here, and is the one whose checkpoints lie at the place."""
    try:
        run = RunDir(owner.run)
        if not run.settings.exists() or run.claim_id() != owner.id:
            return None
        # The id tells, whatever the place is called: hdfs:///x is hdfs://nn:8020/x. Older claims have none.
        return run if owner.id or run.checkpoint_place == place else None
    except ConfigError:
        return None  # in a store where no run can be: the file is damaged
    except OSError as error:
        if is_url(owner.run):
            raise UnknownError(f"{owner.run}: cannot be read: {error.strerror or error}.") from error
        return None  # below a folder that is closed to us, as where somebody else's home is called so here


def _as_it_was(place: str, chosen: Config, anew: bool) -> Config:
    """The settings, with as many slices as the run's first worker has chosen where they leave that open.

    Raises an error if the run whose checkpoints these are cannot go on so.
    """
    storage = storage_of(place)
    if not (steps := commits(storage)):
        return chosen
    manifest = _newest(storage, steps)
    slices = manifest.work.get("slices")
    if chosen.free_slices and slices != chosen.num_slices:
        chosen = config.make(None, {"slices": slices}, msgspec.to_builtins(chosen))
    check_same_work(manifest, chosen)
    before = manifest.programs[-1].sha256 if manifest.programs else ""
    if before and not anew and (now := gather(chosen.program).sha256) != before:
        raise ConfigError(
            f"{chosen.program}: is not the program of the checkpoint at step {manifest.step} (its hash is "
            f"{now[:16]}, that one's {before[:16]}), and the run's copy is not here. Name the file as it "
            f"was; or have it go on with this one by --program {chosen.program}, which is recorded."
        )
    return chosen


def _newest(storage: Storage, steps: list[int]) -> Manifest:
    """Of these steps, that can be read: a run goes on from the one before a damaged one."""
    *before, last = steps
    try:
        return load_manifest(storage, last)
    except CheckpointError:
        if not before:
            raise
        return _newest(storage, before)


def _taken_over(url: str, chosen: Config) -> RunDir:
    """A new folder for the run, as if its own had been moved there."""
    run, made = RunDir(chosen.run_dir), not os.path.exists(chosen.run_dir)
    _check_empty(run, url)
    lock = run.hold()  # whoever does the same here just now ends, and removes nothing
    try:
        _check_empty(run, url)
        try:
            publish(run.claim, {})  # where nothing can be written nobody is to lose anything
            publish(run.claim, take_over(_place_of(url), str(run.folder)))
            run.write_settings(msgspec.structs.replace(chosen, checkpoint_place=_place_of(url)))
        except BaseException as error:
            _undo(run, made)
            if isinstance(error, OSError):
                raise RunError(f"{run.folder}: cannot be written: {error.strerror}.") from error
            raise
    finally:
        os.close(lock)
    return run


def _check_empty(run: RunDir, url: str) -> None:
    """Raises RunError if there is anything in that folder but what a kill while it was made has left, or it
    cannot be read."""
    ours = (run.lock, run.claim)  # the settings come last
    try:
        if run.folder.exists() and any(path not in ours for path in run.folder.iterdir()):
            raise RunError(
                f"{run.folder}: is not empty, and is to be the folder of the run whose checkpoints lie at "
                f"{url}; move it away, or go on in another directory."
            )
    except OSError as error:
        raise RunError(f"{run.folder}: cannot be used: {error.strerror}.") from error


def _undo(run: RunDir, made: bool) -> None:
    """Leaves nothing in the folder, which was empty. made: it was not there either."""
    with suppress(OSError):
        for path in (run.claim, run.settings, run.lock):
            path.unlink(missing_ok=True)
        if made:
            run.folder.rmdir()
