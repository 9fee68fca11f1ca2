"""Twenty times something happens to somebody, and the model is the same."""

from __future__ import annotations

import random

import pytest

from tests.e2e.on_clusters import ready

from .conftest import LEADER, KubernetesRun
from .test_faults import Submit, ends_well

HAPPENS = 20


def befall(run: KubernetesRun, chance: random.Random) -> str:
    """What happened."""
    pods = run.pods()
    name = chance.choice(sorted(pods))
    pod = pods[name]["metadata"]["name"]
    how = chance.choice(["is killed", "is deleted", "is deleted by force"])
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
    chance = random.Random(seed)
    run = submit("small_torch.py", "--workers", 2, "--checkpoint-every", 8, shut=["step 20"])
    for _ in range(HAPPENS):
        run.wait_until(lambda s: len(ready(s)) == 2 and not s.regrouping, 180)
        print(befall(run, chance))
    run.wait_until(lambda s: len(ready(s)) == 2 and not s.regrouping, 180)
    ends_well(run, undisturbed)
