"""What TCP alone can do with the same bytes: wire.c, compiled and run."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def round_seconds(num_bytes: int, rounds: int, back: int | None = None) -> list[float]:
    """Seconds of each round in which so many bytes go to a process and come back. Needs a C compiler.

    back: that so many come back, once the others are there.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "wire"
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-o", program, SOURCE], check=True)
        command = [str(program), str(num_bytes), str(rounds), *([] if back is None else [str(back)])]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [float(line) for line in output.split()]
