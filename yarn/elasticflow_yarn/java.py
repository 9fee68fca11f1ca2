"""How our Java processes are started: soon, since they live for seconds or wait for most of their lives."""

from __future__ import annotations

import os
from typing import Any

QUICK = "-XX:TieredStopAtLevel=1"
"""Without the second compiler: half the processor time of a start. No option of users conflicts with it."""
SMALL = ("-XX:+UseSerialGC", QUICK)
"""Without the threads of a collector for servers too: for those to which users cannot give options."""


def skein_driver(log: str = "") -> Any:
    """Skein's client, with a Java process of its own, which takes seconds to start.

    log: where what that says goes; "": nowhere, since else it would be in the output of our own command.
    What the user has set in SKEIN_DRIVER_JAVA_OPTIONS comes last, so that it holds. Raises whatever Skein's
    parts raise.
    """
    import skein

    options = [QUICK, *os.environ.get("SKEIN_DRIVER_JAVA_OPTIONS", "").split()]
    return skein.Client(log=log or False, java_options=options)
