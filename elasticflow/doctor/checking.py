"""One group of checks: ``python -m elasticflow.doctor.checking MATTER``; its input is the settings, as JSON.

Findings leave as lines of JSON, as they are made: what was found stays if a later check never comes back.
"""

from __future__ import annotations

import sys

import msgspec

from elasticflow.doctor.finding import Diagnosis, broken
from elasticflow.doctor.matters import MATTERS
from elasticflow.process.decoding import from_json
from elasticflow.process.texts import sendable
from elasticflow.run.config import Config

MOST_CHARS = 2000


def main() -> int:
    """See the module's docstring."""
    (matter,) = sys.argv[1:]
    config = from_json(sys.stdin.buffer.read(), Config)
    try:
        for finding in MATTERS[matter](config):
            _tell(finding)
    except Exception as error:  # noqa: BLE001  (a check that fails is told as one)
        _tell(
            broken(
                matter,
                f"the check itself failed: {type(error).__name__}: {error}",
                "Tell us: that is a defect.",
            )
        )
    return 0


def _tell(finding: Diagnosis) -> None:
    texts = {name: sendable(getattr(finding, name), MOST_CHARS) for name in ("subject", "found", "cure")}
    sys.stdout.buffer.write(msgspec.json.encode(msgspec.structs.replace(finding, **texts)) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
