"""A run that is resumed, twice: how long it has been in all, and when its processes said what."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from datetime import datetime, timezone

from elasticflow.process.stamps import STAMP

from .conftest import Run, cli
from .processes import end_all

OPTIONS = ("--epochs", 3, "--batch-size", 64, "--checkpoint-every", 5)


def test_times_add_up_and_each_line_has_its_own(start: Callable[..., Run]) -> None:
    begun = datetime.now(timezone.utc)
    first = start("small_torch.py", *OPTIONS, name="run", shut=["step 20"])
    first.held_at("step 20")
    assert first.status().attempt == 1
    killed_s = first.status().elapsed_s
    end_all(first.environment)
    first.end()
    first.dir.address.unlink()
    second = start("small_torch.py", "--resume", name="run", shut=["step 30"])
    second.held_at("step 30")
    told = second.status()
    assert told.attempt == 2 and 0 < told.elapsed_s < told.total_s < told.elapsed_s + killed_s + 1
    assert "since the start (attempt 2; " in cli("status", second.path).stdout
    second.process.send_signal(signal.SIGINT)
    second.open("step 30")
    assert second.wait()[0] == 3
    third = start("small_torch.py", "--resume", name="run")
    third.finish()
    report = json.loads(cli("report", third.path, "--json").stdout)
    attempts = json.loads(third.dir.attempts.read_bytes())
    assert report["attempt"] == 3 and len(attempts) == 2
    assert report["total_s"] == report["elapsed_s"] + sum(each["elapsed_s"] for each in attempts)
    assert "(attempt 3; " in cli("report", third.path).stdout
    for log in ("master", "worker-1", "server-0"):
        for line in (third.dir.logs / f"{log}.log").read_text().splitlines():
            found = STAMP.match(line)
            assert found, (log, line)
            assert begun <= datetime.fromisoformat(found[0].strip()) <= datetime.now(timezone.utc)
