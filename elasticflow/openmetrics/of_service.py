"""Of a service: what it tells people of its tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from elasticflow.openmetrics.figures import Figure, Sample, table
from elasticflow.service.talk import ServiceAnswer, ToldTask

FIGURES = table(
    Figure("elasticflow_service_up", "gauge", "Whether the service answers: 1 or 0."),
    Figure("elasticflow_service_workers", "gauge", "Workers that there can be."),
    Figure("elasticflow_service_workers_held", "gauge", "Workers that tasks hold."),
    Figure("elasticflow_service_nodes_away", "gauge", "Nodes that are not there."),
    Figure("elasticflow_service_term", "counter", "Services that there were, the present one included."),
    Figure(
        "elasticflow_service_tasks", "gauge", "Tasks that are under way, by their standing.", ("standing",)
    ),
    Figure("elasticflow_task_workers", "gauge", "Workers that a task is granted.", ("task", "user")),
    Figure("elasticflow_task_step", "counter", "Steps that a task has done.", ("task", "user")),
    Figure("elasticflow_task_steps_planned", "gauge", "Steps of the whole task.", ("task", "user")),
    Figure(
        "elasticflow_task_promised", "gauge", "Whether its deadline is promised: 1 or 0.", ("task", "user")
    ),
    Figure(
        "elasticflow_task_deadline_slack_seconds",
        "gauge",
        "Between a task's ETA and its deadline; below 0 it is missed.",
        ("task", "user"),
    ),
)


def figures_of_service(name: str, told: ServiceAnswer | None) -> Iterator[Sample]:
    """All that is known. name: of the service. told: None: it does not answer."""
    labels = {"service": name}
    yield Sample(FIGURES["elasticflow_service_up"], labels, float(told is not None))
    if told is None:
        return
    living = [task for task in told.tasks if task.ended_at is None]
    for figure, value in (
        ("workers", told.capacity),
        ("workers_held", sum(task.held for task in living)),
        ("nodes_away", len(told.away)),
        ("term", told.term),
    ):
        yield Sample(FIGURES[f"elasticflow_service_{figure}"], labels, float(value))
    for standing, count in Counter(task.standing for task in living).items():
        tasks = FIGURES["elasticflow_service_tasks"]
        yield Sample(tasks, {**labels, "standing": standing.replace(" ", "_")}, float(count))
    for task in living:
        yield from _of_task(labels, task)


def _of_task(labels: dict[str, str], task: ToldTask) -> Iterator[Sample]:
    own = {**labels, "task": task.name, "user": task.user}
    due_at = task.by_at or task.deadline_at
    values = {
        "workers": task.workers,
        "step": task.step,
        "steps_planned": task.steps,
        "promised": task.promised_at is not None,
        "deadline_slack_seconds": due_at - task.eta_at if due_at and task.eta_at else None,
    }
    for name, value in values.items():
        if value is not None:
            yield Sample(FIGURES[f"elasticflow_task_{name}"], own, float(value))
