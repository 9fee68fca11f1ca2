"""What ``elasticflow check`` has found out of a program: in JSON for programs, in lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import msgspec

from elasticflow.api import Optimizer
from elasticflow.cli.progress import scaled
from elasticflow.embedding import TableSpec
from elasticflow.step.layout import PASSING, Layout, Rule
from elasticflow.training.freezing import told
from elasticflow.wire.messages import Spec


class CheckedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of the model. kind: parameter, buffer, table or frozen, which is not trained.

    shape: of a table, rows (None: any number) and numbers a row. num_bytes: of parameters and buffers.
    rules: of a table, what rows are at first, which are kept, and what updates them. trained: in which
    epochs; "": in all.
    """

    name: str
    kind: str
    shape: tuple[int | None, ...]
    dtype: str
    num_bytes: int | None = None
    rules: str = ""
    trained: str = ""

    @property
    def line(self) -> str:
        if self.kind == "table":
            rows, dim = self.shape
            many = "any number of" if rows is None else f"{rows:,}"
            return f"{self.name}  table  {many} rows of {dim}  {self.dtype}  {self.rules}"
        if self.kind == "frozen":
            return f"{self.name}  not trained  {list(self.shape)}  {self.dtype}"
        return f"{self.name}  {self.kind}  {list(self.shape)}  {self.dtype}  {self.num_bytes:,} bytes"


class CheckedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters with an optimizer of their own, by their names."""

    parameters: list[str]
    optimizer: str


class CheckedSlice(msgspec.Struct, frozen=True, kw_only=True):
    """So many records at once. where: of a run they occur. cost: null if it is not finite."""

    num_records: int
    where: str
    cost: float

    @property
    def line(self) -> str:
        plural = "s" * (self.num_records != 1)
        return f"{self.num_records} record{plural} at once, in {self.where}: cost {scaled(self.cost)}"


class CheckedSlicing(msgspec.Struct, frozen=True, kw_only=True):
    """batch_s: seconds that a batch takes in so many slices, one after the other."""

    num_slices: int
    batch_s: float


class Checked(msgspec.Struct, kw_only=True):
    """See the module's docstring.

    optimizer: of all that is in no group. num_test: records to evaluate with. slices: of each size that will
    occur. num_slices: of a batch; slice_s: seconds that its first one took. records_left_out: of each epoch,
    by drop_last. on_epoch: what the program says to an epoch with the cost of that slice.
    """

    framework: str
    optimizer: str
    groups: list[CheckedGroup]
    entries: list[CheckedEntry]
    num_records: int
    num_test: int
    num_slices: int
    slices: list[CheckedSlice]
    slice_s: float
    slicing: list[CheckedSlicing] = []
    records_left_out: int = 0
    on_epoch: str | None = None
    warnings: list[str] = []

    def model_lines(self) -> Iterator[str]:
        """Of all that is known once its first slice was computed."""
        yield from (entry.line for entry in self.entries)
        for number, group in enumerate(self.groups, 1):
            yield f"group {number}: {', '.join(group.parameters) or 'of no parameter'}; {group.optimizer}"
        by_epochs: dict[str, list[str]] = {}
        for entry in self.entries:
            by_epochs.setdefault(entry.trained, []).append(entry.name)
        yield from (f"{trained}: {', '.join(names)}" for trained, names in by_epochs.items() if trained)
        trained = [entry for entry in self.entries if entry.kind == "parameter"]
        yield (
            f"{self.framework}: {sum(map(_size, trained)):,} parameters in {len(trained)} tensors, "
            f"{sum(entry.num_bytes or 0 for entry in trained):,} bytes; {self.optimizer}"
        )
        yield f"data: {self.num_records:,} records to train on, {self.num_test:,} to test with"
        first = self.slices[0]
        yield (
            f"one slice of {first.num_records} records: cost {scaled(first.cost)}, "
            f"{self.slice_s * 1000:.2f} ms"
        )


def entries_of(spec: Spec) -> Iterator[CheckedEntry]:
    """In the order of the model, those that are not trained last."""
    layout = Layout(spec.entries)
    tables = dict(zip(layout.tables, spec.tables, strict=True))
    for entry in layout.entries:
        if table := tables.get(entry):
            yield CheckedEntry(
                name=entry.name, kind="table", shape=(table.rows, table.dim), dtype=entry.dtype,
                rules=_rules(table), trained=told(entry.toggles),
            )  # fmt: skip
        elif entry.rule not in PASSING:
            yield CheckedEntry(
                name=entry.name, kind="parameter" if entry.rule is Rule.UPDATE else "buffer",
                shape=entry.shape, dtype=entry.dtype, num_bytes=entry.num_bytes, trained=told(entry.toggles),
            )  # fmt: skip
    for each in spec.frozen:
        yield CheckedEntry(name=each.name, kind="frozen", shape=each.shape, dtype=each.dtype)


def groups_of(spec: Spec) -> Iterator[CheckedGroup]:
    """In the order of their numbers, from 1 on."""
    for number, optimizer in enumerate(spec.others, 1):
        names = [entry.name for entry in Layout(spec.entries).entries if entry.part == number]
        yield CheckedGroup(parameters=names, optimizer=settings_of(optimizer))


def settings_of(optimizer: Optimizer) -> str:
    """For people."""
    return ", ".join(f"{name} {value}" for name, value in optimizer.settings().items())


def _rules(table: TableSpec) -> str:
    """What rows are at first, which are kept, and how they are updated."""
    rules = [str(table.initializer)]
    rules += [f"min_count {table.min_count}"] if table.min_count > 1 else []
    rules += [f"evict_after_steps {table.evict_after_steps}"] if table.evict_after_steps else []
    return ", ".join([*rules, settings_of(table.optimizer) if table.optimizer else "the model's optimizer"])


def _size(entry: CheckedEntry) -> int:
    return prod(each or 0 for each in entry.shape)
