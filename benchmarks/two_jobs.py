"""Two jobs that each want more than half of a cluster: one after the other, and elastic under a service.

ElasticDL's published experiment: two jobs of 175 of 320 CPUs, 1300 s one after the other, 1100 s elastic.
Here they want 5 of 8 GPUs, of a real SLURM and of a real Kubernetes; the second is handed in when 300/1300 of
the rigid makespan are over. A step takes as long as its records say, without computing.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, figure
from benchmarks.sites import ClusterRuns, OnKubernetes, OnSlurm, Site

COMMAND = "python -m benchmarks two_jobs"
BATCH, EPOCH_STEPS, EPOCHS, STEP_S = 64, 10, 15, 1.6
"""Records of a step, steps of an epoch, epochs of a job, and seconds of a step on one worker."""
WANTED = 5
SECOND = 300 / 1300
"""Of the rigid makespan: when the second is handed in."""
PUBLISHED = 1100 / 1300
WORK: dict[str, object] = {"batch_size": BATCH, "slices": 32, "checkpoint_every": "5s"}
BENCH: dict[str, object] = {"record_s": STEP_S / BATCH, "records": BATCH * EPOCH_STEPS, "slowness": 1}


def run() -> Iterator[Figure]:
    """Figures, in the order of the module's docstring."""
    for make in (OnSlurm, OnKubernetes):
        with tempfile.TemporaryDirectory() as name, make() as site:
            yield from _figures_of(site, Path(name))


def _figures_of(site: Site, folder: Path) -> Iterator[Figure]:
    runs = ClusterRuns(site, folder, WORK, BENCH)
    began_s = time.time()
    for job in ("rigid-1", "rigid-2"):
        runs.submit(job, "--workers", f"{WANTED}..{WANTED}", epochs=EPOCHS)
        runs.report(job)
    rigid_s = runs.end_s("rigid-2") - began_s
    service = runs.serve()
    began_s = time.time()
    runs.submit("elastic-1", "--service", runs.service, "--deadline", "+1h", epochs=EPOCHS)
    time.sleep(max(0.0, began_s + SECOND * rigid_s - time.time()))
    handed_s = time.time()
    runs.submit("elastic-2", "--service", runs.service, "--deadline", "+1h", epochs=EPOCHS)
    elastic_s = max(runs.end_s("elastic-1"), runs.end_s("elastic-2")) - began_s
    second = runs.report("elastic-2")
    service.kill()
    service.wait()
    digests = {runs.digest(job) for job in ("rigid-1", "rigid-2", "elastic-1", "elastic-2")}
    load = f"load {os.getloadavg()[0]:.0f}; digests equal: {len(digests) == 1}"
    text = f"two jobs on {site.title}"
    yield figure(f"{text}, rigid one after the other", rigid_s, "s", rigid_s, COMMAND, load)
    yield figure(f"{text}, elastic (published {PUBLISHED:.3f})", elastic_s, "s", rigid_s, COMMAND, load)
    if second.first_step_s is not None:
        first_s = second.started_at + second.first_step_s - handed_s
        yield figure(f"{text}: the second's first step after its hand-in", first_s, "s", 5.0, COMMAND, load)
