"""What is between a command and a worker's first import of its framework imports little itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLIENTS_OF_STORAGE = ("elasticflow.storage.webhdfs", "requests", "http.client", "ssl")


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("elasticflow.cli.main", ("numpy", "zmq", *CLIENTS_OF_STORAGE)),
        ("elasticflow.cli.train", ("torch", *CLIENTS_OF_STORAGE)),
        ("elasticflow.master.__main__", ("numpy", "elasticflow.checkpoint", *CLIENTS_OF_STORAGE)),
        ("elasticflow.master.server", ("torch", *CLIENTS_OF_STORAGE)),
        ("elasticflow.local.nursery", ("numpy", "elasticflow.frameworks", *CLIENTS_OF_STORAGE)),
        ("elasticflow.worker.life", ("torch", "tensorflow", *CLIENTS_OF_STORAGE)),
    ],
)
def test_what_is_not_needed_yet_is_not_imported(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*[name for name in {absent!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_only_the_verb_that_was_asked_for_is_imported() -> None:
    code = """if True:
        import sys
        from elasticflow.cli.verbs import parser
        parser().parse_args(["serve", "folder"])
        others = ("train", "folders", "submit")
        print(*[name for name in sys.modules if name.removeprefix("elasticflow.cli.") in others])
    """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
