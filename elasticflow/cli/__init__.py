"""The command line: ``elasticflow VERB ...``."""

import signal
import threading

if threading.current_thread() is threading.main_thread():  # no other may say what Ctrl-C does
    # While this is imported Ctrl-C ends the process as it ends any other, without a traceback.
    _before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from elasticflow.cli.main import main

    signal.signal(signal.SIGINT, _before)
else:
    from elasticflow.cli.main import main

__all__ = ["main"]
