"""What the files, folders and arrays of checkpoints are called.

``checkpoints/step-0000001200/`` has a manifest and the servers' parts, ``rows/step-0000001200/`` the row
files that were written for it.
"""

from __future__ import annotations

import re

ROOT = "checkpoints"
ROWS = "rows"
MANIFEST = "manifest.json"
VALUE = "value"
"""The name of a chunk's own array, beside those of the optimizer's slots."""
AVERAGE = "ema"
"""The name of the slot of moving averages."""

_FOLDER = re.compile(r"step-(\d{10,})")
_PART = re.compile(r"[\w-][\w.-]*\.h5")


def folder_of(step: int) -> str:
    """The folder of the checkpoint at ``step``, such as ``checkpoints/step-0000001200``."""
    return f"{ROOT}/{_folder(step)}"


def rows_folder_of(step: int) -> str:
    """The folder of the row files written at ``step``, such as ``rows/step-0000001200``."""
    return f"{ROWS}/{_folder(step)}"


def _folder(step: int) -> str:
    return f"step-{step:010d}"


def step_of(folder_name: str) -> int | None:
    """The step that a folder's last name tells; None if it is not a checkpoint's."""
    match = _FOLDER.fullmatch(folder_name)
    return int(match[1]) if match else None


def part_name(generation: int, server: str) -> str:
    """The name of a server's file in the folder: no two servers, and no two lives of the row, share one."""
    return f"generation-{generation}-{server}.h5"


def is_part_name(name: str) -> bool:
    """Whether a file of this name can be a part."""
    return _PART.fullmatch(name) is not None


def row_file_name(step: int, generation: int, server: str) -> str:
    """The name of a server's row file below ``rows``."""
    return f"{_folder(step)}/{part_name(generation, server)}"


def step_of_row_file(name: str) -> int | None:
    """The step that a row file's name tells; None if no row file can have this name."""
    folder, _, file = name.partition("/")
    return step_of(folder) if is_part_name(file) else None
