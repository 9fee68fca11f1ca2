"""``predict`` and ``evaluate``: a run's model, applied to data by many processes of this machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import numpy as np

from elasticflow.applying.crew import Crew
from elasticflow.applying.orders import EVALUATE, PREDICT, LoadOrder, ProcessReady
from elasticflow.applying.outputs import FORMATS, OutputFormat
from elasticflow.applying.workplace import Workplace
from elasticflow.checkpoint import Manifest
from elasticflow.checkpoint.unpacked import unpack
from elasticflow.data.files import is_url
from elasticflow.errors import ConfigError, ElasticFlowError, RunError
from elasticflow.process.fingerprint import environment
from elasticflow.process.own_folders import own_folder
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Array
from elasticflow.step.slices import Node, SliceTree
from elasticflow.storage.directory import sync_folder

PACKAGES = ("torch", "tensorflow", "keras", "numpy", "pyarrow")
"""Which decide the bytes of what is written."""


@dataclass(frozen=True)
class Applied:
    """A model, and the data that it is applied to.

    program: a file in the place of the run's copy. workers: processes; 0: one for so many cores as each
    computes with. device: auto, cpu or cuda.
    """

    run: RunDir
    manifest: Manifest
    data: str
    program: str = ""
    workers: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ConfigError(f"--workers {self.workers}: must be a number of processes, at least 1.")

    @property
    def config(self) -> Config:
        """The run's settings, with as many slices as it has had."""
        config = self.run.config()
        return config.fixed(int(self.manifest.work.get("slices") or config.num_slices))

    @property
    def most(self) -> int:
        """Processes at most."""
        return self.workers or max(1, len(os.sched_getaffinity(0)) // self.config.threads)

    @property
    def key(self) -> str:
        """Of the checkpoint."""
        return hashlib.sha256(msgspec.json.encode(self.manifest)).hexdigest()[:32]

    def order(self, verb: str, weights: Path) -> LoadOrder:
        """What a process is to load."""
        settings = MemberSettings.of(
            self.config, name=verb, role="worker", host="", master="", run_dir=str(self.run.path)
        )
        settings = msgspec.structs.replace(settings, device=self.device, free_slices=False, read_processes=0)
        if self.program:
            settings = msgspec.structs.replace(
                settings, program=os.path.abspath(self.program), program_sha256=""
            )
        data = self.data if is_url("data", self.data) else os.path.abspath(self.data)
        if self.data.endswith("/") and not data.endswith("/"):
            data += "/"
        return LoadOrder(
            verb=verb,
            settings=settings,
            weights=str(weights),
            data=data,
            step=self.manifest.step,
            evaluate_every=self.config.evaluate_every,
        )


@dataclass(frozen=True)
class Predicted:
    """records, parts: of the output. before: parts that an earlier command had done. deaths: of processes."""

    records: int
    parts: int
    before: int
    deaths: int


def predict(
    applied: Applied,
    place: Workplace,
    form: OutputFormat,
    *,
    keep: Sequence[str] = (),
    part_records: int = 0,
    batch_records: int = 0,
    tell: Callable[[int, int], None] = lambda done, parts: None,
) -> Predicted:
    """Writes what the program's ``predict`` gives of each record, in their order, and all at once.

    keep: columns of the input. part_records, batch_records: 0: as is usual for the run. tell: called with how
    many parts are done, of how many.
    Raises ElasticFlowError.
    """
    with place:
        weights = place.weights(applied.key)
        if not weights.exists():
            _unpack(applied, weights)
        order = msgspec.structs.replace(
            applied.order(PREDICT, weights),
            keep=tuple(keep),
            folder=str(place.parts),
            ending=form.ending,
            part_records=part_records,
            batch_records=batch_records,
        )
        with Crew(order, place.logs, environment(applied.config.threads)) as crew:
            ready = crew.first()
            if place.settle(_inputs(applied, order, ready)):
                print(
                    f"{place.out}: what an earlier command had finished was made of other data, or by "
                    "another model, and is not used.",
                    file=sys.stderr,
                )
            left = [number for number in range(ready.num_parts) if not place.part(number).exists()]
            done = ready.num_parts - len(left)

            def take(part: int, value: bytes) -> None:
                nonlocal done
                done += 1
                tell(done, ready.num_parts)

            tell(done, ready.num_parts)
            if left:
                crew.work(left, applied.most, take)
        with place.new() as whole:
            parts = [place.part(number) for number in range(ready.num_parts)]
            _folder_of(parts, whole) if place.is_folder else _joined(form, parts, whole)
        place.publish(whole)
    return Predicted(ready.num_records, ready.num_parts, ready.num_parts - len(left), crew.deaths)


def _unpack(applied: Applied, weights: Path) -> None:
    """It has its name only when it is whole."""
    temporary = weights.with_name(f"{weights.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    unpack(applied.run.checkpoints(), applied.manifest, temporary)
    temporary.rename(weights)


def _inputs(applied: Applied, order: LoadOrder, ready: ProcessReady) -> dict[str, object]:
    """All that the bytes of parts follow from."""
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "checkpoint": applied.key,
        "args": order.settings.args,
        "seed": order.settings.seed,
        "data": order.data,
        "ready": msgspec.to_builtins(ready),
        "keep": order.keep,
        "ending": order.ending,
        "device": order.settings.device,
        "versions": versions,
    }


def _joined(form: OutputFormat, parts: Sequence[Path], whole: Path) -> None:
    try:
        form.join(parts, whole)
    except ElasticFlowError:
        raise
    except (EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise RunError(
            f"{parts[0].parent}: a part that was finished there cannot be read any more: {error}. Remove "
            "that folder, and give the same command again."
        ) from error
    with whole.open("rb") as file:
        os.fsync(file.fileno())


def _folder_of(parts: Sequence[Path], whole: Path) -> None:
    """The parts themselves, under a second name each: until all is done the first is used again."""
    whole.mkdir()
    for part in parts:
        try:
            (whole / part.name).hardlink_to(part)
        except OSError:  # a file system without links
            shutil.copyfile(part, whole / part.name)
            with (whole / part.name).open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(whole)


def evaluate(applied: Applied) -> dict[str, float | None]:
    """Cost and metrics over the data, by name, as the run's own evaluations give them; None: no number.

    Raises ElasticFlowError.
    """
    with own_folder("elasticflow-evaluate-") as temporary:
        weights = temporary / "weights"
        unpack(applied.run.checkpoints(), applied.manifest, weights)
        order = applied.order(EVALUATE, weights)
        with Crew(order, temporary, environment(applied.config.threads)) as crew:
            ready = crew.first()
            tree: SliceTree[Array] = SliceTree(ready.num_parts, np.add)

            def take(part: int, value: bytes) -> None:
                tree.add(Node(0, part), np.frombuffer(value, np.float64))

            crew.work(range(ready.num_parts), applied.most, take)
            if not tree.complete:
                raise RunError(f"{applied.data}: slices {tree.missing()} have not been evaluated.")
            return crew.sum_up(tree.take_root().tobytes())


__all__ = ["FORMATS", "Applied", "Predicted", "evaluate", "predict"]
