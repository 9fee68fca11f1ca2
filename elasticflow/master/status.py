"""What people are shown of a run: its status while it runs, its report when it is over."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from typing import Any

from elasticflow.config import Config
from elasticflow.master.state import EndAction, MasterState, Member, NoteAction
from elasticflow.messages import Progress, Usage, Written

RATE_WINDOW_S = 5.0
EVENTS_SHOWN = 50


class Journal:
    """Keeps what status and report need to know of the past. Times are seconds since the start."""

    def __init__(self, config: Config, run_dir: str, start_step: int) -> None:
        self._config, self._run_dir = config, run_dir
        self._start_s = time.monotonic()
        self._started_at = time.time()
        self._start_step = start_step
        self.events: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.checkpoints: list[dict[str, Any]] = []
        self.loss: float | None = None
        self._first_step_s: float | None = None
        self._steps: deque[tuple[float, int]] = deque()
        self._usage: dict[str, Usage] = {}

    def _elapsed_s(self) -> float:
        return round(time.monotonic() - self._start_s, 3)

    def note(self, note: NoteAction) -> None:
        """An event for people to read."""
        self.events.append({"time_s": self._elapsed_s(), "kind": note.kind, "text": note.text})

    def progress(self, state: MasterState, progress: Progress) -> None:
        """News from the leading server."""
        assert state.schedule is not None and state.spec is not None
        now_s = time.monotonic()
        steps = state.schedule.steps_before(progress.version)
        if steps > self._start_step and self._first_step_s is None:
            self._first_step_s = now_s - self._start_s
        self.loss = progress.loss if progress.loss is not None else self.loss
        self._steps.append((now_s, steps))
        while self._steps[0][0] < now_s - RATE_WINDOW_S and len(self._steps) > 2:
            self._steps.popleft()
        for tick, values in progress.evaluations:
            work = state.schedule.at(tick)
            names = ("cost", *state.spec.metrics)
            measured = dict(zip(names, values, strict=False))
            self.evaluations.append({"epoch": work.epoch + 1, "step": work.step, **measured})

    def written(self, step: int, written: Written) -> None:
        """A server's part of a checkpoint."""
        self.checkpoints.append(
            {"step": step, "server": written.name, "copy_s": written.copy_s, "write_s": written.write_s}
        )

    def keep_usage(self, state: MasterState) -> None:
        """Remembers the workers' seconds, also of those that go."""
        self._usage.update({member.name: member.usage for member in state.of("worker")})

    def _records_per_s(self, state: MasterState) -> float | None:
        if len(self._steps) < 2 or state.schedule is None:
            return None
        (first_s, first), (last_s, last) = self._steps[0], self._steps[-1]
        if last_s <= first_s or last <= first:
            return None
        per_step = state.schedule.num_records / state.schedule.steps_per_epoch
        return (last - first) * per_step / (last_s - first_s)

    def status(self, state: MasterState) -> dict[str, Any]:
        """The state of the run as plain values, for JSON."""
        schedule = state.schedule
        step = schedule.steps_before(state.version) if schedule else self._start_step
        total = schedule.total_steps if schedule else None
        rate = self._records_per_s(state)
        eta_s = None
        if schedule and total is not None and rate:
            eta_s = (total - step) * schedule.num_records / schedule.steps_per_epoch / rate
        host = socket.gethostname()
        return {
            "run": self._run_dir,
            "program": self._config.program,
            "backend": self._config.backend,
            "state": state.state.value,
            "epoch": min(step // schedule.steps_per_epoch + 1, schedule.epochs) if schedule else 1,
            "epochs": schedule.epochs if schedule else self._config.epochs,
            "step": step,
            "steps_total": total,
            "loss": self.loss,
            "records_per_s": rate,
            "eta_s": eta_s,
            "elapsed_s": self._elapsed_s(),
            "target_workers": state.target,
            "target_reason": state.reason,
            "evaluation": self.evaluations[-1] if self.evaluations else None,
            "num_evaluations": len(self.evaluations),
            "evaluations": self.evaluations[-EVENTS_SHOWN:],
            "checkpoint_step": self._committed_step(state),
            "quarantined": [each.row for each in state.excluded],
            "master": {"name": "master", "host": host, "pid": os.getpid(), "state": "running", "step": step},
            "servers": [_member(server, state) for server in state.of("server")],
            "workers": [_member(worker, state) for worker in state.of("worker")],
            "num_events": len(self.events),
            "events": self.events[-EVENTS_SHOWN:],
        }

    def _committed_step(self, state: MasterState) -> int | None:
        if state.committed_tick is None or state.schedule is None:
            return None
        return state.schedule.steps_before(state.committed_tick)

    def report(self, state: MasterState, end: EndAction) -> dict[str, Any]:
        """How the run went, for report.json: its last status, and more."""
        schedule = state.schedule
        status = self.status(state)
        epochs, steps = divmod(status["step"], schedule.steps_per_epoch) if schedule else (0, 0)
        usages = list(self._usage.values())
        computing_s = sum(usage.computing_s for usage in usages)
        waiting_s = sum(usage.waiting_s for usage in usages)
        starting_s = sum(usage.starting_s for usage in usages)
        lived_s = computing_s + waiting_s + starting_s
        covered = 0
        if schedule:
            covered = epochs * schedule.num_records + min(steps * schedule.batch_size, schedule.num_records)
        over = {"state": "ended"}
        return {
            **status,
            "state": end.state.value,
            "text": end.text,
            "traceback": end.detail,
            "eta_s": None,
            "master": {**status["master"], **over},
            "servers": [{**server, **over} for server in status["servers"]],
            "workers": [{**worker, **over} for worker in status["workers"]],
            "started_at": self._started_at,
            "first_step_s": self._first_step_s,
            "records_covered": covered,
            "records_total": schedule.num_records * schedule.epochs if schedule else None,
            "evaluations": self.evaluations,
            "workers_seconds": {
                "computing": round(computing_s, 3),
                "waiting": round(waiting_s, 3),
                "starting": round(starting_s, 3),
            },
            "goodput": round(computing_s / lived_s, 4) if lived_s else None,
            "slices_computed": sum(usage.num_slices for usage in usages),
            "slices_computed_as_backup": sum(usage.num_backup for usage in usages),
            "checkpoints": self.checkpoints,
            "events": self.events,
        }


def _member(member: Member, state: MasterState) -> dict[str, Any]:
    return {
        "name": member.name,
        "host": member.host,
        "pid": member.pid,
        "state": member.state.value,
        "step": state.schedule.steps_before(max(0, member.tick)) if state.schedule else 0,
        "dropped_messages": member.dropped,
    }
