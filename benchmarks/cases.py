"""The models that benchmarks train: a step of about 2, 20 and 100 ms on one core of this kind."""

from __future__ import annotations

import json
from typing import NamedTuple


class Case(NamedTuple):
    """widths: of the layers. slice_records: records in each of the ``slices`` of a step."""

    name: str
    widths: tuple[int, ...]
    slices: int
    slice_records: int
    steps: int

    @property
    def batch_size(self) -> int:
        return self.slices * self.slice_records

    @property
    def num_bytes(self) -> int:
        """Of the parameters."""
        pairs = zip(self.widths, self.widths[1:], strict=False)
        return sum(4 * (inputs + 1) * outputs for inputs, outputs in pairs)

    def environment(self) -> dict[str, str]:
        """For ``programs/mlp.py``: as many records as one epoch of the steps needs, at most 8 batches."""
        records = self.batch_size * min(8, self.steps)
        return {"BENCH": json.dumps({"widths": self.widths, "records": records})}

    @property
    def epochs(self) -> int:
        return max(1, self.steps // 8)


SMALL = Case("2 ms, 10 KB", (32, 32, 32, 16, 16), 4, 384, 800)
MIDDLE = Case("20 ms, 1 MB", (256, 512, 256), 4, 288, 160)
LARGE = Case("100 ms, 125 KB", (128, 128, 128), 8, 4608, 48)
CASES = (SMALL, MIDDLE, LARGE)
