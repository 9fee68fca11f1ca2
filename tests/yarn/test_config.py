"""The ``yarn:`` section of a run's settings: what is refused, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from elasticflow.errors import ConfigError
from elasticflow_yarn.config import YarnConfig, mebibytes, read

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"memry": "1 GiB"}, r"yarn: object contains unknown field `memry`\. Known keys: queue, name, "),
    ({"gpus": -1}, r"yarn\.gpus: expected `int` >= 0"),
    ({"gpus": "two"}, r"yarn\.gpus: expected `int`, got `str`"),
    ({"queue": ""}, r"yarn\.queue: is empty; name a queue"),
    ({"memory": "much"}, r"yarn\.memory: 'much' is no amount of memory; write 512 MiB or 2 GiB"),
    ({"memory": "0 GiB"}, r"yarn\.memory: '0 GiB' is no amount"),
    ({"server_memory": "1 GB/s"}, r"yarn\.server_memory: '1 GB/s'"),
    ({"tags": ["Nightly"]}, r"yarn\.tags: 'Nightly': YARN has tags in lower case; write 'nightly'"),
    (
        {"environment": "e.tar.gz", "python": "/opt/python"},
        r"yarn\.python: is set, and yarn\.environment too",
    ),
    ({"gpu_devices": "all"}, r"yarn\.gpu_devices: 'all': write the numbers of GPUs"),
    (
        {"files": {"data/words.txt": "words.txt"}},
        r"yarn\.files: 'data/words\.txt': must be the name of a file",
    ),
    ({"files": {"program": "p.zip"}}, r"yarn\.files: 'program': must be .* none of program, environment"),
    ({"acls": {"view": ["*"]}}, r"yarn\.acls: object contains unknown field `view`\.$"),
    ({"max_attempts": 0}, r"yarn\.max_attempts: expected `int` >= 1"),
]


@pytest.mark.parametrize(("section", "text"), WRONG)
def test_what_is_wrong_is_told_with_its_key(section: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read(section)


def test_nothing_set_is_all_right() -> None:
    assert read({}) == YarnConfig()


def test_numbers_as_yaml_reads_them() -> None:
    """A number is memory in MiB, and an environment has words alone."""
    found = read({"memory": 512, "env": {"LEVEL": 3, "TRACE": "yes"}})
    assert mebibytes(found.memory, "yarn.memory") == 512
    assert found.env == {"LEVEL": "3", "TRACE": "yes"}


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2 GiB", 2048),
        ("2GiB", 2048),
        ("512", 512),
        ("1.5 gib", 1536),
        ("1 GB", 954),
        ("1 KiB", 1),
        ("1TiB", 2**20),
    ],
)
def test_memory_is_rounded_up_to_what_yarn_counts(text: str, amount: int) -> None:
    assert mebibytes(text, "yarn.memory") == amount
