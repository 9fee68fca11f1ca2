"""Of a run: what its status tells, by conventional names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from elasticflow.openmetrics.figures import Figure, Sample, table
from elasticflow.run.telling import Status

FIGURES = table(
    Figure("elasticflow_up", "gauge", "Whether the run's master answers: 1 or 0."),
    Figure("elasticflow_run", "info", "What the run is.", ("program", "backend", "mode", "strategy")),
    Figure("elasticflow_state", "gauge", "The state that the run is in: 1.", ("state",)),
    Figure("elasticflow_start_timestamp_seconds", "gauge", "When this attempt began, since 1970."),
    Figure("elasticflow_step", "counter", "Steps that are done; it falls where steps are made again."),
    Figure("elasticflow_steps_planned", "gauge", "Steps of the whole run."),
    Figure("elasticflow_epoch", "gauge", "The epoch, from 1."),
    Figure("elasticflow_records", "counter", "Records that are covered, of all epochs."),
    Figure("elasticflow_records_per_second", "gauge", "Of late, with the workers that there are."),
    Figure("elasticflow_records_quarantined", "gauge", "Records that are left out."),
    Figure("elasticflow_steps_skipped", "counter", "Steps left out because of NaN or infinite gradients."),
    Figure("elasticflow_steps_redone", "counter", "Steps that were made again."),
    Figure("elasticflow_workers", "gauge", "Workers that take part."),
    Figure("elasticflow_workers_wanted", "gauge", "Workers that there should be."),
    Figure("elasticflow_servers", "gauge", "Parameter servers that hold chunks."),
    Figure("elasticflow_server_memory_bytes", "gauge", "Of a server's arrays.", ("server",)),
    Figure("elasticflow_gpu_busy_ratio", "gauge", "Part of the time that kernels run.", ("worker",)),
    Figure("elasticflow_gpu_memory_bytes", "gauge", "That is taken, of a worker's GPU.", ("worker",)),
    Figure("elasticflow_gpu_power_watts", "gauge", "What a worker's GPU draws.", ("worker",)),
    Figure("elasticflow_gpu_trouble", "gauge", "Whether a worker's GPU has errors.", ("worker",)),
    Figure("elasticflow_gpu_slowed", "gauge", "Whether it is slowed by heat or its supply.", ("worker",)),
    Figure("elasticflow_masters", "counter", "Masters that the run has had, the present one included."),
    Figure("elasticflow_productive_seconds", "counter", "Seconds of workers, on what was needed."),
    Figure("elasticflow_lost_seconds", "counter", "Seconds of workers, on anything else.", ("cause",)),
    Figure("elasticflow_standstill_seconds", "counter", "In which no step was made, because of faults."),
    Figure("elasticflow_stalled_seconds", "counter", "In which steps took long, because of faults."),
    Figure("elasticflow_goodput_ratio", "gauge", "The productive part of the workers' seconds."),
    Figure("elasticflow_faults", "counter", "Members that were lost, and refusals of the storage."),
    Figure("elasticflow_storage_trouble", "gauge", "Whether the storage refuses, or is away: 1 or 0."),
    Figure("elasticflow_checkpoint_step", "gauge", "Step of the newest checkpoint that is committed."),
    Figure("elasticflow_checkpoint_failures", "counter", "Parts of checkpoints that were given up."),
    Figure("elasticflow_eta_seconds", "gauge", "Until the end, at the present speed."),
    Figure("elasticflow_deadline_timestamp_seconds", "gauge", "When the run should be done, since 1970."),
    Figure("elasticflow_deadline_slack_seconds", "gauge", "Between ETA and deadline; below 0 it is missed."),
    Figure("elasticflow_loss", "gauge", "Mean loss of the last steps."),
    Figure("elasticflow_learning_rate", "gauge", "Of the last step that is in the curve."),
    Figure("elasticflow_evaluation", "gauge", "What the last evaluation came to.", ("metric",)),
    Figure("elasticflow_evaluation_step", "gauge", "The step of the last evaluation."),
    Figure(
        "elasticflow_best", "gauge", "The best evaluation so far, where the run asks for it.", ("metric",)
    ),
)


def figures_of(name: str, status: Status | None) -> Iterator[Sample]:
    """All that is known. name: of the run, its label. status: None: its master does not answer."""
    yield Sample(FIGURES["elasticflow_up"], {"run": name}, float(status is not None))
    if status is None:
        return
    for figure, value, labels in _values(status):
        if value is not None:
            yield Sample(FIGURES[f"elasticflow_{figure}"], {"run": name, **labels}, float(value))


def _values(told: Status) -> Iterator[tuple[str, Any, dict[str, str]]]:
    what = {"program": told.program.rpartition("/")[2], "backend": told.backend, "mode": told.mode}
    yield "run", 1, {**what, "strategy": told.strategy}
    yield "state", 1, {"state": told.state}
    slack_s = told.deadline_at - told.eta_at if told.deadline_at and told.eta_at else None
    plain = {
        "start_timestamp_seconds": told.started_at,
        "step": told.step,
        "steps_planned": told.steps_total,
        "epoch": told.epoch,
        "records": told.records_covered,
        "records_per_second": told.records_per_s,
        "records_quarantined": len(told.quarantined),
        "steps_skipped": told.skipped,
        "steps_redone": told.steps_redone,
        "workers": sum(worker.state == "ready" for worker in told.workers),
        "workers_wanted": told.target_workers,
        "servers": sum(not server.standby for server in told.servers),
        "masters": told.master.incarnation,
        "standstill_seconds": told.standstill_s,
        "stalled_seconds": told.stalled_s,
        "goodput_ratio": told.goodput,
        "faults": told.num_faults,
        "storage_trouble": bool(told.storage_trouble),
        "checkpoint_step": told.checkpoint_step,
        "checkpoint_failures": told.checkpoints_failed,
        "eta_seconds": told.eta_s,
        "deadline_timestamp_seconds": told.deadline_at,
        "deadline_slack_seconds": slack_s,
        "loss": told.loss,
        "learning_rate": told.losses[-1].lr if told.losses else None,
    }
    yield from ((name, value, {}) for name, value in plain.items())
    for server in told.servers:
        yield "server_memory_bytes", server.memory_bytes, {"server": server.name}
    for worker in told.workers:
        if worker.gpu:
            of = {"worker": worker.name}
            yield "gpu_busy_ratio", worker.gpu.busy, of
            yield "gpu_memory_bytes", worker.gpu.memory_bytes, of
            yield "gpu_power_watts", worker.gpu.power_w, of
            yield "gpu_trouble", bool(worker.gpu.trouble), of
            yield "gpu_slowed", bool(worker.gpu.slowed), of
    for cause, seconds in told.workers_seconds.by_name().items():
        if cause == "productive":
            yield "productive_seconds", seconds, {}
        else:
            yield "lost_seconds", seconds, {"cause": cause}
    for metric, value in (told.evaluation or {}).items():
        if metric == "step":
            yield "evaluation_step", value, {}
        elif metric != "epoch":
            yield "evaluation", value, {"metric": metric}
    if told.best:
        yield "best", told.best.value, {"metric": told.best.metric}
