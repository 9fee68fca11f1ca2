"""Says in an ElasticFlowJob's status how its run is."""

from __future__ import annotations

import time
from typing import Any

from elasticflow_kubernetes.client import KubernetesClient
from elasticflow_kubernetes.training import OVER, conditions, read_training


def tell(client: KubernetesClient, name: str, news: dict[str, Any]) -> None:
    """news: fields that are other than before. Raises KubernetesError."""
    answer = client.training(name)
    if answer is None:
        return
    shown = read_training(answer)
    status = {**shown.status, **news, "observedGeneration": shown.metadata.generation}
    if status.get("state") in OVER:
        status |= {"workers": 0, "eta": None}
    before = shown.status.get("conditions", [])
    status["conditions"] = conditions(
        status.get("state", ""), status.get("message") or "", before, time.time()
    )
    if {name: value for name, value in status.items() if value is not None} != shown.status:
        client.change_training(name, {"status": status})
