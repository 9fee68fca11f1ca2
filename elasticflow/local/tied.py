"""``python -m elasticflow.local.tied PARENT SETTINGS``: a member that is ended when its parent dies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from elasticflow import launch

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Runs the member; see ``elasticflow.launch``."""
    parent, settings = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before the kernel knew
        return 1
    return launch.main([settings])


if __name__ == "__main__":
    sys.exit(main())
