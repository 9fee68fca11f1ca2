"""Measured claims. ``python -m benchmarks`` lists them; each prints ratios from one run."""
