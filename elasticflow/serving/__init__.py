"""A run's model, served over HTTP.

The command (``app``) moves bytes: what is asked is taken apart, computed and written by processes that have
the model (``answering``), which ``crew`` begins, feeds and replaces. ``reloading`` has others begun when the
run has committed a better checkpoint.
"""
