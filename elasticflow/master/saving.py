"""Checkpoints as the master has to do with them: gone on from, committed, and removed when they are old."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from elasticflow.checkpoint import (
    FORMAT,
    OF_FROZEN,
    Manifest,
    check_model,
    commit,
    commits,
    discard_unfinished,
    folder_of,
    is_committed,
    load_manifest,
    newest_intact,
    prune,
    verify,
)
from elasticflow.errors import CheckpointError, RunError
from elasticflow.master.actions import CommitAction
from elasticflow.master.deciding.facts import Facts, schedule_of
from elasticflow.master.fence import Fence
from elasticflow.master.warm import warm_start
from elasticflow.process.fingerprint import BY_PROGRAM
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.taken import Taken
from elasticflow.run.work import (
    LENGTH,
    check_same_files,
    check_same_length,
    check_same_optimizer,
    check_same_work,
    files_told,
    settings_of,
    work_of,
)
from elasticflow.step.layout import Layout
from elasticflow.step.schedule import SLICING
from elasticflow.storage import storage_of
from elasticflow.training.programs import ProgramUse
from elasticflow.wire.messages import Excluded, Spec
from elasticflow_ps.optimizers import kernel_for


class Saving:
    """A run's checkpoints. manifest: the one gone on from, None if there is none yet. damages: of newer ones.

    unread: the storage could not say which is the newest; None is not known to be true then.
    fence: looked at before each commit; None: nobody else can be this run's master.
    """

    def __init__(
        self, run: RunDir, config: Config, fence: Fence | None, *, resume: bool, adopts: bool
    ) -> None:
        self._run, self._config, self._fence = run, config, fence
        self._storage = storage_of(config.checkpoint_place or str(run.path))
        self._taken: Taken | None = None
        self.unread = False
        self.manifest, self.damages = self._restore(resume, adopts)

    @property
    def _init(self) -> dict[str, Any]:
        """Where its first values came from, which each of its manifests says."""
        return {k: v for k, v in self.manifest.work.items() if k == "init"} if self.manifest else {}

    @property
    def restored(self) -> tuple[int, int, tuple[Excluded, ...]] | None:
        """(training step, tick, quarantine) of the checkpoint that is gone on from."""
        if self.manifest is None:
            return None
        excluded = tuple(Excluded(row, tick) for row, tick in self.manifest.quarantined)
        return self.manifest.step, self.manifest.tick, excluded

    def _restore(self, resume: bool, adopts: bool) -> tuple[Manifest | None, list[str]]:
        """The newest whole checkpoint, None if there is none yet; and the damages of newer ones.

        One who adopts a run that goes on only needs to know the newest.
        """
        if adopts:
            with contextlib.suppress(CheckpointError):
                return self.newest(), []
            self.unread = True  # the journal's word must do until it has been
            return None, []
        if self._config.init_from and not commits(self._storage):
            discard_unfinished(self._storage)
            self._taken = warm_start(self._run, self._config)
        if not resume and not self._config.init_from:
            return None, []
        manifest, damages = newest_intact(self._storage)
        if damages and manifest is None:
            raise CheckpointError(
                f"{self._run.path}: none of its checkpoints is whole: {'; '.join(damages)}. "
                "Start anew in another --run-dir."
            )
        if manifest:
            check_same_work(manifest, self._config)
        return manifest, damages

    def newest(self) -> Manifest | None:
        """Of the newest checkpoint; None if there is none yet. Raises CheckpointError."""
        steps = commits(self._storage)
        return load_manifest(self._storage, steps[-1]) if steps else None

    def lines(self) -> Iterator[tuple[str, str]]:
        """(severity, text), for people, of what this run has taken of others' weights just now."""
        if self._taken:
            yield from self._taken.lines(self._config.init_from)

    def begin(self) -> None:
        """Removes what a run before this one has left unfinished."""
        discard_unfinished(self._storage)

    def tidy(self) -> None:
        """Removes what is left of checkpoints that failed, once nobody writes any more."""
        with contextlib.suppress(OSError, CheckpointError):
            discard_unfinished(self._storage)

    def programs(self) -> tuple[ProgramUse, ...]:
        """Those that this run went by so far, as of its newest checkpoint, and the present one."""
        before = self.manifest.programs if self.manifest else ()
        sha256 = self._config.program_sha256
        if before and before[-1].sha256 == sha256 or not sha256:
            return before
        step = self.manifest.step if self.manifest else 0
        return (*before, ProgramUse(step, os.path.basename(self._config.program), sha256))

    def made_with(self) -> dict[str, str]:
        """The fingerprint of those who made the checkpoint that is gone on from.

        What follows from the program is left out where it may rightly be something else now.
        """
        if self.manifest is None:
            return {}
        found = dict(self.manifest.fingerprint)
        if not self.manifest.step or self.programs() != self.manifest.programs:
            found = {name: text for name, text in found.items() if name not in BY_PROGRAM}
        return found

    def by_which_program(self) -> str:
        """For people, of a run that goes on."""
        before, name = self.manifest.programs if self.manifest else (), self._config.program
        if before and self.programs() != before:
            old, new = before[-1].sha256[:16], self._config.program_sha256[:16]
            return f", and from here on with another program, {name} ({new}, until now {old})"
        return f", with the run's copy of {name}" if before else ""

    def admit(self, spec: Spec, config: Config) -> list[str]:
        """What people are to be told, now that the program is known. config: as it is by now.

        Raises CheckpointError, RunError if it is not one that can go on from here.
        """
        assert self.manifest
        check_model(self.manifest, Layout(spec.entries), spec.tables, spec.frozen)
        _check_same_data(self.manifest, spec)
        check_same_files(self.manifest, spec)
        check_same_length(self.manifest, spec, schedule_of(config, spec).total_steps)
        slots = [kernel_for(optimizer).slots for optimizer in spec.optimizers]
        check_same_optimizer(self.manifest, spec.optimizers, slots)
        return self._remove_damaged(self.manifest)

    def _remove_damaged(self, manifest: Manifest) -> list[str]:
        """Makes room: the run will come to the steps of the damaged checkpoints again.

        Raises RunError if one of them is whole after all: the storage had failed to read it.
        """
        removed: list[str] = []
        for step in commits(self._storage):
            if step > manifest.step:
                if not verify(self._storage, step):
                    raise RunError(
                        f"the checkpoint of step {step} was damaged when this run began, and is whole now: "
                        "its storage is not to be relied on. Go on with --resume once it is."
                    )
                self._storage.remove(folder_of(step))
                removed.append(f"the damaged checkpoint of step {step} is removed")
        return removed

    def fix(self, config: Config) -> None:
        """Settings, before anybody is told of them: the next master, and a resume, have to know.

        Raises Superseded if the run is another's, RunError.
        """
        try:
            if self._fence:
                self._fence.check()
            self._run.write_settings(config)
        except OSError as error:
            raise RunError(f"{self._run.settings}: cannot be written: {error.strerror}.") from error

    def commit(self, manifest: Manifest) -> None:
        """Makes a checkpoint visible. Raises Superseded if the run is another's, CheckpointError, OSError."""
        if self._fence:
            self._fence.check()
        try:
            commit(self._storage, manifest)
        except CheckpointError:
            # Between its look at the term and this act a master that is superseded may have done the same.
            if not is_committed(self._storage, manifest, exactly=not self._config.asynchronous):
                raise

    def prune(self, step: int, best: int) -> str:
        """Removes checkpoints that are older than so many up to this step's as are to be kept, but not the
        best one. Returns why that cannot be done, or "".

        That is not tried again, which would hold commits up: the next one prunes, too.
        """
        try:
            prune(self._storage, self._config.keep_checkpoints, step, best)
        except CheckpointError as error:
            return str(error)
        return ""

    def manifest_of(self, facts: Facts, action: CommitAction) -> Manifest:
        """Of a checkpoint that is to be committed now."""
        assert facts.schedule is not None and facts.spec is not None
        schedule, spec = facts.schedule, facts.spec
        step = schedule.steps_before(action.tick)
        data = {name: getattr(spec, name) for name in ("num_records", "num_test", "data_signature")}
        length = {LENGTH: schedule.total_steps} if spec.paced else {}
        return Manifest(
            format=OF_FROZEN if spec.frozen else FORMAT,
            program=os.path.basename(self._config.program),
            tick=action.tick,
            step=step,
            epoch=step // schedule.steps_per_epoch,
            optimizer=settings_of(spec.optimizers),
            work={**work_of(facts.config), "slicing": SLICING, **data, **length, **self._init},
            fingerprint=dict(facts.fingerprint),
            quarantined=tuple((each.row, each.from_tick) for each in facts.excluded),
            signature=Layout(spec.entries).signature,
            entries=spec.entries,
            tables=spec.tables,
            parts=action.parts,
            programs=self.programs(),
            sources=files_told(spec.files),
            frozen=spec.frozen,
            also=spec.also,
            passing=spec.passing,
            standing=facts.standings.at(action.tick),
        )


def _check_same_data(manifest: Manifest, spec: Spec) -> None:
    for name in ("num_records", "num_test", "data_signature"):
        before, now = manifest.work.get(name), getattr(spec, name)
        if before != now:
            what = {"num_records": "records to train on", "num_test": "records to test with"}.get(name, "")
            if not what:  # columns, or records of which an epoch has as many as before
                check_same_files(manifest, spec)
            others = "has other columns, or another number of records that an epoch is chosen from"
            found = f"had {before} {what}, now it has {now}" if what else others
            raise CheckpointError(
                f"the data has changed since the checkpoint at step {manifest.step}: it {found}. "
                "Give the same data, or begin a new run with these weights: --init-from and its folder."
            )
