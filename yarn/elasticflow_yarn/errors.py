"""What YARN and Skein answer instead of what they were asked for, whatever carries it.

    RunError
    └── YarnError
        ├── YarnBusy          no answer, or not now: ask again later
        ├── ApplicationGone   the ApplicationMaster is no more
        ├── YarnRefused       asking again for the same is no use
        └── SkeinNotInstalled no Skein, no Java, no Hadoop, or not inside of an application

Their texts hold YARN's own words.
"""

from __future__ import annotations

from elasticflow.errors import RunError


class YarnError(RunError):
    """YARN did not do what it was asked for."""


class YarnBusy(YarnError):
    """No answer, or not now: ask again later."""


class ApplicationGone(YarnError):
    """Nobody listens where the ApplicationMaster did."""


class YarnRefused(YarnError):
    """Asking again for the same is no use."""


class SkeinNotInstalled(YarnError):
    """This machine, or this process, cannot talk to a YARN."""
