"""Deadlines for many training jobs on one cluster: who is admitted, and who gets how many GPUs when."""
