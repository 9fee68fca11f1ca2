"""Policies: all see the same events, and answer with the same decisions."""
