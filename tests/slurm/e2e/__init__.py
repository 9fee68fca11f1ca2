"""Whole runs on a real cluster."""
