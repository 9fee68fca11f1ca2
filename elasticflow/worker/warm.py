"""A warm start: a run's first checkpoint, of step 0, made of weights that others have trained.

``python -m elasticflow.worker.warm RUN_DIR DESCRIPTOR``, which the master starts before anything else: the
program is loaded, its first values are made, and what ``init_from`` has by the same names is put in their
place. From then on the checkpoint is what the run goes on from, whatever becomes of the file. What was taken
is told as JSON.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from elasticflow import checkpoint
from elasticflow.checkpoint.chains import CANDIDATES, CANDIDATES_SEEN, COUNTS, KEYS, SEEN
from elasticflow.checkpoint.names import VALUE
from elasticflow.checkpoint.weights import KERAS, Weights, read_weights
from elasticflow.embedding import TableSpec
from elasticflow.errors import CheckpointError, ConfigError, ElasticFlowError
from elasticflow.process.parent import die_with_parent
from elasticflow.process.stamps import stamp_output
from elasticflow.program.loading import blaming
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir, place_of_checkpoints
from elasticflow.run.settings import MemberSettings
from elasticflow.run.taken import SHOWN, Taken
from elasticflow.run.work import files_told, settings_of, work_of
from elasticflow.step.layout import PASSING, Array, Chunk, Entry, Rule, Vector
from elasticflow.step.rows import bounds, keys_of
from elasticflow.step.schedule import SLICING
from elasticflow.storage.file_ids import other_vocabularies
from elasticflow.training.freezing import begins_late
from elasticflow.worker.loaded import Loaded
from elasticflow_ps.kernel import AnyKernel
from elasticflow_ps.optimizers import kernel_for

IDS, ROWS = ".ids", ".rows"


def mapping_of(text: str) -> dict[str, str]:
    """``old=new,...`` as a dict. Raises ConfigError."""
    found: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        old, equals, new = part.partition("=")
        if not equals or old in found:
            raise ConfigError(
                f"init_map: {part!r} must be old=new, each old name once, such as encoder=net.0."
            )
        found[old] = new
    return found


def match(entries: Iterable[Entry], names: Iterable[str], renamed: Mapping[str, str]) -> dict[str, str]:
    """{entry's name: name in the file}. A name, or what it begins with, is mapped; the longest old one
    counts.

    A file of one module's weights lacks the name that ``model()`` gives the module: it is tried too.
    """
    wanted = {entry.name for entry in entries if entry.rule not in PASSING}
    keys = dict.fromkeys(name.partition(".")[0] for name in wanted)
    found: dict[str, str] = {}
    for name in names:
        olds = [old for old in renamed if not old or name == old or name.startswith(f"{old}.")]
        if olds:
            old = max(olds, key=len)
            rest = name if not old else name[len(old) + 1 :]
            candidates = [".".join(filter(None, (renamed[old], rest)))]
        else:
            candidates = [name] if name in wanted else [f"{key}.{name}" for key in keys]
        fitting = [each for each in candidates if each in wanted]
        if len(fitting) == 1:
            found.setdefault(fitting[0], name)
    return found


def check_mapping(renamed: Mapping[str, str], names: Sequence[str], source: str) -> None:
    """Raises ConfigError if a part of it is about nothing. names: of what is in the source."""
    for old in filter(None, renamed):
        if not any(name == old or name.startswith(f"{old}.") for name in names):
            raise ConfigError(
                f"init_map: {old}={renamed[old]}: no name in {source} is {old!r}, or begins so. "
                f"There are {', '.join(names[:SHOWN])}{', ...' * (len(names) > SHOWN)}."
            )


class Warm:
    """The first values of a run. found: see ``read_weights``."""

    def __init__(self, loaded: Loaded, config: Config, found: Weights) -> None:
        weights = found.arrays
        self._loaded, self._config, self._weights = loaded, config, weights
        self._updates = found.updates if config.init_optimizer else 0
        self._other = other_vocabularies(found.sources, loaded.spec().files)
        self._layout = loaded.replica.layout
        still = [Entry(e.name, e.shape, e.dtype, Rule.UPDATE) for e in loaded.frozen]
        self._entries = [*(e for e in self._layout.entries if e.rule not in PASSING), *still]
        tables = {
            name.removesuffix(IDS)
            for name in weights
            if name.endswith(IDS) and f"{name[:-4]}{ROWS}" in weights
        }
        plain = [n for n in weights if "#" not in n and not any(n.startswith(f"{t}.") for t in tables)]
        renamed = mapping_of(config.init_map)
        self._names = match(self._entries, [*plain, *sorted(tables)], renamed)
        check_mapping(renamed, [*plain, *sorted(tables)], config.init_from)
        self._unlike = [entry.name for entry in self._entries if self._differs(entry)]
        for name in self._unlike:
            del self._names[name]
        self._unused = sorted({*plain, *tables} - set(self._names.values()))
        if not self._names:
            known = ", ".join([entry.name for entry in self._entries][:SHOWN])
            raise CheckpointError(
                f"--init-from {config.init_from}: none of its names "
                f"({', '.join([*plain, *tables][:SHOWN])}, ...) is one of the model's with the same shape "
                f"({known}, ...). Map them: --init-map old=new."
            )
        self._kernels = [kernel_for(optimizer) for optimizer in loaded.spec().optimizers]
        if config.init_optimizer:
            self._check_state()

    def _differs(self, entry: Entry) -> bool:
        name = self._names.get(entry.name)
        if name is None:
            return False
        if entry.rule is Rule.ROWS:
            rows = self._weights.get(name + ROWS)
            return rows is None or rows.shape[1:] != (entry.shape[1],)
        return name not in self._weights or self._weights[name].shape != entry.shape

    def _check_state(self) -> None:
        """Raises CheckpointError if nothing of the optimizer's state is there."""
        if not self._stateful():
            kernels = [kernel for kernel in self._kernels if kernel.rule_slots]
            names = ", ".join(type(kernel.optimizer).__name__ for kernel in kernels)
            keeps = ", ".join(slot for kernel in kernels for slot in kernel.rule_slots)
            there = sorted({name.partition("#")[2] for name in self._weights if "#" in name})
            raise CheckpointError(
                f"--init-optimizer: {self._config.init_from} has no state that goes with the program's "
                f"{names}: that keeps {keeps} of each parameter, and there is "
                f"{', '.join(there) or 'nothing'}. Take the weights alone."
            )

    def _needs(self, entry: Entry) -> tuple[str, ...]:
        """The slots without which an entry's state is none; of averages the value itself is a beginning."""
        return self._kernels[entry.part].rule_slots if entry.rule is Rule.UPDATE else ()

    def _stateful(self) -> list[str]:
        """Parameters of which all of the optimizer's state is there, or that need none."""
        return [
            e.name
            for e in self._layout.of_rule(Rule.UPDATE)
            if e.name in self._names
            and all(f"{self._names[e.name]}#{slot}" in self._weights for slot in self._needs(e))
        ]

    def taken(self) -> Taken:
        """What is told of it."""
        hashed = hashlib.sha256()
        for name in sorted(self._names.values()):
            for array in (self._weights.get(each) for each in (name, name + IDS, name + ROWS)):
                if array is not None:
                    hashed.update(f"{name} {array.dtype} {array.shape}".encode())
                    hashed.update(np.ascontiguousarray(array).tobytes())
        kept = [entry.name for entry in self._entries]
        stateful = self._stateful() if self._config.init_optimizer else []
        trained = [entry.name for entry in self._layout.of_rule(Rule.UPDATE)] if stateful else []
        return Taken(
            taken=tuple(name for name in kept if name in self._names),
            missing=tuple(name for name in kept if name not in self._names and name not in self._unlike),
            unlike=tuple(self._unlike),
            unused=tuple(self._unused),
            sha256=hashed.hexdigest(),
            stateful=tuple(stateful),
            stateless=tuple(name for name in trained if name not in stateful),
            updates=self._updates,
            vocabularies=self._other,
        )

    def _overlay(self, vector: Vector, suffix: str = "") -> None:
        """Puts what is taken of a state, or of a slot, in its place."""
        for entry in self._layout.entries:
            name = self._names.get(entry.name)
            if name is not None and entry.rule is not Rule.ROWS and name + suffix in self._weights:
                [mine] = vector.tensors([entry])
                np.copyto(mine, self._weights[name + suffix], casting="unsafe")

    def _put_frozen(self) -> None:
        """What is taken of parameters that are not trained."""
        replica = self._loaded.replica
        names = {
            each.name: self._names[each.name] for each in self._loaded.frozen if each.name in self._names
        }
        replica.put_frozen(
            {name: self._weights[taken].astype(replica.frozen()[name].dtype) for name, taken in names.items()}
        )
        self._loaded.frozen = checkpoint.frozen_of(replica.frozen())

    def _slots(self, kernels: Sequence[AnyKernel]) -> dict[str, Vector]:
        """All slots of any of the optimizers, with what they have at first."""
        found = {slot: Vector(self._layout) for kernel in kernels for slot in kernel.slots}
        for slot, vector in found.items():
            now = self._loaded.replica.state.groups
            for group, values, first in zip(self._layout.groups, vector.groups, now, strict=True):
                if group.rule is Rule.UPDATE and slot in kernels[group.part].slots:
                    values.fill(kernels[group.part].initial(slot))
                    if slot in kernels[group.part].averages and begins_late(group.toggles):
                        np.copyto(values, first)
            if self._config.init_optimizer:
                if any(slot in kernel.averages for kernel in kernels):
                    # The first update is not the first of all: see Kernel.averages.
                    for mine, value in zip(vector.groups, self._loaded.replica.state.groups, strict=True):
                        np.copyto(mine, value)
                self._overlay(vector, f"#{slot}")
        return found

    def _chunks(self) -> Iterator[tuple[Chunk, dict[str, Array]]]:
        state = self._loaded.replica.state
        self._overlay(state)
        kernels = self._kernels
        slots = self._slots(kernels)
        for chunk in checkpoint.kept_chunks(self._layout):
            group = self._layout.groups[chunk.group]
            mine = kernels[group.part].slots if group.rule is Rule.UPDATE else ()
            yield chunk, {VALUE: state.chunk(chunk), **{slot: slots[slot].chunk(chunk) for slot in mine}}

    def _buckets(self) -> Iterator[tuple[Chunk, dict[str, Array]]]:
        specs = dict(zip(self._layout.tables, self._loaded.replica.tables, strict=True))
        for entry, spec in specs.items():
            group, _ = self._layout.places[entry.name]
            columns = self._rows(entry, spec)
            for chunk in (each for each in self._layout.chunks if each.group == group):
                smallest, largest = bounds(chunk.start, chunk.start + 1)
                first = int(np.searchsorted(columns[KEYS], np.uint64(smallest), "left"))
                last = int(np.searchsorted(columns[KEYS], np.uint64(largest), "right"))
                arrays = {name: np.ascontiguousarray(column[first:last]) for name, column in columns.items()}
                if spec.min_count > 1:
                    arrays |= {CANDIDATES: np.empty(0, np.uint64)}
                    arrays |= {name: np.empty(0, np.uint32) for name in (COUNTS, CANDIDATES_SEEN)}
                yield chunk, arrays

    def _rows(self, entry: Entry, spec: TableSpec) -> dict[str, Array]:
        """A table's columns, keys ascending; of one that is not taken, without rows."""
        name = self._names.get(entry.name)
        ids = self._weights[name + IDS] if name else np.empty(0, np.int64)
        keys = keys_of(np.asarray(ids, np.int64))
        order = np.argsort(keys)
        rows = self._weights[name + ROWS] if name else np.empty((0, spec.dim), np.float32)
        values = np.asarray(rows, np.float32)[order]
        kernel = kernel_for(spec.updated_by(self._loaded.replica.optimizers.optimizer))
        columns: dict[str, Array] = {
            KEYS: keys[order],
            VALUE: values,
            SEEN: np.ones(len(order), np.uint32),  # as if in the first step: none was before it
            **kernel.new_slots(values),
        }
        for slot in kernel.slots if name and self._config.init_optimizer else ():
            if (given := self._weights.get(f"{name}{ROWS}#{slot}")) is not None:
                columns[slot] = np.asarray(given, np.float32)[order]
        return columns

    def commit(self, run: RunDir) -> None:
        """Writes the checkpoint of step 0."""
        storage = run.checkpoints()
        self._put_frozen()
        checkpoint.write_frozen(storage, self._loaded.replica.frozen())
        part = checkpoint.write_part(
            storage, checkpoint.folder_of(0), checkpoint.part_name(0, "init"), self._layout, self._chunks()
        )
        if self._loaded.replica.tables:
            name = checkpoint.row_file_name(0, 0, "init")
            file = checkpoint.write_rows(storage, name, self._buckets(), step=0, whole=True)
            part = msgspec.structs.replace(part, rows=(file,))
        checkpoint.commit(storage, self._manifest(part))

    def _manifest(self, part: checkpoint.Part) -> checkpoint.Manifest:
        spec, config = self._loaded.spec(), self._config
        data = {name: getattr(spec, name) for name in ("num_records", "num_test", "data_signature")}
        init = {"from": config.init_from, "sha256": self.taken().sha256, "optimizer": config.init_optimizer}
        init |= {"updates": self._updates} if self._updates else {}
        return checkpoint.Manifest(
            format=checkpoint.OF_FROZEN if spec.frozen else checkpoint.FORMAT,
            program=os.path.basename(config.program),
            tick=0,
            step=0,
            epoch=0,
            optimizer=settings_of(spec.optimizers),
            work={**work_of(config), "slicing": SLICING, **data, "init": init},
            fingerprint={},
            signature=self._layout.signature,
            entries=spec.entries,
            tables=spec.tables,
            parts=(part,),
            sources=files_told(spec.files),
            frozen=spec.frozen,
            also=spec.also,
            passing=spec.passing,
        )


def _weights(loaded: Loaded, config: Config) -> Weights:
    if config.init_from.endswith((*KERAS, ".h5") if config.init_optimizer else KERAS):
        with blaming(loaded.program, "model"):
            values = loaded.program.model()
        from elasticflow.frameworks.keras_files import layer_weights, weights_and_state  # imports TensorFlow

        if not config.init_optimizer:
            return Weights(layer_weights(values, config.init_from))
        form = loaded.replica.optimizers.optimizer.form
        return Weights(*weights_and_state(values, config.init_from, form))
    return read_weights(place_of_checkpoints(config.init_from), config.init_optimizer)


def begin(run: RunDir) -> Taken:
    """Makes the checkpoint. Raises ElasticFlowError."""
    config = run.config()
    settings = MemberSettings.of(
        config, name="init", role="worker", host="", master="", run_dir=str(run.path)
    )
    # The master's machine need not have a GPU.
    loaded = Loaded(msgspec.structs.replace(settings, device="cpu"))
    warm = Warm(loaded, config, _weights(loaded, config))
    warm.commit(run)
    return warm.taken()


def main() -> None:
    """See the module's docstring."""
    die_with_parent(int(sys.argv[3]))  # nobody else may write at the same time
    stamp_output()
    try:
        told = begin(RunDir(sys.argv[1]))
    except ElasticFlowError as error:
        told = Taken(error=str(error))
    with os.fdopen(int(sys.argv[2]), "wb") as pipe:
        pipe.write(msgspec.json.encode(told))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
