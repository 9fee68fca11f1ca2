"""Data that are not there, found out before anybody holds a GPU for them."""

from __future__ import annotations

import glob
import os

from elasticflow.storage.urls import is_url


def check_data(pattern: str, here: bool) -> None:
    """Raises DataError if the files that ``data`` names are missing, as far as that can be seen from here.

    here: whether paths mean the same as where workers run. Of those, what would be in a folder that is not
    here either may still be there.
    """
    if not pattern:
        return
    if not is_url(pattern):
        fixed = pattern
        while glob.has_magic(fixed):
            fixed = os.path.dirname(fixed)
        if not here or not os.path.isdir(os.path.dirname(os.path.abspath(fixed))):
            return
    from elasticflow.data.files import matching_files  # brings NumPy along

    matching_files("data", pattern)
