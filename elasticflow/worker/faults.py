"""When ``forward`` raises on a slice: which of its records are to blame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from elasticflow.frameworks import CostError, Replica
from elasticflow.program.loading import describe, users_traceback
from elasticflow.step.layout import Vector
from elasticflow.step.schedule import Kind
from elasticflow.worker.batches import Batches, RowNumbers
from elasticflow.worker.whose_fault import spare_records


@dataclass(frozen=True)
class Blame:
    """rows: those on which the program raises when it is given them alone; perhaps none."""

    rows: tuple[int, ...]
    text: str
    traceback: str


def blame(
    error: BaseException,
    path: str,
    replica: Replica,
    batches: Batches,
    rows: RowNumbers,
    scratch: Vector,
    moves: Callable[[], None] = lambda: None,
) -> Blame:
    """Tries each record of a slice of training alone, and twice: BatchNorm, say, wants more than one.

    moves: called as each try begins, and as it ends: all together may take long.
    Raises OutsideError where no record is to blame.
    """
    spare_records(error, path)

    def raises(*chosen: int) -> bool:
        moves()
        try:
            replica.compute(batches.of_rows(Kind.TRAIN, np.array(chosen)), 0, 1.0, scratch)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever the user's program raises)
            spare_records(error, path)
            return True
        finally:
            moves()
        return False

    guilty = tuple(row for row in map(int, rows) if raises(row) and raises(row, row))
    text = str(error) if isinstance(error, CostError) else describe(error, path)
    return Blame(guilty, text, users_traceback(error, path))
