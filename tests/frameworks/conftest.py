"""What must be there before torch or tensorflow is imported."""

import importlib.util
import os

from elasticflow.process.fingerprint import environment

os.environ.update(environment(threads=1))

if importlib.util.find_spec("triton"):
    import triton  # noqa: F401  (after tensorflow's, its copy of LLVM ends the process: other tests use both)
