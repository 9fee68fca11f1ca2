"""What both clusters have to do for a script: ``ef.submit``, and a run that begins with another's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

import elasticflow as ef

from .conftest import PATIENCE_S, PROGRAMS
from .on_clusters import WORK


def check_submitted(on: str, section: dict[str, Any], folder: Path, place: str, undisturbed: str) -> None:
    """Two runs below ``place``; the second begins with the first's weights and optimizer, as one here."""
    file = folder / f"{on}.yaml"
    file.write_text(yaml.safe_dump({**WORK, on: section}))
    program = PROGRAMS / "small_torch.py"
    first = ef.submit(program, on=on, settings_file=str(file), run_dir=f"{place}/first", workers=2)
    assert first.wait(PATIENCE_S)["state"] == "finished"
    assert first.checkpoint().digest == undisturbed
    begin: dict[str, Any] = {"init_from": first.path, "init_optimizer": True}
    second = ef.submit(program, on=on, settings_file=str(file), run_dir=f"{place}/second", workers=2, **begin)
    assert second.wait(PATIENCE_S)["state"] == "finished"
    here = ef.train(program, run_dir=str(folder / "here"), workers=1, **WORK, **begin)
    here.wait(PATIENCE_S)
    assert second.checkpoint().digest == here.checkpoint().digest != undisturbed
    assert len(second.metrics["epoch"]) == WORK["epochs"]
