"""Twenty times something happens to somebody, and the model is the same."""

from __future__ import annotations

import random

import pytest

from tests.e2e.on_clusters import ready

from .conftest import LEADER, KubernetesRun
from .test_faults import Submit, ends_well

HAPPENS = 20
DELETED, KILLED = 2, 3
"""Of those the leader has so many: Kubernetes takes twice as long for its next Pod each time, and a master
that dies more often within a minute is given up."""


def befall(run: KubernetesRun, chance: random.Random, told: list[str]) -> str:
    """What happened."""
    pods = run.pods()
    past = [each for each in told if each.startswith(LEADER)]
    killed = sum(each.endswith("killed") for each in past)
    spared = {LEADER} if killed >= KILLED and len(past) - killed >= DELETED else set()
    there = {LEADER, *(member.name for member in run.status().members if member.pid)}
    name = chance.choice(sorted((pods.keys() & there) - spared))
    pod = pods[name]["metadata"]["name"]
    how = chance.choice(["is killed", "is deleted", "is deleted by force"])
    if name == LEADER and killed >= KILLED:
        how = "is deleted"
    elif name == LEADER and len(past) - killed >= DELETED:
        how = "is killed"
    if how == "is killed":
        run.kill("master" if name == LEADER else name)
    elif how == "is deleted":
        run.cluster.kubectl("delete", "pod", pod, "--wait=false")
    else:
        run.cluster.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    return f"{name} {how}"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1])
def test_twenty_times_something_happens(submit: Submit, undisturbed: str, seed: int) -> None:
    chance, told = random.Random(seed), list[str]()
    run = submit("small_torch.py", "--workers", 2, "--checkpoint-every", 8, shut=["step 20"])
    for _ in range(HAPPENS):
        run.wait_until(lambda s: len(ready(s)) == 2 and not s.regrouping, 180)
        told.append(befall(run, chance, told))
        print(told[-1])
    run.wait_until(lambda s: len(ready(s)) == 2 and not s.regrouping, 180)
    ends_well(run, undisturbed)
