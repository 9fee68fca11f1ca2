"""``python -m elasticflow.cli`` is ``elasticflow``."""

import sys

from elasticflow.cli import main

sys.exit(main())
