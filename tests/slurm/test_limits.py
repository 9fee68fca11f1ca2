"""What a partition would never give is told before anything is submitted."""

from __future__ import annotations

from typing import Any

import pytest

from elasticflow_slurm.client import Partition, time_s
from elasticflow_slurm.config import read
from elasticflow_slurm.limits import objection

DAY_S = 86_400.0
PARTITIONS = [
    Partition(name="cpu", is_default=True, time_limit_s=DAY_S),
    Partition(name="long"),
    Partition(name="gpu", time_limit_s=3600.0),
]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("1:30:00", 5400),
        ("2-0", 2 * DAY_S),
        ("2-12", 2.5 * DAY_S),
        ("1-00:30", DAY_S + 1800),
        ("1-00:00:05", DAY_S + 5),
    ],
)
def test_times_as_sbatch_reads_them(text: str, seconds: float) -> None:
    assert time_s(text) == seconds


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            {"leader_time": "2-0"},
            "slurm.leader_time: 2-0 is more than SLURM's default partition allows (1 d 0 h)",
        ),
        (
            {"leader": {"partition": "gpu"}, "leader_time": "61"},
            "more than partition gpu allows (1 h 00 min)",
        ),
        (
            {"workers": [{"partition": "long"}, {"partition": "gpu"}], "time": "2:00:00"},
            "slurm.time: 2:00:00",
        ),
        ({"workers": [{"partition": "gpu"}], "time": "5:00:00", "time_min": "90"}, "slurm.time_min: 90"),
        ({"leader": {"partition": "gpu,cpu"}, "leader_time": "2-0"}, "(1 d 0 h)"),
    ],
)
def test_more_than_there_is(section: dict[str, Any], words: str) -> None:
    assert words in objection(read(section), PARTITIONS)


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"leader_time": "1-0"},
        {"leader": {"partition": "long"}, "leader_time": "9-0"},
        {"leader": {"partition": "gpu,cpu"}, "leader_time": "20:00:00"},
        {"leader": {"partition": "gpu,long"}, "leader_time": "9-0"},
        {"leader": {"partition": "cpu", "qos": "long"}, "leader_time": "9-0"},
        {"leader": {"partition": "hidden"}, "leader_time": "9-0"},
        {"workers": [{"partition": "gpu"}], "time": "5:00:00", "time_min": "30"},
    ],
)
def test_what_there_may_be(section: dict[str, Any]) -> None:
    """A QOS may have other limits than the partition; what is not known SLURM is asked itself."""
    assert objection(read(section), PARTITIONS) == ""
