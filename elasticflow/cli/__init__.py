"""The command line: ``elasticflow VERB ...``."""

from elasticflow.cli.main import main

__all__ = ["main"]
