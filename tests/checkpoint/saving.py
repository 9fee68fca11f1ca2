"""A small model with every kind of tensor, and a way to save it from any number of servers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elasticflow import checkpoint
from elasticflow.api import AdamW
from elasticflow.step.layout import Entry, Layout, Rule, Vector, spread

ENTRIES = (
    Entry("net.0.weight", (20, 7), "float32", Rule.UPDATE),
    Entry("net.0.bias", (20,), "float32", Rule.UPDATE),
    Entry("net.1.running_mean", (20,), "float32", Rule.MEAN),
    Entry("net.1.num_batches_tracked", (), "int64", Rule.FIRST),
    Entry("scale", (), "float64", Rule.UPDATE),
    Entry("empty", (0, 3), "float32", Rule.UPDATE),
    Entry("mask", (5,), "bool", Rule.FIRST),
    Entry("cost", (), "float64", Rule.REPORT),
)
SLOTS = ("exp_avg", "exp_avg_sq")


@dataclass
class Model:
    """A whole state: the values, and the slots of the parameters by name."""

    value: Vector
    slots: dict[str, Vector]

    @property
    def layout(self) -> Layout:
        return self.value.layout

    def chunk(self, number: int) -> dict[str, np.ndarray]:
        """What the server that holds a chunk has of it."""
        chunk = self.layout.chunks[number]
        slots = self.slots if self.layout.groups[chunk.group].rule is Rule.UPDATE else {}
        return {"value": self.value.chunk(chunk)} | {name: slots[name].chunk(chunk) for name in slots}

    def tensor(self, name: str) -> np.ndarray:
        """A view of a tensor, or of a slot named ``name#slot``."""
        name, _, slot = name.partition("#")
        entry = next(entry for entry in self.layout.entries if entry.name == name)
        vector = self.slots[slot] if slot else self.value
        return vector.tensors([entry])[0]


def make_model(entries=ENTRIES, seed=0) -> Model:
    """Random bytes everywhere but in the padding; floats that are not finite are welcome."""
    rng = np.random.default_rng(seed)
    layout = Layout(entries)
    model = Model(Vector(layout), {slot: Vector(layout) for slot in SLOTS})
    for vector in (model.value, *model.slots.values()):
        for tensor in vector.tensors([entry for entry in layout.entries if entry.rule is not Rule.ROWS]):
            top = 2 if tensor.dtype == bool else 256
            flat = rng.integers(0, top, tensor.nbytes, np.uint8).view(tensor.dtype)
            tensor[...] = flat.reshape(tensor.shape)
    return model


def write_parts(
    storage, model: Model, step: int, num_servers: int, generation: int = 1
) -> tuple[checkpoint.Part, ...]:
    """What the servers do."""
    return tuple(
        checkpoint.write_part(
            storage,
            checkpoint.folder_of(step),
            checkpoint.part_name(generation, f"server-{server}"),
            model.layout,
            ((model.layout.chunks[number], model.chunk(number)) for number in numbers),
        )
        for server, numbers in enumerate(spread(model.layout, num_servers))
    )


def make_manifest(model: Model, step: int, parts, **changes) -> checkpoint.Manifest:
    fields = dict(
        program="digits.py",
        tick=step + 3,
        step=step,
        epoch=2,
        optimizer=AdamW(lr=0.1).settings(),
        work={"seed": 7, "batch_size": 64, "slices": 8, "epochs": 3, "num_records": 1797},
        fingerprint={"cpu": "x86_64", "threads": 1},
        quarantined=((17, 1100),),
        signature=model.layout.signature,
        entries=model.layout.entries,
        parts=parts,
    )
    return checkpoint.Manifest(**(fields | changes))


def save(storage, model: Model, step: int = 1200, num_servers: int = 2) -> checkpoint.Manifest:
    """A committed checkpoint."""
    manifest = make_manifest(model, step, write_parts(storage, model, step, num_servers))
    checkpoint.commit(storage, manifest)
    return manifest
